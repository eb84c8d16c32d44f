"""Arrow arrays with one way to be: over any types, and however Arrow happened to hold the content."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.ranges.canonical import bare, canonical, equal_rows, row_sizes
from millpond.ranges.files import write_batch

UTC = datetime.timezone.utc  # noqa: UP017 - read aloud beside Arrow's "UTC"
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.timestamp("ms", "UTC"), st.integers(-(10**12), 10**12).map(lambda ms: _instant(ms))),
    (pa.date32(), st.dates()),
    (pa.decimal128(9, 2), st.integers(-(10**8), 10**8).map(lambda n: decimal.Decimal(n) / 100)),
]


def _instant(ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(milliseconds=ms)


def lists_of(kind: pa.DataType, values: st.SearchStrategy[Any], nullable: bool) -> list[tuple[pa.DataType, Any]]:
    item = pa.field("item", kind, nullable)
    inner = _nulls(values, nullable)
    return [
        (pa.list_(item), st.lists(inner, max_size=3)),
        (pa.large_list(item), st.lists(inner, max_size=3)),
        (pa.list_(item, 2), st.lists(inner, min_size=2, max_size=2)),
    ]


def _nulls(values: st.SearchStrategy[Any], nullable: bool) -> st.SearchStrategy[Any]:
    return st.none() | values if nullable else values


def structs_of(members: list[tuple[pa.DataType, Any]], nullable: list[bool]) -> tuple[pa.DataType, Any]:
    fields = [pa.field(f"f{at}", kind, may) for at, ((kind, _), may) in enumerate(zip(members, nullable, strict=True))]
    values = {f"f{at}": _nulls(made, may) for at, ((_, made), may) in enumerate(zip(members, nullable, strict=True))}
    return pa.struct(fields), st.fixed_dictionaries(values)


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, Any]:
    """A type, and what makes values of it that are not null."""
    shape = draw(st.integers(0, 3)) if depth else 0
    if shape == 1:
        kind, values = draw(typed(depth - 1))
        may = kind == pa.null() or draw(st.booleans())
        return draw(st.sampled_from(lists_of(kind, values, may)))
    if shape == 2:
        members = draw(st.lists(typed(depth - 1), min_size=1, max_size=3))
        return structs_of(members, [kind == pa.null() or draw(st.booleans()) for kind, _ in members])
    return draw(st.sampled_from(PLAIN))


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Field, list[Any], list[Any]]:
    """A field, what a column of it holds, and other values to hide around it."""
    kind, values = draw(typed())
    field = pa.field("column", kind, kind == pa.null() or draw(st.booleans()))
    made = _nulls(values, field.nullable)
    return field, draw(st.lists(made, max_size=20)), draw(st.lists(made, max_size=9))


def batch_of(field: pa.Field, held: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(held, field.type)], schema=pa.schema([field]))


def bytes_of(batch: pa.RecordBatch) -> bytes:
    return write_batch(canonical(batch)).to_pybytes()


@pytest.mark.usefixtures("processor")
@given(columns())
def test_content_is_unchanged(column: tuple[pa.Field, list[Any], list[Any]]) -> None:
    field, held, _ = column
    made = canonical(batch_of(field, held))
    made.validate(full=True)
    assert made.column(0).to_pylist() == batch_of(field, held).column(0).to_pylist()
    assert made.schema.field(0) == field
    again = canonical(made)
    assert write_batch(again).equals(write_batch(made))


@pytest.mark.usefixtures("processor")
@given(columns())
def test_the_same_content_is_the_same_bytes(column: tuple[pa.Field, list[Any], list[Any]]) -> None:
    field, held, around = column
    plain = batch_of(field, held)
    padded = batch_of(field, [*around, *held, *around]).slice(len(around), len(held))
    assert bytes_of(padded) == bytes_of(plain)
    everything = batch_of(field, [*held, *around])
    taken = everything.take(pa.array(range(len(held)), pa.int64()))
    assert bytes_of(taken) == bytes_of(plain)
    pieces = [plain.slice(at, 3) for at in range(0, len(held), 3)] or [plain]
    assert bytes_of(pa.concat_batches(pieces)) == bytes_of(plain)


@pytest.mark.usefixtures("processor")
@given(columns(), st.data())
def test_what_hides_below_nulls_is_no_content(
    column: tuple[pa.Field, list[Any], list[Any]], data: st.DataObject
) -> None:
    """A mask laid over values leaves them where they were, below a null."""
    field, held, _ = column
    if not field.nullable or field.type == pa.null():
        return
    mask = data.draw(st.lists(st.booleans(), min_size=len(held), max_size=len(held)))
    array = pa.array(held, field.type)
    bits = np.packbits(~np.array(mask, np.bool_) & array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    children = _children(array)
    buffers = array.buffers()[: array.type.num_buffers]
    hidden = pa.Array.from_buffers(field.type, len(held), [pa.py_buffer(bits), *buffers[1:]], children=children)
    expected = [None if gone else value for gone, value in zip(mask, array.to_pylist(), strict=True)]
    assert hidden.to_pylist() == expected
    batch = pa.RecordBatch.from_arrays([hidden], schema=pa.schema([field]))
    assert bytes_of(batch) == bytes_of(batch_of(field, expected))


def _children(array: pa.Array) -> list[pa.Array] | None:
    if pa.types.is_struct(array.type):
        return [array.field(at) for at in range(array.type.num_fields)]
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return [array.values]
    return None


@pytest.mark.usefixtures("processor")
@given(columns())
def test_rows_are_equal_when_their_bits_are(column: tuple[pa.Field, list[Any], list[Any]]) -> None:
    field, held, around = column
    held, other = held[: len(around)], around[: len(held)]
    same = equal_rows(batch_of(field, held), batch_of(field, other))
    singly = [
        bytes_of(batch_of(field, [a])) == bytes_of(batch_of(field, [b])) for a, b in zip(held, other, strict=True)
    ]
    assert same.tolist() == singly
    assert equal_rows(batch_of(field, held), batch_of(field, held)).all()


@pytest.mark.usefixtures("processor")
@given(columns())
def test_sizes_are_those_of_the_page(column: tuple[pa.Field, list[Any], list[Any]]) -> None:
    field, held, _ = column
    batch = canonical(batch_of(field, held))
    assert row_sizes(batch).tolist() == [size_of(field.type, value) for value in batch.column(0).to_pylist()]


def size_of(kind: pa.DataType, value: Any) -> int:
    """The rule of the format, written a second time, value by value."""
    if kind == pa.null():
        return 0
    if kind == pa.bool_():
        return 1
    if pa.types.is_struct(kind):
        return sum(size_of(field.type, None if value is None else value[field.name]) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return sum(size_of(kind.value_type, item) for item in (value or [None] * kind.list_size))
    wide = 8 if pa.types.is_large_list(kind) or kind in (pa.large_binary(), pa.large_string()) else 4
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return wide + sum(size_of(kind.value_type, item) for item in value or [])
    if kind in (pa.binary(), pa.large_binary()):
        return wide + len(value or b"")
    if kind in (pa.string(), pa.large_string()):
        return wide + len((value or "").encode())
    return kind.bit_width // 8


def test_remarks_are_no_content() -> None:
    inner = pa.field("at", pa.int64(), metadata={"remark": "one"})
    remarked = pa.schema(
        [pa.field("rows", pa.list_(pa.struct([inner])), metadata={"remark": "two"})], {"remark": "three"}
    )
    plain = pa.schema([pa.field("rows", pa.list_(pa.struct([pa.field("at", pa.int64())])))])
    assert bare(remarked).equals(plain, check_metadata=True)


def test_a_null_inside_is_refused_where_none_is_admitted() -> None:
    inner = pa.struct([pa.field("at", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("rows", pa.list_(inner), nullable=False)])
    nulls = pa.array([[{"at": 1}], [{"at": None}]], pa.list_(pa.struct([pa.field("at", pa.int64())])))
    with pytest.raises(Invalid, match="column=at"):
        canonical(pa.RecordBatch.from_arrays([nulls], names=["rows"]), schema)
