"""Layers at some size, and what goes wrong: spilled rows, many ranges, damage, formats, subsets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import Corrupt, Invalid
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.layers import fold, fold_layers, layers_due, on_top, write_layer
from millpond.maps.snapshots.manifest import (
    Layer,
    LayerMode,
    SnapshotManifest,
    manifest_name,
    store_manifest,
)
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.maps.snapshots.subset import open_subset
from millpond.ranges import index_name, load_index, range_name, verify
from millpond.stores.objects import FolderObjects, MemoryObjects, open_objects
from millpond.testing.faults import flip_byte

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.stores.objects import Objects

KEYS = 60_000
WEATHER = MapDefinition(name="weather", kind=Kind.TEMPORAL_STATE, incarnation="0" * 16, value=parse_value_type("long"))


Model = dict[tuple[int, int], int]
"""Key and effective time, to value."""


def as_of(model: Model, number: int, at: int) -> int | None:
    return next((model[number, time] for time in range(at, -1, -1) if (number, time) in model), None)


def rows(numbers: np.ndarray, times: np.ndarray, values: np.ndarray) -> pa.RecordBatch:
    keys = pa.array(np.char.add("key-", numbers.astype("U7")).tolist()).cast(pa.binary())
    columns = {"key": keys, "effective_time": times, "value": values}
    return pa.record_batch(columns, schema=canonical_schema(WEATHER))


def stack(objects: Objects, spill: SpillTo | None = None) -> tuple[SnapshotManifest, Model]:
    """Loads of many rows, each address of a load many times, and the dictionary that they make."""
    random, model, definition = np.random.default_rng(7), Model(), WEATHER
    manifest: SnapshotManifest | None = None
    for version, mode in enumerate(("join", "join", "fill", "join", "fill", "fill"), 1):
        count = KEYS if version == 1 else KEYS // 3
        numbers = np.arange(KEYS) if version == 1 else random.integers(0, KEYS * 3 // 2, count)
        times, values = random.integers(0, 3, count), np.arange(count) + version * 1_000_000
        loaded = rows(numbers, times, values)
        batches = [loaded.slice(begin, 7_000) for begin in range(0, count, 7_000)]
        layer = write_layer(objects, definition, batches, LayerMode(mode), spill=spill)
        manifest = on_top(objects, manifest, definition, layer, version=version, created_ms=version)
        for address, value in zip(zip(numbers.tolist(), times.tolist(), strict=True), values.tolist(), strict=True):
            if mode == "join" or address not in model:
                model[address] = value
    assert manifest is not None
    return manifest, model


def rows_of(objects: Objects, manifest: SnapshotManifest, pieces: list[GroupSpan]) -> Model:
    answer = Model()
    for piece in pieces:
        for batch in thaw(objects, manifest, piece):
            numbers = [int(key.removeprefix(b"key-")) for key in batch.column("key").to_pylist()]
            addresses = list(zip(numbers, batch.column("effective_time").to_pylist(), strict=True))
            assert not answer.keys() & addresses
            answer.update(zip(addresses, batch.column("value").to_pylist(), strict=True))
    return answer


class UnreadObjects(MemoryObjects):
    """Objects whose ranges nobody may read."""

    def get(self, name: str) -> pa.Buffer:
        assert not name.startswith("ranges/")
        return super().get(name)


@pytest.mark.parametrize("kind", ["state", "temporal_state"])
@pytest.mark.parametrize("mode", ["join", "fill"])
def test_a_load_is_not_read_back_when_it_is_put_on_a_head(kind: str, mode: str) -> None:
    definition, objects = replace(WEATHER, kind=Kind(kind)), UnreadObjects()
    schema, manifest = canonical_schema(definition), None
    for version in (1, 2):
        columns = {"key": [b"a"], "effective_time": [version], "value": [version]}
        row = pa.record_batch({name: columns[name] for name in schema.names}, schema=schema)
        layer = write_layer(objects, definition, [row], LayerMode(mode))
        manifest = on_top(objects, manifest, definition, layer, version=version, created_ms=version)
    assert manifest is not None and manifest.layers[-1].mode is LayerMode.WHOLE


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("spilled", [False, True])
def test_many_rows_in_many_ranges_are_those_of_the_dictionary_before_and_after_folds(
    tmp_path: Path, spilled: bool
) -> None:
    objects = open_objects(str(tmp_path))
    manifest, model = stack(objects, spill=SpillTo(tmp_path, 1 << 20) if spilled else None)
    assert [layer.mode.value for layer in manifest.layers] == ["fill", "fill", "join", "fill", "join", "whole"]
    folded = fold(objects, manifest, created_ms=8)
    single = fold(objects, manifest, created_ms=8, everything=True)
    assert len(manifest.layers) > len(folded.layers)
    assert len(single.layers) == 1
    numbers, at = np.arange(KEYS * 3 // 2), np.random.default_rng(8).integers(-1, 4, KEYS * 3 // 2)
    expected = [as_of(model, number, until) for number, until in zip(numbers.tolist(), at.tolist(), strict=True)]
    keys = pa.array(np.char.add("key-", numbers.astype("U7")).tolist())
    for state in (manifest, folded, single):
        assert rows_of(objects, state, [GroupSpan()]) == model
        store_manifest(objects, state)
        with Snapshot.open(objects, state) as snapshot:
            assert snapshot.lookup(keys, at=at).to_pylist() == expected
            assert snapshot.lookup(keys.dictionary_encode(), at=at).to_pylist() == expected
            some = [as_of(model, number, 2) for number in (9, 10, 11)]
            assert snapshot.lookup(keys.slice(9, 3), at=2).to_pylist() == some
    pieces = spans(objects, manifest, GroupSpan(), 1 << 19)
    assert len(pieces) > 1
    assert rows_of(objects, manifest, pieces) == model


@pytest.mark.usefixtures("processor")
def test_a_subset_of_layers_answers_as_the_whole(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    manifest, model = stack(objects)
    store_manifest(objects, manifest)
    with open_subset(objects, WEATHER, manifest, ["key-2", "key-3"], [1, 3], 9) as subset:
        assert subset.manifest.whole
        numbers = [number for number in range(KEYS) if str(number).startswith("2")]
        answers = subset.lookup([f"key-{number}" for number in numbers], at=2).to_pylist()
    assert answers == [as_of(model, number, 2) for number in numbers]


def test_a_key_of_more_rows_than_memory_may_hold_has_each_address_once(tmp_path: Path) -> None:
    objects, count = open_objects(str(tmp_path)), 40_000
    times = np.random.default_rng(1).integers(0, count, 3 * count)
    for mode, order in (("join", range(3 * count)), ("fill", range(3 * count - 1, -1, -1))):
        model = {int(times[at]): at for at in order}
        batches = (
            rows(np.zeros(len(part), np.int64), times[part], np.arange(3 * count)[part])
            for part in np.array_split(np.arange(3 * count), 30)
        )
        layer = write_layer(objects, WEATHER, batches, LayerMode(mode), spill=SpillTo(tmp_path, 1 << 17))
        manifest = on_top(objects, None, WEATHER, layer, version=1, created_ms=1)
        answer = rows_of(objects, manifest, [GroupSpan()])
        assert {time: value for (_, time), value in answer.items()} == model


def test_a_damaged_layer_is_named_and_nothing_is_answered_or_folded_from_it(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    manifest, _ = stack(objects)
    store_manifest(objects, manifest)
    damaged = range_name(load_index(objects, manifest.layers[2].index).entries[0].id)
    flip_byte(tmp_path / damaged, (tmp_path / damaged).stat().st_size // 2)
    with pytest.raises(Corrupt, match=damaged):
        Snapshot.open(objects, manifest, verify=True)
    with pytest.raises(Corrupt, match=damaged):
        fold_layers(objects, manifest, manifest.layers)
    with pytest.raises(Corrupt, match=damaged):
        list(thaw(objects, manifest, GroupSpan()))
    assert not verify(objects, manifest.layers[2].index).ok
    (tmp_path / index_name(manifest.layers[1].index)).unlink()
    with pytest.raises(Exception, match=manifest.layers[1].index):
        fold(objects, manifest, created_ms=9, everything=True)


def test_a_manifest_has_format_4_only_with_a_layer_that_is_not_whole() -> None:
    layers = (Layer("a", 1, 2, LayerMode.JOIN), Layer("b", 3, 4))
    manifest = SnapshotManifest(
        map="m", incarnation="0" * 16, kind=Kind.TEMPORAL_STATE, value=None, hash_bits=64, shard_version=1,
        created_ms=1, layers=layers,
    )  # fmt: skip
    stored = json.loads(manifest.to_bytes())
    assert (stored["format"], [sorted(layer) for layer in stored["layers"]]) == (
        4, [["groups", "index", "mode", "size"], ["groups", "index", "size"]]
    )  # fmt: skip
    assert SnapshotManifest.from_bytes(manifest.to_bytes()) == manifest
    for wrong in (1, 2, 3, 5, 8):
        payload = {name: value for name, value in stored.items() if wrong == 3 or name not in ("bounds", "sections")}
        with pytest.raises((Invalid, Corrupt), match=r"format this version does not know|cannot be read"):
            SnapshotManifest.from_bytes(json.dumps(payload | {"format": wrong}).encode())
    with pytest.raises(Invalid, match="found=9 known=8"):
        SnapshotManifest.from_bytes(json.dumps(stored | {"format": 9, "more": 1}).encode())
    assert manifest_name(manifest.id)


def test_whole_layers_under_nothing_have_no_tombstones_and_no_rows_are_no_layer() -> None:
    objects = open_objects("memory://")
    nothing = on_top(objects, None, WEATHER, None, version=1, created_ms=1)
    assert write_layer(objects, WEATHER, [], LayerMode.JOIN) is None
    assert nothing.layers == layers_due(nothing) == ()
    gone = pa.array([b"a", b"b"], pa.binary())
    layer = write_layer(objects, WEATHER, [], LayerMode.WHOLE, touched=gone)
    assert layer is not None
    assert layer.groups == 2
    assert on_top(objects, nothing, WEATHER, layer, version=2, created_ms=2).layers == ()


def test_a_load_of_ranges_writes_only_the_sections_that_it_concerns() -> None:
    objects = open_objects("memory://")
    ranged = MapDefinition(name="zones", kind=Kind.RANGED_STATE, incarnation="0" * 16, value=parse_value_type("long"))

    def load(starts: range, value: int, head: SnapshotManifest | None) -> SnapshotManifest:
        begin = np.array(starts, np.int64)
        columns = {"key_start": begin, "key_end": begin + 9, "value": np.full(len(begin), value)}
        batch = pa.record_batch(columns, schema=canonical_schema(ranged))
        layer = write_layer(objects, ranged, [batch], LayerMode.FILL if value == 3 else LayerMode.JOIN)
        return on_top(objects, head, ranged, layer, version=value, created_ms=value)

    head = load(range(0, 2_000_000, 10), 1, None)
    sections = sum(1 for _ in objects.list("intervals"))
    head = load(range(20, 40, 10), 2, head)
    head = load(range(30, 60, 10), 3, head)
    assert [layer.mode for layer in head.layers] == [LayerMode.WHOLE] * 3
    assert sum(1 for _ in objects.list("intervals")) <= sections + 4
    store_manifest(objects, head)
    with Snapshot.open(objects, head) as snapshot:
        assert snapshot.lookup([15, 25, 35, 45, 1_999_999, 2_000_000]).to_pylist() == [1, 2, 2, 1, 1, None]
    assert len(range_order_keys(np.zeros(1, np.int64), np.zeros(1, np.int64))[0].as_py()) == 16
