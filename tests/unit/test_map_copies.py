"""Copies and new names of layered maps: the files are shared, and each map lets go of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.kernel.steps import listening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

ROWS = [{"key": "JFK", "temp": 70}]


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as opened:
        yield opened


@pytest.fixture
def weather(pond: Pond) -> Map:
    made = pond.create_map("weather", kind="state", value="temp long", store="layers", condense="30d")
    made.load(ROWS)
    return made


def folders(pond: Pond) -> set[str]:
    return {place.name.partition(".")[0] for place in (pond.folder / "snapshots").iterdir()}


def test_a_copy_shares_its_files_and_goes_its_own_way(pond: Pond, weather: Map) -> None:
    pond.alter_map("weather", rename={"temp": "t"})
    definition = pond.catalogue.copy("weather", "Climate")
    copy = pond.map("climate")
    assert copy.definition == definition
    assert (definition.condense_ms, definition.incarnation) != (None, weather.definition.incarnation)
    for named in copy.objects.list("ranges"):
        file, shared = copy.objects.local_path(named.name), weather.objects.local_path(named.name)
        assert file is not None
        assert shared is not None
        assert file.samefile(shared)
    weather.load([{"key": "JFK", "t": 71}])
    copy.load([{"key": "LGA", "t": 60}])
    assert (weather.get("JFK"), weather.get("LGA")) == ({"t": 71}, None)
    assert (copy.get("JFK"), copy.get("LGA")) == ({"t": 70}, {"t": 60})
    pond.drop_map("weather")
    copy.compact()
    assert copy.lookup(["JFK", "LGA"]).to_pylist() == [{"t": 70}, {"t": 60}]


def test_a_copy_knows_the_loads_of_the_map(pond: Pond, weather: Map) -> None:
    weather.load([{"key": "JFK", "temp": 71}])
    pond.catalogue.copy("weather", "climate")
    assert pond.map("climate").load(ROWS).duplicate_parts == 1
    assert pond.map("climate").get("JFK") == {"temp": 71}


def test_a_map_is_renamed_with_all_it_has(pond: Pond, weather: Map) -> None:
    pond.catalogue.rename("weather", "climate")
    assert [pond_map.name for pond_map in pond.maps()] == ["climate"]
    assert folders(pond) == {"climate"}
    assert pond.map("climate").get("JFK") == {"temp": 70}
    assert pond.map("climate").load(ROWS).duplicate_parts == 1
    with pytest.raises(NotFound, match="dropped"):
        weather.get("JFK")


def test_a_load_that_comes_in_between_is_not_lost(pond: Pond, weather: Map) -> None:
    rows = [[{"key": "LGA", "temp": 60}]]

    def listen(step: str) -> None:
        if step == "copy.stored" and rows:
            weather.load(rows.pop())

    with listening(listen):
        pond.catalogue.rename("weather", "climate")
    assert pond.map("climate").lookup(["JFK", "LGA"]).to_pylist() == [{"temp": 70}, {"temp": 60}]


def test_the_folder_of_a_copy_is_let_be_until_it_is_entered(pond: Pond, weather: Map) -> None:
    def listen(step: str) -> None:
        if step == "copy.stored":
            pond.catalogue.finish_drops()
            assert folders(pond) == {"weather", "climate"}

    with listening(listen):
        pond.catalogue.copy("weather", "climate")
    assert pond.map("climate").get("JFK") == {"temp": 70}


def test_what_cannot_be_is_refused_and_leaves_nothing(pond: Pond, weather: Map) -> None:
    pond.create_map("owner", kind="state", value="long")
    for act in (pond.catalogue.copy, pond.catalogue.rename):
        with pytest.raises(AlreadyExists):
            act("weather", "owner")
        with pytest.raises(Invalid, match="--store layers"):
            act("owner", "keeper")
        with pytest.raises(NotFound):
            act("nobody", "keeper")
        with pytest.raises(Invalid, match="name is not valid"):
            act("weather", "a/b")
    assert folders(pond) == {"weather"}


def test_a_map_that_was_never_loaded_is_copied(pond: Pond) -> None:
    pond.create_map("empty", kind="state", value="long", store="layers")
    pond.catalogue.copy("empty", "other")
    assert pond.map("other").get("a") is None
    pond.map("other").load([{"key": "a", "value": 1}])
    assert pond.map("other").get("a") == 1
