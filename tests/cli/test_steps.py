"""The bar over the steps of a long command, in a pipe as a log has it, from a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("process")

STEPS = """
import threading, sys
from millpond.clock import SystemClock
from millpond.cli.terminal import steps as bars
bars.LINE_SECONDS = 0.05
with bars.steps(2, SystemClock(), quiet=len(sys.argv) > 1) as step:
    step("unpacking")
    step("loading")
    sys.stdin.readline()
print("the result")
"""


def _begun(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STEPS, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_a_pipe_gets_whole_lines_at_each_step_and_in_between() -> None:
    with _begun() as process:
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stdout is not None
        seen = [process.stderr.readline() for _ in range(4)]
        process.stdin.close()
        assert process.stdout.read() == "the result\n"
    assert all(re.fullmatch(r"\[[#-]{20}\] +\d+ % +\d+ s  (unpacking|loading)\n", line) for line in seen), seen
    shares = [re.findall(r"(\d+) %", line)[0] for line in seen]
    assert shares[0] == "0"
    assert shares[-1] == "50"


def test_nothing_is_shown_where_only_json_is_wanted() -> None:
    with _begun("quiet") as process:
        assert process.communicate("\n") == ("the result\n", "")
