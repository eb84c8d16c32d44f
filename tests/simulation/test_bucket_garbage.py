"""Garbage of a pond in a bucket, by seed: nothing that anybody can reach is removed, and all else in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.buckets.collecting import Collecting

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_what_can_be_reached_stays_and_all_else_goes(seed: int, tmp_path: Path) -> None:
    run = Collecting(seed, tmp_path).run(30)
    assert run.removed


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 140))
def test_what_can_be_reached_stays_in_many_runs(seed: int, tmp_path: Path) -> None:
    Collecting(seed, tmp_path).run(100)
