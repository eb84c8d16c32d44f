"""Reading maps into DataFrames: typed, in parts, and no more than the filters leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

import millpond
from millpond import spark as mp
from millpond.errors import Corrupt, Internal, Invalid
from millpond.maps.snapshots.rows_of_groups import thaw
from millpond.spark.short_errors import short_errors
from millpond.spark.sources import MapReader, MapSource, PushingReader
from tests.spark.worlds import START_MS, moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.sample(2, of="file")


KEYS = 40_000
ROWS = KEYS + KEYS // 4


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millpond.Pond]:
    """Two maps with several ranges, and over them what changed later: new rows, and rows that are gone."""
    with millpond.open(tmp_path_factory.mktemp("reads") / "pond") as pond:
        states = pond.create_map("states", kind="temporal_state", value="temp double, note string, count long")
        states.load(rows_at(START_MS - 1, range(0, KEYS, 1_000)))
        states.load(rows_at(START_MS, range(KEYS)))
        states.freeze()
        states.load(rows_at(START_MS + 1_000, range(0, KEYS, 4)))
        states.retain(before=moment(START_MS))
        nets = pond.create_map("nets", kind="ranged_state", value="long")
        starts = range(0, KEYS * 10, 10)
        nets.load(pa.table({"key_start": starts, "key_end": [n + 7 for n in starts], "value": starts}))
        nets.freeze()
        nets.load([{"key_start": n, "key_end": n + 7, "value": -1} for n in range(0, 400, 10)])
        yield pond


def rows_at(time: int, numbers: range) -> pa.Table:
    count = len(numbers)
    return pa.table({
        "key": [f"k{n}" for n in numbers],
        "effective_time": pa.array([time] * count, pa.timestamp("ms", tz="UTC")),
        "temp": [float("nan") if n % 7 == 0 else n / 8 for n in numbers],
        "note": [None if n % 5 == 0 else f"note {n % 13}" for n in numbers],
        "count": [None if n % 11 == 0 else n for n in numbers],
    })  # fmt: skip


@pytest.fixture(scope="module")
def pushing(spark: SparkSession) -> SparkSession:
    """A session that tells Python sources its filters."""
    session = spark.newSession()
    mp.register(session)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return session


def read(spark: SparkSession, pond: millpond.Pond, name: str, **options: object) -> DataFrame:
    parameters = {"pond": str(pond.folder), "map": name} | {option: str(value) for option, value in options.items()}
    return spark.read.format("millpond").options(**parameters).load()


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_columns_are_typed_and_all_rows_come(spark: SparkSession, loaded: millpond.Pond) -> None:
    frame = read(spark, loaded, "states")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("key", "string"), ("effective_time", "timestamp"), ("temp", "double"), ("note", "string"), ("count", "bigint"),
    ]  # fmt: skip
    assert frame.count() == loaded.map("states").info()["rows"] == ROWS
    assert frame.select("key").distinct().count() == KEYS


def test_one_task_for_every_group_of_ranges(spark: SparkSession, loaded: millpond.Pond) -> None:
    frame = read(spark, loaded, "nets", partitions=3)
    assert 2 <= frame.rdd.getNumPartitions() <= 4
    assert (frame.count(), frame.selectExpr("sum(value)").first()[0]) == (KEYS, sum(range(400, KEYS * 10, 10)) - 40)


def test_wanted_columns_alone_are_read(spark: SparkSession, loaded: millpond.Pond) -> None:
    frame = read(spark, loaded, "states", columns="count, key")
    assert frame.columns == ["count", "key"]
    assert sorted(frame.where("count < 3").collect()) == [(1, "k1"), (2, "k2")]
    reader = spark.read.schema("temp double, key string").format("millpond")
    shown = reader.option("pond", str(loaded.folder)).option("map", "states").load()
    assert shown.where("key = 'k9'").collect() == [(9 / 8, "k9")]


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({"columns": "kee"}, None, "no such column"),
        ({}, "key long", "another type"),
        ({}, "kee string", "no such column"),
        ({"partitions": "few"}, None, "not a whole number"),
        ({"branh": "x"}, None, "did you mean 'branch'"),
        ({"map": "stats"}, None, "no such map"),
        ({"ref": "nowhere"}, None, "not found"),
        ({"pond": "/nowhere"}, None, "no pond here"),
    ],
)
def test_what_is_not_there_is_refused(
    spark: SparkSession, loaded: millpond.Pond, options: dict[str, str], schema: str | None, said: str
) -> None:
    reader = spark.read.format("millpond").options(**{"pond": str(loaded.folder), "map": "states", **options})
    with pytest.raises(PySparkException, match=said) as refused:
        (reader if schema is None else reader.schema(schema)).load().collect()
    lines = str(refused.value).strip().splitlines()
    assert "millpond.errors." in lines[0] and len(lines) <= 2, "the words alone, and Spark's SQLSTATE"


def test_errors_that_are_our_mistake_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    def hidden(error: Exception) -> bool:
        @short_errors
        class Source:
            def schema(self) -> None:
                raise error

        with pytest.raises(type(error)):
            Source().schema()
        return bool(os.environ.get("SPARK_HIDE_TRACEBACK"))

    assert not hidden(Internal("ours")) and not hidden(Corrupt("damage")) and not hidden(KeyError("ours"))
    monkeypatch.setenv("MILLPOND_TRACEBACK", "1")
    assert not hidden(Invalid("yours"))
    monkeypatch.delenv("MILLPOND_TRACEBACK")
    assert hidden(Invalid("yours"))


def test_options_of_streams_that_are_wrong_are_refused_in_our_words(
    spark: SparkSession, loaded: millpond.Pond, tmp_path: Path
) -> None:
    """Also where PySpark puts an error of its own before that of a reader."""
    options = {"pond": str(loaded.folder), "map": "states"}
    stream = spark.readStream.format("millpond").options(**options)
    with pytest.raises(PySparkException, match="not a whole number") as refused:
        stream.option("startingPosition", "soon").load()
    assert "Traceback" not in str(refused.value)
    events = spark.readStream.format("millpond.events").option("pond", str(loaded.folder))
    with pytest.raises(PySparkException, match="earliest or latest") as refused:
        events.option("startingPosition", "soon").load()
    assert "Traceback" not in str(refused.value)
    frame = (
        spark.readStream.format("millpond").options(**options, branch="fix").schema("key string, temp double").load()
    )
    loaded.branch("fix", source="main")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match="a map with branches is in layers"):
        query.processAllAvailable()


# -- conditions ---------------------------------------------------------------------------------------


def test_a_condition_keeps_others_from_being_read(spark: SparkSession, loaded: millpond.Pond) -> None:
    frame = read(spark, loaded, "states", where="key in ('k4', 'k7') and temp < 0.6", columns="key, count")
    assert sorted(frame.collect()) == [("k4", 4), ("k4", 4)]
    nets = read(spark, loaded, "nets", where="key_start >= 380 and key_end < 420 and value <> 400")
    assert sorted(nets.collect()) == [(380, 387, -1), (390, 397, -1), (410, 417, 410)]
    assert read(spark, loaded, "nets", where="key_start > 20 and key_end < 20").count() == 0
    with pytest.raises(PySparkException, match="no such column"):
        read(spark, loaded, "nets", where="start > 20").count()


def test_conditions_are_counted_in_rows_read(loaded: millpond.Pond) -> None:
    assert rows_read(loaded, "states", "key in ('k4', 'k7') and temp < 0.6") == 3
    assert rows_read(loaded, "nets", "key_start >= 380 and key_end < 420") == 5
    assert rows_read(loaded, "states", "key = 'k4' and key = 'k5'") == 0


def rows_read(pond: millpond.Pond, name: str, where: str) -> int:
    source = MapSource({"pond": str(pond.folder), "map": name, "where": where})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in looked_at(pond, reader, part))


def test_one_frame_may_be_queried_many_times(spark: SparkSession, loaded: millpond.Pond) -> None:
    """Filters that Spark pushes down for one query must not stay for the next."""
    frame = read(spark, loaded, "nets")
    low, high = frame.where("key_start < 100"), frame.where("key_start >= 200 and key_start < 300")
    assert (low.count(), high.count(), low.union(high).count(), frame.count()) == (10, 10, 20, KEYS)


# -- filters ------------------------------------------------------------------------------------------

PUSHED = [
    "key = 'k12'",
    "key in ('k5', 'k8', 'k5', 'nobody') and effective_time > timestamp_millis(1357000000999)",
    "key = 'k4' and key = 'k8'",
    "effective_time >= timestamp_micros(1357000000000001) and count < 100",
    "effective_time <= timestamp_micros(1357000000000001) and count > 39990",
    "effective_time = timestamp_micros(1357000000000001)",
    "effective_time < timestamp_millis(1357000000001) and note = 'note 3' and count <= 200",
    "note is null and count between 100 and 120",
    "count is not null and note like 'note 1%' and count < 50",
    "key like 'k3999%'",
]
LEFT_TO_SPARK = [
    "temp > 4998.8", "temp = 1.5", "isnan(temp) and count < 30", "note <> 'note 3' and count < 30",
    "count < 3 or count > 39998", "length(note) = 6 and count < 20", "not (note is null) and count < 10",
    "key between 'k39996' and 'k39998'",
]  # fmt: skip


def test_filters_keep_what_spark_keeps(spark: SparkSession, pushing: SparkSession, loaded: millpond.Pond) -> None:
    """Spark gets the same query on the same rows in its own memory."""
    rows = spark.createDataFrame(read(spark, loaded, "states").toArrow())
    for condition in PUSHED + LEFT_TO_SPARK:
        pushed, wanted = read(pushing, loaded, "states", pushdown="true").where(condition), rows.where(condition)
        assert repr(sorted(pushed.collect(), key=repr)) == repr(sorted(wanted.collect(), key=repr)), condition
        if condition in PUSHED:
            assert "Filter (" not in plan_of(pushed), condition


def test_filters_on_ranges(pushing: SparkSession, loaded: millpond.Pond) -> None:
    frame = read(pushing, loaded, "nets", pushdown="true")
    filtered = frame.where("key_start >= 380 and key_start < 420 and key_end > 387")
    assert "Filter (" not in plan_of(filtered)
    assert sorted(filtered.collect()) == [(390, 397, -1), (400, 407, 400), (410, 417, 410)]


def rows_looked_at(pond: millpond.Pond, name: str, *filters: Filter) -> tuple[int, int, list[Filter]]:
    """The number of rows taken out of files for these filters, and of tasks; and the filters left to Spark."""
    source = MapSource({"pond": str(pond.folder), "map": name, "pushdown": "true"})
    reader = source.reader(source.schema())
    assert isinstance(reader, PushingReader)
    left = list(reader.pushFilters(list(filters)))
    parts = reader.partitions()
    return sum(batch.num_rows for part in parts for batch in looked_at(pond, reader, part)), len(parts), left


def looked_at(pond: millpond.Pond, reader: MapReader, part: Any) -> Iterator[pa.RecordBatch]:
    return thaw(pond.map(reader.manifest.map).objects, reader.manifest, part.span)


def test_keys_are_found_without_reading_others(loaded: millpond.Pond) -> None:
    assert rows_looked_at(loaded, "states")[0] == ROWS
    assert rows_looked_at(loaded, "states", EqualTo(("key",), "k4")) == (2, 1, [])
    assert rows_looked_at(loaded, "states", In(("key",), ("k4", "k5", "k6", None))) == (4, 1, [])
    assert rows_looked_at(loaded, "states", EqualTo(("key",), "k4"), In(("key",), ("k5",))) == (0, 1, [])


def test_ranges_are_cut_by_where_they_start(loaded: millpond.Pond) -> None:
    between = (GreaterThanOrEqual(("key_start",), 1_000), LessThan(("key_start",), 2_000))
    assert rows_looked_at(loaded, "nets", *between) == (100, 1, [])
    assert rows_looked_at(loaded, "nets", GreaterThan(("key_start",), 10), LessThanOrEqual(("key_start",), 30))[0] == 2
    assert rows_looked_at(loaded, "nets", EqualTo(("key_start",), 50))[0] == 1
    assert rows_looked_at(loaded, "nets", GreaterThan(("key_start",), (1 << 63) - 1), EqualTo(("value",), 3))[2] == []


def test_what_arrow_judges_otherwise_stays_with_spark(loaded: millpond.Pond) -> None:
    remaining = [GreaterThan(("temp",), 1.0), Not(EqualTo(("note",), "note 3"))]
    assert rows_looked_at(loaded, "states", *remaining, EqualTo(("key",), "k4")) == (2, 1, remaining)


def test_an_empty_map_is_an_empty_frame(spark: SparkSession, pond: millpond.Pond) -> None:
    pond.create_map("nothing", kind="session")
    frame = read(spark, pond, "nothing")
    assert (frame.columns, frame.count(), frame.where("key = 'a'").count()) == (["key", "start", "end"], 0, 0)
