"""Processes that work on one repository, interleaved at every call of their stores: nothing acknowledged is lost."""

from __future__ import annotations

import pytest

from tests.harness.interleaving.simulation import interleave


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(6))
def test_no_state_is_seen_that_never_was(seed: int) -> None:
    interleave(seed, operations=120)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_state_is_seen_that_never_was_in_many_runs(seed: int) -> None:
    interleave(seed, operations=250)


@pytest.mark.usefixtures("processor")
def test_a_seed_is_a_run() -> None:
    one, other = interleave(77, operations=60), interleave(77, operations=60)
    assert one.trace == other.trace
    assert one.digest == other.digest
