"""A key with more rows than memory may hold is frozen in files, to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.snapshots import groups_of_rows
from millpond.maps.snapshots.groups_of_rows import freeze_groups, range_order_keys
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.ranges import write
from millpond.ranges.index import Boundaries
from millpond.ranges.merge import merge
from millpond.ranges.scratch_batch import joined
from millpond.stores.objects import FolderObjects, open_objects

VALUES = {"long": pa.int64(), "string": pa.string()}
KINDS = [Kind.TEMPORAL_STATE, Kind.TEMPORAL_RANGED_STATE, Kind.SESSION]


def definition_of(kind: Kind, value: str) -> MapDefinition:
    held = None if kind is Kind.SESSION else parse_value_type(value)
    return MapDefinition(name="m", incarnation="1", kind=kind, value=held, scheme=Scheme.AUTO)


def rows_of(definition: MapDefinition, count: int, *, shuffled: bool, key: int = 0) -> pa.RecordBatch:
    """Rows of one key at different times, some of which have no value."""
    number = np.arange(count)
    if shuffled:
        number = np.random.default_rng(count).permutation(count)
    columns: dict[str, Any] = {"key": [f"key {key}"] * count, "key_start": [key] * count, "key_end": [key + 5] * count,
               "effective_time": number, "start": number * 10, "end": number * 10 + number % 37}  # fmt: skip
    schema = canonical_schema(definition)
    if "value" in schema.names:
        kind = schema.field("value").type
        values = [None if place % 5 == 0 and schema.field("value").nullable else place for place in number.tolist()]
        columns["value"] = pa.array(values).cast(pa.string() if kind == pa.string() else pa.int64()).cast(kind)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name]).cast(schema.field(name).type) for name in schema.names], schema=schema
    )


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_group_is_the_one_that_is_made_in_memory(
    tmp_path: Path, kind: Kind, value: str, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between small ones, and marked as touched."""
    definition = definition_of(kind, value)
    batches = [rows_of(definition, count, shuffled=shuffled, key=key) for key, count in ((1, 300), (2, 20_000), (3, 7))]
    ranged = range_order_keys(np.array([2, 9]), np.array([7, 9]))
    touched = pa.array([b"key 2", b"key 9"]) if kind.keyed else ranged
    made = []
    large = groups_of_rows.large_group
    monkeypatch.setattr(groups_of_rows, "large_group", lambda *given: made.append(1) or large(*given))
    found = freeze_groups(
        definition, _cut(batches, 1_000), touched=touched, spill=SpillTo(tmp_path, 100_000)
    )  # fmt: skip
    wanted = freeze_groups(definition, batches, touched=touched)
    assert _table(found).equals(_table(wanted))
    assert made == [1]
    assert not list(tmp_path.iterdir())


def _cut(batches: list[pa.RecordBatch], count: int) -> list[pa.RecordBatch]:
    return [batch.slice(low, count) for batch in batches for low in range(0, batch.num_rows, count)]


def _table(batches: Any) -> pa.Table:
    return pa.Table.from_batches(list(batches)).combine_chunks()


LISTS = pa.list_(pa.struct([pa.field("a", pa.string()), pa.field("b", pa.bool_()), pa.field("c", pa.list_(pa.int8()))]))
ROWS = st.lists(
    st.none() | st.lists(st.none() | st.fixed_dictionaries({
        "a": st.none() | st.text(max_size=3), "b": st.none() | st.booleans(),
        "c": st.none() | st.lists(st.none() | st.integers(0, 99), max_size=3),
    }), max_size=4), max_size=20,
)  # fmt: skip


@pytest.mark.usefixtures("processor")
@given(st.lists(ROWS, max_size=5), st.integers(0, 3))
def test_columns_of_any_type_grow_in_files(tmp_path_factory: pytest.TempPathFactory, lots: list[Any], cut: int) -> None:
    schema = pa.schema([pa.field("x", LISTS), pa.field("y", pa.float32()), pa.field("z", pa.null())])
    batches = []
    for rows in lots:
        y = pa.array([None if row is None else float(len(row)) for row in rows], pa.float32())
        batch = pa.record_batch([pa.array(rows, LISTS), y, pa.nulls(len(rows))], schema=schema)
        batches.append(batch.slice(cut))
    found = joined(tmp_path_factory.getbasetemp(), schema, batches)
    found.validate(full=True)
    assert found.to_pylist() == pa.Table.from_batches(batches, schema).to_pylist()


def test_ranges_with_large_entries_are_written_in_files_as_in_memory(tmp_path: Path) -> None:
    """And merged with others, where a large entry is taken over whole."""
    boundaries = Boundaries(rows_min=4, rows_max=64, bits=2, bytes_max=1 << 12)

    def batch(numbers: list[int], seed: int) -> pa.RecordBatch:
        lists = [list(range(seed, 20_000 if number == 5 else number)) for number in numbers]
        keys = pa.array([b"%03d" % number for number in numbers], pa.binary())
        return pa.record_batch({"key": keys, "rows": pa.array(lists, pa.list_(pa.int64()))})

    ids = []
    for objects, at_once in ((FolderObjects(tmp_path), 1), (open_objects("memory://"), 1 << 30)):
        base = write(objects, [batch(list(range(100)), 0)], boundaries, bytes_at_once=at_once)
        over = write(objects, [batch([3, 4, 6, 50], 1)], boundaries, bytes_at_once=at_once)
        merged = merge(objects, [over, base], bytes_at_once=at_once)
        ids.append([index.id for index in (base, over, merged)])
    assert ids[0] == ids[1]
    assert not [file for file in tmp_path.iterdir() if file.name.startswith("scratch")]
