"""Processes killed at each step of append, compression, expiry and deletion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "streams_killed.py"


ACTS = {"append", "compress", "expire", "delete", "erase"}


@pytest.mark.parametrize(("driver", "acts"), [("lmdb", ACTS), ("bucket", {*ACTS, "fold", "collect"})])
def test_a_process_that_is_killed_at_any_step_leaves_a_readable_stream(
    tmp_path: Path, driver: str, acts: set[str]
) -> None:  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[2]), *sys.path])}
    command = [sys.executable, str(PROGRAM), str(tmp_path), driver]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    deaths = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert deaths.keys() == acts and all(deaths.values()), deaths
