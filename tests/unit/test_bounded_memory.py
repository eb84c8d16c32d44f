"""Work on a map larger than the memory that a process may take gives what it gives without a limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import millpond
from millpond.maps.shard.row_batches import BATCH_BYTES_MAX, gathered
from tests.unit.bounded_memory_child import OPERATIONS, ranges, rows, rows_of_one_key
from tests.unit.versions_memory_child import MALLOC

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 112 << 20
"""Less than the rows of a map, and a good deal more than the work on one takes: threads take turns as they like."""
RANGES_LIMIT_BYTES = 80 << 20
SLOW = ("seal", "window", "digest", "condense", "compact", "freeze", "subset", "retain", "one_key")
"""Their like is done by the others, too."""
RANGED = ("sections",)


@pytest.fixture(
    scope="module", params=["lookup", *(pytest.param(scheme, marks=pytest.mark.full) for scheme in ("direct", "hash"))]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pond with a small map, and with two of which the rows are 120 MB, in one of them of one key."""
    made: Path = tmp_path_factory.mktemp("bounded") / "pond"
    with millpond.open(made, events_reports=False) as pond:
        for name, count in (("small", 1_000), ("large", 120_000)):
            pond.create_map(name, kind="temporal_state", value="string", scheme=request.param)
            pond.map(name).load(rows(np.arange(count)))
        pond.create_map("single", kind="temporal_state", value="string", scheme=request.param)
        pond.map("single").load(rows_of_one_key(120_000))
    return made


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    "operation",
    [pytest.param(name, marks=pytest.mark.full if name in SLOW else ()) for name in OPERATIONS if name not in RANGED],
)
def test_a_map_larger_than_memory_is_worked_on_under_a_limit(tmp_path: Path, folder: Path, operation: str) -> None:
    """To hold its rows fails."""
    shutil.copytree(folder, tmp_path / "limited")
    shutil.copytree(folder, tmp_path / "free")
    limited, free = (run(tmp_path / name, operation, limit) for name, limit in (("limited", LIMIT_BYTES), ("free", 0)))
    assert limited.returncode == 0, limited.stderr
    assert json.loads(limited.stdout) == json.loads(free.stdout)


@pytest.mark.full
def test_a_map_of_ranges_larger_than_memory_is_frozen_under_a_limit(tmp_path: Path) -> None:
    """One index over all its ranges took twice the limit."""
    made = tmp_path / "limited"
    with millpond.open(made, events_reports=False) as pond:
        for name, count in (("small", 10_000), ("large", 600_000)):
            pond.create_map(name, kind="ranged_state", value="long")
            pond.map(name).load(ranges(np.arange(count)))
    shutil.copytree(made, tmp_path / "free")
    limited, free = (
        run(tmp_path / name, "sections", limit) for name, limit in (("limited", RANGES_LIMIT_BYTES), ("free", 0))
    )
    assert limited.returncode == 0, limited.stderr
    assert json.loads(limited.stdout) == json.loads(free.stdout)


def run(folder: Path, operation: str, limit: int) -> subprocess.CompletedProcess[str]:
    """The operation, by a process of its own."""
    command = [sys.executable, "-m", "tests.unit.bounded_memory_child", str(folder), operation, str(limit)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | MALLOC)


@pytest.mark.parametrize(("row_bytes", "rows"), [(1 << 20, 200), (1 << 10, 70_000), (8, 70_000)])
def test_rows_are_gathered_by_their_bytes(row_bytes: int, rows: int) -> None:
    """A batch holds about as many bytes as it may, whether rows are few and large or many and small."""
    value, read = bytes(row_bytes), 0
    for keys, values in gathered(((str(number).encode(), value) for number in range(rows)), 65_536):
        assert [int(key) for key in keys] == list(range(read, read + len(keys)))
        assert sum(map(len, values)) <= 2 * BATCH_BYTES_MAX
        read += len(keys)
    assert read == rows
