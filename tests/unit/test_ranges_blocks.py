"""Ranges in blocks: read whole or in part they are the same entries; a damaged byte is noticed by whoever reads it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import accumulate, pairwise
from threading import Barrier
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.ranges import Boundaries, Index, RangeEntry, blocks
from millpond.ranges.files import SEAL, in_form, sealed_bytes
from millpond.ranges.index import index_bytes, index_name, plain_index, read_index, store_index
from millpond.stores.objects import MemoryObjects, open_objects
from tests.unit.range_entries import Model, batch_of, boundaries, large_models, model_of, models

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FarObjects(MemoryObjects):
    """Objects that are taken for far away."""

    in_blocks = True


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Blocks of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 120)
        patch.setattr(blocks, "PACKED_BYTES_MIN", 200)
        yield


MANY = Boundaries(rows_min=1, rows_max=1000, bits=8, bytes_max=1 << 20)


def written(rows: int = 60, value: str = "value") -> tuple[FarObjects, Index, RangeEntry]:
    """A range of several blocks."""
    objects = FarObjects()
    batch = pa.record_batch(
        {"key": pa.array([b"k%04d" % n for n in range(rows)]), "value": pa.array([f"{value}{n}" for n in range(rows)])},
        schema=pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.string())]),
    )
    index = ranges.write(objects, [batch], Boundaries(rows_min=rows, rows_max=100 * rows, bits=0))
    [entry] = ranges.load_index(objects, index.id).entries
    assert entry.blocks is not None and len(entry.blocks.rows) > 5
    return objects, index, entry


class MeetingObjects(FarObjects):
    """Objects of which two are put at once, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = Barrier(2, timeout=10)

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        self.meeting.wait()
        super().put(name, data)


def test_a_range_and_its_index_are_put_at_once() -> None:
    objects = MeetingObjects()
    batch = pa.record_batch({"key": pa.array([b"a", b"b"]), "value": pa.array([1, 2])})
    index = ranges.write(objects, [batch])
    assert ranges.open_index(objects, index.id).batch(0).to_pylist() == batch.to_pylist()


def open_one(objects: MemoryObjects, index: Index, entry: RangeEntry, number: int) -> pa.RecordBatch:
    [block] = ranges.fetch_blocks(objects, entry, range(number, number + 1), index.schema)()
    return block


def block_rows(objects: MemoryObjects, index: Index, entry: RangeEntry) -> list[list[dict[str, object]]]:
    assert entry.blocks is not None
    return [open_one(objects, index, entry, number).to_pylist() for number in range(len(entry.blocks.rows))]


@pytest.mark.usefixtures("processor")
@given(st.one_of(models, large_models), st.one_of(boundaries, st.just(MANY)))
def test_blocks_are_the_range_and_the_ids_are_those_of_one_batch(model: Model, limits: Boundaries) -> None:
    far, near, copied = FarObjects(), MemoryObjects(), MemoryObjects()
    batch = batch_of(model)
    made, beside = (ranges.write(objects, [batch], limits) for objects in (far, near))
    assert made.id == beside.id and [entry.plain for entry in made.entries] == list(beside.entries)
    index = ranges.load_index(far, made.id)
    assert index == made and not ranges.verify(far, made.id).problems
    assert model_of(ranges.open_index(far, index)) == model
    for entry in index.entries:
        whole = ranges.open_range(far, entry)
        assert all(ranges.may_have(entry.filter, key) for key in whole.column("key").to_pylist())
        if entry.blocks is not None:
            assert [row for rows in block_rows(far, index, entry) for row in rows] == whole.to_pylist()
            joined = ranges.fetch_blocks(far, entry, range(len(entry.blocks.rows)), index.schema)()
            assert [row for block in joined for row in block.to_pylist()] == whole.to_pylist()
            assert ranges.open_filter(far, entry.without_filter) == entry.filter
            numbers = [number for number, rows in enumerate(entry.blocks.rows) for _ in range(rows)]
            assert [entry.blocks.number(key) for key in whole.column("key").to_pylist()] == numbers
        name = ranges.range_name(entry.id)
        plain = in_form(far.get(name), name, blocks=False)
        assert plain == near.get(name) and in_form(plain, name, blocks=True) == far.get(name)
    ranges.fetch(far, copied, made.id)
    assert content(copied) == content(near)
    assert content(arrived(near, made)) == content(far) == content(arrived(far, made))


def arrived(source: MemoryObjects, index: Index) -> FarObjects:
    """A place far away after a copy in two attempts of which the first was cut short before the index."""
    target = FarObjects()
    for _ in range(2):
        target.delete(index_name(index.id))
        ranges.fetch(source, target, index.id)
    return target


def content(objects: MemoryObjects) -> dict[str, pa.Buffer]:
    return {info.name: objects.get(info.name) for info in objects.list()}


@given(st.data())
def test_a_flipped_byte_of_a_range_is_noticed(data: st.DataObject) -> None:
    objects, index, entry = written()
    name, rows = ranges.range_name(entry.id), block_rows(objects, index, entry)
    good = objects.get(name).to_pybytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.sampled_from([len(good), at]))
    objects.put(name, bytes(bad[:cut]))
    with pytest.raises((Corrupt, Invalid)) as caught:
        ranges.open_range(objects, entry)
    assert caught.value.values["object"] == name
    assert entry.blocks is not None
    for number, (start, stop) in enumerate(entry.blocks.spans):
        if cut < stop or start <= at < stop:
            with pytest.raises((Corrupt, Invalid)) as caught:
                open_one(objects, index, entry, number)
            assert caught.value.values["object"] == name
        else:
            assert open_one(objects, index, entry, number).to_pylist() == rows[number]
    start, stop = entry.blocks.filter_span
    if cut < stop or start <= at < stop:
        with pytest.raises((Corrupt, Invalid)) as caught:
            ranges.open_filter(objects, entry.without_filter)
        assert caught.value.values["object"] == name
    else:
        assert ranges.open_filter(objects, entry.without_filter) == entry.filter


@given(st.data())
def test_a_flipped_byte_of_an_index_is_noticed(data: st.DataObject) -> None:
    objects, index, _ = written()
    bad = bytearray(index_bytes(objects, index.id).to_pybytes())
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((Corrupt, Invalid)):
        read_index(pa.py_buffer(bytes(bad)), index.id)


def test_a_file_that_another_put_in_one_batch_is_read_whole() -> None:
    objects, index, entry = written()
    rows, name = block_rows(objects, index, entry), ranges.range_name(entry.id)
    objects.put(name, in_form(objects.get(name), name, blocks=False))
    assert block_rows(objects, index, entry) == rows
    assert ranges.open_filter(objects, entry.without_filter) == entry.filter, "it is made of the keys"
    objects.delete(name)
    with pytest.raises(NotFound) as caught:
        open_one(objects, index, entry, 0)
    assert caught.value.kind == "range_not_found"


def test_the_entries_of_another_range_are_refused_whatever_their_checksums() -> None:
    """A table that names sound bytes of other entries is not followed."""
    objects, index, entry = written()
    others, _, other = written(value="other")
    objects.put(ranges.range_name(entry.id), others.get(ranges.range_name(other.id)))
    with pytest.raises(Corrupt) as caught:
        open_one(objects, index, entry, 0)
    assert caught.value.kind == "range_damaged"


def test_verify_names_a_table_and_a_filter_that_are_not_those_of_the_entries() -> None:
    objects, index, entry = written()
    _, _, other = written(rows=61)
    for wrong, message in (
        (ranges.RangeEntry(*plain_values(entry), entry.blocks, other.filter), "the filter of the index"),
        (ranges.RangeEntry(*plain_values(entry), moved(entry), entry.filter), "the blocks of the index"),
        (ranges.RangeEntry(*plain_values(entry), replace(moved(entry, 0), filter_checksum=b"?" * 16)), "the filter"),
    ):
        place = FarObjects()
        place.put(ranges.range_name(entry.id), objects.get(ranges.range_name(entry.id)))
        made = store_index(place, [wrong], index.schema, index.boundaries)
        [problem] = ranges.verify(place, made.id).problems
        assert message in problem.found


def plain_values(entry: RangeEntry) -> tuple[str, bytes, bytes, int, int]:
    return entry.id, entry.first, entry.last, entry.count, entry.size


def moved(entry: RangeEntry, by: int = 1) -> blocks.BlockTable:
    table = entry.blocks
    assert table is not None
    rows = (table.rows[0] + by, table.rows[1] - by, *table.rows[2:])
    return blocks.BlockTable(table.firsts, rows, table.spans, table.checksums, table.plain)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_ranges_have_neither(compression: str) -> None:
    objects = FarObjects()
    batch = pa.record_batch({"key": pa.array([b"%05d" % n for n in range(500)])}, schema=_keys_alone())
    index = ranges.write(objects, [batch], compression=compression)
    assert all(entry.blocks is None and entry.filter is None for entry in index.entries)
    data = index_bytes(objects, index.id)
    assert b"index 2 " in data.to_pybytes() and plain_index(index, data) is data
    name = ranges.range_name(index.entries[0].id)
    for form in (True, False):
        assert in_form(objects.get(name), name, blocks=form) == objects.get(name)


def _keys_alone() -> pa.Schema:
    return pa.schema([pa.field("key", pa.binary(), nullable=False)])


def test_many_filters_stay_in_the_files_of_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.ranges.writer.FILTERS_BYTES_MAX", 100)
    monkeypatch.setattr("millpond.ranges.index.FILTERS_BYTES_MAX", 100)
    objects = FarObjects()
    batch = pa.record_batch({"key": pa.array([b"%05d" % n for n in range(5000)])}, schema=_keys_alone())
    index = ranges.write(objects, [batch], Boundaries(rows_min=10, rows_max=1000))
    assert b"index 5 " in index_bytes(objects, index.id).to_pybytes()
    read = ranges.load_index(objects, index.id)
    for entry in read.entries:
        keys = ranges.open_range(objects, entry).column("key")
        assert entry.filter is None
        # A small file has no blocks, and no filter: it is fetched whole.
        assert entry.blocks is None or ranges.open_filter(objects, entry) == blocks.filter_of(keys)
    assert sum(entry.blocks is not None for entry in read.entries) > 5
    assert not ranges.verify(objects, index.id).problems
    again = store_index(objects, list(read.entries), index.schema, index.boundaries)
    assert again.id == index.id and all(entry.filter_checksum for entry in again.entries if entry.blocks)


def test_an_index_that_grew_has_its_filters_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of ranges that a smaller index named, whose files an earlier version may have written."""
    objects, index, entry = written()
    assert entry.filter is not None and entry.filter_checksum == b""
    monkeypatch.setattr("millpond.ranges.index.FILTERS_BYTES_MAX", 0)
    store_index(objects, [entry], index.schema, index.boundaries)
    [read] = ranges.load_index(objects, index.id).entries
    assert read.filter is None and ranges.open_filter(objects, read) == entry.filter
    name = ranges.range_name(entry.id)
    objects.put(name, in_batches(objects, index, entry, 3)[0])
    assert ranges.open_filter(objects, read) == entry.filter
    assert open_one(objects, index, read, 0).num_rows == entry.blocks.rows[0]  # type: ignore[union-attr]


def in_batches(objects: MemoryObjects, index: Index, entry: RangeEntry, number: int) -> tuple[pa.Buffer, RangeEntry]:
    """The file of a range, and its entry, as formats 3 and 4 had them: each block is a batch of the file."""
    assert entry.blocks is not None and entry.filter is not None
    cut = ranges.fetch_blocks(objects, entry, range(len(entry.blocks.rows)), index.schema)()
    empty, grown, ends = f"range {number} {entry.id} {'0' * 32}".encode(), pa.BufferOutputStream(), []
    with pa.ipc.new_file(grown, index.schema.with_metadata({SEAL: empty})) as writer:
        for block in cut:
            ends.append(grown.tell())
            writer.write_batch(block)
        ends.append(grown.tell())
        grown.write(entry.filter if number == 4 else b"")
    data = grown.getvalue().to_pybytes()
    ends[0] = 16 + int.from_bytes(data[12:16], "little")  # the schema is written before the first batch
    filled = pa.py_buffer(data.replace(empty, empty[:-32] + xxhash.xxh3_128_hexdigest(data).encode()))
    table = blocks.BlockTable.of(filled, list(pairwise(ends)), cut, entry.blocks.plain, entry.filter)
    sum_ = table.filter_checksum if number == 4 else b""
    return filled, replace(entry, size=filled.size, blocks=replace(table, filter_checksum=sum_, packed=False))


def test_a_filter_has_all_keys_and_few_others() -> None:
    keys = [b"k%d" % number for number in range(3000)]
    made = blocks.filter_of(pa.array(keys, pa.binary()))
    assert made.size * 8 <= 12 * len(keys)
    assert all(blocks.may_have(made, key) for key in keys)
    assert sum(blocks.may_have(made, b"x%d" % number) for number in range(20_000)) <= 200


def test_blocks_and_filters_are_those_of_the_page() -> None:
    """Read with nothing but Arrow and a hash."""
    objects, index, entry = written()
    table = pa.ipc.open_file(index_bytes(objects, index.id)).read_all()
    assert table.schema.metadata[b"millpond"].startswith(b"index 5 " + index.id.encode())
    [row] = table.to_pylist()
    data = objects.get(ranges.range_name(entry.id)).to_pybytes()
    assert data.count(b"range 5 " + entry.id.encode()) == 2 and row["size"] == len(data)
    file = pa.ipc.open_file(data)
    assert file.num_record_batches == 1 and file.read_all().num_rows == 0
    assert int(file.schema.metadata[b"blocks"]) == len(row["blocks"])
    assert sum(block["rows"] for block in row["blocks"]) == row["count"]
    begins = [0, *accumulate(block["rows"] for block in row["blocks"])]
    for number, block in enumerate(row["blocks"]):
        content = data[block["start"] : block["stop"]]
        assert xxhash.xxh3_128_digest(content) == block["checksum"]
        batch = pa.ipc.open_stream(content).read_next_batch()
        assert batch.schema.metadata == {b"packed": b"0,1"}
        lengths, [held, *others] = batch.column("key").field(0), batch.column("key").field(1).to_pylist()
        assert lengths.to_pylist() == [5] * block["rows"] and not any(others)
        assert held == b"".join(b"k%04d" % n for n in range(begins[number], begins[number + 1]))
        assert held.startswith(block["first"])
    assert data[row["blocks"][-1]["stop"] :].startswith(memoryview(entry.filter))  # type: ignore[arg-type]
    words, count = memoryview(row["filter"]).cast("Q"), len(row["filter"]) // 32
    assert count == max(1, -(-row["count"] // 22))
    for number in range(row["count"]):
        h = xxhash.xxh3_64_intdigest(b"k%04d" % number)
        block_no = (h >> 32) * count >> 32
        assert all(words[4 * block_no + i] >> (h >> 6 * i & 63) & 1 for i in range(4))
    assert row["plain"] == sealed_bytes("range", entry.id, ranges.open_range(objects, entry)).size
    assert hashlib.sha256(data).hexdigest() != entry.id


@pytest.mark.parametrize("number", [3, 4])
def test_blocks_of_former_formats_are_read_listed_with_others_and_copied(number: int) -> None:
    objects, index, entry = written()
    near = MemoryObjects()
    ranges.fetch(objects, near, index.id)
    data, old = in_batches(objects, index, entry, number)
    place = FarObjects()
    place.put(ranges.range_name(entry.id), data)
    made = store_index(place, [old.without_filter if number == 4 else old], index.schema, index.boundaries)
    assert made.id == index.id and f"index {number} ".encode() in index_bytes(place, made.id).to_pybytes()
    [read] = ranges.load_index(place, made.id).entries
    assert read.blocks == old.blocks and not ranges.verify(place, made.id).problems
    assert block_rows(place, index, read) == block_rows(objects, index, entry)
    assert ranges.open_range(place, read) == ranges.open_range(objects, entry)
    copied = MemoryObjects()
    ranges.fetch(place, copied, made.id)
    assert content(copied) == content(near)
    again = FarObjects()
    ranges.fetch(place, again, made.id)
    assert content(again) == content(place)


def test_a_version_that_knows_no_packed_blocks_names_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, index, entry = written()
    monkeypatch.setattr("millpond.ranges.files.FORMATS", (2, 3, 4))
    monkeypatch.setattr("millpond.ranges.files._IN_BLOCKS", (3, 4))
    for read in (lambda: ranges.load_index(objects, index.id), lambda: ranges.open_range(objects, entry)):
        with pytest.raises(Invalid) as caught:
            read()
        assert caught.value.kind == "range_format" and caught.value.values["found"] == 5


def test_a_folder_writes_what_it_wrote_before(tmp_path: Path) -> None:
    index = ranges.write(open_objects(tmp_path), [batch_of({b"k": {"hash": 1, "rows": [], "flag": None, "size": 1.0}})])
    assert all(b" 2 " in file.read_bytes() for file in tmp_path.glob("*/*.arrow"))
    assert index.entries[0].blocks is None and index.entries[0].filter is None
