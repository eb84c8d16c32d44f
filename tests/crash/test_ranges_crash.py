"""A process killed anywhere between two acts on ranges: what can be seen is whole, and doing it again ends the same."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from millpond import ranges
from millpond.stores.objects import FolderObjects, open_objects, sweep_partial
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

CHILD = """
import sys
import pyarrow as pa
from millpond import ranges
from millpond.stores.objects import open_objects
from millpond.testing import faults

def entries(numbers, value):
    keys = pa.array([b"%05d" % number for number in numbers], pa.binary())
    return pa.record_batch({"key": keys, "value": pa.array([value] * len(numbers))})

armed = faults.arm()
here, there = open_objects(sys.argv[1] + "/here"), open_objects(sys.argv[1] + "/there")
limits = ranges.Boundaries(rows_min=8, rows_max=64, bits=4)
base = ranges.write(here, [entries(range(300), 0)], limits)
overlay = ranges.write(here, [entries([7, 250], 1)], limits)
merged = ranges.merge(here, [overlay, base])
ranges.fetch(here, there, base.id)
ranges.fetch(here, there, merged.id)
print(merged.id)
"""


def run_child(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, str(folder), **variables)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Every moment to be killed at, and the id that the work ends with."""
    folder = tmp_path_factory.mktemp("steps")
    done = run_child(folder, **{STEPS_LOG: str(folder / "log")})
    assert done.returncode == 0, done.stderr
    return occurrences(folder / "log"), done.stdout.strip()


def check_folder(objects: FolderObjects) -> None:
    """A visible index can be read in full."""
    for found in objects.list("indexes"):
        assert ranges.verify(objects, Path(found.name).stem).ok


def test_every_step_is_taken(steps: tuple[list[str], str]) -> None:
    names = {moment.partition(":")[0] for moment in steps[0]}
    assert names == {
        "ranges.written", "ranges.indexed", "ranges.one_fetched", "ranges.fetched", "ranges.index_fetched",
    }  # fmt: skip


def test_killed_at_any_step(steps: tuple[list[str], str], tmp_path: Path) -> None:
    moments, wanted = steps
    chosen = ["ranges.written:1", "ranges.written:3", "ranges.indexed:2", "ranges.one_fetched:3", "ranges.fetched:2"]
    assert set(chosen) <= set(moments)
    for number, moment in drawn(list(enumerate(chosen)), 2, name="ranges"):
        folder = tmp_path / str(number)
        killed = run_child(folder, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        here, there = (open_objects(folder / name) for name in ("here", "there"))
        assert isinstance(here, FolderObjects) and isinstance(there, FolderObjects)
        check_folder(here)
        check_folder(there)
        if number in (1, 3):
            again = run_child(folder)
            assert (again.returncode, again.stdout.strip()) == (0, wanted), moment
            assert ranges.verify(there, wanted).ok
            sweep_partial(here)
            assert list((here.root / ".partial").iterdir()) == []
