"""A process killed anywhere while it loads, merges and tells alerts: a second try tells each alert once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import count
from typing import TYPE_CHECKING

import pytest

from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_server import S3Server

_NUMBERS = count(1)
CHILD = """
import json
import os
import sys
from contextlib import suppress
import millpond
from millpond.errors import AlreadyExists, Invalid
from millpond.testing import faults

armed = faults.arm()
store = os.environ.get("STORE", "layers")
with millpond.open(sys.argv[1], **json.loads(os.environ.get("SETTINGS", "{}"))) as pond:
    sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="1 hour", store=store,
                            exist_ok=True)
    with suppress(AlreadyExists):
        sales.alerts.add("orders > 1", name="several")

    def events(load):
        return [{"key": f"k{n}", "time": 3_600_000 * 1_000_000 + load} for n in range(load)]

    for load in range(1, 4):
        sales.load(events(load))
    if store == "shard":
        sales.load(events(5))
    else:
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


def run_child(pond: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, pond, **variables)


@pytest.mark.sample(1)
@pytest.mark.parametrize("store", ["layers", "shard"])
def test_killed_at_any_step_each_alert_is_told_once(tmp_path: Path, store: str) -> None:
    names = kill_everywhere(str(tmp_path), tmp_path, 3, STORE=store)
    assert ("refs.published" if store == "layers" else "merge.dequeued") in names


@pytest.mark.sample(1)
@pytest.mark.usefixtures("process")
def test_killed_at_any_step_in_a_bucket(tmp_path: Path, s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket(f"alerts-{os.getpid()}-{next(_NUMBERS)}")
    settings = json.dumps({"cache": str(tmp_path / "cache"), "max_staleness": 0})
    kill_everywhere(bucket, tmp_path, 1, **s3_server.environment, SETTINGS=settings)


def kill_everywhere(place: str, tmp_path: Path, many: int, **variables: str) -> set[str]:
    """Kill the child at some of its moments; the names of all."""
    done = run_child(f"{place}/whole", **variables, **{STEPS_LOG: str(tmp_path / "log")})
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == STORY
    moments = occurrences(tmp_path / "log")
    names = {moment.partition(":")[0] for moment in moments}
    assert {"load.committed", "alerts.appended", "alerts.told"} <= names
    for number, moment in drawn(list(enumerate(moments)), many, name="alerts"):
        killed = run_child(f"{place}/{number}", **variables, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        again = run_child(f"{place}/{number}", **variables)
        assert (again.returncode, again.stdout) == (0, done.stdout), (moment, again.stderr)
    return names
