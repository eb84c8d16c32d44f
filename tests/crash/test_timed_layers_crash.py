"""Layered maps that keep update times, killed while they condense, load, retain and compact.

Every state that is seen is one that a run without a kill comes by: rows and times, nothing lost, doubled or half there.
"""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.maps.snapshots.rows_of_groups import GroupSpan, thaw
from millpond.testing.faults import arm, occurrences
from tests.crash.test_maintenance_crash import in_a_child
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond

BEGAN, DAY = 1_700_000_000_000, 86_400_000
KINDS = ("temporal_state", "state", "temporal_ranged_state", "session")
RETAINED = BEGAN + 2 * DAY
"""The rows of the first load go."""
LAST = 20
"""The first time of the last load."""
Content = list[tuple[Any, ...]]


def row_of(kind: str, number: int, time: int, value: int) -> dict[str, Any]:
    if kind == "session":
        return {"key": f"k{number}", "start": BEGAN + 10 * time, "end": BEGAN + 10 * time + 5 * (1 + time % 2)}
    key = {"key": f"k{number}"} if "ranged" not in kind else {"key_start": number, "key_end": number + 2}
    return key | ({"effective_time": BEGAN + 10 * time} if "temporal" in kind else {}) | {"value": value}


def load(pond: Pond, kind: str, number: int) -> None:
    """Rows of four of six keys, each value for three times in a row, some as the load before left them.

    Whoever does it again after a crash does nothing; the last load is of times that are not condensed.
    """
    first = LAST * (number == 2)
    times = range(first, first + 9) if "temporal" in kind or kind == "session" else (0,)
    rows = [row_of(kind, key, time, time // 3 + number * (key % 4)) for key in range(number, number + 4)
            for time in times]  # fmt: skip
    pond.map("m").load(rows, source=f"load {number}")


def begin(folder: Path, kind: str) -> None:
    clock = ManualClock(BEGAN)
    with millpond.open(folder, clock=clock, events_reports=False, maps_history="1h") as pond:
        value = None if kind == "session" else "long"
        pond.create_map("m", kind=kind, value=value, retain="1000y", retain_by="update_time", store="layers")
        for number in range(2):
            clock.advance(DAY)
            load(pond, kind, number)


def maintain(folder: Path, kind: str) -> list[Content]:
    """Do all acts; the content after each."""
    clock, contents = ManualClock(BEGAN + 5 * DAY), []
    with millpond.open(folder, clock=clock, events_reports=False, maps_history="1h") as pond:
        made = pond.map("m")
        contents.append(content(pond))
        if kind != "state":
            made.condense(before=BEGAN + 10 * LAST)
            contents.append(content(pond))
        load(pond, kind, 2)
        contents.append(content(pond))
        made.retain(before=RETAINED)
        contents.append(content(pond))
        clock.advance(DAY)
        made.compact()
    return contents


def content(pond: Pond) -> Content:
    """The rows with their times, each address once."""
    made = pond.map("m")
    manifest = made.freeze()
    assert manifest.updates
    batches = thaw(made.objects, manifest, GroupSpan(), updates=True)
    rows = sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())
    addresses = [row[: len(made.kind.address)] for row in rows]
    assert len(set(addresses)) == len(addresses), "no row twice"
    return rows


def opened(folder: Path) -> Content:
    with millpond.open(folder, clock=ManualClock(BEGAN + 5 * DAY), events_reports=False, maps_history="1h") as pond:
        report = pond.verify(full=True)
        assert report.ok, report
        return content(pond)


def files(folder: Path) -> set[str]:
    return {path.name for kind in ("ranges", "indexes") for path in folder.glob(f"snapshots/m.*/{kind}/*")}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_step(kind: str, tmp_path: Path) -> None:
    template, whole = tmp_path / "template", tmp_path / "whole"
    begin(template, kind)

    def run(folder: Path, **armed: str) -> int:
        shutil.copytree(template, folder)

        def act() -> None:
            with arm(**armed):
                maintain(folder, kind)

        return in_a_child(act)

    shutil.copytree(template, whole)
    contents = maintain(whole, kind)
    assert all(row[-1] >= RETAINED for row in contents[-1]) and len(contents[-1]) < len(contents[-2])
    assert run(tmp_path / "logged", log=str(tmp_path / "log")) == 0
    moments = occurrences(tmp_path / "log")
    steps = {moment.partition(":")[0] for moment in moments}
    assert {"retain.written", "fold.switched", "collect.history_forgotten"} <= steps
    assert kind == "state" or "condense.written" in steps
    last = 0
    for number, moment in drawn(list(enumerate(moments)), 2, name=f"timed layers {kind}"):
        folder = tmp_path / str(number)
        assert run(folder, kill_at=moment) == -signal.SIGKILL, moment
        seen = opened(folder)
        assert seen in contents[last:], moment
        last = contents.index(seen, last)
        maintain(folder, kind)
        assert opened(folder) == contents[-1], moment
        assert files(folder) == files(whole), moment
        shutil.rmtree(folder)
