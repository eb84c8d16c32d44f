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
from millpond.errors import Corrupt
from millpond.maps.map import KEYS_HERE_MAX
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots import pieces
from millpond.maps.snapshots.condition_span import order_key
from millpond.maps.snapshots.layers import on_top, write_layer
from millpond.maps.snapshots.manifest import LayerMode
from millpond.maps.snapshots.needed_ranges import BlockStarts, CoveredKeys, NeededRanges
from millpond.maps.verify import check_snapshot
from millpond.ranges import DEFAULT_BOUNDARIES, Index, RangeEntry, blocks, index, range_name, writer
from millpond.stores.objects import MemoryObjects
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Map
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from tests.harness.models import Row

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
    monkeypatch.setattr(blocks, "PACKED_BYTES_MIN", 8192)
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
    with objects.reading("part"):
        assert value_of(needed, keys[2]) == [shown(number(keys[2]))], "it lay between them, and there are no copies"
    with objects.reading("part", "part"):
        assert value_of(needed, keys[6], keys[14]) == [shown(number(keys[at])) for at in (6, 14)]
    fresh = NeededRanges(objects, needed.manifest)
    acts = pieces.pieces_opening(objects, fresh.indexes, [(0, 0, at) for at in range(len(table.rows))])
    spans = [sum(map(table.size, numbers)) for numbers in ([at for _, _, at in act()()] for act in acts)]
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
    assert caught.value.kind == "range_damaged" and entry.id in str(caught.value)


@pytest.mark.parametrize("ref", [None, "fix"])
def test_a_key_opens_the_files_that_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ref: str | None
) -> None:
    """As long as few keys came: the next question opens all. Of a damaged file no row is shown."""
    known = {f"k{number}": 1 + (number < 100) for number in range(300)}
    pond = millpond.open(tmp_path)
    made = pond.create_map("m", kind="state", value="long", store="layers")
    pond.refs.states.record()

    def load(target: Map, rows: list[dict[str, object]]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ranges, "write", partial(ranges.write, boundaries=ranges.Boundaries(rows_min=4, rows_max=8)))
            target.load(rows)

    load(made, [{"key": key, "value": 1} for key in known])
    changed = pond.branch(ref, source="main").map("m") if ref else made
    load(changed, [{"key": key, "value": value} for key, value in known.items() if value == 2])
    pond.close()

    def opened() -> Map:
        there = millpond.open(tmp_path)
        return (there.at(ref) if ref else there).map("m")

    target = opened()
    _, oldest = NeededRanges(target.objects, target.freeze()).indexes
    damaged = oldest.entries[0]
    name = ranges.range_name(damaged.id)
    data = bytearray(target.objects.get(name).to_pybytes())
    data[-100] ^= 0xFF
    target.objects.delete(name)
    target.objects.put(name, bytes(data))
    order = {key: order_key(target.definition, key.encode()) for key in known}
    [inside, *_] = [key for key in list(known)[100:] if order[key] <= damaged.last]
    whole = [key for key in list(known)[70:110] if order[key] > damaged.last]
    for first in range(0, len(whole), KEYS_HERE_MAX):
        those, target = whole[first : first + KEYS_HERE_MAX], opened()
        assert [target.get(key) for key in those] == [known[key] for key in those]
    for key in (whole[-1], inside):  # all files are opened, or the damaged one
        for _ in range(2):
            with pytest.raises(Corrupt) as caught:
                (target if key != inside else opened()).get(key)
            assert caught.value.kind == "range_damaged" and name in str(caught.value)
    with millpond.open(tmp_path) as pond:
        assert not check_snapshot(pond.space, pond.map("m"), None, set()).ok
        assert [named.name for named in target.objects.list("quarantine")] == [f"quarantine/{damaged.id}.arrow"]
        with pytest.raises(Corrupt, match="in quarantine") as still:
            opened().get(inside)
        assert still.value.kind == "range_damaged"


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
