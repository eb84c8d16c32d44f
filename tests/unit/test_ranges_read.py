"""Ranges are written, found, got and scanned as a sorted dict would be; ids depend on content alone."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Invalid, NotFound
from millpond.ranges import Boundaries, CachedObjects, RangeReader
from millpond.ranges.files import content_id, read_batch, sealed_bytes, write_batch
from millpond.ranges.key_columns import hash_of_key
from millpond.stores.objects import Objects, open_objects
from tests.unit.range_entries import (
    SCHEMA,
    SMALL,
    Model,
    batch_of,
    boundaries,
    check_index,
    keys,
    large_models,
    model_of,
    models,
    pieces_of,
    plain,
    synced_places,
)

CUTS = st.lists(st.integers(0, 300), max_size=5)


def in_memory() -> Objects:
    return open_objects("memory://")


def written(model: Model, limits: Boundaries = SMALL, objects: Objects | None = None) -> RangeReader:
    objects = objects or in_memory()
    index = ranges.write(objects, [batch_of(model)], limits)
    return ranges.open_index(objects, index.id)


@pytest.mark.usefixtures("processor")
@given(models, boundaries)
def test_what_is_written_is_read(model: Model, limits: Boundaries) -> None:
    reader = written(model, limits)
    check_index(reader)
    assert model_of(reader) == model
    assert reader.index.schema.equals(SCHEMA)
    assert ranges.load_index(reader.objects, reader.index.id) == reader.index


@pytest.mark.usefixtures("processor")
@given(large_models, boundaries, CUTS, CUTS)
def test_ids_depend_on_content_alone(model: Model, limits: Boundaries, cuts: list[int], others: list[int]) -> None:
    batch = batch_of(model)
    whole = ranges.write(in_memory(), [batch], limits)
    assert ranges.write(in_memory(), pieces_of(batch, cuts), limits) == whole
    assert ranges.write(in_memory(), pieces_of(batch, others), limits, schema=SCHEMA) == whole


@pytest.mark.usefixtures("processor")
@given(models)
def test_ids_do_not_depend_on_how_arrow_holds_the_content(model: Model) -> None:
    """Slices, needless bitmaps, bytes below nulls and remarks in the schema are not content."""
    batch = batch_of(model)
    whole = ranges.write(in_memory(), [batch], SMALL)
    padded = pa.concat_batches([batch_of({b"\x00first": next(iter(model.values()))}), batch]) if model else batch
    assert ranges.write(in_memory(), [padded.slice(padded.num_rows - batch.num_rows)], SMALL) == whole
    shuffled = batch.take(pa.array(range(batch.num_rows), pa.int64()))
    assert ranges.write(in_memory(), [shuffled.replace_schema_metadata({"made by": "me"})], SMALL) == whole
    masked = pa.RecordBatch.from_arrays([_with_dirt(column) for column in batch.columns], schema=batch.schema)
    assert ranges.write(in_memory(), [masked], SMALL) == whole


def _with_dirt(column: pa.Array) -> pa.Array:
    """The same values, with a bitmap even where nothing is null and other values below the nulls."""
    if column.null_count == 0 or pa.types.is_nested(column.type):
        return column
    other = pa.scalar("dirt" if pa.types.is_string(column.type) else 1).cast(column.type)
    filled = pc.fill_null(column, other)
    bitmap = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    return pa.Array.from_buffers(column.type, len(column), [pa.py_buffer(bitmap), *filled.buffers()[1:]])


@pytest.mark.usefixtures("processor")
@given(large_models, st.lists(keys, max_size=30), boundaries)
def test_keys_are_found_where_they_are(model: Model, keys: list[bytes], limits: Boundaries) -> None:
    reader = written(model, limits)
    wanted: list[bytes | None] = [*keys, None, *list(model)[:20]]
    range_nos, rows = reader.find(pa.array(wanted, pa.binary()))
    assert range_nos.dtype == rows.dtype == np.int32
    for key, range_no, row in zip(wanted, range_nos.tolist(), rows.tolist(), strict=True):
        if key is None or key not in model:
            assert (range_no, row) == (-1, -1)
        else:
            assert reader.keys(range_no)[row] == key
    for key in wanted[:5]:
        if key is not None:
            got = reader.get(key)
            assert (got is None) == (key not in model)
            assert got is None or got.to_pylist() == [{"key": key, **model[key]}]


@pytest.mark.usefixtures("processor")
@given(large_models, st.none() | keys, st.none() | keys, boundaries)
def test_scans_between_keys_in_both_directions(
    model: Model, lower: bytes | None, upper: bytes | None, limits: Boundaries
) -> None:
    reader = written(model, limits)
    ordered = sorted(model)
    start = 0 if lower is None else bisect_left(ordered, lower)
    stop = len(ordered) if upper is None else bisect_left(ordered, upper)
    expected = [{"key": key, **model[key]} for key in ordered[start:stop]]
    assert [row for batch in reader.scan(lower, upper) for row in batch.to_pylist()] == expected
    backwards = ranges.scan(reader.objects, reader.index, lower, upper, reverse=True)
    assert [row for batch in backwards for row in batch.to_pylist()] == expected[::-1]
    chosen = reader.scan(lower, upper, columns=["flag", "key"])
    assert [row for batch in chosen for row in batch.to_pylist()] == [
        {"flag": row["flag"], "key": row["key"]} for row in expected
    ]


def test_a_scan_opens_only_the_ranges_it_needs(tmp_path: Path) -> None:
    reader = written({b"%05d" % n: plain(n) for n in range(500)}, objects=open_objects(tmp_path))
    middle = reader.index.entries[len(reader.index.entries) // 2]
    assert sum(batch.num_rows for batch in reader.scan(middle.first, middle.last)) == middle.count - 1
    assert len(reader._opened) == 1
    reader.find(pa.array([reader.index.entries[0].first, b"no such key", middle.last], pa.binary()))
    assert len(reader._opened) == 2


def test_chunks_and_strings_are_keys_too() -> None:
    reader = written({b"a": plain(1), b"\xc3\xa4": plain(2)})
    query = pa.chunked_array([["ä"], [], [None, "a", "b"]], pa.string())
    range_nos, rows = ranges.find(reader.objects, reader.index, query)
    assert rows.tolist() == [1, -1, 0, -1]
    assert range_nos.tolist() == [0, -1, 0, -1]
    assert ranges.get(reader.objects, reader.index, b"b") is None


def test_nothing_is_copied_on_open(tmp_path: Path) -> None:
    """Every buffer of an opened range lies in the mapping of its file."""
    objects = open_objects(tmp_path)
    reader = written({b"%05d" % n: plain(n) for n in range(200)}, Boundaries(), objects)
    before = pa.total_allocated_bytes()
    batch = reader.batch(0)
    assert pa.total_allocated_bytes() == before
    path = str(objects.local_path(ranges.range_name(reader.index.entries[0].id)))
    mapped = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(path)
    ]
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    assert buffers
    for buffer in buffers:
        assert buffer.address % 8 == 0
        assert any(start <= buffer.address and buffer.address + buffer.size <= stop for start, stop in mapped)


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    reader = written({b"%05d" % n: plain(n) for n in range(50)}, objects=objects)
    before = model_of(reader)
    for found in list(objects.list()):
        objects.delete(found.name)
    assert model_of(reader) == before
    with pytest.raises(NotFound, match="ranges/"):
        list(ranges.scan(objects, reader.index))
    with pytest.raises(NotFound, match="indexes/"):
        ranges.open_index(objects, reader.index.id)


def test_no_entries_make_an_index_too() -> None:
    objects = in_memory()
    index = ranges.write(objects, [], schema=SCHEMA)
    assert index.entries == ()
    assert index == ranges.write(objects, [batch_of({})])
    reader = ranges.open_index(objects, index.id)
    assert list(reader.scan()) == []
    assert reader.find(pa.array([b"a"], pa.binary()))[0].tolist() == [-1]
    with pytest.raises(Invalid, match="no batches and no schema"):
        ranges.write(objects, [])


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[b"b", b"a"], [b"a", b"a"], [b"a", b""]])
@pytest.mark.parametrize("apart", [True, False])
def test_keys_must_ascend(order: list[bytes], apart: bool) -> None:
    batches = [pa.record_batch({"key": pa.array([key], pa.binary())}) for key in order]
    with pytest.raises(Invalid, match="keys do not ascend") as caught:
        ranges.write(in_memory(), batches if apart else [pa.concat_batches(batches)])
    assert caught.value.values["key"] == order[1]


def test_a_refused_write_leaves_no_index(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    good = batch_of({b"%05d" % n: plain(n) for n in range(100)})
    with pytest.raises(Invalid):
        ranges.write(objects, [good, good], SMALL)
    assert list(objects.list("indexes")) == []


@pytest.mark.parametrize("cached", [False, True])
def test_what_lies_there_already_is_made_durable_before_an_index_names_it(tmp_path: Path, cached: bool) -> None:
    """It may be the work of one who died between giving it its name and making that durable."""
    objects = CachedObjects(open_objects(tmp_path)) if cached else open_objects(tmp_path)
    batch = batch_of({key: plain(1) for key in (b"a", b"b")})
    index = ranges.write(objects, [batch], SMALL)
    with synced_places() as synced:
        assert ranges.write(objects, [batch], SMALL) == index
    assert synced == ["ranges", "indexes"]


def test_columns_that_ranges_do_not_keep_are_named() -> None:
    key = pa.array([b"a"], pa.binary())
    for column in (
        pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array([[{"a": "x"}]], pa.list_(pa.struct([("a", pa.string_view())]))),
        pa.array(["a"], pa.binary_view()),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    ):
        with pytest.raises(Invalid, match="column=wrong") as caught:
            ranges.write(in_memory(), [pa.record_batch({"key": key, "wrong": column})])
        assert caught.value.kind == "range_column_type"
    with pytest.raises(Invalid, match="need a column `key`"):
        ranges.write(in_memory(), [pa.record_batch({"key": pa.array(["a"])})])
    with pytest.raises(Invalid, match="one name"):
        ranges.write(in_memory(), [pa.RecordBatch.from_arrays([key, key], names=["key", "key"])])


def test_dictionaries_are_written_out() -> None:
    """A dictionary is a way to lie in memory: the same entries, the same ids."""
    names = ["EWR", None, "EWR", "JFK"]
    key = pa.array([b"a", b"b", b"c", b"d"], pa.binary())
    plain = pa.record_batch({"key": key, "name": pa.array(names)})
    coded = pa.record_batch({"key": key.dictionary_encode(), "name": pa.array(names).dictionary_encode()})
    objects = in_memory()
    assert ranges.write(objects, [coded]) == ranges.write(in_memory(), [plain])
    assert ranges.write(in_memory(), [plain.slice(0, 2), coded.slice(2)]) == ranges.write(in_memory(), [plain])


def test_nulls_where_none_are_admitted_are_refused() -> None:
    with pytest.raises(Invalid, match="a key is null"):
        ranges.write(in_memory(), [pa.record_batch({"key": pa.array([None], pa.binary())})])
    schema = pa.schema([pa.field("key", pa.binary()), pa.field("n", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"], pa.binary()), pa.array([None], pa.int64())], schema=schema)
    with pytest.raises(Invalid, match="admits none"):
        ranges.write(in_memory(), [batch])


def test_batches_of_other_columns_are_refused() -> None:
    key = pa.array([b"a"], pa.binary())
    batches = [pa.record_batch({"key": key, "n": pa.array([1])}), pa.record_batch({"key": key, "m": pa.array([1])})]
    with pytest.raises(Invalid, match="differs from the ones before"):
        ranges.write(in_memory(), batches)


@pytest.mark.parametrize("wrong", [{"rows_min": 0}, {"rows_min": 9, "rows_max": 8}, {"bits": 64}, {"bytes_max": 0}])
def test_boundaries_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Invalid, match="make no sense"):
        Boundaries(**wrong)


def test_files_of_another_format_are_refused_by_name() -> None:
    """A whole file of another format is not damaged: it is refused, with its number."""
    objects = in_memory()
    index = ranges.write(objects, [batch_of({b"a": plain(1)})])
    (entry,) = index.entries
    for subject, name, load in (
        ("index", ranges.index_name(index.id), lambda: ranges.load_index(objects, index.id)),
        ("range", ranges.range_name(entry.id), lambda: ranges.open_range(objects, entry)),
    ):
        batch = read_batch(objects.get(name), name)
        objects.put(name, sealed_bytes(subject, Path(name).stem, batch, format_number=9))  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="another format") as caught:
            load()
        assert (caught.value.values["object"], caught.value.values["found"]) == (name, 9)


def test_a_file_of_the_first_format_is_refused_by_name() -> None:
    """Its name was the hash of its bytes, and it had no seal."""
    objects = in_memory()
    first = write_batch(pa.record_batch({"key": pa.array([b"a"], pa.binary())}))
    id_ = content_id(first)
    objects.put(ranges.index_name(id_), first)
    with pytest.raises(Invalid, match="another format") as caught:
        ranges.load_index(objects, id_)
    assert (caught.value.values["object"], caught.value.values["found"]) == (ranges.index_name(id_), 1)


# -- the format is stable -----------------------------------------------------------------------------


def test_the_hash_that_ends_ranges_is_fixed() -> None:
    assert hash_of_key(b"") == 0xEFD01F60BA992926
    assert hash_of_key(b"JFK") == 0xF4B5B877930F1BFE


@given(st.binary(max_size=40))
def test_the_hash_is_fnv_then_mixed(key: bytes) -> None:
    """The hash of the format, written a second time."""
    h = 0xCBF29CE484222325
    for byte in key:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ h >> 33) * factor % 2**64
    assert hash_of_key(key) == h ^ h >> 33


@pytest.mark.usefixtures("processor")
@given(large_models, boundaries)
def test_ranges_end_where_the_rule_says(model: Model, limits: Boundaries) -> None:
    """The rule of the format, written a second time, row by row."""
    reader = written(model, limits)
    ends: list[bytes] = []
    rows = size = 0
    for key in sorted(model):
        held = model[key]["rows"] or []
        rows += 1
        size += 4 + len(key) + 8 + 4 + sum(8 + 4 + len((row["value"] or "").encode()) for row in held) + 1 + 8
        quarters = max(4 * rows // limits.rows_max, 4 * size // limits.bytes_max)
        bits = limits.bits if quarters < 2 else limits.bits // 2 if quarters == 2 else limits.bits // 4
        if quarters >= 4 or ((rows >= limits.rows_min or quarters >= 2) and hash_of_key(key) % (1 << bits) == 0):
            ends.append(key)
            rows = size = 0
    if rows:
        ends.append(max(model))
    assert [entry.last for entry in reader.index.entries] == ends
