"""Layered maps that retain by update time: what was put when, whatever was folded, merged, copied or altered since."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.maps.layered.maintenance import fold_due
from millpond.maps.log.queue import settings_of, with_settings
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.snapshots.manifest import SnapshotManifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

DAY = 86_400_000
PAIRS = pa.schema([("start", pa.int64()), ("end", pa.int64())])
BEGAN = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=BEGAN)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock, maps_history="1000d", maps_store="auto") as opened:
        yield opened


@pytest.fixture
def timed(pond: Pond) -> Map:
    return pond.create_map("m", kind="state", value="long", retain="10d")


def put(target: Map, value: int, *keys: str) -> None:
    assert isinstance(target.rows.snapshots.clock, ManualClock)  # type: ignore[union-attr]
    target.rows.snapshots.clock.advance(DAY)  # type: ignore[union-attr]
    target.load([{"key": key, "value": value} for key in keys], again=True)


def keys_of(target: Map) -> list[str]:
    return sorted(target.scan().read_all()["key"].to_pylist())


def test_a_map_is_made_in_layers_and_rows_go_by_the_day_they_were_put(timed: Map, clock: ManualClock) -> None:
    assert timed.definition.store == "layers"
    put(timed, 1, "a", "b", "c")
    put(timed, 1, "b")
    put(timed, 2, "c")
    fold_due(timed.rows.snapshots, everything=True)  # type: ignore[arg-type]
    for day, left in ((11, ["a", "b", "c"]), (11.5, ["b", "c"]), (12.5, ["c"]), (13.5, [])):
        clock.advance(int(BEGAN + day * DAY) - clock.now_ms())
        timed.retain()
        assert keys_of(timed) == left


def test_what_is_loaded_already_counts_as_put_when_the_setting_is_made(pond: Pond, clock: ManualClock) -> None:
    made = pond.create_map("m", kind="temporal_state", value="long")
    for number in range(2):
        made.load([{"key": f"k{number}", "effective_time": number, "value": number}])
    before = made.freeze()
    assert json.loads(before.to_bytes())["format"] == 4
    clock.advance(DAY)
    set_ms, position = clock.now_ms(), pond.log.position()[0]
    pond.alter_map("m", retain="10d", retain_by="update_time")
    assert pond.log.position()[0] == position + 1
    after = pond.map("m").freeze()
    assert json.loads(after.to_bytes())["format"] == 6
    assert [layer.index for layer in after.layers] == [layer.index for layer in before.layers], "no row is rewritten"
    assert {layer.updated for layer in after.layers} == {set_ms}
    clock.advance(DAY)
    made.load([{"key": "k1", "effective_time": 1, "value": 3}])
    assert pond.map("m").retain(before=set_ms).rows_removed == 0
    pond.alter_map("m", retain_by="effective_time")
    assert not pond.map("m").freeze().updates
    clock.advance(DAY)
    pond.alter_map("m", retain_by="update_time")
    assert pond.map("m").retain(before=clock.now_ms()).rows_removed == 0, "times begin anew"
    assert pond.map("m").retain(before=clock.now_ms() + 1).rows_removed == 2


def test_times_that_were_folded_are_forgotten_too(pond: Pond, timed: Map, clock: ManualClock) -> None:
    put(timed, 1, "a")
    put(timed, 2, "b")
    timed.compact()
    (layer,) = timed.freeze().layers
    assert (layer.updates, layer.updated) == (True, None)
    pond.alter_map("m", retain=None)
    assert timed.lookup(["a", "b"]).to_pylist() == [1, 2]
    put(pond.map("m"), 3, "a")
    pond.map("m").compact()
    assert not pond.map("m").freeze().layers[0].updates
    pond.alter_map("m", retain="10d")
    assert pond.map("m").retain(before=clock.now_ms()).rows_removed == 0


def test_another_process_that_knows_old_settings_keeps_times(pond: Pond, clock: ManualClock) -> None:
    pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    with millpond.open(pond.folder, clock=clock) as other:
        there = other.map("m")
        pond.alter_map("m", retain="10d")
        put(there, 2, "b")
    assert pond.map("m").retain(before=clock.now_ms()).rows_removed == 1
    assert keys_of(pond.map("m")) == ["b"]


@pytest.mark.parametrize("by_key", [False, True])
def test_a_merge_brings_the_times_of_the_loads_of_its_source(
    pond: Pond, timed: Map, clock: ManualClock, by_key: bool
) -> None:
    put(timed, 1, "a", "b", "c")  # day 1
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 1, "a")  # day 2: the same value again
    put(fix.map("m"), 2, "b", "d")  # day 3
    if by_key:
        put(timed, 5, "e")  # day 4
    clock.advance(9 * DAY)
    fix.merge()
    merged = pond.map("m")
    for day, left in ((2, ["a", "b", "d"]), (3, ["b", "d"]), (4, [])):
        merged.retain(before=BEGAN + day * DAY)
        assert keys_of(merged) == left + (["e"] if by_key else [])


def test_a_branch_retains_and_takes_over_the_setting(pond: Pond, clock: ManualClock) -> None:
    main = pond.create_map("m", kind="state", value="long")
    put(main, 1, "a")
    fix = pond.branch("fix", source="main")
    fix.alter_map("m", retain="10d")
    set_ms = clock.now_ms()
    put(fix.map("m"), 2, "b")
    put(main, 3, "c")
    fix.merge()
    merged = pond.map("m")
    assert merged.definition.retain_ms == 10 * DAY
    clock.advance(DAY)
    assert merged.retain(before=set_ms).rows_removed == 0
    again = pond.branch("again", source="main")
    assert again.map("m").retain(before=set_ms + 1).rows_removed == 1
    assert again.map("m").retain(before=set_ms + DAY + 1).rows_removed == 1
    assert keys_of(again.map("m")) == ["c"], "what main alone has counts as put when the merge brought the setting"
    assert keys_of(merged) == ["a", "b", "c"]


@pytest.mark.parametrize("on", ["main", "fix"])
def test_sessions_join_when_both_were_put_before(pond: Pond, clock: ManualClock, on: str) -> None:
    pond.create_map("m", kind="session", condense_by="update_time", store="layers")
    target = pond.map("m") if on == "main" else pond.branch("fix", source="main").map("m")
    days: list[int] = []
    for spans in ([(0, 2), (9, 12)], [(1, 3)], [(2, 5), (4, 10)]):
        clock.advance(DAY)
        days.append(clock.now_ms())
        target.load([{"key": "a", "start": start, "end": end} for start, end in spans])
    left = [
        sorted(zip(*target.scan().read_all().select(["start", "end"]).cast(PAIRS).to_pydict().values(), strict=True))
        for before in (days[1], days[1] + 1, days[2] + 1)
        if target.condense(before=before).map == "m"
    ]
    assert left == [[(0, 2), (1, 3), (2, 5), (4, 10), (9, 12)], [(0, 3), (2, 5), (4, 10), (9, 12)], [(0, 12)]]


@pytest.mark.parametrize("store", ["shard", "layers"])
def test_a_setting_that_is_made_later_counts_from_then(pond: Pond, clock: ManualClock, store: str) -> None:
    made = pond.create_map("m", kind="temporal_state", value="long", store=store)
    rows = [{"key": "a", "effective_time": number, "value": 1} for number in range(3)]
    made.load(rows)
    clock.advance(DAY)
    pond.alter_map("m", condense_by="update_time")
    made.load([{"key": "a", "effective_time": 9, "value": 1}])
    set_ms = clock.now_ms()
    clock.advance(DAY)
    assert pond.map("m").condense(before=set_ms).rows_removed == 0
    assert pond.map("m").condense(before=set_ms + 1).rows_removed == 3


def test_what_was_entered_before_condenses_by_effective_time() -> None:
    definition = MapDefinition(name="m", kind=Kind.TEMPORAL_STATE, incarnation="0" * 16)
    older = settings_of(definition)
    assert "condense_by" not in older
    assert "condense_by" not in definition.to_dict()
    by_update = replace(definition, condense_by="update_time")
    assert MapDefinition.from_json(by_update.to_json()) == by_update
    assert with_settings(by_update, older).condense_by == "effective_time"
    assert with_settings(definition, settings_of(by_update)).condense_by == "update_time"


def test_a_copy_and_the_past_keep_what_they_are(pond: Pond, timed: Map, clock: ManualClock) -> None:
    put(timed, 1, "a")
    put(timed, 2, "b")
    pond.catalogue.copy("m", "copy")
    known_ms = clock.now_ms()
    clock.advance(DAY)
    assert timed.retain(before=known_ms).rows_removed == 1
    assert timed.lookup(["a", "b"], known_at=known_ms).to_pylist() == [1, 2]
    assert pond.map("copy").retain(before=known_ms).rows_removed == 1
    assert timed.delete("key = 'b'").rows_removed == 1
    assert keys_of(pond.map("copy")) == ["b"]


def test_a_manifest_that_does_not_tell_a_time_is_damaged(timed: Map) -> None:
    put(timed, 1, "a")
    manifest = timed.freeze()
    assert SnapshotManifest.from_bytes(manifest.to_bytes()) == manifest
    wrong = replace(manifest, layers=(replace(manifest.layers[0], updated=None),))
    with pytest.raises(Corrupt, match="when its rows were put"):
        SnapshotManifest.from_bytes(wrong.to_bytes())
