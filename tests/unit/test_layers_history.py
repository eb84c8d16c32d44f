"""The history of layered maps: each change has its manifest and moment, whose files stay until they are too old."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.kernel.steps import listening
from millpond.maps.layered.history import changes_of, manifests_named
from millpond.maps.layered.maintenance import collect_files, fold_due
from millpond.maps.model.keyspaces import HISTORY
from millpond.maps.snapshots.manifest import list_manifests, load_manifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan, thaw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

DAY = 86_400_000
BEGAN = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=BEGAN)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock, maps_history="10d") as opened:
        yield opened


@pytest.fixture
def layered(pond: Pond) -> Map:
    return pond.create_map("m", kind="temporal_state", value="long", store="layers")


def load(layered: Map, number: int) -> None:
    rows = [{"key": f"k{key}", "effective_time": BEGAN + number, "value": number} for key in range(number % 3, 3)]
    layered.load(rows, source=f"file {number}")


def rows_at(layered: Map, manifest: str) -> list[dict[str, object]]:
    read = thaw(layered.objects, load_manifest(layered.objects, manifest), GroupSpan())
    return sorted((row for batch in read for row in batch.to_pylist()), key=repr)


def manifests_known(pond: Pond) -> list[tuple[int, str]]:
    with pond.space.read() as tx:
        return [(change.moment_ms, change.manifest) for change in changes_of(tx, "m")]


def known_rows(layered: Map) -> dict[int, list[dict[str, object]]]:
    return {change.moment_ms: rows_at(layered, change.manifest) for change in layered.rows.past.changes()}


def test_every_change_is_told_and_no_fold(pond: Pond, layered: Map, clock: ManualClock) -> None:
    seen = {}
    for number in range(6):
        clock.advance(DAY)
        load(layered, number)
        seen[clock.now_ms()] = rows_at(layered, layered.freeze().id)
        fold_due(layered.rows.snapshots, everything=True)
    clock.advance(DAY)
    layered.condense(before=BEGAN + 100)
    seen[clock.now_ms()] = rows_at(layered, layered.freeze().id)
    layered.compact()
    with pond.space.read() as tx:
        changes = changes_of(tx, "m")
    assert [(change.version, change.kind, change.rows, change.source) for change in changes] == [
        *((number + 1, "load", 3 - number % 3, f"file {number}") for number in range(6)),
        (7, "condense", 0, ""),
    ]
    assert [change.position for change in changes] == sorted({change.position for change in changes})
    assert known_rows(layered) == seen


def test_what_is_reachable_stays_and_what_aged_out_goes(pond: Pond, layered: Map, clock: ManualClock) -> None:
    layers, seen = layered.rows.snapshots, {}
    for number in range(20):
        clock.advance(DAY)
        load(layered, number)
        seen[clock.now_ms()] = rows_at(layered, layered.freeze().id)
        fold_due(layers)
        collect_files(layers)
        known = known_rows(layered)
        assert known == {moment: seen[moment] for moment in known}
        # What was known ten days ago came with the last change up to then.
        assert min(known) == max([BEGAN + DAY, clock.now_ms() - 10 * DAY])
    clock.advance(11 * DAY)
    collect_files(layers)
    with pond.space.read() as tx:
        named = manifests_named(tx, layered.definition)
    assert len(known_rows(layered)) == 1
    assert {manifest.id for manifest in list_manifests(layered.objects)} == set(named)
    fold_due(layers, everything=True)
    load(layered, 20)
    clock.advance(11 * DAY)
    collect_files(layers)
    assert [manifest.id for manifest in list_manifests(layered.objects)] == [layered.freeze().id]


def test_a_folded_load_names_its_own_rows_until_it_is_old(pond: Pond, layered: Map, clock: ManualClock) -> None:
    layers = layered.rows.snapshots
    for number in range(3):
        load(layered, number)
        fold_due(layers, everything=True)
    clock.advance(9 * DAY)
    collect_files(layers)
    changes = layered.rows.past.changes()
    made = [load_manifest(layered.objects, change.loaded) for change in changes]
    assert [manifest.layers[0].groups for manifest in made] == [change.rows for change in changes] == [3, 2, 1]
    assert changes[-1].manifest == layered.freeze().id != changes[-1].loaded
    clock.advance(2 * DAY)
    collect_files(layers)
    assert [change.loaded for change in layered.rows.past.changes()] == [""]
    assert [manifest.id for manifest in list_manifests(layered.objects)] == [layered.freeze().id]


def test_a_pond_keeps_its_history_for_as_long_as_it_was_told(tmp_path: Path, clock: ManualClock) -> None:
    for settings, history_ms in (
        ({}, 30 * DAY),
        ({"maps_history": "off"}, 0),
        ({}, 0),
        ({"maps_history": "2d"}, 2 * DAY),
    ):
        with millpond.open(tmp_path / "other", clock=clock, **settings) as pond:
            assert pond.loading.history_ms == history_ms


def test_without_history_the_head_alone_stays(tmp_path: Path, clock: ManualClock) -> None:
    with millpond.open(tmp_path / "other", clock=clock, maps_history="off") as pond:
        layered = pond.create_map("m", kind="temporal_state", value="long", store="layers")
        load(layered, 0)
        load(layered, 3)
        clock.advance(DAY)
        collect_files(layered.rows.snapshots)
        assert [manifest.id for manifest in list_manifests(layered.objects)] == [layered.freeze().id]


def test_history_goes_with_its_map(pond: Pond, layered: Map) -> None:
    load(layered, 0)
    pond.drop_map("m")
    with pond.space.read() as tx:
        assert not list(tx.keys(HISTORY.range()))


def test_nothing_is_removed_while_history_cannot_be_read(pond: Pond, layered: Map, clock: ManualClock) -> None:
    load(layered, 0)
    load(layered, 3)
    clock.advance(DAY)
    before = {named.name for folder in ("ranges", "indexes") for named in layered.objects.list(folder)}
    pond.space.write(lambda tx: tx.put(HISTORY.pack("m", 1), b"{"))
    with pytest.raises(Corrupt, match="history of a map cannot be read"):
        collect_files(layered.rows.snapshots)
    assert {named.name for folder in ("ranges", "indexes") for named in layered.objects.list(folder)} == before


@pytest.mark.parametrize("cut", ["collect.history_forgotten", "collect.manifests_removed"])
def test_a_collection_that_is_cut_off_removes_nothing_reachable(
    pond: Pond, layered: Map, clock: ManualClock, cut: str
) -> None:
    for number in range(12):
        clock.advance(DAY)
        load(layered, number)
        fold_due(layered.rows.snapshots)

    def stop(step: str) -> None:
        if step == cut:
            raise InterruptedError(step)

    with listening(stop), pytest.raises(InterruptedError):
        collect_files(layered.rows.snapshots)
    before = known_rows(layered)
    assert min(before) == clock.now_ms() - 10 * DAY
    collect_files(layered.rows.snapshots)
    assert known_rows(layered) == before
    clock.advance(11 * DAY)
    collect_files(layered.rows.snapshots)
    last = {layered.freeze().id, *(manifest for _, manifest in manifests_known(pond))}
    assert {manifest.id for manifest in list_manifests(layered.objects)} == last
