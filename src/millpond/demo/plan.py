"""The maps of the demo, and the Spark SQL that makes their rows from the data.

| map | kind | answers |
|---|---|---|
| `airlines` | state | the airline's name |
| `airports` | state | name and place of an airport |
| `planes` | state | what aircraft a tail number is |
| `weather` | temporal_state | the weather at an airport as of an hour |
| `number_blocks` | temporal_ranged_state | who flew most flights of a hundred flight numbers in the last full month |
| `ipv4_country` | ranged_state | the country of an IPv4 address |
| `airborne` | session | whether, and since when until when, an aircraft is in the air |

`number_blocks` is counted from the flights themselves. A month's count takes effect when the month is over:
nobody knew it earlier, so flights of the first month find nothing. `airborne` holds a session from each actual
departure for as long as the flight was in the air.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.demo.sources import Sources

__all__ = ("LOOKUPS", "MAPS", "SAMPLE", "SETTINGS", "VIEWS", "Lookup", "PlannedMap", "PlannedView", "register_views")


@dataclass(frozen=True, slots=True)
class PlannedMap:
    """A map to create, and the query whose rows it is loaded with."""

    name: str
    kind: str
    value: str | None
    rows: str
    store: str = "shard"


@dataclass(frozen=True, slots=True)
class Lookup:
    """One question asked of every flight: `key` and `at` are the flight's columns, `into` the column of the answer."""

    asks: str
    map: str
    key: str
    into: str
    at: str | None = None


_NUMBER_BLOCKS = """
    with counted as (
        select flight - flight % 100 as key_start, date_trunc('month', scheduled) as month, carrier,
               count(*) as flights
        from flights group by all
    ), ranked as (
        select *, flights / sum(flights) over (partition by key_start, month) as share,
               row_number() over (partition by key_start, month order by flights desc, carrier) as place
        from counted
    )
    select key_start, key_start + 99 as key_end, cast(add_months(month, 1) as timestamp) as effective_time,
           carrier, flights, share
    from ranked where place = 1
"""

MAPS: tuple[PlannedMap, ...] = (
    PlannedMap("airlines", "state", "string", "select carrier as key, name as value from airlines"),
    PlannedMap(
        "airports", "state", "name string, lat double, lon double, altitude long",
        "select faa as key, name, lat, lon, alt as altitude from airports",
    ),
    PlannedMap(
        "planes", "state", "manufacturer string, model string, built long, seats long, engine string",
        "select tailnum as key, manufacturer, model, year as built, seats, engine from planes",
    ),
    PlannedMap(
        "weather", "temporal_state", "temp double, wind_speed double, precip double, visib double",
        "select origin as key, time_hour as effective_time, temp, wind_speed, precip, visib from weather",
        store="layers",  # it has branches, and a past
    ),
    PlannedMap("number_blocks", "temporal_ranged_state", "carrier string, flights long, share double", _NUMBER_BLOCKS),
    PlannedMap("ipv4_country", "ranged_state", "string", "select key_start, key_end, value from ipv4"),
    PlannedMap(
        "airborne", "session", None,
        "select tailnum as key, departed as start, departed + make_interval(0, 0, 0, 0, 0, air_time) as end "
        "from flights where departed is not null and air_time is not null and tailnum is not null",
    ),
)  # fmt: skip

LOOKUPS: tuple[Lookup, ...] = (
    Lookup("the weather as of its hour", "weather", "origin", "weather", at="time_hour"),
    Lookup("its aircraft", "planes", "tailnum", "plane"),
    Lookup("where it leaves from", "airports", "origin", "origin_airport"),
    Lookup("where it goes", "airports", "dest", "dest_airport"),
    Lookup("its airline", "airlines", "carrier", "airline"),
    Lookup("who flew most such numbers, last month", "number_blocks", "flight", "number_block", at="scheduled"),
    Lookup("was its aircraft in the air by then", "airborne", "tailnum", "airborne", at="scheduled"),
)

SAMPLE = """
    select strftime(make_timestamp(epoch_us(scheduled)), '%b %-d %H:%M') as utc, concat(carrier, flight) as flight,
           origin as from, left(coalesce(dest_airport.name, dest), 16) as to, left(plane.model, 11) as aircraft,
           round(weather.temp) as temp_f, round(weather.wind_speed) as wind_mph
    from read_parquet(?)
    where month = 2 and day = 8 and hour between 9 and 15 and plane is not null
    order by hash(flight, tailnum)
    limit 6
"""
"""A few flights of a stormy day, as a person would like to see them, from the file of flights by DuckDB."""

SETTINGS = {
    # Half a minute is too short for the best machine code: to make it takes a third of the processor's time.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings of a session of Spark that works for half a minute."""

_FLIGHTS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight long, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
_WEATHER = (
    "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, wind_dir double, "
    "wind_speed double, wind_gust double, precip double, pressure double, visib double, time_hour timestamp"
)
_PLANES = (
    "tailnum string, year long, type string, manufacturer string, model string, engines int, seats long, speed double, "
    "engine string"
)
_AIRPORTS = (
    "faa string, name string, lat double, lon double, alt long, tz int, dst string, tzone string"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view of the data: a file, the field of `Sources` that names it and its schema; or a query of other views."""

    name: str
    file: str = ""
    schema: str = ""
    sql: str = ""

    @property
    def format(self) -> str:
        """Spark's name of the file's format."""
        return "csv" if self.schema else "parquet"

    @property
    def options(self) -> dict[str, str]:
        """Spark's options for the file."""
        return {"header": "true", "nullValue": "NA"} if self.schema else {}


VIEWS: tuple[PlannedView, ...] = (
    PlannedView("flights_as_given", "flights", _FLIGHTS),
    PlannedView("weather", "weather", _WEATHER),
    PlannedView("planes", "planes", _PLANES),
    PlannedView("airports", "airports", _AIRPORTS),
    PlannedView("airlines", "airlines", "carrier string, name string"),
    PlannedView("ipv4", "ipv4"),
    PlannedView(
        "flights",
        sql="select *, time_hour + make_interval(0, 0, 0, 0, 0, minute) as scheduled, "
        "time_hour + make_interval(0, 0, 0, 0, 0, minute + dep_delay) as departed from flights_as_given",
    ),
)
"""Views of the data, those that are asked by others first.

`flights` gains `scheduled`, the instant of its scheduled departure, and `departed`, that of its real one.
"""


def register_views(session: SparkSession, sources: Sources) -> None:
    """The data as temporary views of the session."""
    for view in VIEWS:
        if view.sql:
            frame = session.sql(view.sql)
        else:
            reader = session.read.format(view.format).options(**view.options)
            frame = (reader.schema(view.schema) if view.schema else reader).load(str(getattr(sources, view.file)))
        frame.createOrReplaceTempView(view.name)
