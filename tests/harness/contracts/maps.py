"""Maps with rows in them, for suites that run over any pond: their names, their definitions, how they are filled."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("HOUR", "MIXED", "NamedMaps", "fresh_name", "like", "weather_rows")

HOUR = 3_600_000
_numbers = count()


def fresh_name(word: str = "m") -> str:
    """A name that no map of this process had."""
    return f"{word}_{next(_numbers)}"


def like(pond: PondLike, definition: MapDefinition) -> MapLike:
    """A fresh map of that kind, value, scheme and settings."""
    return pond.create_map(
        fresh_name(),
        kind=definition.kind,
        value=definition.value,
        scheme=definition.scheme,
        hash_bytes=definition.hash_bytes,
        hash_bits=definition.hash_bits,
        overwrite=definition.overwrite,
        condense=definition.condense_ms,
        retain=definition.retain_ms,
        retain_by=definition.retain_by,
        condense_by=definition.condense_by,
    )


class NamedMaps:
    """Fixtures: fresh maps, some with rows."""

    @pytest.fixture
    def fresh(self) -> str:
        """A name for a map."""
        return fresh_name()

    @pytest.fixture
    def weather(self, pond: PondLike) -> MapLike:
        """Three rows of two airports."""
        made = pond.create_map(
            fresh_name("weather"), kind="temporal_state", value="temp double, wind_speed double, code string"
        )
        made.load(weather_rows())
        return made

    @pytest.fixture
    def mixed(self, pond: PondLike) -> MapLike:
        """A state map without a declared type: a value of each kind of column."""
        made = pond.create_map(fresh_name("mixed"), kind="state")
        for key, value in MIXED.items():
            made.load(pa.table({"key": [key], "value": [value]}))
        return made


MIXED: dict[str, Any] = {
    "text": "é",
    "none": None,
    "empty": "",
    "n": 1 << 62,
    "d": 0.1,
    "b": True,
    "bytes": b"\x00\xff",
}


def weather_rows() -> pa.Table:
    """JFK at 17 and 18 o'clock, LGA at 17."""
    return pa.table(
        {
            "key": ["JFK", "JFK", "LGA"],
            "effective_time": ["2013-02-08T17:00Z", "2013-02-08T18:00Z", "2013-02-08T17:00Z"],
            "temp": [33.1, 32.0, None], "wind_speed": [20.7, None, 18.4], "code": ["", "OVC", None],
        }
    )  # fmt: skip
