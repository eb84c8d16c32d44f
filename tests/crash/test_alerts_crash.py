"""A process killed anywhere while it loads, merges and tells alerts: a second try tells each alert once."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

CHILD = """
import json
import sys
from contextlib import suppress
import millpond
from millpond.errors import AlreadyExists, Invalid
from millpond.testing import faults

armed = faults.arm()
with millpond.open(sys.argv[1]) as pond:
    sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="1 hour", exist_ok=True)
    with suppress(AlreadyExists):
        sales.alerts.add("orders > 1", name="several")

    def events(load):
        return [{"key": f"k{n}", "time": 3_600_000 * 1_000_000 + load} for n in range(load)]

    for load in range(1, 4):
        sales.load(events(load))
    with suppress(AlreadyExists):
        pond.branch("fix", source="main")
    pond.branch("fix").map("sales").load(events(5), load_id="fixed")
    with suppress(Invalid):  # it was merged before
        pond.refs.merge("fix", "main")
    sales.load(events(6))
    told = [[event.headers["key"], json.loads(event.payload)] for event in pond.events.read("millpond", "alerts/sales")]
    print(json.dumps([[key, about["before"], about["after"]] for key, about in told]))
    assert pond.verify().ok
"""
STORY = [
    ["k0", {"orders": 1}, {"orders": 2}], ["k1", {"orders": 1}, {"orders": 2}],
    ["k2", {"orders": 1}, {"orders": 2}], ["k3", {"orders": 1}, {"orders": 2}], ["k4", {"orders": 1}, {"orders": 2}],
]  # fmt: skip


def run_child(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, str(folder), **variables)


@pytest.mark.sample(1)
def test_killed_at_any_step_each_alert_is_told_once(tmp_path: Path) -> None:
    done = run_child(tmp_path / "whole", **{STEPS_LOG: str(tmp_path / "log")})
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == STORY
    moments = occurrences(tmp_path / "log")
    assert {"load.committed", "alerts.appended", "alerts.told", "refs.published"} <= {
        moment.partition(":")[0] for moment in moments
    }
    for number, moment in drawn(list(enumerate(moments)), 3, name="alerts"):
        killed = run_child(tmp_path / str(number), **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        again = run_child(tmp_path / str(number))
        assert (again.returncode, again.stdout) == (0, done.stdout), (moment, again.stderr)
