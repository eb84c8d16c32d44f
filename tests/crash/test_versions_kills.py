"""Processes killed at each step of each act of repositories, over each driver that processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.postgres_server import server
from tests.rings.sampling import everything

pytestmark = pytest.mark.sample(1, of="file")

PROGRAM = Path(__file__).parent / "versions_killed.py"


def test_a_process_that_is_killed_at_any_step_did_all_or_nothing(tmp_path: Path) -> None:
    assert killed("lmdb", tmp_path) > (20 if everything() else 4)


@pytest.mark.skipif(find_spec("psycopg") is None, reason="the extra postgres is not installed")
def test_a_process_that_is_killed_at_any_step_over_a_database(tmp_path: Path) -> None:
    assert killed(server().url(), tmp_path) > (20 if everything() else 4)


def killed(driver: str, folder: Path) -> int:
    """The number of deaths that were survived."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[2]), *sys.path])}
    command = [sys.executable, str(PROGRAM), driver, str(folder)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return sum(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines())
