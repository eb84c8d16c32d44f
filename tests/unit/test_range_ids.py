"""Ids of columns: equal content has one id, other content another, whatever Arrow does with bytes."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import hashlib
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Corrupt, Invalid
from millpond.ranges.canonical import bare, check_types
from millpond.ranges.files import read_sealed, sealed_bytes
from millpond.ranges.ids import FORMAT, columns_id, schema_code, type_code
from millpond.stores.objects import Objects, open_objects
from tests.unit.range_entries import SMALL, Watched, batch_of, large_models, model_of, plain
from tests.unit.test_range_arrays import batch_of as column_of
from tests.unit.test_range_arrays import columns, typed

GOLDEN = Path(__file__).parents[1] / "data" / "ranges-2"
WRITERS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"metadata_version": pa.MetadataVersion.V4},
        {"allow_64bit": True},
        {"unify_dictionaries": True},
        {"compression": "lz4"},
        {"compression": "zstd", "use_threads": False},
    ]
)


def written_by(batch: pa.RecordBatch, writer: dict[str, Any]) -> pa.Buffer:
    """The file as another version of Arrow might write it."""
    return sealed_bytes("range", columns_id("range", batch), batch, options=pa.ipc.IpcWriteOptions(**writer))


# -- equal content, one id ----------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
@given(columns(), st.lists(st.integers(0, 20), max_size=4), WRITERS)
def test_an_id_follows_content_alone(
    column: tuple[pa.Field, list[Any], list[Any]], cuts: list[int], writer: dict[str, Any]
) -> None:
    field, held, around = column
    batch = column_of(field, held)
    expected = columns_id("range", batch)
    padded = column_of(field, [*around, *held, *around]).slice(len(around), len(held))
    assert columns_id("range", padded) == expected
    at = [0, *sorted(cut % (len(held) + 1) for cut in cuts), len(held)]
    chunks = [batch.slice(start, stop - start) for start, stop in itertools.pairwise(at)]
    assert columns_id("range", pa.Table.from_batches(chunks, batch.schema)) == expected
    remarked = batch.replace_schema_metadata({"made by": "another"})
    assert columns_id("range", remarked) == expected
    id_ = expected
    read = read_sealed("range", id_, written_by(batch, writer), name="a file", where="")
    assert columns_id("range", read) == expected


@given(st.lists(st.none() | st.text(max_size=4)), st.sampled_from([pa.int8(), pa.int32(), pa.uint16()]))
def test_dictionaries_are_no_content(held: list[str | None], code: pa.DataType) -> None:
    plain_ = pa.record_batch({"name": pa.array(held, pa.string())})
    coded = pa.array(held, pa.string()).dictionary_encode().cast(pa.dictionary(code, pa.string()))
    assert columns_id("range", pa.record_batch({"name": coded})) == columns_id("range", plain_)
    backwards = pa.array(held[::-1], pa.string()).dictionary_encode()
    turned = backwards.take(pa.array(range(len(held) - 1, -1, -1), pa.int64()))
    assert columns_id("range", pa.table({"name": turned})) == columns_id("range", plain_)


def test_what_lists_call_their_items_is_no_content() -> None:
    one, other = (pa.array([[1], None], pa.list_(pa.field(name, pa.int64()))) for name in ("item", "element"))
    assert one.type == other.type
    assert columns_id("range", pa.record_batch({"n": one})) == columns_id("range", pa.record_batch({"n": other}))


# -- other content, another id ------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
@given(columns(), columns())
def test_other_content_has_another_id(a: tuple[pa.Field, list[Any], Any], b: tuple[pa.Field, list[Any], Any]) -> None:
    one, other = column_of(*a[:2]), column_of(*b[:2])
    alike = one.schema.equals(other.schema) and repr(one.to_pylist()) == repr(other.to_pylist())
    assert (columns_id("range", one) == columns_id("range", other)) == alike


@given(columns(), st.data())
def test_one_value_more_or_less_is_another_id(column: tuple[pa.Field, list[Any], Any], data: st.DataObject) -> None:
    field, held, _ = column
    if not held:
        return
    at = data.draw(st.integers(0, len(held) - 1))
    whole = columns_id("range", column_of(field, held))
    assert columns_id("range", column_of(field, held[:at] + held[at + 1 :])) != whole
    assert columns_id("range", column_of(field, held), format_number=FORMAT + 1) != whole
    assert columns_id("index", column_of(field, held)) != whole
    assert columns_id("range", column_of(field, held), b"other") != whole
    assert columns_id("range", column_of(field.with_name("other"), held)) != whole
    if field.nullable and None not in held:
        assert columns_id("range", column_of(field.with_nullable(False), held)) != whole


def test_bytes_do_not_slip_from_one_value_into_the_next() -> None:
    ids = {
        columns_id("range", pa.record_batch({"a": pa.array(a, pa.binary()), "b": pa.array(b, pa.binary())}))
        for a, b in (([b"xy", b""], [b"", b""]), ([b"x", b"y"], [b"", b""]), ([b"", b""], [b"xy", b""]))
    }
    assert len(ids) == 3


# -- the form that is hashed --------------------------------------------------------------------------


@given(typed())
def test_types_are_written_as_arrow_publishes_them(made: tuple[pa.DataType, Any]) -> None:
    assert type_code(made[0]) == published(made[0])


@pytest.mark.parametrize(
    "kind",
    [
        pa.int16(), pa.uint8(), pa.uint16(), pa.uint64(), pa.float16(), pa.date64(), pa.time32("s"), pa.time32("ms"),
        pa.time64("us"), pa.time64("ns"), pa.duration("ns"), pa.timestamp("us"), pa.timestamp("ns", "Europe/Rome"),
        pa.decimal256(50, -3), pa.month_day_nano_interval(), pa.binary(20), pa.list_(pa.int8(), 7), pa.struct([]),
    ],
    ids=str,
)  # fmt: skip
def test_rare_types_are_too(kind: pa.DataType) -> None:
    check_types(pa.schema([pa.field("key", pa.binary()), pa.field("rare", kind)]))
    assert type_code(kind) == published(kind)


def published(kind: pa.DataType) -> str:
    """The type as Arrow's C data interface writes it: the first field of its struct is that text."""
    capsule = kind.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    text = ctypes.cast(pointer(capsule, b"arrow_schema"), ctypes.POINTER(ctypes.c_char_p))[0]
    assert text is not None
    return text.decode()


@given(columns())
def test_the_form_is_that_of_the_page(column: tuple[pa.Field, list[Any], list[Any]]) -> None:
    """The form of the format, made a second time: value by value, from Python's values."""
    field, held, _ = column
    field = bare(pa.schema([field])).field(0)
    batch = column_of(field, held)
    held = batch.column(0).to_pylist()
    if any(word in str(field.type) for word in ("timestamp", "date", "decimal")):
        return  # their numbers are not in Python's values
    schema = schema_code(batch.schema)
    hashed = [b"millpond range 2", sized(b""), sized(schema), sized(struct.pack("<Q", len(held)))]
    hashed.append(form(field, held, [False] * len(held)))
    assert hashlib.sha256(b"".join(hashed)).hexdigest() == columns_id("range", batch)


def sized(part: bytes) -> bytes:
    return struct.pack("<Q", len(part)) + part


def form(field: pa.Field, held: list[Any], dead: list[bool]) -> bytes:
    """One array as it is hashed; `dead`: below a null."""
    kind, out = field.type, struct.pack("<Q", len(held))
    if not held or kind == pa.null():
        return out
    alive = [value is not None and not gone for value, gone in zip(held, dead, strict=True)]
    out += sized(bits(alive) if field.nullable and not all(alive) else b"")
    if pa.types.is_struct(kind):
        for inner in kind:
            items = [v[inner.name] if a else None for v, a in zip(held, alive, strict=True)]
            out += form(inner, items, [not a for a in alive])
        return out
    if pa.types.is_fixed_size_list(kind):
        items = [item for v, a in zip(held, alive, strict=True) for item in (v if a else [None] * kind.list_size)]
        return out + form(kind.value_field, items, [not a for a in alive for _ in range(kind.list_size)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = [v if a else [] for v, a in zip(held, alive, strict=True)]
        items = [item for group in lists for item in group]
        offsets = ends([len(group) for group in lists], pa.types.is_large_list(kind))
        return out + sized(offsets) + form(kind.value_field, items, [False] * len(items))
    if kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        texts = [(v.encode() if isinstance(v, str) else v) if a else b"" for v, a in zip(held, alive, strict=True)]
        wide = kind in (pa.large_binary(), pa.large_string())
        return out + sized(ends([len(text) for text in texts], wide)) + sized(b"".join(texts))
    if kind == pa.bool_():
        return out + sized(bits([bool(v) and a for v, a in zip(held, alive, strict=True)]))
    if pa.types.is_fixed_size_binary(kind):
        return out + sized(b"".join(v if a else b"\0" * kind.byte_width for v, a in zip(held, alive, strict=True)))
    dtype = np.dtype(kind.to_pandas_dtype()).newbyteorder("<")
    return out + sized(np.array([v if a else 0 for v, a in zip(held, alive, strict=True)], dtype).tobytes())


def bits(mask: list[bool]) -> bytes:
    return bytes(sum(bit << at for at, bit in enumerate(mask[start : start + 8])) for start in range(0, len(mask), 8))


def ends(lengths: list[int], wide: bool) -> bytes:
    at, out = 0, [0]
    for length in lengths:
        at += length
        out.append(at)
    return struct.pack(f"<{len(out)}{'q' if wide else 'i'}", *out)


# -- files of other writers ---------------------------------------------------------------------------


def rewrite(objects: Objects, index: ranges.Index, writer: dict[str, Any]) -> None:
    """Every range's file as another version of Arrow might have written it."""
    for entry in index.entries:
        batch = ranges.open_range(objects, entry)
        objects.put(ranges.range_name(entry.id), written_by(batch, writer))


@pytest.mark.usefixtures("processor")
@given(large_models, WRITERS)
def test_files_of_other_writers_are_read_verified_and_travel(model: Any, writer: dict[str, Any]) -> None:
    """Their bytes and sizes differ; ids do not, and nobody takes them for damaged."""
    objects, target, late = Watched(), Watched(), Watched()
    index = ranges.write(objects, [batch_of(model)], SMALL)
    rewrite(objects, index, writer)
    assert model_of(ranges.open_index(objects, index.id)) == model
    assert ranges.verify(objects, index.id).ok
    ranges.fetch(objects, target, index.id)
    assert ranges.verify(target, index.id).ok
    assert ranges.missing(index, target) == []
    assert ranges.fetch(objects, target, index.id).ranges == 0
    ranges.fetch(target, late, index.id)
    assert ranges.merge(late, [index, index]) == index


@pytest.mark.usefixtures("processor")
def test_the_same_content_written_over_another_writers_file_harms_no_one() -> None:
    objects = Watched()
    model = {b"%04d" % n: plain(n) for n in range(300)}
    index = ranges.write(objects, [batch_of(model)], SMALL)
    rewrite(objects, index, {"compression": "zstd"})
    assert ranges.write(objects, [batch_of(model)], SMALL) == index
    assert ranges.verify(objects, index.id).ok


def test_a_file_under_another_id_is_damaged() -> None:
    """Its checksum is right: it is whole, but not what the name says."""
    objects = Watched()
    one, other = (ranges.write(objects, [batch_of({b"a": plain(n)})]).entries[0] for n in (1, 2))
    objects.put(ranges.range_name(one.id), objects.get(ranges.range_name(other.id)))
    with pytest.raises(Corrupt, match=one.id):
        ranges.open_range(objects, one)
    batch = ranges.open_range(objects, other)
    objects.put(ranges.range_name(one.id), sealed_bytes("range", one.id, batch))  # it even says so itself
    with pytest.raises(Corrupt, match="not those of the id"):
        ranges.check_file(objects.get(ranges.range_name(one.id)), ranges.range_name(one.id), "here")


# -- golden -------------------------------------------------------------------------------------------


def golden_batch() -> pa.RecordBatch:
    """Rows of every type that ranges hold, nulls among them."""
    rows = 9
    inner = pa.struct([pa.field("at", pa.int64(), nullable=False), pa.field("name", pa.string())])
    instants = pa.array([None if n == 3 else n * 86_400_000 - 10**9 for n in range(rows)], pa.int64())
    numbers = [None if n == 5 else n - 4 for n in range(rows)]
    texts = [None if n == 2 else "ä" * n for n in range(rows)]
    held: dict[str, pa.Array] = {
        "key": pa.array([b"key %d" % n for n in range(rows)], pa.binary()),
        "null": pa.nulls(rows), "bool": pa.array([None, True, False] * 3),
        "timestamp": instants.cast(pa.timestamp("ms", "UTC")),
        "date": pa.array([datetime.date(2020, 1, 1 + n) for n in range(rows)]),
        "decimal": pa.array([decimal.Decimal(n) / 4 for n in range(rows)], pa.decimal128(9, 2)),
        "fixed": pa.array([None if n == 1 else bytes([n] * 20) for n in range(rows)], pa.binary(20)),
        "list": pa.array([None if n == 4 else [n] * (n % 3) for n in range(rows)], pa.list_(pa.int32())),
        "pair": pa.array([None if n == 6 else [n, None] for n in range(rows)], pa.list_(pa.int16(), 2)),
        "struct": pa.array([None if n == 7 else {"at": n, "name": texts[n]} for n in range(rows)], inner),
        "rows": pa.array([[{"at": k, "name": str(k)} for k in range(n % 4)] for n in range(rows)], pa.list_(inner)),
    }  # fmt: skip
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()):
        held[str(kind)] = pa.array(numbers, kind)
    for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        held[str(kind)] = pa.array([None if n is None else n + 4 for n in numbers], kind)
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        held[str(kind)] = pa.array(texts, pa.string()).cast(kind)
    return pa.record_batch(held)


def golden_ids() -> dict[str, str]:
    """The id of each column alone, of all together, and of an index."""
    batch = golden_batch()
    index = ranges.write(Watched(), [batch], ranges.Boundaries(rows_min=1, rows_max=4, bits=1))
    singly = {field.name: columns_id("range", batch.select([field.name])) for field in batch.schema}
    return {**singly, "all columns": columns_id("range", batch), "an index": index.id}


def test_ids_are_those_of_every_version_before() -> None:
    assert golden_ids() == json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))


def test_files_of_versions_before_are_read() -> None:
    """Written once, never again: `python -m tests.unit.test_range_ids` wrote them."""
    objects = open_objects(GOLDEN)
    id_ = json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))["an index"]
    assert ranges.verify(objects, id_).ok
    held = pa.Table.from_batches(ranges.open_index(objects, id_).scan())
    assert held.to_pylist() == golden_batch().to_pylist()
    again = ranges.write(Watched(), held.to_batches(), ranges.Boundaries(rows_min=1, rows_max=4, bits=1))
    assert again.id == id_


def test_a_null_where_none_is_admitted_has_no_id() -> None:
    field = pa.field("n", pa.int64(), nullable=False)
    with pytest.raises(Invalid, match="column=n"):
        columns_id("range", pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=pa.schema([field])))


if __name__ == "__main__":
    ranges.write(open_objects(GOLDEN), [golden_batch()], ranges.Boundaries(rows_min=1, rows_max=4, bits=1))
    (GOLDEN / "ids.json").write_text(json.dumps(golden_ids(), indent=1) + "\n", encoding="utf-8")
