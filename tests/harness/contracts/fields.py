"""Fields of maps that change, columns that maps lack, copies and new names, in any pond; in shards refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millpond.errors import Invalid, NotFound
from millpond.maps.model.definition import Store
from tests.harness.contracts.maps import NamedMaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("FieldsContract",)

ROWS = [{"key": "JFK", "temp": 70, "visib": 10.0}]
WIDE = [{"key": "LGA", "temp": 71, "visib": 9.0, "gust": 3.5}]


def _layered(pond_map: MapLike, act: Callable[[], object]) -> bool:
    """True when a map in layers did it; in a shard it is refused with the way out."""
    if pond_map.definition.store is Store.LAYERS:
        act()
        return True
    with pytest.raises(Invalid, match="--store layers") as refused:
        act()
    assert refused.value.kind == "store_unsupported"
    return False


class FieldsContract(NamedMaps):
    """The promises of `alter_map` about fields, of `extra`, and of `catalogue.copy` and `rename`."""

    def loaded(self, pond: PondLike, name: str) -> MapLike:
        made = pond.create_map(name, kind="state", value="temp long, visib double")
        made.load(ROWS)
        return made

    def test_fields_change(self, pond: PondLike, fresh: str) -> None:
        made = self.loaded(pond, fresh)
        change: dict[str, Any] = {
            "add": {"gust": "double"}, "default": {"gust": 3}, "drop": ["visib"], "rename": {"temp": "t"},
            "widen": {"temp": "double"},
        }  # fmt: skip
        if not _layered(made, lambda: pond.alter_map(fresh, **change)):
            return
        changed = pond.map(fresh)
        assert str(changed.definition.value) == "t double, gust double"
        assert changed.get("JFK") == {"t": 70.0, "gust": 3.0}
        assert changed.lookup(["JFK"]).to_pylist() == [{"t": 70.0, "gust": 3.0}]
        changed.load([{"key": "LGA", "t": 1.5, "gust": None}])
        assert sorted(changed.scan().read_all()["t"].to_pylist()) == [1.5, 70.0]
        assert pond.sql(f"select sum(t) as t from {fresh}").to_pylist() == [{"t": 71.5}]
        with pytest.raises(Invalid, match="values would be lost"):
            pond.alter_map(fresh, widen={"t": "long"})

    def test_columns_that_the_map_lacks_are_refused_ignored_or_added(self, pond: PondLike, fresh: str) -> None:
        made = self.loaded(pond, fresh)
        with pytest.raises(Invalid, match="columns=gust") as refused:
            made.load(WIDE)
        assert refused.value.kind == "column_extra"
        assert made.load(WIDE, extra="ignore").rows == 1
        assert made.get("LGA") == {"temp": 71, "visib": 9.0}
        if _layered(made, lambda: made.load(WIDE, extra="add")):
            assert pond.map(fresh).get("LGA") == {"temp": 71, "visib": 9.0, "gust": 3.5}

    def test_maps_are_copied_and_renamed(self, pond: PondLike, fresh: str) -> None:
        made = self.loaded(pond, fresh)
        if _layered(made, lambda: pond.catalogue.copy(fresh, f"{fresh}_copy")):
            made.load([{"key": "JFK", "temp": 1, "visib": None}])
            assert pond.map(f"{fresh}_copy").get("JFK") == {"temp": 70, "visib": 10.0}
        if _layered(made, lambda: pond.catalogue.rename(fresh, f"{fresh}_new")):
            assert pond.map(f"{fresh}_new").get("JFK") == {"temp": 1, "visib": None}
            with pytest.raises(NotFound):
                pond.map(fresh)
