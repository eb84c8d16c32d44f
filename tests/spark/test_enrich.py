"""Enriching: several maps in one pass, typed, as of the moment the query was planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from millpond import spark as mp
from millpond.errors import Invalid, NotFound
from tests.spark.worlds import START_MS, moment, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond import Pond

pytestmark = pytest.mark.sample(3, of="file")


@pytest.fixture
def flights(spark: SparkSession) -> DataFrame:
    rows = [("JFK", "N1", 60, moment(START_MS)), ("EWR", "N2", 7, moment(START_MS + 10)), ("LGA", None, None, None)]
    return spark.createDataFrame(rows, "origin string, tailnum string, flight int, hour timestamp")


@pytest.fixture
def known(pond: Pond) -> Pond:
    pond.create_map("weather", kind="temporal_state", value="temp double, seen timestamp")
    pond.create_map("planes", kind="state")
    pond.create_map("blocks", kind="ranged_state", value="long")
    pond.create_map("airborne", kind="session")
    at = pa.array([START_MS, START_MS + 5], pa.timestamp("ms", tz="UTC"))
    pond.map("weather").load(pa.table({"key": ["JFK", "EWR"], "effective_time": at, "temp": [39.5, 1.0], "seen": at}))
    pond.map("planes").load([{"key": "N1", "value": 1999}, {"key": "N2", "value": 2013}])
    pond.map("blocks").load([{"key_start": 0, "key_end": 99, "value": 1}, {"key_start": 50, "key_end": 60, "value": 2}])
    pond.map("airborne").load(pa.table({"key": ["N1", "N1"], "start": at, "end": at}))
    return pond


LOOKUPS = (
    mp.Lookup("weather", key="origin", at="hour"),
    mp.Lookup("planes", key="tailnum", into="built"),
    mp.Lookup("blocks", key="flight"),
    mp.Lookup("airborne", key="tailnum", at="hour"),
)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_several_lookups_take_one_pass_and_no_shuffle(flights: DataFrame, known: Pond) -> None:
    enriched = mp.enrich(flights, LOOKUPS, pond=known)
    rows = [{name: plain(value) for name, value in row.asDict().items()} for row in enriched.collect()]
    flown = {"start": moment(START_MS), "end": moment(START_MS)}
    assert [{name: row[name] for name in ("weather", "built", "blocks", "airborne")} for row in rows] == [
        {"weather": {"temp": 39.5, "seen": moment(START_MS)}, "built": "1999", "blocks": 2, "airborne": flown},
        {"weather": {"temp": 1.0, "seen": moment(START_MS + 5)}, "built": "2013", "blocks": 1, "airborne": None},
        {"weather": None, "built": None, "blocks": None, "airborne": None},
    ]
    plan = plan_of(enriched)
    assert plan.count("ArrowEvalPython [") == 1
    assert "Exchange" not in plan


def test_answers_are_typed(flights: DataFrame, known: Pond) -> None:
    enriched = mp.enrich(flights, LOOKUPS, pond=known)
    assert [(field.name, field.dataType.simpleString()) for field in enriched.schema.fields][4:] == [
        ("weather", "struct<temp:double,seen:timestamp>"), ("built", "string"), ("blocks", "bigint"),
        ("airborne", "struct<start:timestamp,end:timestamp>"),
    ]  # fmt: skip


def test_only_the_columns_of_the_query_are_sent(flights: DataFrame, known: Pond) -> None:
    plan = plan_of(mp.enrich(flights, LOOKUPS[:3:2], pond=known).drop("tailnum"))
    [call] = [line for line in plan.splitlines() if "ArrowEvalPython [" in line]
    assert call.count("#") == 5  # origin, hour, flight; the answer, twice
    assert "tailnum" not in call


def test_columns_may_be_computed_and_replaced(flights: DataFrame, known: Pond) -> None:
    key, at = sf.lower(sf.col("origin")), sf.lit(moment(START_MS + 7))
    known.map("weather").load([{"key": "jfk", "effective_time": moment(START_MS + 6), "temp": -1.0, "seen": None}])
    enriched = mp.enrich(flights, pond=known, map="weather", key=key, at=at, into="hour", overwrite=True)
    assert [plain(row.hour) for row in enriched.collect()] == [{"temp": -1.0, "seen": None}, None, None]
    two = [mp.Lookup("weather", key, at), mp.Lookup("planes", "tailnum", into="tailnum")]
    enriched = mp.enrich(flights, two, pond=known, overwrite=True)
    assert [row.tailnum for row in enriched.collect()] == ["1999", "2013", None]


@pytest.mark.parametrize("into", ["tailnum", "TailNum", "hour", "flight"])
def test_a_column_is_overwritten_only_when_that_is_said(flights: DataFrame, known: Pond, into: str) -> None:
    with pytest.raises(Invalid, match="column is there already") as caught:
        mp.enrich(flights, pond=known, map="planes", key="tailnum", into=into)
    assert (caught.value.kind, caught.value.values["column"]) == ("column_taken", into)
    with pytest.raises(Invalid, match="overwrite=True"):
        mp.enrich(flights.withColumnRenamed("origin", "planes"), pond=known, map="planes", key="tailnum")


def test_without_a_time_it_is_now(flights: DataFrame, known: Pond) -> None:
    enriched = mp.enrich(flights, pond=known, map="weather", key="origin")
    assert [row.weather and row.weather.temp for row in enriched.collect()] == [39.5, 1.0, None]


def test_a_query_asks_the_maps_as_they_were_when_it_was_planned(flights: DataFrame, known: Pond) -> None:
    before = mp.enrich(flights, pond=known, map="planes", key="tailnum")
    known.map("planes").load([{"key": "N1", "value": 2001}])
    after = mp.enrich(flights, pond=known.folder, map="planes", key="tailnum")
    assert [row.planes for row in before.collect()] == ["1999", "2013", None]
    assert [row.planes for row in after.collect()] == ["2001", "2013", None]


def test_the_sessions_pond_is_meant_where_none_is_named(spark: SparkSession, flights: DataFrame, known: Pond) -> None:
    session = spark.newSession()
    with pytest.raises(Invalid) as caught:
        mp.enrich(flights.sparkSession.newSession().sql("select 'N1' k"), map="planes", key="k")
    assert caught.value.kind == "pond_unnamed"
    mp.register(session, known)
    assert mp.enrich(session.sql("select 'N1' k"), map="planes", key="k").collect()[0].planes == "1999"
    assert session.read.format("millpond").option("map", "planes").load().count() == 2
    session.sql("select 'N3' key, 'new' value").write.format("millpond").option("map", "planes").mode("append").save()
    assert known.map("planes").get("N3") == "new"


def test_wrong_questions_are_refused_at_once(spark: SparkSession, flights: DataFrame, known: Pond) -> None:
    odd = spark.sql(
        "select array(1) list, timestamp '2013-01-01 00:00:00' stamp, true yes, "
        "timestamp_ntz '2013-01-01 00:00:00' naive, "
        "date '2013-01-01' day, 'JFK' key"
    )
    for lookup, kind in [
        (mp.Lookup("weather", "list", "day"), "key_type"),
        (mp.Lookup("weather", "day", "list"), "time_type"),
        (mp.Lookup("weather", "stamp"), "key_type"),
        (mp.Lookup("blocks", "key"), None),
        (mp.Lookup("blocks", "day"), "key_type"),
        (mp.Lookup("blocks", "yes"), "key_type"),
        (mp.Lookup("weather", "key", "naive"), "time_naive"),
        (mp.Lookup("weather", "key", "day"), "time_type"),
        ([mp.Lookup("weather", "key"), mp.Lookup("weather", "key")], "lookup_names"),
        ([], "lookup_missing"),
        (mp.Lookup("weather", "key", on_invalid="null"), "on_invalid"),  # type: ignore[arg-type]
    ]:
        if kind is None:
            mp.enrich(odd, lookup, pond=known)  # whether the text is a number, only its rows can tell
            continue
        with pytest.raises(Invalid) as caught:
            mp.enrich(odd, lookup, pond=known)
        assert caught.value.kind == kind
    assert _refused(odd, known, "key", "naive") == {"map": "weather", "column": "naive", "type": "timestamp_ntz"}
    with pytest.raises(NotFound):
        mp.enrich(flights, pond=known, map="wether", key="origin")
    with pytest.raises(PySparkException, match="orign"):
        mp.enrich(flights, pond=known, map="weather", key="orign")


def _refused(frame: DataFrame, pond: Pond, key: str, at: str) -> dict[str, object]:
    with pytest.raises(Invalid) as caught:
        mp.enrich(frame, pond=pond, map="weather", key=key, at=at)
    return caught.value.values


def test_a_value_that_is_no_key_or_time_is_an_error_or_a_miss(spark: SparkSession, known: Pond) -> None:
    rows = spark.createDataFrame([("60", "JFK", str(START_MS)), ("sixty", "JFK", "soon"), (None, "JFK", None)],
                                 "block string, origin string, hour string")  # fmt: skip
    for lookup, message in [
        (mp.Lookup("blocks", "block"), "the key is not a whole number. map=blocks column=block key='sixty'"),
        (mp.Lookup("weather", "origin", "hour"), "time is not understood. map=weather column=hour time='soon'"),
    ]:
        with pytest.raises(PySparkException) as caught:
            mp.enrich(rows, lookup, pond=known).collect()
        assert message in str(caught.value)
        assert "on_invalid='miss'" in str(caught.value)
    both = [mp.Lookup("blocks", "block", on_invalid="miss"), mp.Lookup("weather", "origin", "hour", on_invalid="miss")]
    answered = mp.enrich(rows, both, pond=known).collect()
    assert [row.blocks for row in answered] == [2, None, None]
    assert [row.weather and row.weather.temp for row in answered] == [39.5, None, None]
    single = mp.enrich(rows, pond=known, map="blocks", key="block", on_invalid="miss")
    assert [row.blocks for row in single.collect()] == [2, None, None]


def test_a_condition_is_judged_where_the_frame_is_made(session: SparkSession) -> None:
    with pytest.raises(PySparkException, match="value does not go with the column"):
        session.read.format("millpond").option("map", "weather").option("where", "temp = 'warm'").load()


# -- SQL ----------------------------------------------------------------------------------------------


@pytest.fixture
def session(spark: SparkSession, flights: DataFrame, known: Pond) -> SparkSession:
    made = spark.newSession()
    mp.register(made, known)
    made.createDataFrame(flights.collect(), flights.schema).createOrReplaceTempView("flights")
    return made


def test_get_state_is_typed_and_takes_one_pass(session: SparkSession) -> None:
    frame = session.sql("""
        select origin, get_state('weather', origin, hour).temp as temp, get_state('planes', tailnum) as built,
               get_state('BLOCKS', flight) as block, get_state('airborne', tailnum, hour) is not null as flying
        from flights
    """)
    assert [field.dataType.simpleString() for field in frame.schema.fields][1:] == [
        "double", "string", "bigint", "boolean",
    ]  # fmt: skip
    assert [tuple(row) for row in frame.collect()] == [
        ("JFK", 39.5, "1999", 2, True), ("EWR", 1.0, "2013", 1, False), ("LGA", None, None, None, False),
    ]  # fmt: skip
    assert plan_of(frame).count("ArrowEvalPython [") == 1


def test_get_state_may_stand_anywhere(session: SparkSession, known: Pond) -> None:
    session.sql("create temporary view built as select origin, get_state('planes', tailnum) as built from flights")
    assert [row.origin for row in session.sql("select * from built where built > '2000' order by 1").collect()] == [
        "EWR"
    ]
    counted = session.sql(
        "select get_state('blocks', flight) as block, count(*) as flights from flights "
        "where get_state('planes', tailnum) is not null group by all order by 1"
    )
    assert [tuple(row) for row in counted.collect()] == [(1, 1), (2, 1)]
    known.map("planes").load([{"key": "N1", "value": 2001}])
    assert session.sql("select * from built where built > '2000'").count() == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("get_state('wether', origin)", "no such map"),
        ("get_state('planes')", "takes a map, a key and a time"),
        ("get_state(origin, tailnum)", "text literal"),
        ("get_state('weather', origin, date(hour))", "zone"),
        ("get_state('weather', hour)", "column cannot be read as keys: .* map=weather column=.*hour type=timestamp"),
        ("get_state('blocks', true)", "whole numbers, in a ranged map. map=blocks column=true type=boolean"),
        ("get_state('weather', origin, 1.5D)", "a time is a timestamp. map=weather column=1.5D type=double"),
    ],
)
def test_what_is_wrong_in_sql_is_said(session: SparkSession, call: str, said: str) -> None:
    with pytest.raises(PySparkException, match=said) as caught:
        session.sql(f"select {call} from flights")  # while it is planned: nothing is collected
    assert "Traceback" not in str(caught.value)
