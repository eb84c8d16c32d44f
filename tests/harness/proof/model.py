"""The maps and flights of the demo by brute force: dictionaries made from its files in plain Python, without Spark.

Of the data it takes a part that is loaded quickly: two days of flights, their weather, all aircraft, airports and
airlines, and the first networks of addresses.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from pyarrow import parquet

from millpond.demo.sources import Sources

__all__ = ("ONLY", "FlightsModel", "Rows")

ADDRESSES_MAX = 1 << 26
ONLY = (
    ("flights", "month = 1 and day <= 2"), ("weather", "month = 1 and day <= 3"),
    ("ipv4", f"key_start < {ADDRESSES_MAX}"),
)  # fmt: skip
"""The part of the data, as conditions on the views of the demo."""

Rows = dict[tuple[Any, ...], Any]
"""The rows of a map: the value of each address. A struct is a tuple in the order of its fields."""
_BLOCK = 100


@dataclass(frozen=True)
class FlightsModel:
    """The rows of each map of the demo, by the map's name."""

    sources: Sources

    @cached_property
    def flights(self) -> list[dict[str, Any]]:
        """The flights, with the instants of `plan`."""
        return [
            _with_instants(row) for row in _read(self.sources.flights) if row["month"] == "1" and int(row["day"]) <= 2
        ]

    @cached_property
    def maps(self) -> dict[str, Rows]:
        """All maps."""
        return {
            "airlines": {(row["carrier"],): row["name"] for row in _read(self.sources.airlines)},
            "airports": _keyed(self.sources.airports, "faa", name=str, lat=float, lon=float, alt=int),
            "planes": _keyed(
                self.sources.planes, "tailnum", manufacturer=str, model=str, year=int, seats=int, engine=str
            ),
            "weather": self._weather(),
            "number_blocks": self._number_blocks(),
            "ipv4_country": self._networks(),
            "airborne": self._airborne(),
        }

    def temperature(self, origin: str, instant: datetime) -> float | None:
        """The temperature at an airport as of an instant: that of the latest hour which is not after it."""
        hours = [hour for airport, hour in self.maps["weather"] if airport == origin and hour <= instant]
        temperature: float | None = self.maps["weather"][origin, max(hours)][0] if hours else None
        return temperature

    def _weather(self) -> Rows:
        rows = (row for row in _read(self.sources.weather) if row["month"] == "1" and int(row["day"]) <= 3)
        names = ("temp", "wind_speed", "precip", "visib")
        return {
            (row["origin"], _instant(row["time_hour"])): tuple(_number(row[name], float) for name in names)
            for row in rows
        }

    def _number_blocks(self) -> Rows:
        counts: Counter[tuple[int, str]] = Counter()
        for row in self.flights:
            number = int(row["flight"])
            counts[number - number % _BLOCK, row["carrier"]] += 1
        found: Rows = {}
        february = datetime(2013, 2, 1, tzinfo=UTC)
        for start in {start for start, _ in counts}:
            ranked = sorted((-count, carrier) for (block, carrier), count in counts.items() if block == start)
            flights, carrier = -ranked[0][0], ranked[0][1]
            found[start, start + _BLOCK - 1, february] = (
                carrier,
                flights,
                flights / -sum(count for count, _ in ranked),
            )
        return found

    def _networks(self) -> Rows:
        table = parquet.read_table(self.sources.ipv4).to_pylist()
        return {(row["key_start"], row["key_end"]): row["value"] for row in table if row["key_start"] < ADDRESSES_MAX}

    def _airborne(self) -> Rows:
        return {
            (row["tailnum"], row["departed"], row["departed"] + timedelta(minutes=int(row["air_time"]))): None
            for row in self.flights
            if row["departed"] is not None and row["air_time"] is not None and row["tailnum"] is not None
        }


def _read(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            yield {name: None if text == "NA" else text for name, text in row.items()}


def _keyed(file: Path, key: str, **fields: Callable[[str], Any]) -> Rows:
    return {(row[key],): tuple(_number(row[name], kind) for name, kind in fields.items()) for row in _read(file)}


def _number(text: str | None, kind: Callable[[str], Any]) -> Any:
    return None if text is None else kind(text)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _with_instants(row: dict[str, Any]) -> dict[str, Any]:
    hour = _instant(row["time_hour"])
    late = None if row["dep_delay"] is None else timedelta(minutes=int(row["minute"]) + int(row["dep_delay"]))
    return row | {"time_hour": hour, "departed": None if late is None else hour + late}
