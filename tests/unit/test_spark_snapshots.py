"""The snapshots that streams of Spark ask: of what moment they are, and how long they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock, SystemClock
from millpond.errors import NotFound
from millpond.maps.snapshots.freeze import KEEP_MS
from millpond.pond import open_pond
from millpond.spark.locations import SparkFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

HOUR = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=SystemClock().now_ms() - 24 * HOUR)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond", clock=clock) as opened:
        for store in ("layers", "shard"):
            opened.create_map(store, kind="state", value="long", store=store)
        yield opened


def put(target: Map, value: int) -> None:
    target.load([{"key": "a", "value": value}])


@pytest.mark.parametrize("branch", ["", "fix"], ids=["main", "branch"])
def test_layers_are_asked_as_of_the_call_or_an_age_later(pond: Pond, clock: ManualClock, branch: str) -> None:
    put(pond.map("layers"), 1)
    place = SparkFolder(str(pond.folder), branch=branch)
    target = (pond.branch("fix", source="main") if branch else pond).map("layers")
    clock.advance(1000)
    called_ms = clock.now_ms()
    for value in (2, 3):
        clock.advance(1000)
        put(target, value)

    def answer(age_ms: int, since_ms: int) -> int | None:
        shelf, manifest = place.pin(pond, "layers", age_ms, since_ms)
        with shelf.open(manifest.id) as snapshot:
            return snapshot.lookup(["a"]).to_pylist()[0]

    assert answer(100 * HOUR, called_ms) == 1, "however often a micro-batch begins"
    assert answer(100 * HOUR, called_ms + 1000 - 100 * HOUR) == 2, "after so long another such time begins"
    assert answer(0, called_ms) == 3


def test_a_snapshot_that_is_retained_stays_whatever_takes_its_place(pond: Pond, clock: ManualClock) -> None:
    target, place = pond.map("shard"), SparkFolder(str(pond.folder))
    for retained in (False, True):
        put(target, int(retained))
        shelf, manifest = place.pin(pond, "shard")
        if retained:
            shelf.keep(manifest.id)
        for value in (2, 3):
            put(target, 10 * value + retained)
            clock.advance(2 * KEEP_MS)
            target.freeze()
        if retained:
            with shelf.open(manifest.id) as snapshot:
                assert snapshot.lookup(["a"]).to_pylist() == [1]
        else:
            with pytest.raises(NotFound):
                shelf.open(manifest.id)
