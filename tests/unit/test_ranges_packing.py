"""Compressed files: columns of varying length as lengths and bytes; and rows compared where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Corrupt
from millpond.ranges.canonical import canonical, equal_rows
from millpond.ranges.digits import pack_digits, unpack_digits
from millpond.ranges.equality import equal_at
from millpond.ranges.files import SEAL, read_batch, read_sealed, sealed_bytes
from millpond.ranges.gather import gathered, rows_at
from millpond.ranges.ids import columns_id
from millpond.ranges.key_columns import key_column, merge_three_keys
from millpond.ranges.messages import message_in, message_of, plain_message
from millpond.ranges.packing import PACKED, packed, unpacked
from millpond.stores.objects import MemoryObjects
from tests.unit.test_range_arrays import batch_of, columns

ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
keys = st.lists(st.binary(max_size=12), unique=True).map(sorted)


@pytest.mark.usefixtures("processor")
@given(columns(), st.booleans())
def test_what_was_packed_comes_back(column: tuple[pa.Field, list[Any], list[Any]], deep: bool) -> None:
    field, held, _ = column
    batch = canonical(batch_of(field, held)).replace_schema_metadata({"made by": "a test"})
    made = packed(batch, deep=deep)
    made.validate(full=True)
    again = unpacked(made)
    again.validate(full=True)
    assert again.equals(batch) and again.schema.equals(batch.schema, check_metadata=True)
    assert columns_id("range", again) == columns_id("range", batch)


SHORT_TEXTS = st.text("09afg", max_size=6) | st.text("0123456789abcdef", max_size=24)
INTEGERS = st.tuples(
    st.sampled_from([-(2**63), -5, 0, 10**9, 2**63 - 2**57]), st.lists(st.integers(0, 2**57 - 1) | st.integers(0, 300))
).map(lambda drawn: [drawn[0] + above for above in drawn[1]])


@given(st.lists(SHORT_TEXTS | st.none(), max_size=8), st.integers(0, 3), st.sampled_from([pa.string(), pa.binary()]))
def test_text_comes_back_from_its_shortest_form(texts: list[str | None], repeats: int, kind: pa.DataType) -> None:
    held = pa.array(texts * repeats, pa.string()).cast(kind)
    batch = canonical(pa.record_batch({"text": held.slice(len(texts) // 2)}))
    made = packed(batch)
    made.validate(full=True)
    assert unpacked(made).equals(batch)


@given(INTEGERS)
def test_integers_come_back_from_fewer_bytes(values: list[int]) -> None:
    batch = canonical(pa.record_batch({"n": pa.array([0, *values], pa.int64()).slice(1)}))
    made = packed(batch)
    made.validate(full=True)
    again = unpacked(made)
    assert again.equals(batch)
    if values and max(values) - min(values) < 256:
        assert made.schema.field("n").type == pa.binary(1)


@given(
    st.lists(st.binary(max_size=20), min_size=1),
    st.integers(0, 20),
    st.sampled_from(["hashed", "weak", "other", "null", "short"]),
)
def test_hashes_are_left_out_where_the_keys_tell_them(texts: list[bytes], sliced: int, how: str) -> None:
    hashes = [xxhash.xxh3_64_intdigest(text) & (255 if how == "weak" else 2**64 - 1) for text in texts]
    keys: list[bytes | None] = [hash_.to_bytes(8, "big") + text for hash_, text in zip(hashes, texts, strict=True)]
    numbers: list[int | None] = list(hashes)
    if how == "other":
        keys[-1], numbers[0] = bytes(9), 0
    elif how in ("null", "short"):
        keys[-1] = None if how == "null" else b"short"
    batch = canonical(
        pa.record_batch({"n": pa.array(numbers, pa.uint64()), "key": pa.array(keys, pa.binary())}).slice(sliced)
    )
    made = packed(batch, deep=True)
    made.validate(full=True)
    assert unpacked(made).equals(batch)
    if batch.num_rows and how == "hashed":
        assert made.schema.metadata == {PACKED: b"0f,1h"}
    message = message_of(batch)
    assert plain_message(message) == batch.serialize() == plain_message(batch.serialize())
    source = pa.BufferReader(pa.py_buffer(message.to_pybytes() + batch.serialize().to_pybytes()))
    assert message_in(source, batch.schema).equals(batch) and message_in(source, batch.schema).equals(batch)


@pytest.mark.parametrize("said", ["0f", "0i0", "2", "1.0", "1.0.0i0,1.1", "0,1.0.0i0,1.0", "9f", "0.0f"])
def test_a_deep_form_that_a_column_has_not_is_damage(said: str) -> None:
    batch = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "rows": pa.array([[{"value": 1}]])})
    made = packed(batch, deep=True)
    assert made.schema.metadata == {PACKED: b"0,1.0.0i1,1"} and unpacked(made).equals(batch)
    for some in (made, batch):
        with pytest.raises((ValueError, LookupError, pa.ArrowException)):
            unpacked(some.replace_schema_metadata({PACKED: said.encode()}))


@pytest.mark.parametrize("lengths", [[1, 5], [-1, 2], [2**31 - 1, 2**31 - 1], [0, 0]])
def test_lengths_that_are_not_those_of_the_items_are_damage(lengths: list[int]) -> None:
    made = packed(pa.record_batch({"rows": pa.array([[1], [2, 3]])}), deep=True)
    column = made.column(0)
    wrong = pa.StructArray.from_arrays([pa.array(lengths, pa.int32()), column.field(1)], fields=list(column.type))
    with pytest.raises(ValueError, match="lengths"):
        unpacked(pa.RecordBatch.from_arrays([wrong], schema=made.schema))


@pytest.mark.parametrize(
    ("texts", "form"),
    [(["ab", "cd01"], b"0x"), (["xy", "xy"], b"0c"), (["ab", "abc"], b"0"), (["Ab", "cd"], b"0"), (["ab"], b"0x")],
)
def test_the_metadata_say_the_form_of_a_column(texts: list[str], form: bytes) -> None:
    assert packed(pa.record_batch({"text": texts})).schema.metadata == {PACKED: form}


def test_only_lower_case_digits_are_packed_in_pairs() -> None:
    digits = set(b"0123456789abcdef")
    for byte in range(256):
        for place in range(16):
            text = bytearray(b"0123456789abcdef")
            text[place] = byte
            for size in (16, 10):
                pairs = pack_digits(pa.py_buffer(bytes(text[:size])))
                assert (pairs is not None) == (set(text[:size]) <= digits)
                if pairs is not None:
                    assert pairs.to_pybytes() == bytes.fromhex(text[:size].decode())
                    assert unpack_digits(pairs, size).to_pybytes() == text[:size]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1, 2]), "0"), (pa.array([1, 2]), "0x"), (pa.array([1, 2]), "1"),
        (pa.array([1, 2]), ""), (pa.array(["ab", "cdef"]), "0c"), (pa.array(["xyz", "xyz"]), "0"),
        (pa.array(["xyz", "xyz"]), "0x"), (pa.array(["xyz", "vw"]), "0x"), (pa.array(["xyz", "vw"]), "0i0"),
        (pa.array(["xyz", "vw"]), "0y"), (pa.array(["xyz", "vw"], pa.large_string()), "0c"),
    ],
)  # fmt: skip
def test_a_form_that_a_column_has_not_is_damage(column: pa.Array, said: str) -> None:
    made = packed(pa.record_batch({"column": column}))
    plain = pa.record_batch({"column": column})
    for batch in (made, plain):
        with pytest.raises((ValueError, LookupError)):
            unpacked(batch.replace_schema_metadata({PACKED: said.encode()}))


@pytest.mark.parametrize("base", ["9223372036854775808", "-9223372036854775809", "99999999999999999999"])
def test_a_least_integer_out_of_bounds_is_damage(base: str) -> None:
    made = packed(pa.record_batch({"n": pa.array([1, 2])}))
    with pytest.raises(ValueError, match="no"):
        unpacked(made.replace_schema_metadata({PACKED: f"0i{base}".encode()}))


@pytest.mark.usefixtures("processor")
@given(st.data())
def test_rows_are_gathered_as_they_are_taken_from_batches_put_together(data: st.DataObject) -> None:
    rows = st.lists(st.tuples(st.binary(max_size=9), st.text(max_size=3) | st.none(), st.integers(-9, 9)), max_size=9)
    schema = pa.schema([("key", pa.binary()), ("text", pa.string()), ("n", pa.int64()), ("flag", pa.bool_())])
    batches = []
    for drawn in data.draw(st.lists(rows, min_size=1, max_size=3)):
        columns: list[Any] = [[row[at] for row in drawn] for at in range(3)]
        columns.append([number > 0 for number in columns[2]])
        whole = pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        )  # fmt: skip
        batches.append(whole.slice(data.draw(st.integers(0, len(drawn)))))
    together = pa.concat_batches(batches)
    every = list(range(together.num_rows))
    wanted = data.draw(st.lists(st.sampled_from(every), max_size=12) if every else st.just(every)) or every
    found = gathered(batches, np.array(wanted, np.int64))
    found.validate(full=True)
    assert found.equals(together.take(pa.array(wanted, pa.int64())))


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


@pytest.mark.usefixtures("processor")
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
