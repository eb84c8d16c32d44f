"""A refreeze after a small merge: the files it writes, and those that a reader of the snapshot before must fetch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pytest

import millpond
from millpond import ranges
from millpond.clock import ManualClock
from millpond.maps.map import Map
from millpond.maps.snapshots.refresh import ROWS_MIN
from millpond.stores.objects import Objects, open_objects

KEYS = 60_000


def rows_of(kind: str, numbers: list[int], value: int) -> pa.Table:
    values = [value + number for number in numbers]
    if kind == "ranged_state":
        starts = [number * 10 for number in numbers]
        return pa.table({"key_start": starts, "key_end": [start + 9 for start in starts], "value": values})
    names = [f"key-{number:06d}" for number in numbers]
    table = pa.table({"key": names, "value": values})
    if kind == "temporal_state":
        return table.append_column("effective_time", pa.array([value * 1000] * len(numbers), pa.int64()))
    return table


def files_of(objects: Objects) -> dict[str, int]:
    """The files of all snapshots, without leases, by name."""
    return {found.name: found.size for found in objects.list() if not found.name.startswith("leases/")}


def by_folder(names: set[str]) -> dict[str, int]:
    folders = [PurePosixPath(name).parts[0] for name in names]
    return {folder: folders.count(folder) for folder in sorted(set(folders))}


@pytest.fixture
def new_map(tmp_path: Path) -> Iterator[Callable[[str, str], Map]]:
    """Makes a map of a kind, in a pond of its own that is closed after the test."""
    with ExitStack() as open_ponds:

        def make(folder: str, kind: str) -> Map:
            pond = open_ponds.enter_context(millpond.open(tmp_path / folder, clock=ManualClock(now=1_000_000)))
            return pond.create_map("prices", kind=kind, value="long")

        yield make


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["state", "temporal_state", "ranged_state"])
def test_a_small_merge_writes_few_files_and_is_fetched_alone(
    tmp_path: Path, new_map: Callable[[str, str], Map], kind: str
) -> None:
    held, reader = new_map("pond", kind), open_objects(tmp_path / "reader")
    held.load(rows_of(kind, list(range(KEYS)), 0))
    manifest = held.freeze()
    (base,) = manifest.layers
    assert ranges.fetch(held.objects, reader, base.index).ranges == by_folder(set(files_of(held.objects)))["ranges"]
    before = files_of(held.objects)
    assert by_folder(set(before))["ranges"] >= 3

    assert held.freeze() == manifest  # nothing was merged: nothing is written
    assert files_of(held.objects) == before

    held.load(rows_of(kind, [17, 23_456, 59_999], 7))
    newer = held.freeze()
    after = files_of(held.objects)
    assert set(before) <= set(after), "who reads the snapshot from before keeps its files"
    written = set(after) - set(before)
    expected = {"indexes": 1, "manifests": 1, "ranges": 1}
    assert by_folder(written) == (expected | {"intervals": 2} if kind == "ranged_state" else expected)
    assert sum(after[name] for name in written if name.startswith("ranges/")) < 4096

    assert newer.layers[1] == base
    fetched = [ranges.fetch(held.objects, reader, layer.index) for layer in newer.layers]
    assert [report.ranges for report in fetched] == [1, 0]
    assert sum(report.bytes for report in fetched) < 8192
    query: list[object] = [235_000, 234_565] if kind == "ranged_state" else ["key-023500", "key-023456"]
    assert held.lookup(pa.array(query)).to_pylist() == [23_500, 23_463]


@pytest.mark.usefixtures("processor")
def test_the_same_state_is_the_same_files(new_map: Callable[[str, str], Map]) -> None:
    """However it was reached: by one load or by several, in another order."""
    whole, pieces = new_map("whole", "state"), new_map("pieces", "state")
    numbers = list(range(KEYS))
    whole.load(rows_of("state", numbers, 0))
    for start in (2, 0, 1):
        pieces.load(rows_of("state", numbers[start::3], 0))
    assert whole.freeze().layers == pieces.freeze().layers


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("scheme", ["direct", "hash", "lookup"])
def test_a_key_with_most_rows_is_read_in_order_with_the_others(tmp_path: Path, scheme: str) -> None:
    # Row by row, more than a few rows of single keys take longer than all rows together.
    def rows(key: str, first: int, count: int, value: int) -> pa.Table:
        times = pa.array(np.arange(first, first + count) * 1000)
        return pa.table({"key": pa.repeat(key, count), "effective_time": times, "value": pa.repeat(value, count)})

    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_000_000)) as pond:
        held = pond.create_map("m", kind="temporal_state", value="long", scheme=scheme)
        others = [rows(f"other-{number}", 0, 1, 0) for number in range(100)]
        base_rows = [rows("long", 0, 3 * ROWS_MIN, 1), rows("short", 0, ROWS_MIN // 2, 2), *others]
        held.load(pa.concat_tables(base_rows), time_unit="ms")
        base = held.freeze()
        held.load(rows("short", 7, 1, 3), time_unit="ms")
        assert base.layers[0] in held.freeze().layers, "an overlay of the short key"
        held.load(rows("long", 7, 1, 4), time_unit="ms")
        manifest = held.freeze()
        assert len(manifest.layers) == 1, "all rows, anew"
        assert manifest.groups == 102
        found = held.lookup(["long", "long", "long", "short", "short"], [6_999, 7_000, 8_000, 7_000, 8_000])
        assert found.to_pylist() == [1, 4, 1, 3, 2]


@pytest.mark.usefixtures("processor")
def test_rows_of_a_key_are_read_as_they_are_taken(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        for scheme in ("direct", "hash", "lookup"):
            held = pond.create_map(scheme, kind="temporal_state", value="long", scheme=scheme)
            count = 20_000
            times = pa.array(np.arange(count) * 1000)
            held.load(pa.table({"key": pa.repeat("a", count), "effective_time": times, "value": times}), time_unit="ms")
            assert held.shard.version
            tracemalloc.start()
            batches = held.shard.read_rows([b"a"], batch_rows=100)
            read = next(batches).num_rows
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < 100 * count / 4, "not a pair of bytes for each row of the key"
            assert read + sum(batch.num_rows for batch in batches) == count
