"""A node killed at every step of taking a part: what came is continued, and the load is entered once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.nodes import uploading
from tests.rings.forked import run_python


def run_child(folder: Path, log: Path, way: str, kill: str | None = None) -> int:
    killed = {} if kill is None else {KILL_AT: kill}
    return run_python(uploading.__file__, str(folder), way, **{STEPS_LOG: str(log)}, **killed).returncode


ENDS = {
    "parts": {"receive.sealed", "receive.here"},
    "whole": {"receive.checked", "load.received", "load.committed"},
}  # fmt: skip
"""The steps by which each way of bringing a part ends."""


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way == "whole" else pytest.mark.full) for way in ENDS])
def test_a_crash_at_any_step_leaves_what_can_be_continued(tmp_path: Path, way: str) -> None:
    assert run_child(tmp_path / "whole", tmp_path / "steps", way) == 0
    prefixes = ("receive.", "upload.") if way != "whole" else ("receive.checked", "load.")
    steps = [step for step in occurrences(tmp_path / "steps") if step.startswith(prefixes)]
    names = {step.partition(":")[0] for step in steps}
    assert names >= ENDS[way] | ({"receive.began", "receive.written", "receive.whole"} if way != "whole" else set())
    for number, step in enumerate(steps):
        folder = tmp_path / f"killed{number}"
        assert run_child(folder, tmp_path / f"steps{number}", way, step) == -signal.SIGKILL, step
        uploading.main(folder, way)
        report = json.loads((folder / "report.json").read_text())
        assert report["state"] == "known", step
        assert report["values"] == [0, 1999], step
        assert report["left"] == [], step
        assert report["loads"] == ["load"], step
