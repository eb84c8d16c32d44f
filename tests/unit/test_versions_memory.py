"""Import, listing, difference, commit and merge of many entries take a bounded memory, and answer the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.versions_memory_child import MALLOC

pytestmark = pytest.mark.full

CHILD = Path(__file__).with_name("versions_memory_child.py")
ENTRY_BYTES = 160
"""The least that an entry of the child takes as Arrow columns."""


def allocated(folder: Path, entries: int, *, cache: int, limit: int) -> int:
    """Bytes that the child allocated for so many entries, all answers being right."""
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder), str(entries), str(cache), str(limit)],
        env={**os.environ, **MALLOC},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    return int(said["after"]["VmData"] - said["before"]["VmData"])


@pytest.mark.usefixtures("process")
def test_a_million_entries_in_half_of_their_memory(tmp_path: Path) -> None:
    limit = 76 << 20
    assert 2 * limit <= 1_000_000 * ENTRY_BYTES
    assert allocated(tmp_path, 1_000_000, cache=8 << 20, limit=limit) <= limit


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_million_entries_in_a_fraction_of_their_memory(tmp_path: Path) -> None:
    limit = 320 << 20
    assert 4 * limit <= 10_000_000 * ENTRY_BYTES
    assert allocated(tmp_path, 10_000_000, cache=64 << 20, limit=limit) <= limit
