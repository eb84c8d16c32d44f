"""A process killed while it purges all refs: each says what it said, but for those rows, and the purge goes on."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import millpond
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond

CHILD = """
import sys
import millpond
from millpond.testing import faults

armed = faults.arm()
with millpond.open(sys.argv[1], events_reports=False) as pond:
    report = pond.map("m").delete("key = 'ann-of-the-hill'", now=True, branches=True)
    print(report.purged, *report.left)
"""
REFS = {"main": {"b": 1, "c": 2}, "v1": {"b": 1}, "fix": {"b": 1, "d": 3}, "other": {"b": 1, "e": 4}}


def fill(pond: Pond) -> None:
    """A map whose rows are on `main`, in a tag, and on two branches, on one of them staged."""
    m = pond.create_map("m", kind="state", value="long", store="layers")
    m.load([{"key": "ann-of-the-hill", "value": 9}, {"key": "b", "value": 1}])
    pond.repository("pond").create_tag("v1", pond.refs.states.record().id)
    for branch, row in (("fix", ("d", 3)), ("other", ("e", 4))):
        made = pond.branch(branch, source="main").map("m")
        made.load([{"key": row[0], "value": row[1]}], commit=branch == "fix")
    m.load([{"key": "c", "value": 2}])


def said(pond: Pond) -> dict[str, dict[str, int]]:
    """The rows at each ref."""
    maps = {"main": pond, "v1": pond.at("v1"), "fix": pond.branch("fix"), "other": pond.branch("other")}
    rows = {ref: at.map("m").scan().read_all().to_pylist() for ref, at in maps.items()}
    return {ref: {row["key"]: row["value"] for row in found} for ref, found in rows.items()}


def test_killed_at_any_step(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "filled", events_reports=False) as pond:
        fill(pond)
    shutil.copytree(tmp_path / "filled", tmp_path / "whole")
    done = run_python("-c", CHILD, str(tmp_path / "whole"), **{STEPS_LOG: str(tmp_path / "log")})
    assert (done.returncode, done.stdout) == (0, "True\n"), (done.stdout, done.stderr)
    moments = occurrences(tmp_path / "log")
    steps = {"refs.deleted_on_branch", "refs.let_go", "refs.written_anew", "refs.stands_in"}
    assert steps <= {moment.partition(":")[0] for moment in moments}
    kills = [moment for moment in moments if moment.startswith(("refs.", "collect.", "delete.", "versions.moved"))]
    for number, moment in drawn(list(enumerate(kills)), 3, name="purges"):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "filled", folder)
        killed = run_python("-c", CHILD, str(folder), **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        with millpond.open(folder, events_reports=False) as pond:
            now = said(pond)
            assert pond.verify(full=True).ok, moment
        for ref, rows in REFS.items():
            assert now[ref] in (rows, rows | {"ann-of-the-hill": 9}), (moment, ref)
        again = run_python("-c", CHILD, str(folder))
        assert (again.returncode, again.stdout) == (0, "True\n"), (moment, again.stdout, again.stderr)
        with millpond.open(folder, events_reports=False) as pond:
            assert said(pond) == REFS, moment
            assert pond.verify(full=True).ok, moment
        files = [path for path in (folder / "snapshots").rglob("*") if path.is_file()]
        assert not [path for path in files if b"ann-of-the-hill" in path.read_bytes()], moment
