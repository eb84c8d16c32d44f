"""The demo's pipeline ends right though its server, worker and driver of Spark are killed; `make proof` in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.proof.campaign import Plan, prove

pytestmark = [pytest.mark.usefixtures("spark_process"), pytest.mark.full]


def test_a_run_ends_right_after_some_kills(tmp_path: Path) -> None:
    report = prove(Plan(seed=4, kills=2, runs_at_once=1, pause_seconds_max=6), tmp_path)
    assert report.ok, "\n".join(report.lines())
    assert (sum(report.kills.values()), report.runs) == (2, 1)


@pytest.mark.timeout(3600)
def test_every_run_ends_right_after_many_kills(tmp_path: Path) -> None:
    """Two hundred take hours where the machine has other work: `make proof`."""
    report = prove(Plan(seed=200, kills=20), tmp_path)
    assert report.ok, "\n".join(report.lines())


@pytest.mark.timeout(1800)
def test_a_run_ends_right_with_the_heartbeat_of_the_client(tmp_path: Path) -> None:
    report = prove(Plan(seed=60, kills=3, runs_at_once=1, heartbeat_seconds=None), tmp_path)
    assert report.ok, "\n".join(report.lines())
