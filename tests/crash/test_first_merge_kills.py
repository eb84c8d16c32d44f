"""A first load of several parts, merged in one pass and killed at every step of it: all of it is there, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

LOADER = """
import sys
import pyarrow as pa
import millpond
from millpond.maps.loads import merge
from millpond.maps.parts import part
from millpond.testing.faults import arm
from tests.rings.sampling import drawn

merge.ROWS_MIN = 0
part.PART_ROWS_MAX = 400
with arm(), millpond.open(sys.argv[1]) as pond:
    pond.map("m").load(
        [pa.record_batch({"key": [f"k{number % 40:02d}"] * 20, "value": range(number * 20, number * 20 + 20),
                          "effective_time": pa.array(range(20), pa.timestamp("ms", tz="UTC"))})
         for number in range(3 * 20)]
    )
"""


def load(folder: Path, **environment: str) -> int:
    return run_python("-c", LOADER, str(folder), **environment).returncode


def rows(folder: Path) -> list[tuple[object, ...]]:
    with millpond.open(folder) as pond:
        found = pa.Table.from_batches(pond.map("m").scan()).to_pylist()
        assert pond.verify().ok
    return sorted(tuple(row.values()) for row in found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[object, ...]], list[str]]:
    """The rows of the load, and its steps from the first one that merges."""
    folder = tmp_path_factory.mktemp("whole")
    create(folder / "pond")
    assert load(folder / "pond", **{STEPS_LOG: str(folder / "steps.log")}) == 0
    steps = [step for step in occurrences(folder / "steps.log") if step.startswith(("merge.", "shard."))]
    assert any(step.startswith("merge.first_parts_combined") for step in steps), steps
    found = rows(folder / "pond")
    assert len(found) == 40 * 20
    return found, steps


def create(folder: Path) -> None:
    with millpond.open(folder) as pond:
        pond.create_map("m", kind="temporal_state", value="long")


def test_killed_at_every_step(tmp_path: Path, whole: tuple[list[tuple[object, ...]], list[str]]) -> None:
    expected, steps = whole
    for number, step in enumerate(drawn(steps, 1, name="first merge")):
        folder = tmp_path / f"pond{number}"
        create(folder)
        assert load(folder, **{KILL_AT: step}) < 0, step
        assert rows(folder) in ([], expected), step
        load(folder)
        assert rows(folder) == expected, step
