"""Folds by Spark make the layer that one process makes, id for id, however many tasks take part."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from millpond import ranges
from millpond import spark as mp
from millpond.errors import Invalid
from millpond.kernel.steps import listening
from millpond.maps.layered import maintenance
from millpond.maps.snapshots import fold_writer
from millpond.maps.snapshots.fold_writer import FoldWriter
from millpond.maps.snapshots.freeze import files_of
from millpond.maps.snapshots.layers import fold_layers
from millpond.maps.snapshots.manifest import SnapshotManifest, list_manifests
from millpond.ranges import Boundaries, load_index, range_name
from millpond.spark.layer_tasks import write_by_tasks
from millpond.testing.faults import flip_byte
from tests.spark.test_layered import counted
from tests.spark.worlds import World, definition, moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond import Map, Pond
    from millpond.maps.layered.head import Layers
    from millpond.maps.model.definition import MapDefinition
    from millpond.stores.objects import Objects

LOADS = 9
SMALL = Boundaries(rows_min=1, rows_max=4, bits=1)
"""Many ranges of few keys."""
KINDS = [
    pytest.param(definition("state", "long"), {}, id="state"),
    pytest.param(definition("state", "string"), {"overwrite": False}, id="first wins"),
    pytest.param(definition("temporal_state", "temp double, note string, seen timestamp"), {}, id="temporal_state"),
    pytest.param(definition("temporal_state", "long"), {"retain": "900y", "retain_by": "update_time"}, id="with times"),
    pytest.param(definition("ranged_state", "long"), {}, id="ranged_state"),
    pytest.param(definition("temporal_ranged_state", "boolean"), {}, id="temporal_ranged_state"),
    pytest.param(definition("session"), {}, id="session"),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers have many ranges, and let loads leave them."""
    monkeypatch.setattr(ranges.write, "__defaults__", (SMALL,))
    monkeypatch.setattr(maintenance, "LAYERS_AFTER_LOAD", 99)
    monkeypatch.setattr(maintenance, "LAYERS_LATER", 99)


def tasks(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Let so many tasks fold, however few bytes; the numbers of stretches of folds by now."""
    counts: list[int] = []
    cut = FoldWriter.cut

    def counted_cut(writer: FoldWriter, at_once: int) -> list[Any]:
        stretches = cut(writer, count)
        counts.append(len(stretches))
        return stretches

    monkeypatch.setattr(FoldWriter, "cut", counted_cut)
    monkeypatch.setattr(fold_writer, "TASK_BYTES_MIN", 1)
    return counts


def layers_of(layered: Map) -> Layers:
    assert layered.layers is not None
    return layered.layers


def manifest_of(layered: Map) -> SnapshotManifest:
    manifest = layers_of(layered).head().manifest
    assert manifest is not None
    return manifest


def answers(layered: Map, world: World, **at: Any) -> list[object]:
    questions = world.questions(60)
    times = {"at": questions["moment"]} if layered.kind.timed else {}
    return [
        layered.lookup(questions["wanted"], **times, **at).to_pylist(),
        sorted(map(repr, layered.scan(**at).read_all().to_pylist())),
    ]


def loaded(pond: Pond, shape: MapDefinition, options: dict[str, Any], world: World) -> Map:
    """A map of many layers, of which one is a delete, in the middle."""
    layered = pond.create_map("m", kind=shape.kind, value=shape.value, store="layers", **options)
    table = world.table()
    for number in range(LOADS):
        layered.load(table.slice(number * 40, 40))
        if number == LOADS // 2:
            layered.delete("key = 'a'" if shape.kind.keyed else "key_start < -40")
    return layered


@pytest.mark.sample(2)
@pytest.mark.parametrize(("shape", "options"), KINDS)
def test_any_number_of_tasks_makes_the_layer_of_one_process(
    spark: SparkSession, pond: Pond, monkeypatch: pytest.MonkeyPatch, shape: MapDefinition, options: dict[str, Any]
) -> None:
    layered = loaded(pond, shape, options, World(shape, 7))
    manifest, objects = manifest_of(layered), layers_of(layered).objects
    inputs = [manifest.layers]
    upper = [layer for layer in manifest.layers[:3] if layer.mode is manifest.layers[0].mode]
    if upper[-1] != manifest.layers[-1]:
        inputs.append(tuple(upper))  # not down to the oldest
    for folded in inputs:
        expected = fold_layers(objects, manifest, folded)
        for count in (1, 2, 7):
            with monkeypatch.context() as patch:
                made = tasks(patch, count)
                assert fold_layers(objects, manifest, folded, writes=partial(write_by_tasks, spark)) == expected
            assert count // 2 < made[0] <= count
    known_at = moment(layered.rows.past.changes()[LOADS // 2].moment_ms)
    tasks(monkeypatch, 7)
    before = [answers(layered, World(shape, 8), **at) for at in ({}, {"known_at": known_at})]
    assert before[0] != before[1]
    report = mp.compact_map(spark, "m", pond=pond)
    assert (report.rows_before, report.rows_removed) == (report.rows_after, 0)
    after = manifest_of(layered)
    assert after.layers == (fold_layers(objects, manifest, manifest.layers).output,)
    assert after.shard_version == manifest.shard_version
    assert [answers(layered, World(shape, 8), **at) for at in ({}, {"known_at": known_at})] == before


def test_buckets_of_aggregates_combine_alike(
    spark: SparkSession, pond: Pond, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    fields = "n long count, total double sum, most long max"
    layered = pond.create_map("m", kind="aggregate", value=fields, resolution="1 day")
    for number in range(LOADS):
        rows = [{"key": f"k{key}", "time": f"2026-01-0{1 + key % 5}T0{number}:00Z", "total": key / 4, "most": key}
                for key in range(number, 40)]  # fmt: skip
        layered.load(rows)
    manifest, objects = manifest_of(layered), layers_of(layered).objects
    made = tasks(monkeypatch, 7)
    mp.compact_map(spark, "m", pond=pond)
    assert made[0] > 2
    assert manifest_of(layered).layers == (fold_layers(objects, manifest, manifest.layers).output,)


def three_layers(layered: Map) -> None:
    for number in range(3):
        layered.load([{"key": f"k{key}", "value": key} for key in range(number, 100)])


def unnamed(objects: Objects) -> set[str]:
    """The files of ranges that no manifest names."""
    return {named.name for named in objects.list("ranges")} - files_of(objects, list(list_manifests(objects)))


@pytest.mark.parametrize("branch", [None, "fix"])
def test_what_loads_made_due_is_folded_by_tasks(
    spark: SparkSession, pond: Pond, monkeypatch: pytest.MonkeyPatch, branch: str | None
) -> None:
    layered = pond.create_map("m", kind="state", value="long", store="layers")
    if branch is not None:
        layered = pond.branch(branch, source="main").map("m")
    three_layers(layered)
    monkeypatch.setattr(maintenance, "LAYERS_AFTER_LOAD", 3)
    monkeypatch.setattr(maintenance, "LAYERS_LATER", 3)
    made = tasks(monkeypatch, 7)
    assert mp.load(counted(spark, 90, 110), pond, "m", branch=branch).rows == 20
    assert made and min(made) > 1
    assert (layered.info()["rows"], len(layered.freeze().layers)) == (110, 1)


def test_a_fold_that_fails_takes_nothing_from_the_load(
    spark: SparkSession, pond: Pond, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered = pond.create_map("m", kind="state", value="long", store="layers")
    three_layers(layered)
    manifest, folder = manifest_of(layered), layers_of(layered).objects
    damaged = folder.local_path(range_name(load_index(folder, manifest.layers[-1].index).entries[0].id))
    assert damaged is not None
    whole = damaged.read_bytes()
    flip_byte(damaged, len(whole) // 2)
    monkeypatch.setattr(maintenance, "LAYERS_AFTER_LOAD", 3)
    made = tasks(monkeypatch, 7)
    assert mp.load(counted(spark, 500, 510), pond, "m", freeze=False).rows == 10
    assert min(made) > 1
    assert len(manifest_of(layered).layers) == 4
    with pytest.raises(PySparkException, match="not what was written"):
        maintenance.fold_due(layers_of(layered), everything=True, writes=partial(write_by_tasks, spark))
    damaged.write_bytes(whole)
    mp.compact_map(spark, "m", pond=pond)  # what other tasks had written by then is collected
    assert (layered.info()["rows"], len(manifest_of(layered).layers), unnamed(folder)) == (110, 1, set())


def test_a_load_that_comes_while_tasks_fold_stays_on_top(
    spark: SparkSession, pond: Pond, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered = pond.create_map("m", kind="state", value="long", store="layers")
    three_layers(layered)
    tasks(monkeypatch, 2)

    def load(step: str) -> None:
        if step == "fold.written" and not layered.get("late"):
            with ThreadPoolExecutor(1) as thread:
                thread.submit(layered.load, [{"key": "late", "value": 7}]).result()

    with listening(load):
        mp.compact_map(spark, "m", pond=pond)
    assert (layered.get("late"), layered.get("k9"), layered.info()["rows"]) == (7, 9, 101)


def test_branches_and_nodes_are_refused(spark: SparkSession, pond: Pond) -> None:
    pond.create_map("m", kind="state", value="long", store="layers")
    with pytest.raises(Invalid) as refused:
        mp.compact_map(spark, "m", pond=pond.branch("fix", source="main"))
    assert refused.value.kind == "ref_unsupported"
