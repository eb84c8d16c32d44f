"""Layers say what a dictionary says to which they are applied from the oldest to the newest.

A stack is drawn as loads: rows that join, rows that fill, whole groups with tombstones. `apply` is the meaning, by
brute force; every reader of the stack, and every stack that folding makes of it, must answer as it does.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Conflict
from millpond.maps.model.columns import UPDATED
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots import finder
from millpond.maps.snapshots.fold_writer import FoldWriter, FoldWrites
from millpond.maps.snapshots.layers import (
    LAYERS_MAX,
    bytes_after_load,
    fold,
    fold_layers,
    layers_due,
    on_top,
    substitute,
    write_layer,
)
from millpond.maps.snapshots.manifest import Layer, LayerMode, SnapshotManifest, load_manifest, store_manifest
from millpond.maps.snapshots.partition_filter import HashShare, shares_of
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.ranges import FoldedPart, load_index, open_range
from millpond.stores.objects import FolderObjects, open_objects
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of
from tests.models.test_snapshots_model import check, group_of, questions_and_nulls, touched_column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.stores.objects import Objects
    from tests.harness.models import Row
    from tests.harness.strategies import Pools


@dataclass(frozen=True)
class Load:
    """The rows of a load, in their order, and the keys (ranges) that a whole one speaks of."""

    mode: LayerMode
    rows: list[Row]
    touched: set[tuple[object, ...]]


@st.composite
def loads(draw: st.DrawFn, definition: MapDefinition, pools: Pools) -> Load:
    mode = draw(st.sampled_from(LayerMode))
    rows = draw(strategies.rows(definition, pools, most=8))
    others = draw(strategies.rows(definition, pools, most=3)) if mode is LayerMode.WHOLE else []
    return Load(mode, rows, {group_of(address) for address, _ in [*rows, *others]})


def apply(model: MapModel, load: Load, now: int = 0) -> None:
    """The meaning of a layer that is put on at a time."""
    if load.mode is LayerMode.WHOLE:
        for address in [address for address in model.rows if group_of(address) in load.touched]:
            del model.rows[address], model.updated[address]
    model.overwrite = load.mode is not LayerMode.FILL
    model.put(load.rows, now=now)


@st.composite
def aging(draw: st.DrawFn, kind: Kind) -> MapDefinition:
    """A map that keeps update times, or does not."""
    definition = draw(strategies.definitions(kind=kind))
    return replace(definition, retain_ms=1, retain_by="update_time") if draw(st.booleans()) else definition


def check_times(objects: Objects, manifest: SnapshotManifest, model: MapModel) -> None:
    """Each row tells when it was put, where that is kept."""
    if manifest.updates and manifest.layers:
        names = manifest.kind.address
        seen = {
            tuple(value.decode() if isinstance(value := row[name], bytes) else value for name in names): row[UPDATED]
            for batch in thaw(objects, manifest, GroupSpan(), updates=True) for row in batch.to_pylist()
        }  # fmt: skip
        assert seen == model.updated


def put_on(objects: Objects, definition: MapDefinition, head: SnapshotManifest | None, load: Load) -> SnapshotManifest:
    batch = canonical_of(definition, load.rows)
    cut = len(load.rows) // 2
    touched = touched_column(definition, sorted(load.touched, key=repr)) if load.mode is LayerMode.WHOLE else None
    layer = write_layer(objects, definition, [batch.slice(0, cut), batch.slice(cut)], load.mode, touched=touched)
    version = next_version(head)
    return on_top(objects, head, definition, layer, version=version, created_ms=version)


def next_version(head: SnapshotManifest | None) -> int:
    """The version of the next manifest: the time of its load, too."""
    return 1 if head is None else head.shard_version + 1


def rows_in(objects: Objects, manifest: SnapshotManifest, pieces: list[GroupSpan]) -> list[object]:
    return plain(batch for piece in pieces for batch in thaw(objects, manifest, piece))


def plain(batches: Iterable[pa.RecordBatch]) -> list[object]:
    """Rows in a form that is comparable, in some order of their own."""
    return sorted((bits_of(row) for batch in batches for row in batch.to_pylist()), key=repr)


def check_all(objects: Objects, manifest: SnapshotManifest, model: MapModel, pools: Pools, data: st.DataObject) -> None:
    """Everything that reads a stack: all rows, by spans and by keys, and bulk lookups."""
    store_manifest(objects, manifest)
    manifest = load_manifest(objects, manifest.id)
    assert not manifest.layers or manifest.layers[-1].mode is LayerMode.WHOLE
    definition = manifest.definition
    rows = plain([canonical_of(definition, model.scan())])
    assert rows_in(objects, manifest, [GroupSpan()]) == rows
    assert rows_in(objects, manifest, spans(objects, manifest, GroupSpan(), 1)) == rows
    check_times(objects, manifest, model)
    questions = data.draw(questions_and_nulls(definition, pools))
    with Snapshot.open(objects, manifest, verify=True) as snapshot:
        check(snapshot, model, questions, data)
    if definition.kind.keyed:
        count = data.draw(st.integers(1, 3))
        hashes = hash_keys(
            pa.array([str(question and question[0]) for question in questions]), bits=definition.hash_bits
        )
        numbers = shares_of(hashes, count).tolist()
        for number in set(numbers):
            inside = [question for question, share in zip(questions, numbers, strict=True) if share == number]
            with Snapshot.open(objects, manifest, share=HashShare(number, count)) as snapshot:
                check(snapshot, model, inside, data)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_a_stack_says_what_its_layers_say_one_after_another(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(aging(kind))
    pools = data.draw(strategies.pools(definition))
    model, objects = MapModel(kind), open_objects("memory://")
    manifest: SnapshotManifest | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        load = data.draw(loads(definition, pools))
        apply(model, load, next_version(manifest))
        manifest = put_on(objects, definition, manifest, load)
    assert manifest is not None
    check_all(objects, manifest, model, pools, data)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_a_fold_changes_no_answer_whatever_is_loaded_meanwhile(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(aging(kind))
    pools = data.draw(strategies.pools(definition))
    model, objects = MapModel(kind), open_objects("memory://")
    manifest = put_on(objects, definition, None, Load(LayerMode.JOIN, [], set()))
    for _ in range(data.draw(st.integers(1, 3))):
        manifest = several_on(objects, manifest, model, pools, data)
        if not manifest.layers:
            continue
        inputs = data.draw(neighbours(manifest.layers))
        done = fold_layers(objects, manifest, inputs)
        assert fold_layers(objects, manifest, inputs, writes=stretched(data)) == done
        manifest = several_on(objects, manifest, model, pools, data)
        manifest = substitute(objects, manifest, done, created_ms=9)
        check_all(objects, manifest, model, pools, data)
        if inputs not in [manifest.layers[i : i + len(inputs)] for i in range(len(manifest.layers))]:
            with pytest.raises(Conflict, match="side by side"):
                substitute(objects, manifest, done, created_ms=9)
    manifest = fold(objects, manifest, created_ms=9, everything=True)
    assert len(manifest.layers) == bool(model.rows)
    check_all(objects, manifest, model, pools, data)


def crowded(kind: Kind) -> MapDefinition:
    """A map whose keys clash."""
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=parse_value_type("long"), hash_bits=2)


@st.composite
def crowded_loads(draw: st.DrawFn, kind: Kind) -> list[Load]:
    """Many rows at few addresses, each with a value of its own."""
    loads = []
    for number in range(draw(st.integers(2, 5))):
        rows = st.tuples(st.sampled_from("abcdef"), st.integers(0, 5))
        addresses, gone = draw(st.lists(rows, max_size=20)), draw(st.lists(st.sampled_from("abcdef"), max_size=2))
        touched: set[tuple[object, ...]] = {(key,) for key in [*gone, *(key for key, _ in addresses)]}
        numbered: list[Row] = [
            (address[: len(kind.address)], 100 * number + place) for place, address in enumerate(addresses)
        ]
        loads.append(Load(draw(st.sampled_from(LayerMode)), numbered, touched))
    return loads


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("kind", [Kind.STATE, Kind.TEMPORAL_STATE])
@given(data=st.data())
def test_lookups_and_single_keys_answer_as_the_dictionary_on_crowded_layers(kind: Kind, data: st.DataObject) -> None:
    model, objects, definition = MapModel(kind), open_objects("memory://"), crowded(kind)
    manifest: SnapshotManifest | None = None
    for load in data.draw(crowded_loads(kind)):
        apply(model, load, next_version(manifest))
        manifest = put_on(objects, definition, manifest, load)
    assert manifest is not None
    store_manifest(objects, manifest)
    questions = [(key, at if kind.timed else None) for key in ("", *"abcdefg") for at in range(-1, 7)]
    expected = [model.answer(key, at or 0) for key, at in questions]
    keys, times = pa.array([key for key, _ in questions]), pa.array([at for _, at in questions], pa.int64())
    with pytest.MonkeyPatch.context() as patch, Snapshot.open(objects, manifest) as snapshot:
        patch.setattr(finder, "JOINED_AFTER", 0)  # the first answers come from layers that are joined in memory
        assert snapshot.lookup(keys, at=times if kind.timed else None).to_pylist() == expected
        assert [snapshot.value(key.encode(), at) for key, at in questions] == expected


def stretched(data: st.DataObject) -> FoldWrites:
    """Have a fold written by several tasks, cut behind any keys."""

    def write(writer: FoldWriter) -> list[FoldedPart]:
        indexes = [load_index(writer.objects, layer.index) for layer in writer.inputs]
        keys = {key for index in indexes for entry in index.entries
                for key in open_range(writer.objects, entry).column("key").to_pylist()}  # fmt: skip
        cuts = sorted(data.draw(st.sets(st.sampled_from(sorted(keys)), max_size=3))) if keys else []
        stretches = zip([None, *cuts], [*cuts, None], strict=True)
        task = pickle.dumps(replace(writer, objects=FolderObjects("none")))
        return [replace(pickle.loads(task), objects=writer.objects).write(stretch) for stretch in stretches]

    return write


def several_on(
    objects: Objects, manifest: SnapshotManifest, model: MapModel, pools: Pools, data: st.DataObject
) -> SnapshotManifest:
    for load in data.draw(st.lists(loads(manifest.definition, pools), max_size=4)):
        apply(model, load, next_version(manifest))
        manifest = put_on(objects, manifest.definition, manifest, load)
    return manifest


@st.composite
def neighbours(draw: st.DrawFn, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers that may be folded: of one mode, or down to the oldest."""
    places = [(i, j) for i in range(len(layers)) for j in range(i + 1, len(layers) + 1)
              if j == len(layers) or len({layer.mode for layer in layers[i:j]}) == 1]  # fmt: skip
    first, stop = draw(st.sampled_from(places))
    return layers[first:stop]


@given(st.lists(st.tuples(st.sampled_from(LayerMode), st.integers(1, 10**9)), max_size=40))
def test_what_is_due_may_be_folded_and_few_layers_stay(stack: list[tuple[LayerMode, int]]) -> None:
    layers = tuple(Layer(str(number), size, size, mode) for number, (mode, size) in enumerate(stack))
    for mode in (*LayerMode, None):  # of one mode, or as they are drawn
        left = tuple(replace(layer, mode=mode or layer.mode) for layer in layers)
        while due := layers_due(manifest_of(left)):
            first = left.index(due[0])
            assert len(due) > 1
            assert left[first : first + len(due)] == due
            modes = {layer.mode for layer in due}
            assert len(modes) == 1 or due[-1] == left[-1]
            size = sum(layer.size for layer in due)
            left = (*left[:first], replace(due[0], size=size), *left[first + len(due) :])
        assert len(left) <= (LAYERS_MAX if mode is None else 11)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=80))
def test_after_a_load_is_folded_what_follows_its_bytes_until_there_are_very_many(loads: list[int]) -> None:
    left: tuple[Layer, ...] = ()
    for number, size in enumerate(loads):
        left = (Layer(str(number), size, size, LayerMode.JOIN), *left)
        bytes_max, many = bytes_after_load(manifest_of(left)), len(left) > LAYERS_MAX
        while due := layers_due(manifest_of(left), bytes_max=bytes_max):
            assert due == left[: len(due)]
            assert len(due) > 1
            folded = sum(layer.size for layer in due)
            assert many or folded <= max(8 * size, 1 << 20)
            left = (replace(due[0], size=folded), *left[len(due) :])
            many = False
        assert len(left) <= LAYERS_MAX
        assert sum(layer.size for layer in left) == sum(loads[: number + 1])


def manifest_of(layers: tuple[Layer, ...]) -> SnapshotManifest:
    return SnapshotManifest(
        map="m", incarnation="", kind=Kind.TEMPORAL_STATE, value=None, hash_bits=64, shard_version=1, created_ms=1,
        layers=layers,
    )  # fmt: skip
