"""A process killed anywhere while it loads, folds and merges an aggregate: a second try counts each event once."""

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
    sales = pond.create_map(
        "sales", kind="aggregate", value="orders long count, total long sum", resolution="1 hour", exist_ok=True
    )

    def events(load):
        return [{"key": f"k{n % 3}", "time": 3_600_000 * (n + 1_000_000) + load, "total": n} for n in range(load, 8)]

    for load in range(6):
        sales.load(events(load))
    with suppress(AlreadyExists):
        pond.branch("fix", source="main")
    pond.branch("fix").map("sales").load(events(7), load_id="fixed")
    sales.load(events(6))
    with suppress(Invalid):  # it was merged before
        pond.refs.merge("fix", "main")
    sales.compact()
    pond.alter_map("sales", roll_up="1 day")
    pond.map("sales").retain(before="2084-02-06T00:00Z")
    rows = sales.scan().read_all().to_pylist()
    print(json.dumps(sorted([row["key"], str(row["time"]), row["orders"], row["total"]] for row in rows)))
    assert pond.verify().ok
"""
EVENTS = [(number, load) for load in range(8) for number in range(load, 8)]


def run_child(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, str(folder), **variables)


@pytest.mark.sample(1)
def test_killed_at_any_step_each_event_counts_once(tmp_path: Path) -> None:
    done = run_child(tmp_path / "whole", **{STEPS_LOG: str(tmp_path / "log")})
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    counted = (sum(orders for *_, orders, _ in rows), sum(total for *_, total in rows))
    assert counted == (len(EVENTS), sum(number for number, _ in EVENTS))
    moments = occurrences(tmp_path / "log")
    assert {"layers.layer_written", "load.layers_placed", "refs.published"} <= {
        moment.partition(":")[0] for moment in moments
    }
    for number, moment in drawn(list(enumerate(moments)), 3, name="aggregates"):
        killed = run_child(tmp_path / str(number), **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        again = run_child(tmp_path / str(number))
        assert (again.returncode, again.stdout) == (0, done.stdout), (moment, again.stderr)
