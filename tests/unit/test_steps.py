"""Steps are heard in this process, recorded in a child, and kill a child at the chosen occurrence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from millpond.kernel.steps import listening, step
from millpond.testing.faults import KILL_AT, STEPS_LOG, flip_byte, occurrences, truncate

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
from millpond.kernel.steps import step
from millpond.testing import faults
armed = faults.arm()
for _ in range(3):
    step("one.done")
    step("two.done")
print("end")
"""


def run_child(tmp_path: Path, **variables: str) -> tuple[int, list[str]]:
    log = tmp_path / "steps.log"
    environment = {**os.environ, STEPS_LOG: str(log), **variables}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, check=False)
    return done.returncode, log.read_text().split()


def test_a_listener_hears_steps_until_it_leaves() -> None:
    heard: list[str] = []
    step("before")
    with listening(heard.append):
        step("inside")
    step("after")
    assert heard == ["inside"]


def test_what_a_listener_raises_reaches_the_caller() -> None:
    def fail(name: str) -> None:
        raise OSError(28, name)

    with listening(fail), pytest.raises(OSError, match="full"):
        step("full")


@pytest.mark.usefixtures("process")
def test_a_child_records_its_steps_in_order(tmp_path: Path) -> None:
    code, names = run_child(tmp_path)
    assert code == 0
    assert names == ["one.done", "two.done"] * 3
    assert occurrences(tmp_path / "steps.log")[2:4] == ["one.done:2", "two.done:2"]


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("chosen", "taken"), [("one.done", 1), ("two.done", 2), ("one.done:3", 5), ("two.done:2", 4), ("*:3", 3)]
)
def test_a_child_is_killed_at_the_chosen_occurrence(tmp_path: Path, chosen: str, taken: int) -> None:
    code, names = run_child(tmp_path, **{KILL_AT: chosen})
    assert code == -signal.SIGKILL
    assert names == (["one.done", "two.done"] * 3)[:taken]


@pytest.mark.usefixtures("process")
def test_a_step_that_is_never_taken_kills_nothing(tmp_path: Path) -> None:
    code, names = run_child(tmp_path, **{KILL_AT: "one.done:4"})
    assert code == 0
    assert len(names) == 6


def test_damage_is_done_at_the_requested_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    flip_byte(path, 1)
    flip_byte(path, -1)
    assert path.read_bytes() == b"a\x9dcde\x99"
    truncate(path, 2)
    assert path.read_bytes() == b"a\x9d"
