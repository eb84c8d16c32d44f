"""The index of a ranged map in sections: it answers as a walk over all ranges does, and parts of it serve again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.errors import Corrupt
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.search.intervals import Intervals
from millpond.maps.snapshots import sections_of_layers
from millpond.maps.snapshots.freeze import collect, freeze
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.manifest import load_manifest, store_manifest
from millpond.maps.snapshots.section_list import (
    Section,
    SectionList,
    interval_files,
    load_section,
    load_sections,
    store_section,
    store_sections,
)
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.stores.objects import FolderObjects
from tests.harness.rows import canonical_of
from tests.rings.sampling import examples
from tests.unit.range_entries import synced_places

if TYPE_CHECKING:
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects

Rows = dict[tuple[int, int, int], str]

LEAST, GREATEST = -(2**63), 2**63 - 1
RANGED = [Kind.RANGED_STATE, Kind.TEMPORAL_RANGED_STATE]

NUMBER = st.one_of(st.integers(-30, 30), st.sampled_from([LEAST, LEAST + 1, GREATEST - 1, GREATEST]))
RANGE = st.tuples(NUMBER, NUMBER).map(lambda pair: (min(pair), max(pair)))
KNOWN = st.integers(0, 3)
CHANGE = st.dictionaries(st.tuples(RANGE, KNOWN), st.booleans(), max_size=6)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections of a few ranges, of which one at a time is worked out."""
    monkeypatch.setattr(sections_of_layers, "ENDS_MAX", 4)
    monkeypatch.setattr(sections_of_layers, "ENTRIES_LEAST", 4)


def a_map(kind: Kind) -> MapDefinition:
    return MapDefinition(name="owners", kind=kind, incarnation="0" * 16, value=parse_value_type("string"))


def rows_of(kind: Kind, rows: Rows) -> list[pa.RecordBatch]:
    if not rows:
        return []
    temporal = kind is Kind.TEMPORAL_RANGED_STATE
    return [canonical_of(a_map(kind), [(key if temporal else key[:2], value) for key, value in rows.items()])]


def expected(rows: Rows, number: int, at: int) -> str | None:
    """The narrowest range that holds the number and is known; of equals the one that starts last; its last row."""
    known = [(end - start, -start, -time) for start, end, time in rows if start <= number <= end and time <= at]
    if not known:
        return None
    width, start, time = min(known)
    return rows[-start, -start + width, -time]


def check(objects: Objects, manifest: SnapshotManifest, rows: Rows) -> None:
    edges = [edge + shift for start, end, _ in rows for edge in (start, end) for shift in (-1, 0, 1)]
    numbers = sorted({0, LEAST, GREATEST, *(number for number in edges if LEAST <= number <= GREATEST)})
    with Snapshot.open(objects, manifest) as snapshot:
        for at in range(4) if manifest.kind.temporal else [3]:
            found = snapshot.lookup(pa.array(numbers, pa.int64()), at=at if manifest.kind.temporal else None)
            assert found.to_pylist() == [expected(rows, number, at) for number in numbers]


def spans(objects: Objects, manifest: SnapshotManifest) -> dict[tuple[int, int], Section]:
    known = load_sections(objects, manifest)
    assert known is not None
    return dict(zip(known.spans(), known.sections, strict=True))


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", RANGED)
@settings(deadline=None, max_examples=examples(8, 25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bytes_max=st.sampled_from([None, 1]),
    first=st.dictionaries(st.tuples(RANGE, KNOWN), st.just(True), max_size=25),
    changes=st.lists(CHANGE, max_size=4),
)
def test_freezing_what_changed_answers_as_a_walk_over_all_ranges(
    small: None, kind: Kind, bytes_max: int | None,
    first: dict[tuple[tuple[int, int], int], bool], changes: list[dict[tuple[tuple[int, int], int], bool]],
) -> None:  # fmt: skip
    temporal = kind is Kind.TEMPORAL_RANGED_STATE
    with tempfile.TemporaryDirectory() as folder:
        objects, spill = FolderObjects(Path(folder)), bytes_max and SpillTo(Path(folder), bytes_max)
        held: Rows = {}
        manifest: SnapshotManifest | None = None
        for version, change in enumerate([first, *changes], 1):
            for (span, time), there in change.items():
                key = (*span, time if temporal else 0)
                held.pop(key, None)
                if there:
                    held[key] = f"{key} {version}"
            if manifest is None:
                manifest = freeze(
                    objects, a_map(kind), rows_of(kind, held), shard_version=1, created_ms=1, spill=spill or None
                )
            else:
                ranges = sorted({span for span, _ in change})
                touched = range_order_keys(
                    np.array([start for start, _ in ranges], np.int64), np.array([end for _, end in ranges], np.int64)
                )
                rows = rows_of(kind, {key: value for key, value in held.items() if key[:2] in set(ranges)})
                before = spans(objects, manifest)
                manifest = freeze(
                    objects, a_map(kind), rows, base=manifest, touched=touched, shard_version=version,
                    created_ms=version, spill=spill or None,
                )  # fmt: skip
                check_reuse(objects, manifest, before, ranges)
            check(objects, manifest, held)


def check_reuse(
    objects: Objects, manifest: SnapshotManifest, before: dict[tuple[int, int], Section], touched: list[tuple[int, int]]
) -> None:
    """A section that nothing touched concerns, and of which all range files are there, is the same file."""
    known = load_sections(objects, manifest)
    assert known is not None
    now = spans(objects, manifest)
    for (low, high), section in before.items():
        far = all(end < low or start > high for start, end in touched)
        if far and known.reach.keys() >= set(section.uses):
            assert now[low, high] == section


def clustered(count: int) -> Rows:
    return {(10 * number, 10 * number + 5 + number % 9, 0): f"{number}" for number in range(count)}


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path)


@pytest.mark.usefixtures("processor")
def test_a_small_change_writes_the_sections_it_concerns(
    monkeypatch: pytest.MonkeyPatch, objects: FolderObjects
) -> None:
    monkeypatch.setattr(sections_of_layers, "ENDS_MAX", 1_000)
    kind, rows = Kind.RANGED_STATE, clustered(20_000)
    base = freeze(objects, a_map(kind), rows_of(kind, rows), shard_version=1, created_ms=1)
    before = set(interval_files(objects, base))
    assert 35 <= len(before) <= 45
    touched = range_order_keys(np.array([50_000]), np.array([50_005 + 5_000 % 9]))
    rows[50_000, 50_005 + 5_000 % 9, 0] = "changed"
    changed = {(50_000, 50_005 + 5_000 % 9, 0): "changed"}
    newer = freeze(
        objects, a_map(kind), rows_of(kind, changed), base=base, touched=touched, shard_version=2, created_ms=2
    )
    assert len(set(interval_files(objects, newer)) - before) == 2, "a section, and the list"
    with Snapshot.open(objects, newer) as snapshot:
        assert snapshot.lookup([49_999, 50_000, 50_001, 199_990]).to_pylist() == ["4999", "changed", "changed", "19999"]
    collect(objects, newer, now_ms=1 << 50, keep_ms=0)
    assert {found.name for found in objects.list("intervals")} == set(interval_files(objects, newer))


@pytest.mark.usefixtures("processor")
def test_a_section_that_grows_is_cut(monkeypatch: pytest.MonkeyPatch, objects: FolderObjects) -> None:
    monkeypatch.setattr(sections_of_layers, "ENDS_MAX", 100)
    kind, rows = Kind.RANGED_STATE, clustered(2_000)
    manifest = freeze(objects, a_map(kind), rows_of(kind, {}), shard_version=1, created_ms=1)
    for version, begin in enumerate(range(0, 2_000, 200), 2):
        new = dict(list(rows.items())[begin : begin + 200])
        touched = range_order_keys(*(np.array([key[side] for key in new], np.int64) for side in (0, 1)))
        manifest = freeze(
            objects, a_map(kind), rows_of(kind, new), base=manifest, touched=touched, shard_version=version,
            created_ms=version,
        )  # fmt: skip
    assert 15 <= len(spans(objects, manifest)) <= 80
    with Snapshot.open(objects, manifest) as snapshot:
        assert snapshot.lookup([10 * number for number in range(2_000)]).to_pylist() == [
            expected({key: rows[key] for key in list(rows)[max(0, number - 2) : number + 2]}, 10 * number, 0)
            for number in range(2_000)
        ]


@pytest.mark.parametrize("rising", [False, True])
def test_deep_nesting_makes_larger_sections_and_no_larger_index(
    monkeypatch: pytest.MonkeyPatch, objects: FolderObjects, rising: bool
) -> None:
    """Each range lies in all before it, and is known later, so that at some time each is the answer."""
    monkeypatch.setattr(sections_of_layers, "ENDS_MAX", 64)
    kind, count = Kind.TEMPORAL_RANGED_STATE, 2_000
    rows: Rows = {(n, 2 * count - n, n if rising else 0): str(n) for n in range(count)}
    manifest = freeze(objects, a_map(kind), rows_of(kind, rows), shard_version=1, created_ms=1)
    assert (len(spans(objects, manifest)) < 30) == rising
    entries = sum(len(load_section(objects, section.id).place) for section in spans(objects, manifest).values())
    assert entries < 40 * count
    with Snapshot.open(objects, manifest) as snapshot:
        numbers = np.arange(0, 2 * count, 7)
        inner = np.minimum(np.minimum(numbers, 2 * count - numbers), count - 1)
        for at in (0, 500, count):
            answers = snapshot.lookup(pa.array(numbers), at=at).to_pylist()
            assert answers == [str(n) for n in (np.minimum(inner, at) if rising else inner).tolist()]


def test_a_section_that_lies_there_already_is_made_durable(objects: FolderObjects) -> None:
    """It may be the work of one who died between giving it its name and making that durable."""
    kind = Kind.RANGED_STATE
    manifest = freeze(objects, a_map(kind), rows_of(kind, clustered(10)), shard_version=1, created_ms=1)
    [section] = spans(objects, manifest).values()
    with synced_places() as synced:
        assert store_section(objects, load_section(objects, section.id)) == section.id
    assert synced == ["intervals"]


def test_a_section_that_names_groups_which_are_not_there_is_refused(objects: FolderObjects) -> None:
    """With a name that fits: kernels must not follow it."""
    kind = Kind.RANGED_STATE
    manifest = freeze(objects, a_map(kind), rows_of(kind, clustered(10)), shard_version=1, created_ms=1)
    [section] = spans(objects, manifest).values()
    sound = load_section(objects, section.id)
    for place in (1 << 32, 10, -1):
        values = {name: getattr(sound, name) for name in Intervals.__slots__}
        damaged = store_section(objects, Intervals(**(values | {"place": np.full(len(sound.place), place, np.int64)})))
        known = load_sections(objects, manifest)
        assert known is not None
        moved = SectionList((Section(section.lower, 0, 0, damaged, section.uses),), known.reach)
        other = replace(manifest, sections=store_sections(objects, moved))
        store_manifest(objects, other)
        with Snapshot.open(objects, other) as snapshot, pytest.raises(Corrupt) as caught:
            snapshot.lookup([5])
        assert damaged in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lower": [0]}, {"lower": []}, {"offsets": [0, 7]}, {"uses": [5]}, {"reach": []}, {"first": []},
        {"lower": [LEAST, LEAST]}, {"offsets": [1, 1]},
    ],
)  # fmt: skip
def test_a_list_of_sections_that_makes_no_sense_is_refused(wrong: dict[str, list[int]]) -> None:
    sound = SectionList((Section(LEAST, 1, 2, "00" * 20, ("11" * 32,)),), {"11" * 32: 5}).to_batch()
    again = SectionList.from_batch(sound)
    assert again is not None
    assert again.to_batch().equals(sound)
    for name, values in wrong.items():
        column = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values, pa.int64()))
        assert SectionList.from_batch(sound.set_column(sound.schema.get_field_index(name), name, column)) is None


@pytest.mark.parametrize("kind", RANGED)
def test_a_snapshot_with_one_index_over_all_ranges_is_read_and_frozen_anew(kind: Kind, objects: FolderObjects) -> None:
    """As format 1 has it."""
    rows = clustered(50)
    base = freeze(objects, a_map(kind), rows_of(kind, rows), shard_version=1, created_ms=1)
    rows[100, 105 + 10 % 9, 0] = "changed"
    touched = range_order_keys(np.array([100]), np.array([105 + 10 % 9]))
    changed = rows_of(kind, {(100, 105 + 10 % 9, 0): "changed"})
    layered = freeze(objects, a_map(kind), changed, base=base, touched=touched, shard_version=2, created_ms=2)
    [section] = spans(objects, layered).values()
    assert len(section.uses) == 2
    older = replace(layered, sections=None, intervals=section.id)
    store_manifest(objects, older)
    assert load_manifest(objects, older.id) == older
    assert b'"format":1' in older.to_bytes()
    check(objects, older, rows)
    assert set(interval_files(objects, older)) == {f"intervals/{section.id}.arrow"}
    newer = freeze(objects, a_map(kind), [], base=older, touched=touched, shard_version=3, created_ms=3)
    del rows[100, 105 + 10 % 9, 0]
    check(objects, newer, rows)


@pytest.mark.usefixtures("processor")
def test_the_memory_for_building_changes_no_byte(monkeypatch: pytest.MonkeyPatch, objects: FolderObjects) -> None:
    monkeypatch.setattr(sections_of_layers, "ENDS_MAX", 64)
    monkeypatch.setattr(sections_of_layers, "ENTRIES_LEAST", 64)
    kind = Kind.TEMPORAL_RANGED_STATE
    numbers = np.random.default_rng(7).integers(-2_000, 2_000, (1_000, 2)).tolist()
    rows: Rows = {(min(pair), max(pair), count % 4): str(count) for count, pair in enumerate(numbers)}
    made = {
        freeze(objects, a_map(kind), rows_of(kind, rows), shard_version=1, created_ms=1, spill=spill).id
        for spill in (None, SpillTo(objects.root, 1), SpillTo(objects.root, 300 * 64))
    }
    assert len(made) == 1
    check(objects, load_manifest(objects, made.pop()), dict(list(rows.items())[:60]) | rows)
