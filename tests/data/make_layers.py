"""Writes the golden pond of layered maps in the present format of manifests: `python -m tests.data.make_layers`.

    tests/data/layers-<format>.zip     layered maps of every kind; one whose fields changed, one that keeps update
                                       times, one with rows deleted, aggregates, one of them rolled up; a branch
                                       with loads, and one merged
    tests/data/layers-<format>.json    their rows on `main`, on the branch, and as known after the first loads

As `make_pond`, it writes no format twice.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millpond.clock import ManualClock
from millpond.maps.snapshots.manifest import ROLLED_UP_FORMAT
from millpond.pond import Pond, open_pond
from tests.data import make_pond
from tests.data.make_pond import FOLDER, KEYS, NOW_MS, START, _table, pack, rows_of, unpack
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

MINUTE = 60_000
DAY = timedelta(days=1)
SALES = "orders long count, total long sum, low double min, high double max, last string latest, first long first"


def maps() -> dict[str, tuple[dict[str, Any], list[dict[str, list[Any]]]]]:
    """The maps by name: their settings, and the columns of each load."""
    kinds = ("state", "temporal_state", "ranged_state", "temporal_ranged_state", "session")
    found = {kind: make_pond.maps()[f"{kind}_auto"] for kind in kinds}
    for settings, _ in found.values():
        settings.pop("scheme")
    numbers = [{"key": KEYS, "value": [shift, 2, 3, None, 5]} for shift in (0, 1)]
    found["filled"] = {"kind": "state", "value": "long", "overwrite": False}, numbers
    found["aged"] = {"kind": "state", "value": "long", "retain": "1000d", "retain_by": "update_time"}, numbers
    found["thinned"] = {"kind": "state", "value": "long"}, numbers
    found["fields"] = (
        {"kind": "state", "value": "t double, gust long"},
        [
            {"key": KEYS, "t": [0.5, 2.0, 3.0, None, 5.0], "gust": [1, 2, None, 4, 5]},
            {"key": KEYS[:3], "temp": [1.5, 2.0, 3.0], "gust": ["one", "2", None], "source": ["north", None, "south"]},
        ],
    )
    found["days"] = (
        {"kind": "aggregate", "value": SALES, "resolution": "1 day", "time_zone": "Europe/Paris"},
        [_events(shift) for shift in (0, 1)],
    )
    found["totals"] = (
        {"kind": "aggregate", "value": "orders long count, total double sum", "resolution": "none"},
        [{"key": KEYS, "time": [START] * len(KEYS), "total": [shift, 1.0, 2.0, None, -1.0]} for shift in (0.5, 1.5)],
    )
    found["rolled"] = (
        {"kind": "aggregate", "value": SALES, "resolution": "1 hour", "time_zone": "Europe/Paris", "roll_up": "1 day"},
        [_events(shift) for shift in (0, 1)],
    )
    return found


def _events(shift: int) -> dict[str, list[Any]]:
    times = [START + 90 * DAY + timedelta(hours=18 * (day + shift)) for day in range(len(KEYS))]
    numbers = [1, -2, 3, None, 5 + shift]
    return {
        "key": ["a", "b", "a", "b", "a"], "time": times, "total": numbers, "low": [0.5, None, shift, 2.0, 3.0],
        "high": [0.5, None, shift, 2.0, 3.0], "last": ["x", "", "ü", None, str(shift)], "first": numbers,
    }  # fmt: skip


def build(folder: Path) -> None:
    """Make the pond: the first load of each map, a minute later what changes them, then the branches."""
    clock = ManualClock(now=NOW_MS)
    with open_pond(folder, clock=clock, events_reports=False) as pond:
        for name, (settings, [first, _]) in maps().items():
            pond.create_map(name, store="layers", **settings).load(_table(first))
        clock.advance(MINUTE)
        pond.alter_map("fields", add={"source": "string"}, rename={"t": "temp"}, widen={"gust": "string"})
        pond.map("thinned").delete("value = 2")
        pond.map("rolled").retain(before=START + 92 * DAY)
        for name, (_, [_, second]) in maps().items():
            pond.map(name).load(_table(second))
        clock.advance(MINUTE)
        for branch in ("merged", "open"):
            pond.branch(branch, source="main")
        for name in ("state", "aged", "fields", "days", "rolled"):
            for branch in ("merged", "open"):
                pond.branch(branch).map(name).load(_table(_other(name, branch)))
        pond.branch("merged").merge("main")
        pond.branch("open").map("totals").load({"key": ["open"], "time": [START], "total": [4.0]}, commit=False)


def _other(name: str, branch: str) -> dict[str, list[Any]]:
    """A load of a branch."""
    key = {"key": [f"of {branch}"]}
    if name == "fields":
        return key | {"temp": [7.5], "gust": ["8"], "source": [branch]}
    return key | _row(_events(3)) if name in ("days", "rolled") else key | {"value": [len(branch)]}


def _row(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: values[:1] for name, values in columns.items() if name != "key"}


def states_of(pond: Pond) -> dict[str, dict[str, list[Any]]]:
    """All rows of all maps, in order, by where they are asked."""
    places = {
        "main": rows_of(pond), "open": rows_of(pond.at("open")),
        "first": rows_of(pond, known_at=NOW_MS + MINUTE // 2),
    }  # fmt: skip
    return {where: {name: sorted(rows, key=str) for name, rows in found.items()} for where, found in places.items()}


def main() -> None:
    """Write the archive and its rows, unless the number is taken."""
    archive = FOLDER / f"layers-{ROLLED_UP_FORMAT}.zip"
    if archive.exists():
        sys.exit(f"{archive.name} is there: a pond that is stored is not written again; is there a new format number?")
    with scratch_folder() as scratch:
        build(scratch / "pond")
        pack(scratch / "pond", archive)
        folder = unpack(archive, scratch / "copy")
        with open_pond(folder, clock=ManualClock(now=NOW_MS + 3 * MINUTE, ids=10_000), events_reports=False) as pond:
            archive.with_suffix(".json").write_text(json.dumps(states_of(pond), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
