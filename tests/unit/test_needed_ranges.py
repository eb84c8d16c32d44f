"""Readers of blocks, by what they ask a bucket for: one request for neighbours, none for keys that filters deny."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond import ranges
from millpond.errors import Corrupt, NotFound
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots import pieces
from millpond.maps.snapshots.condition_span import order_key
from millpond.maps.snapshots.covered_keys import BlockStarts, CoveredKeys
from millpond.maps.snapshots.layers import on_top, write_layer
from millpond.maps.snapshots.manifest import LayerMode
from millpond.maps.snapshots.needed_ranges import NeededRanges
from millpond.ranges import DEFAULT_BOUNDARIES, Index, RangeEntry, blocks, index, range_name, writer
from millpond.refs.map import KEYS_HERE_MAX
from millpond.stores.objects import MemoryObjects
from millpond.testing.rows import canonical_of

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.testing.models import Row

DEFINITION = MapDefinition(name="m", kind=Kind.STATE, incarnation="i", value=parse_value_type("string"))
ROWS = 6_000


class CountedObjects(MemoryObjects):
    """Objects far away that note what is read of them."""

    in_blocks = True

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def get(self, name: str) -> pa.Buffer:
        self.reads.append(name.partition("/")[0])
        return super().get(name)

    def get_range(self, name: str, start: int, stop: int | None = None) -> memoryview:
        self.reads.append("part")
        return memoryview(super().get(name)).cast("B")[start:stop]

    @contextmanager
    def reading(self, *wanted: str) -> Iterator[None]:
        """Compare the kinds of what the block reads."""
        self.reads.clear()
        yield
        assert sorted(self.reads) == sorted(wanted)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some forty rows."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(blocks, "WHOLE_BYTES_MAX", 8192)
    monkeypatch.setattr(pieces, "GAP_BYTES_MAX", 10_000)
    monkeypatch.setattr(pieces, "RUN_BYTES_MAX", 40_000)


@pytest.fixture
def filters_stay(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index has filters: those of its ranges stay in their files."""
    for module in (index, writer):
        monkeypatch.setattr(module, "FILTERS_BYTES_MAX", 0)


def loaded(
    objects: CountedObjects, numbers: range, head: SnapshotManifest | None = None, value: str = "v"
) -> SnapshotManifest:  # fmt: skip
    rows: list[Row] = [((f"k{number}",), shown(number, value)) for number in numbers]
    layer = write_layer(objects, DEFINITION, [canonical_of(DEFINITION, rows)], LayerMode.JOIN)
    version = 1 if head is None else head.shard_version + 1
    return on_top(objects, head, DEFINITION, layer, version=version, created_ms=version)


def value_of(needed: NeededRanges, *keys: str) -> list[object]:
    snapshot = needed.of_keys([key.encode() for key in keys])
    assert snapshot is not None, "far less than half is needed"
    return snapshot.lookup(list(keys)).to_pylist()


def shown(number: int, value: str = "v") -> str:
    return f"{value}{number:050}"


@pytest.mark.usefixtures("small")
def test_indexes_are_fetched_once_and_a_key_costs_one_request() -> None:
    objects = CountedObjects()
    manifest = loaded(objects, range(ROWS))
    manifest = loaded(objects, range(100), manifest, "w")
    with objects.reading("indexes", "indexes"):
        needed = NeededRanges(objects, manifest)
    with objects.reading("part"):
        assert value_of(needed, "k200") == [shown(200)]
    with objects.reading():
        assert value_of(needed, "k200") == [shown(200)]
    objects.reads.clear()
    assert [value_of(needed, f"none{number}") for number in range(300)] == [[None]] * 300
    assert len(objects.reads) <= 12, "about one of a hundred for each layer"
    later = loaded(objects, range(50), manifest, "x")
    with objects.reading("indexes"):
        after = NeededRanges(objects, later, needed)
    assert value_of(after, "k7") == [shown(7, "x")]


@pytest.mark.usefixtures("small")
def test_neighbouring_blocks_come_by_one_request() -> None:
    objects = CountedObjects()
    needed = NeededRanges(objects, loaded(objects, range(ROWS)))
    [entry, *_] = needed.indexes[0].entries
    table = entry.blocks
    assert table is not None and len(table.rows) > 20
    keys = [first[8:].decode() for first in table.firsts]

    def number(key: str) -> int:
        return int(key[1:])

    with objects.reading("part"):
        assert value_of(needed, keys[0], keys[1], keys[3]) == [shown(number(keys[at])) for at in (0, 1, 3)]
    with objects.reading():
        assert value_of(needed, keys[2]) == [shown(number(keys[2]))], "it lay between them"
    with objects.reading("part", "part"):
        assert value_of(needed, keys[6], keys[14]) == [shown(number(keys[at])) for at in (6, 14)]
    fresh = NeededRanges(objects, needed.manifest)
    acts = pieces.pieces_opening(objects, fresh.indexes, [(0, 0, at) for at in range(len(table.rows))])
    spans = [sum(map(table.size, numbers)) for numbers in ([at for _, _, at in act()] for act in acts)]
    assert len(acts) > 1 and max(spans) <= 40_000, "no request asks for more"


@pytest.mark.usefixtures("filters_stay")
def test_a_filter_in_a_file_is_fetched_beside_the_first_block() -> None:
    objects = CountedObjects()
    needed = NeededRanges(objects, loaded(objects, range(ROWS)))
    [entry, *_] = needed.indexes[0].entries
    assert entry.filter is None and entry.filter_checksum
    with objects.reading("part", "part"):
        assert value_of(needed, "none-of-them") == [None]
    absent = [f"none{number}" for number in range(300)]
    needed.of_keys([key.encode() for key in absent])
    objects.reads.clear()
    assert value_of(needed, *absent) == [None] * 300
    assert len(objects.reads) <= 10, "their filters are here"
    there = [f"k{number}" for number in range(3)]
    assert value_of(NeededRanges(objects, needed.manifest), *there) == [shown(number) for number in range(3)]


@pytest.mark.usefixtures("filters_stay")
def test_a_damaged_filter_is_named_and_denies_nothing() -> None:
    objects = CountedObjects()
    needed = NeededRanges(objects, loaded(objects, range(ROWS)))
    [entry, *_] = needed.indexes[0].entries
    assert entry.blocks is not None
    start, _ = entry.blocks.filter_span
    data = bytearray(objects.get(range_name(entry.id)).to_pybytes())
    data[start + 5] ^= 0xFF
    objects.put(range_name(entry.id), bytes(data))
    with pytest.raises(Corrupt) as caught:
        value_of(needed, entry.blocks.firsts[3][8:].decode())
    assert caught.value.kind == "range_damaged" and entry.id in caught.value.values["object"]


def test_a_key_at_a_ref_opens_the_files_that_may_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as few keys came: the next question opens all."""
    small = ranges.Boundaries(rows_min=4, rows_max=8)
    monkeypatch.setattr(ranges, "write", partial(ranges.write, boundaries=small))
    known = {f"k{number}": 1 + (number < 100) for number in range(300)}
    pond = millpond.open(tmp_path)
    pond.create_map("m", kind="state", value="long", store="layers").load([{"key": key, "value": 1} for key in known])
    changed = [{"key": key, "value": value} for key, value in known.items() if value == 2]
    pond.branch("fix", source="main").map("m").load(changed)
    at_ref = pond.at("fix").map("m")
    _, oldest = NeededRanges(at_ref.objects, at_ref.freeze()).indexes
    gone = oldest.entries[0]
    at_ref.objects.delete(ranges.range_name(gone.id))
    whole = [key for key in list(known)[70:110] if order_key(at_ref.definition, key.encode()) > gone.last]
    for first in range(0, len(whole), KEYS_HERE_MAX):
        those, opened = whole[first : first + KEYS_HERE_MAX], pond.at("fix").map("m")
        assert [opened.get(key) for key in those] == [known[key] for key in those]
    with pytest.raises(NotFound) as caught:
        [at_ref.get(key) for key in whole[: KEYS_HERE_MAX + 1]]
    assert caught.value.kind == "range_not_found"
    pond.close()


@given(
    keys=st.lists(st.binary(max_size=3), min_size=2, max_size=40, unique=True), bits=st.sampled_from([1, 3, 8, 64]),
    data=st.data(),
)  # fmt: skip
def test_covered_keys_need_no_other_piece(keys: list[bytes], bits: int, data: st.DataObject) -> None:
    """Whatever keys lie in blocks, of which some are open; many keys have one hash."""
    definition = replace(DEFINITION, hash_bits=bits)
    ordered = sorted({order_key(definition, key): key for key in keys})
    cuts = st.sets(st.integers(1, len(ordered) - 1))
    begins = [0, *sorted(data.draw(cuts))]
    blocks_there = [ordered[start:stop] for start, stop in pairwise([*begins, len(ordered)])]
    in_ranges = [0, *sorted(data.draw(st.sets(st.integers(1, max(len(begins) - 1, 1))))), len(begins)]
    entries = [entry_of(blocks_there[start:stop]) for start, stop in pairwise(in_ranges) if start < stop]
    made = Index("", tuple(entries), pa.schema([]), DEFAULT_BOUNDARIES)
    everything = [(0, at, number) for at, entry in enumerate(entries) for number in range(len(entry.blocks.rows))]  # type: ignore[union-attr]
    opened = data.draw(st.sets(st.sampled_from(everything)))
    questions = [*keys, *data.draw(st.lists(st.binary(max_size=3), max_size=5))]
    others = CoveredKeys([BlockStarts(made)], opened).others(questions, bits)
    for key in set(questions) - set(others):
        wanted = order_key(definition, key)
        for at, entry in enumerate(entries):
            if entry.first <= wanted <= entry.last:
                assert entry.blocks is not None and (0, at, entry.blocks.number(wanted)) in opened
    assert CoveredKeys([BlockStarts(made)], everything).others(questions, bits) == []


def entry_of(those: list[list[bytes]]) -> RangeEntry:
    firsts, rows = tuple(block[0] for block in those), tuple(map(len, those))
    table = blocks.BlockTable(firsts, rows, ((0, 1),) * len(rows), (b"",) * len(rows), 0)
    return RangeEntry("", those[0][0], those[-1][-1], sum(rows), 1, table)
