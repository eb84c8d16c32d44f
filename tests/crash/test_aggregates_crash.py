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
    for number, moment in drawn(list(enumerate(moments)), 1, name="aggregates"):
        killed = run_child(tmp_path / str(number), **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        again = run_child(tmp_path / str(number))
        assert (again.returncode, again.stdout) == (0, done.stdout), (moment, again.stderr)


SHARDED = """
import json
import sys
from contextlib import suppress
import pyarrow as pa
import millpond
from millpond.errors import Corrupt
from millpond.maps.maintenance import roll_up
from millpond.maps.parts import part
from millpond.testing import faults

armed = faults.arm()
part.PART_ROWS_MAX = 3
roll_up.ROWS_PER_CHANGE = 40
with millpond.open(sys.argv[1]) as pond:
    sales = pond.create_map(
        "sales", kind="aggregate", value="n long sum, total double sum, sizes quantiles(0.5)", resolution="1 hour",
        exist_ok=True, store="shard",
    )

    def events(load):
        return [{"key": f"k{number % 2}", "time": 3_600_000, "n": number, "total": number / 8,
                 "sizes": number} for number in range(load, 9)]

    for load in (0, 1, 0, 2):
        sales.load(pa.Table.from_pylist(events(load)).to_reader(2))
    sales.load([{"key": "k0", "time": 3_600_000, "n": 2**63 - 100, "total": 0.25, "sizes": 1}])
    too_much = [{"key": "k0", "time": 3_600_000, "n": 50, "total": 1.0, "sizes": 5}]
    with suppress(Corrupt):
        sales.load(too_much)
    sales.load([{"key": "k0", "time": 3_600_000, "n": -1000, "total": 0.5, "sizes": 3}])
    pond.parts.retry()
    assert sales.load(too_much).parts == 0
    hours = [f"1970-01-0{1 + hour // 24}T{hour % 24:02}:00Z" for hour in range(100)]
    sales.load([{"key": "wide", "time": hour, "n": 1, "total": 0.5, "sizes": 1} for hour in hours])
    pond.alter_map("sales", roll_up="1 day")
    pond.map("sales").retain(before="1970-01-04T00:00Z")
    sales.load([{"key": "wide", "time": 3_600_000, "n": 7, "total": 0.5, "sizes": 1}])
    rows = sales.scan(columns=["key", "n", "total", "sizes_p50"]).read_all().to_pylist()
    print(json.dumps(sorted(rows, key=str)))
    assert pond.verify().ok
"""


@pytest.mark.sample(1)
def test_killed_at_any_step_each_event_counts_once_in_a_shard(tmp_path: Path) -> None:
    """Loads of several parts, one that is taken out of quarantine when its sums fit, and a roll-up by changes."""

    def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_python("-c", SHARDED, str(folder), **variables)

    done = run(tmp_path / "whole", **{STEPS_LOG: str(tmp_path / "log")})
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    numbers = [number for load in (0, 1, 2) for number in range(load, 9)]
    assert [row["n"] for row in rows if row["key"] != "wide"] == [
        sum(number for number in numbers if not number % 2) + 2**63 - 100 + 50 - 1000,
        sum(number for number in numbers if number % 2),
    ]
    assert sorted(row["n"] for row in rows if row["key"] == "wide") == [1] * 28 + [24, 24, 31]
    moments = occurrences(tmp_path / "log")
    assert {"merge.part_put", "retry.entered", "roll_up.committed"} <= {moment.partition(":")[0] for moment in moments}
    for number, moment in drawn(list(enumerate(moments)), 1, name="aggregates in a shard"):
        killed = run(tmp_path / str(number), **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        again = run(tmp_path / str(number))
        assert (again.returncode, again.stdout) == (0, done.stdout), (moment, again.stderr)
