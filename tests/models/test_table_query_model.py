"""A table by query holds what `GROUP BY` of all raw rows gives, however they are split, and however they are loaded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import millpond
from millpond.errors import Invalid
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Map

QUERY = """
    select concat(origin, '/', carrier) as key, date_trunc('{unit}', departed) as time, count(*) as flights,
        count(delay) as told, count_if(delay > 15) as late, sum(seats::bigint) as seats, min(delay) as least,
        max(delay + seats) filter (where seats < 200) as most, avg(delay) filter (where not cancelled) as mean,
        arg_max(tail, departed) as last, arg_min(tail, departed)::varchar as first, approx_count_distinct(tail) as tails
    from events e where e.seats <> 13 and (origin = 'JFK' or not cancelled) group by 1, time
"""
SCHEMA = pa.schema({
    "origin": pa.string(), "carrier": pa.string(), "departed": pa.timestamp("ms", "UTC"), "delay": pa.float64(),
    "seats": pa.int64(), "cancelled": pa.bool_(), "tail": pa.string(), "note": pa.int64(),
})  # fmt: skip
MIDNIGHT = datetime(2024, 3, 30, 22, tzinfo=UTC)
rows = st.lists(
    st.fixed_dictionaries({
        "origin": st.sampled_from(("JFK", "LGA", "")), "carrier": st.sampled_from(("AA", "UA")),
        "departed": st.integers(0, 2000).map(lambda minutes: MIDNIGHT + timedelta(minutes=minutes)),
        "delay": st.none() | st.integers(-20, 40).map(float), "seats": st.none() | st.integers(10, 250),
        "cancelled": st.booleans(), "tail": st.none() | st.sampled_from(("N1", "N2", "N3")),
    }), max_size=25, unique_by=lambda row: row["departed"],
)  # fmt: skip
ways = st.sampled_from(("table", "dicts", "parquet", "branch"))
pieces = st.lists(st.tuples(st.integers(0, 25), ways), max_size=4)


def grouped(query: str, raw: pa.Table, zone: str) -> list[dict[str, Any]]:
    """The answer of DuckDB over all rows."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = $1", [zone])
        connection.register("events", raw)
        answer = connection.sql(f"{query} order by 1, 2").to_arrow_table().to_pylist()
    return [row | {"time": row["time"].astimezone(UTC), "seats": row["seats"] and int(row["seats"])} for row in answer]


def held(table: Map) -> list[dict[str, Any]]:
    columns = ["key", "time", "flights", "told", "late", "seats", "least", "most", "mean", "last", "first", "tails"]
    found = table.scan(columns=columns).read_all().sort_by([("key", "ascending"), ("time", "ascending")]).to_pylist()
    return [row | {"time": row["time"].astimezone(UTC), "tails": round(row["tails"] or 0)} for row in found]


def load(pond: millpond.Pond, raw: pa.Table, way: str, folder: Path) -> None:
    if way == "parquet":
        parquet.write_table(raw, folder / "raw.parquet")
        pond.load_files([folder / "raw.parquet"], map="flights", again=True)
    elif way == "branch":
        fix = pond.branch("fix", source="main")
        fix.map("flights").load(raw, again=True)
        try:
            pond.refs.merge("fix", "main")
        except Invalid as error:
            if error.kind != "no_changes":  # the query left all rows out
                raise
        finally:
            pond.refs.delete_branch("fix")
    else:
        pond.map("flights").load(raw if way == "table" else raw.to_pylist(), again=True)


def test_a_table_holds_what_group_by_of_all_rows_gives(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tables")
    with millpond.open(folder / "pond") as pond:

        @settings(max_examples=examples(6, 80), deadline=None)
        @given(rows, pieces, st.sampled_from(("hour", "day")), st.sampled_from(("UTC", "Europe/Paris")))
        def run(drawn: list[dict[str, Any]], cuts: list[tuple[int, str]], unit: str, zone: str) -> None:
            raw = pa.Table.from_pylist([row | {"note": number} for number, row in enumerate(drawn)], schema=SCHEMA)
            query = QUERY.format(unit=unit)
            if pond.maps():
                pond.drop_map("flights")
            table = pond.create_map("flights", as_=query, time_zone=zone)
            start = 0
            for stop, way in [*sorted(cuts), (len(raw), "table")]:
                if stop > start:
                    load(pond, raw.slice(start, stop - start), way, folder)
                start = max(start, stop)
            assert held(table) == grouped(query, raw, zone)

        run()
