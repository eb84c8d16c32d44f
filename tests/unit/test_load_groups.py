"""Loads to one map that wait for each other: entered together, as if they had come one after another."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import MillpondError, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.maps.inputs.mapping import mapping_of
from millpond.maps.inputs.normalise import normalise
from millpond.maps.inputs.tables import batches_of
from millpond.maps.layered.history import changes_of
from millpond.maps.layered.writer import LayerWriter, WrittenLayer
from millpond.maps.loads.load import commit_load
from millpond.maps.snapshots.manifest import LayerMode, load_manifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan, thaw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from millpond import Map, Pond

BEGAN = 1_700_000_000_000
SECONDS = 60
KINDS: dict[str, dict[str, Any]] = {
    "state": {"kind": "state", "value": "long"},
    "first": {"kind": "state", "value": "long", "overwrite": False},
    "timed": {"kind": "temporal_state", "value": "long"},
    "ranged": {"kind": "ranged_state", "value": "long"},
    "aggregate": {"kind": "aggregate", "value": "n long count, total long sum", "resolution": "1 hour"},
}


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")


def together(pond: Pond, name: str, loads: Sequence[Callable[[], object]]) -> list[object]:
    """The outcomes of loads that wait for each other in this order: results, or errors."""
    outcomes: list[object] = [None] * len(loads)

    def run(number: int) -> None:
        try:
            outcomes[number] = loads[number]()
        except MillpondError as error:
            outcomes[number] = error

    groups = pond.loading.loads.groups
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(loads))]
    with groups.turn({name}):
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: sum(len(queue.loads) for queue in groups._queues.values()) == number + 1)
    for thread in threads:
        thread.join()
    assert not groups._queues
    return outcomes


@contextmanager
def opened(folder: Path | str) -> Iterator[Pond]:
    with millpond.open(folder, clock=ManualClock(now=BEGAN), maps_history="10d") as pond:
        yield pond


def row_of(kind: str, key: int, value: int) -> dict[str, object]:
    if kind == "ranged":
        return {"key_start": key, "key_end": key + 2, "value": value}
    row: dict[str, object] = {"key": f"k{key}"}
    if kind == "aggregate":
        return row | {"time": BEGAN + 1000 * key, "total": value}
    return row | ({"effective_time": BEGAN + 1000 * key} if kind == "timed" else {}) | {"value": value}


def state_of(pond: Pond, name: str) -> dict[str, object]:
    """All that a pond says of the loads of a map, but for ids that are drawn."""
    opened_map = pond.map(name)
    with pond.space.read() as tx:
        changes = changes_of(tx, name)
    loaded = [load_manifest(opened_map.objects, change.loaded) for change in changes]
    alone = [replace(manifest, layers=(replace(manifest.layers[0], mode=LayerMode.WHOLE),)) for manifest in loaded]
    read = (thaw(opened_map.objects, manifest, GroupSpan()) for manifest in alone)
    rows_of_loads = [sorted(str(row) for batch in batches for row in batch.to_pylist()) for batches in read]
    entries = [entry for entry in pond.log.entries(0) if entry.kind == "load"]
    return {
        "rows": sorted(str(row) for row in opened_map.scan().read_all().to_pylist()),
        "versions": [(change.version, change.position, change.rows) for change in changes],
        "known": [load_manifest(opened_map.objects, change.manifest).shard_version for change in changes],
        "of loads": rows_of_loads,
        "entries": [(entry.position, entry.body["rows"], entry.body["duplicates"]) for entry in entries],
    }


LOADS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=3), min_size=1, max_size=5
)


@settings(max_examples=6)
@given(kind=st.sampled_from(sorted(KINDS)), first=LOADS, loads=LOADS)
def test_a_group_is_as_loads_one_after_another(kind: str, first: list[Any], loads: list[Any]) -> None:
    with TemporaryDirectory() as folder, ExitStack() as stack:
        ponds = [stack.enter_context(opened(f"{folder}/{place}")) for place in ("alone", "together")]
        maps = [pond.create_map("m", store="layers", **KINDS[kind]) for pond in ponds]
        rows = [[row_of(kind, key, value) for key, value in load] for load in loads]
        for layered in maps:
            for load in first:
                layered.load([row_of(kind, key, value) for key, value in load])
        alone = [maps[0].load(load) for load in rows]
        acts = [lambda load=load: maps[1].load(load) for load in rows]
        with listening((steps := list[str]()).append):
            grouped = together(ponds[1], "m", acts)
        assert steps.count("load.committed") == 1
        assert [_result(one) for one in grouped] == [_result(one) for one in alone]
        assert state_of(ponds[1], "m") == state_of(ponds[0], "m")


def _result(result: Any) -> tuple[object, ...]:
    return result.rows, result.parts, result.duplicate_parts, result.position


def written(layered: Map, rows: list[dict[str, object]]) -> WrittenLayer:
    """A layer of rows, which is not entered yet."""
    writer = LayerWriter(layered.rows.snapshots)  # type: ignore[attr-defined]
    for batch in batches_of(rows, layered.definition, mapping_of(None)):
        writer.write(normalise(batch, layered.definition, mapping_of(None), None).rows)
    [layer] = writer.finish()
    return layer


def test_a_load_that_cannot_be_entered_fails_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as pond:
        before = pond.create_map("m", kind="state", value="long", store="layers")
        late = written(before, [{"key": "late", "value": 1}])
        pond.drop_map("m")
        layered = pond.create_map("m", kind="state", value="long", store="layers")
        outcomes = together(pond, "m", [
            lambda: layered.load([{"key": "a", "value": 1}]),
            lambda: commit_load(pond.loading, [late]),
            lambda: layered.load([{"key": "b", "value": 2}]),
        ])  # fmt: skip
        assert isinstance(outcomes[1], NotFound) and outcomes[1].kind == "map_dropped"
        assert layered.lookup(["a", "b", "late"]).to_pylist() == [1, 2, None]
        assert [change.version for change in layered.rows.past.changes()] == [1, 2]  # type: ignore[attr-defined]


def test_a_load_that_comes_twice_is_entered_once(tmp_path: Path) -> None:
    with opened(tmp_path) as pond:
        layered = pond.create_map("m", kind="state", value="long", store="layers")
        layers = [written(layered, [{"key": "a", "value": value}]) for value in (1, 2, 3)]
        outcomes = together(pond, "m", [
            lambda: commit_load(pond.loading, [layers[0]], load_id="one"),
            lambda: commit_load(pond.loading, [layers[1]], load_id="one"),
            lambda: commit_load(pond.loading, [layers[2]], load_id="two"),
        ])  # fmt: skip
        assert [outcome.position for outcome in outcomes] == [2, 2, 3]  # type: ignore[attr-defined]
        assert layered.get("a") == 3
        assert [change.version for change in layered.rows.past.changes()] == [1, 2]  # type: ignore[attr-defined]


def test_a_place_that_is_full_fails_all_and_each_may_come_again(tmp_path: Path) -> None:
    with opened(tmp_path) as pond:
        layered = pond.create_map("m", kind="state", value="long", store="layers")

        def full(step: str) -> None:
            if step == "load.layers_placed":
                raise Unavailable("the disk is full", kind="disk_full")

        acts = [lambda value=value: layered.load([{"key": "a", "value": value}], again=True) for value in range(3)]
        with listening(full):
            outcomes = together(pond, "m", acts)
        assert [getattr(outcome, "kind", None) for outcome in outcomes] == ["disk_full"] * 3
        assert layered.get("a") is None
        assert not any(isinstance(outcome, MillpondError) for outcome in together(pond, "m", acts))
        assert layered.get("a") == 2


def test_an_interrupted_thread_takes_nobody_along(tmp_path: Path) -> None:
    with opened(tmp_path) as pond:
        layered = pond.create_map("m", kind="state", value="long", store="layers")
        interrupted = list[str]()

        def interrupt(step: str) -> None:
            if step == "load.layers_placed" and not interrupted:
                interrupted.append(step)
                raise KeyboardInterrupt

        def first() -> object:
            with pytest.raises(KeyboardInterrupt):
                layered.load([{"key": "a", "value": 0}])
            return None

        with listening(interrupt):
            outcomes = together(pond, "m", [first, lambda: layered.load([{"key": "b", "value": 1}])])
        assert isinstance(outcomes[1], MillpondError) and outcomes[1].kind == "commit_interrupted"
        layered.load([{"key": "b", "value": 2}])
        assert layered.lookup(["a", "b"]).to_pylist() == [None, 2]
