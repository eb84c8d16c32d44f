"""Frames of pandas, Polars and Arrow are enriched as Spark's are: each row as of its own time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import millpond
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOON = datetime(2013, 2, 8, 12, tzinfo=UTC)
LARGE = 2**53 + 1
"""No float holds it."""
FLIGHTS = pa.table({
    "origin": ["JFK", "LGA", None, "JFK"],
    "at": pa.array([NOON, NOON, NOON, NOON.replace(year=2012)], pa.timestamp("us", "UTC")),
    "tail": [7, 8, 7, None],
})  # fmt: skip
WEATHER: list[Any] = [{"temp": 1.5, "seats": LARGE}, {"temp": None, "seats": 1}, None, None]
PLANES = ["Airbus", None, "Airbus", None]
LOOKUPS = [millpond.Lookup("weather", "origin", "AT"), millpond.Lookup("planes", "tail", into="plane")]
FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: FLIGHTS,
    "batch": lambda: FLIGHTS.to_batches()[0],
    "reader": FLIGHTS.to_reader,
    "relation": lambda: duckdb.sql("select * from flights"),
    "dicts": FLIGHTS.to_pylist,
    "polars": lambda: pl.from_arrow(FLIGHTS),
    "pandas": FLIGHTS.to_pandas,
}


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millpond.Pond]:
    with millpond.open(tmp_path_factory.mktemp("enrich") / "pond") as pond:
        weather = pond.create_map("weather", kind="temporal_state", value="temp double, seats long")
        columns = {"key": ["JFK", "LGA"], "time": [NOON, NOON], "temp": [1.5, None], "seats": [LARGE, 1]}
        weather.load(columns)
        pond.create_map("planes", kind="state", value="string").load({"key": ["7"], "value": ["Airbus"]})
        pond.create_map("blocks", kind="ranged_state", value="string")
        yield pond


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_comes_back_as_what_it_was(pond: millpond.Pond, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "flights", FLIGHTS)  # as DuckDB finds it
    frame = FORMS[form]()
    answer = pond.enrich(frame, LOOKUPS)
    assert isinstance(answer, type(frame) if form in ("table", "polars", "pandas") else pa.Table)
    table = answer if isinstance(answer, pa.Table) else pa.table(answer)
    assert table.column_names == ["origin", "at", "tail", "weather", "plane"]
    assert table.column("weather").to_pylist() == WEATHER
    assert table.column("plane").to_pylist() == PLANES


def test_pandas_keeps_its_index_and_every_digit(pond: millpond.Pond) -> None:
    frame = FLIGHTS.to_pandas().set_index(pd.Index([5, 6, 7, 5]))
    answer = pond.enrich(frame, map="weather", key="origin", at="at", flat=True)
    assert answer.index.tolist() == [5, 6, 7, 5]
    assert list(answer.columns) == ["origin", "at", "tail", "weather_temp", "weather_seats"]
    assert answer["weather_seats"].tolist() == [LARGE, 1, pd.NA, pd.NA]
    assert list(frame.columns) == ["origin", "at", "tail"]


@pytest.mark.parametrize("names", [("a", "b"), (0, 1), (("a", "x"), ("a", "y"))])
def test_columns_of_pandas_may_be_numbers_or_tuples(pond: millpond.Pond, names: tuple[Any, Any]) -> None:
    key, at = names
    frame = pd.DataFrame({key: ["JFK"], at: pd.to_datetime([NOON], utc=True)})
    answer = pond.enrich(frame, map="weather", key=key, at=at, into="found")
    assert list(answer["found"]) == WEATHER[:1]


def test_nothing_is_overwritten_unless_it_is_said(pond: millpond.Pond) -> None:
    with pytest.raises(Invalid, match="there already") as caught:
        pond.enrich(FLIGHTS, map="planes", key="tail", into="Origin")
    assert caught.value.kind == "column_taken"
    answer = pond.enrich(FLIGHTS, map="planes", key="tail", into="tail", overwrite=True)
    assert answer.to_pydict() == FLIGHTS.to_pydict() | {"tail": PLANES}
    assert pond.enrich(pl.from_arrow(FLIGHTS).lazy().collect(), map="planes", key="tail").width == 4


@pytest.mark.parametrize(
    ("question", "kind", "message"),
    [
        ({}, "lookup_missing", "map="),
        ({"key": "tail"}, "lookup_missing", "map="),
        ({"lookups": [LOOKUPS[1], LOOKUPS[1]]}, "lookup_names", "into="),
        ({"map": "planes", "key": "tial"}, "column_missing", "did you mean 'tail'"),
        ({"map": "blocks", "key": "origin"}, "key_number", "column=origin"),
        ({"map": "weather", "key": "origin", "at": "tail"}, "time_unknown", "column=tail"),
        ({"map": "plans", "key": "tail"}, "map_not_found", "planes"),
    ],
)
def test_a_mistake_names_the_column_and_the_way_out(
    pond: millpond.Pond, question: dict[str, Any], kind: str, message: str
) -> None:
    frame = FLIGHTS.set_column(2, "tail", pa.array([1_360_324_800] * 4))  # seconds, if it were a time
    with pytest.raises((Invalid, NotFound)) as caught:
        pond.enrich(frame, **question)
    assert caught.value.kind == kind
    assert message in str(caught.value)


def test_a_value_that_is_no_key_may_be_a_miss(pond: millpond.Pond) -> None:
    answer = pond.enrich(FLIGHTS, map="blocks", key="origin", on_invalid="miss")
    assert answer.column("blocks").null_count == 4


def test_no_events_are_enriched_too(pond: millpond.Pond) -> None:
    assert pond.enrich({"origin": []}, map="planes", key="origin").to_pydict() == {"origin": [], "planes": []}
    with pytest.raises(Invalid, match="column"):
        pond.enrich([], map="planes", key="origin")


def test_a_query_is_collected_first(pond: millpond.Pond) -> None:
    with pytest.raises(Invalid, match="collect it first"):
        pond.enrich(pl.from_arrow(FLIGHTS).lazy(), map="planes", key="tail")


def test_naive_times_are_refused(pond: millpond.Pond) -> None:
    frame = FLIGHTS.to_pandas()
    frame["at"] = frame["at"].dt.tz_localize(None)
    with pytest.raises(Invalid, match="no zone") as caught:
        pond.enrich(frame, LOOKUPS)
    assert caught.value.values["column"] == "at"
