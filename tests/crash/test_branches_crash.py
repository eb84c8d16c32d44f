"""A process killed while it loads on a branch, commits and merges: on both maps all of it is seen, or none."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import millpond
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

CHILD = """
import sys
from contextlib import suppress
import millpond
from millpond.errors import AlreadyExists, Invalid
from millpond.testing import faults

armed = faults.arm()
with millpond.open(sys.argv[1], events_reports=False) as pond:
    for name in "mn":
        with suppress(AlreadyExists):  # a merge made it wider
            pond.create_map(name, kind="state", value="long", store="layers", exist_ok=True)
        if pond.map(name).get("a") is None:  # under a wider type the same rows are others
            pond.map(name).load([{"key": "a", "value": 1}, {"key": "b", "value": 1}])
    with suppress(AlreadyExists):
        pond.branch("fix", source="main")
    fix = pond.branch("fix")
    fix.map("m").load([{"key": "b", "value": 2}, {"key": "z", "value": 9}], commit=False)
    fix.map("n").load([{"key": "b", "value": 2}])
    fix.map("m").delete("key = 'z'")
    fix.alter_map("n", widen={"value": "double"})
    for name in "mn":
        pond.map(name).load([{"key": "c", "value": 3}])
    with suppress(Invalid):
        fix.merge()
    with suppress(Invalid):
        pond.refs.restore("fix", "fix", maps=["m"])
    pond.map("m").delete("key = 'z'", now=True)
    print([pond.map(name).lookup(["a", "b", "c", "z"]).to_pylist() for name in "mn"], len(list(pond.refs.log("fix"))))
"""


def run_child(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, str(folder), **variables)


def check_whole(folder: Path, moment: str) -> None:
    with millpond.open(folder, create=False, events_reports=False) as pond:
        report = pond.verify(full=True)
        assert report.ok, (moment, report)
        names = [opened.name for opened in pond.maps()]
        if len(names) == 2:
            seen = [pond.map(name).lookup(["b"]).to_pylist()[0] for name in names]
            assert seen in ([None, None], [1, None], [1, 1], [2, 2]), (moment, "merged together")
        branches = [branch.name for branch in pond.refs.states.repository.branches().results]
        if "fix" in branches:
            committed = [values.map(name).lookup(["b"]).to_pylist()[0]
                         for values in (pond.at("fix"),) for name in names]  # fmt: skip
            assert committed in ([1, 1], [2, 2]), (moment, "committed together")


def test_killed_at_any_step(tmp_path: Path) -> None:
    done = run_child(tmp_path / "whole", **{STEPS_LOG: str(tmp_path / "log")})
    expected = "[[1, 2, 3, None], [1.0, 2.0, 3.0, None]] 6\n"
    assert (done.returncode, done.stdout) == (0, expected), (done.stdout, done.stderr)
    moments = occurrences(tmp_path / "log")
    names = {moment.partition(":")[0] for moment in moments}
    assert {"refs.staged", "refs.recorded", "refs.committed", "refs.published"} <= names
    assert {"refs.rewritten", "refs.let_go", "alter.stored", "versions.built"} <= names
    first = next(at for at, moment in enumerate(moments) if moment.startswith(("refs.", "versions.")))
    for number, moment in drawn(list(enumerate(moments[first:])), 1, name="branches"):
        folder = tmp_path / str(number)
        killed = run_child(folder, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        check_whole(folder, moment)
        again = run_child(folder)
        assert (again.returncode, again.stdout.partition("] ")[0]) == (0, done.stdout.partition("] ")[0]), (
            moment, again.stdout, again.stderr,
        )  # fmt: skip
        check_whole(folder, moment)
