"""Compressed files: columns of varying length as lengths and bytes; and rows compared where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Corrupt
from millpond.ranges.canonical import canonical, equal_rows
from millpond.ranges.equality import equal_at, rows_at
from millpond.ranges.files import SEAL, read_batch, read_sealed, sealed_bytes
from millpond.ranges.ids import columns_id
from millpond.ranges.key_columns import key_column, merge_three_keys
from millpond.ranges.packing import PACKED, packed, unpacked
from millpond.stores.objects import MemoryObjects
from tests.unit.test_range_arrays import batch_of, columns

ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
keys = st.lists(st.binary(max_size=12), unique=True).map(sorted)


@given(columns())
def test_what_was_packed_comes_back(column: tuple[pa.Field, list[Any], list[Any]]) -> None:
    field, held, _ = column
    batch = canonical(batch_of(field, held)).replace_schema_metadata({"made by": "a test"})
    made = packed(batch)
    made.validate(full=True)
    again = unpacked(made)
    again.validate(full=True)
    assert again.equals(batch) and again.schema.equals(batch.schema, check_metadata=True)
    assert columns_id("range", again) == columns_id("range", batch)


def test_a_struct_that_looks_packed_stays_a_struct() -> None:
    looks = pa.struct([pa.field("length", pa.int32(), nullable=False), pa.field("bytes", pa.binary(), nullable=False)])
    batch = pa.record_batch({"key": pa.array([b"a"], pa.binary()), "x": pa.array([{"length": 7, "bytes": b""}], looks)})
    assert unpacked(packed(batch)).equals(batch)


def test_paths_cost_less_than_their_offsets() -> None:
    paths = [f"d{number // 100:04d}/part-{number % 100:04d}.parquet".encode() for number in range(10_000)]
    batch = pa.record_batch({"key": pa.array(paths, pa.binary())})
    assert sealed_bytes("range", columns_id("range", batch), batch, options=ZSTD).size < 2 * len(paths)


@pytest.mark.parametrize("lengths", [[1, 5], [-1, 2], [2**31 - 1, 2**31 - 1]])
def test_lengths_that_are_not_those_of_the_bytes_are_damage(lengths: list[int]) -> None:
    batch = canonical(pa.record_batch({"key": pa.array([b"a", b"b"], pa.binary())}))
    id_ = columns_id("range", batch)
    made = packed(batch)
    column = made.column(0)
    wrong = pa.StructArray.from_arrays([pa.array(lengths, pa.int32()), column.field(1)], fields=list(column.type))
    damaged = pa.RecordBatch.from_arrays([wrong], schema=made.schema)
    with pytest.raises(ValueError, match="lengths"):
        unpacked(damaged)
    data = sealed_bytes("range", id_, damaged)  # its checksum is right
    with pytest.raises(Corrupt):
        read_sealed("range", id_, data, name="a file", where="")


def test_a_compressed_range_says_that_it_is_packed_and_reads_as_it_was_written() -> None:
    objects = MemoryObjects()
    batch = pa.record_batch({"key": pa.array([b"a", b"bc"], pa.binary()), "text": ["x", None]})
    index = ranges.write(objects, [batch], compression="zstd")
    plain = ranges.write(MemoryObjects(), [batch])
    assert index.id == plain.id
    metadata = read_batch(objects.get(ranges.range_name(index.entries[0].id)), "").schema.metadata
    assert set(metadata) == {SEAL, PACKED}
    assert ranges.open_range(objects, index.entries[0]).to_pydict() == batch.to_pydict()
    assert not ranges.verify(objects, index.id).problems


@given(columns(), st.data())
def test_rows_compared_where_they_lie_are_those_compared_side_by_side(
    column: tuple[pa.Field, list[Any], list[Any]], data: st.DataObject
) -> None:
    field, held, around = column
    a, b = batch_of(field, [*around, *held]).slice(len(around)), batch_of(field, [*held, *around])
    rows = st.lists(st.integers(0, len(held) - 1), max_size=8) if held else st.just([])
    left = np.array(data.draw(rows), np.int64)
    right = np.array(data.draw(st.permutations(left.tolist())), np.int64)
    expected = equal_rows(rows_at(a, left), rows_at(b, right))
    assert equal_at(a, left, b, right).tolist() == expected.tolist()


@given(keys, keys, keys)
def test_three_columns_of_keys_are_walked_together(a: list[bytes], b: list[bytes], c: list[bytes]) -> None:
    sides = (a, b, c)
    held = [key_column(pa.array(side, pa.binary())) for side in sides]
    rows = np.empty((3, sum(map(len, sides))), np.int64)
    count = merge_three_keys(*(part for side in held for part in (side.offsets, side.data)), rows)
    union = sorted({*a, *b, *c})
    assert count == len(union)
    for side, found in zip(sides, rows[:, :count].tolist(), strict=True):
        assert found == [side.index(key) if key in side else -1 for key in union]
