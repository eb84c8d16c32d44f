"""`format("millpond.events")` on streams that are no folder: in a real Redis, and on a real node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("redis")

import millpond
from millpond import spark as mp
from millpond.events.days import DAY_MS, format_day
from millpond.events.event import NewEvent
from millpond.nodes.tokens import hash_token
from millpond.spark.events.columns import RowForm
from millpond.spark.events.locations import events_location
from millpond.spark.events.runs import write_runs
from millpond.spark.events.sinks import EventsWriter, TaskRuns
from millpond.spark.locations import Rights
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.nodes.following import ticking
from tests.redis_servers import new_place, server
from tests.spark.test_events import DAY, rows_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond.clock import ManualClock
    from millpond.events.events import Events
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(1, of="file")


def places(quick: str) -> pytest.MarkDecorator:
    """Both places; one of them in the quick form, for each query of Spark takes seconds."""
    found = [pytest.param(name, marks=() if name == quick else pytest.mark.full) for name in ("redis", "node")]
    return pytest.mark.parametrize("place", found, indirect=True)


class Somewhere:
    """Streams behind a URL: the options of Spark, and the events themselves."""

    def __init__(self, url: str, events: Events | Any) -> None:
        self.url, self.events = url, events

    def stored(self, job_set: str) -> list[tuple[Any, ...]]:
        return [
            (event.id, event.time_ms, event.kind, event.payload, dict(event.headers))
            for event in self.events.read("etl", job_set)
        ]

    def frame(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.read.format("millpond.events").option("pond", self.url)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()


@pytest.fixture
def place(
    request: pytest.FixtureRequest, serve: Callable[..., Served], clock: ManualClock, tmp_path: Path
) -> Iterator[Somewhere]:
    if request.param == "folder":
        with millpond.open(tmp_path / "folder") as pond:
            yield Somewhere(str(pond.folder), pond.events)
    elif request.param == "redis":
        url = server().url(new_place())
        with millpond.open(tmp_path / "redis", events_store=url) as pond:
            yield Somewhere(url, pond.events)
    else:
        served = serve()
        with ticking(clock), millpond.open(served.url) as remote:
            yield Somewhere(served.url, remote.events)


def filled(place: Somewhere, job_set: str = "nightly", days: int = 3, events: int = 5) -> list[str]:
    for day in range(DAY, DAY + days):
        some = [
            NewEvent(day * DAY_MS + n, f"{job_set} {day} {n}".encode(), "running", {"job_id": str(n)} if n % 2 else {})
            for n in range(events)
        ]
        place.events.append("etl", job_set, some)
    return [row[0] for row in place.stored(job_set)]


@places("node")
def test_events_are_read_with_the_filters_pushed_down(spark: SparkSession, place: Somewhere) -> None:
    ids = filled(place)
    filled(place, "other/÷", days=1)
    before = shown(place.frame(spark))
    assert before == place.stored("nightly")
    assert place.events.compress("1d").days >= 2
    assert shown(place.frame(spark)) == before
    assert shown(place.frame(spark, queue="etl", job_set="other/÷"), "other/÷") == place.stored("other/÷")
    day = format_day(DAY + 1)
    assert [row[0] for row in shown(place.frame(spark, job_set="nightly", day=day))] == ids[5:10]
    assert [row[0] for row in shown(place.frame(spark, job_set="nightly", after=ids[3], until=ids[6]))] == ids[4:7]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = place.frame(spark, pushdown="true").where(f"job_set = 'nightly' and day = date '{day}'")
        assert [row[0] for row in shown(frame)] == ids[5:10]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert place.frame(spark, queue="none").count() == 0


@places("redis")
def test_rows_are_appended_once(spark: SparkSession, place: Somewhere) -> None:
    frame = rows_of(spark, 50, job_sets=3)
    for partitions in (2, 5):
        writing = frame.repartition(partitions).write.format("millpond.events").option("pond", place.url)
        writing.option("source", "load-7").mode("append").save()
    found = [event.payload for name in place.events.streams("etl") for event in place.events.read(*name)]
    assert sorted(found) == sorted(f"event {n}".encode() for n in range(50))


@pytest.mark.parametrize("place", ["folder", "redis", "node"], indirect=True)
def test_a_sink_says_how_many_events_are_older_than_the_retention(
    place: Somewhere, caplog: pytest.LogCaptureFixture
) -> None:
    place.events.settings.set("etl", retention="20d")
    schema = pa.schema([("job_set", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("payload", pa.string())])
    times = [datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 2, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]
    rows = pa.RecordBatch.from_arrays([pa.array(["nightly"] * 3), pa.array(times), pa.array(["x"] * 3)], schema=schema)
    where, form = events_location({"pond": place.url}, None, Rights()), RowForm(tuple(schema.names), "etl")
    for _ in range(2):  # what was stored before is not told again
        EventsWriter(where, form, "load-7").commit([TaskRuns(write_runs([rows], form, None))])
        warned = [record.message for record in caplog.records if record.name == "millpond.spark.events.sinks"]
        assert warned == ["2 of 3 new events are older than the retention: the next maintenance drops them"]
    assert place.events.expire("100000d").events == 2


@pytest.mark.full
@pytest.mark.parametrize("place", ["redis", "node"], indirect=True)
def test_a_stream_of_rows_is_appended_and_followed(spark: SparkSession, place: Somewhere, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for part in range(2):
        rows_of(spark, 20, job_sets=2, start=20 * part).coalesce(1).write.mode("append").parquet(str(source))

    def append() -> None:
        rows = spark.readStream.schema(spark.read.parquet(str(source)).schema).option("maxFilesPerTrigger", 1)
        query = rows.parquet(str(source)).writeStream.format("millpond.events").option("pond", place.url)
        query = query.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "appending"))
        query.start().awaitTermination()

    def follow() -> int:
        frame = spark.readStream.format("millpond.events").option("pond", place.url).option("queue", "etl").load()
        query = frame.writeStream.format("parquet").option("path", str(tmp_path / "followed"))
        query = query.option("checkpointLocation", str(tmp_path / "following")).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        return sum(progress.numInputRows for progress in running.recentProgress)

    append()
    append()
    assert follow() == 40
    place.events.append("etl", "set 1", [b"new", b"newer"])
    place.events.append("etl", "set 2", [b"first"])
    assert follow() == 3
    frame = spark.read.parquet(str(tmp_path / "followed"))
    for name in place.events.streams("etl"):
        assert shown(frame, name.job_set) == place.stored(name.job_set)


def test_a_token_reads_the_streams_that_it_may_watch(
    spark: SparkSession, serve: Callable[..., Served], clock: ManualClock
) -> None:
    rights = {"all": {"read": ("*",), "write": ("*",)}, "some": {"read": ("stream:etl/z*",)}}
    tokens = [{"name": name, "sha256": hash_token(name), "rights": granted} for name, granted in rights.items()]
    url = serve(server_tokens=tokens).url
    with ticking(clock):
        with millpond.open(url, client_token="all") as remote:
            for number in range(30):
                remote.events.append("etl", f"a{number}", [b"secret"])
            remote.events.append("etl", "z", [b"mine"])
        session = spark.newSession()
        session.conf.set("spark.millpond.token", "some")
        mp.register(session)
        frame = session.read.format("millpond.events").option("pond", url).load()
        assert [(row.job_set, bytes(row.payload)) for row in frame.collect()] == [("z", b"mine")]
