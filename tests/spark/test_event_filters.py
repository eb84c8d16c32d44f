"""Filters and starts of `format("millpond.events")`, over every place: against the model, and once through Spark."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("redis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, In
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millpond.errors import Invalid
from millpond.events.event import NewEvent
from millpond.spark.events.follower import EventsFollower
from millpond.spark.events.reader import EventsReader
from millpond.spark.events.source import EventsSource
from tests.harness.contracts.stream_filters import APPENDS, FILTERS, Filters, picked
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.rings.sampling import examples
from tests.spark.test_event_places import Somewhere
from tests.spark.test_event_places import place as place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    import millpond

_numbers = itertools.count()
everywhere = pytest.mark.parametrize("place", ["folder", "redis", "node"], indirect=True)


def source_of(place: Somewhere, job_set: str, **options: object) -> EventsSource:
    given_ = {"pond": place.url, "queue": "filtered", "job_set": job_set} | options
    return EventsSource(CaseInsensitiveDict({name: str(value) for name, value in given_.items()}))


def ids_of(reader: EventsReader | EventsFollower, partitions: Any) -> list[str]:
    return [id_ for one in partitions for batch in reader.read(one) for id_ in batch["id"].to_pylist()]


def followed(reader: EventsFollower, events_max: int | None) -> Iterator[list[str]]:
    """The ids of each micro-batch, up to what is there."""
    limit = ReadAllAvailable() if events_max is None else ReadMaxRows(events_max)
    offset, end = reader.initialOffset(), None
    while offset != end:
        end = offset if end is None else end
        offset, start = reader.latestOffset(offset, limit), offset
        yield ids_of(reader, reader.partitions(start, offset))
        end = start
    reader.stop()


@everywhere
@settings(max_examples=examples(4, 12), suppress_health_check=[*HealthCheck], deadline=None)
@given(appends=APPENDS, filters=FILTERS, kinds=st.lists(st.sampled_from(("", "a", "b")), max_size=2), data=st.data())
def test_batches_and_streams_give_what_the_model_picks(
    place: Somewhere, appends: list[list[NewEvent]], filters: Filters, kinds: list[str], data: st.DataObject
) -> None:
    job_set = f"{next(_numbers)}"
    for some in appends:
        place.events.append("filtered", job_set, some)
    there = list(place.events.read("filtered", job_set))
    wanted = picked(there, filters)
    source = source_of(place, job_set, filters=urlencode(filters, doseq=True), pushdown="true")
    reader = source.reader(source.schema())
    assert ids_of(reader, reader.partitions()) == [event.id for event in wanted]
    pushed = [EqualTo(("kind",), kinds[0])] if len(kinds) == 1 else [In(("kind",), tuple(kinds))] if kinds else []
    left = list(reader.pushFilters(list(pushed)))  # type: ignore[attr-defined]
    subset = picked(wanted, {"kind": kinds}) if kinds and not left else wanted
    assert ids_of(reader, reader.partitions()) == [event.id for event in subset]
    events_max = data.draw(st.sampled_from([None, 1, 3]))
    batches = list(followed(source.streamReader(source.schema()), events_max))
    assert [id_ for batch in batches for id_ in batch] == [event.id for event in wanted]
    assert events_max is None or max(map(len, batches), default=0) <= events_max


@everywhere
def test_a_read_and_a_query_begin_at_a_time_or_at_the_newest(place: Somewhere) -> None:
    place.events.append("filtered", "j", [b"a", b"b"])
    ids = [event.id for event in place.events.read("filtered", "j")]

    def began(**options: object) -> list[str]:
        source = source_of(place, "j", **options)
        return [id_ for batch in followed(source.streamReader(source.schema()), None) for id_ in batch]

    at_ms = int(ids[0], 16) >> 20
    for ms, found in ((at_ms, ids), (at_ms + 60_000, [])):
        stamp = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
        source = source_of(place, "j", startingTimestamp=stamp)
        reader = source.reader(source.schema())
        assert ids_of(reader, reader.partitions()) == began(startingTimestamp=stamp) == found
    assert began(startingPosition="latest") == [] and began(startingPosition="earliest") == began() == ids
    source = source_of(place, "j", startingPosition="latest")
    query = source.streamReader(source.schema())
    start = query.initialOffset()
    place.events.append("filtered", "j", [b"c"])
    while (end := query.latestOffset(start, ReadAllAvailable())) == start:
        pass
    assert ids_of(query, query.partitions(start, end)) == [event.id for event in place.events.read("filtered", "j")][2:]
    query.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"filters": "kinds=failed"}, {"filters": "kind"}, {"startingTimestamp": "yesterday"},
        {"startingTimestamp": "2026-11-24"}, {"startingPosition": "first"},
        {"startingPosition": "earliest", "startingTimestamp": "2026-11-24T10:00:00Z"},
    ],
)  # fmt: skip
def test_options_that_are_not_understood_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    source = EventsSource(CaseInsensitiveDict({"pond": str(tmp_path / "pond"), **options}))
    with pytest.raises(Invalid) as caught:
        source.streamReader(source.schema())
    assert caught.value.kind in ("event_filter", "option_value")


def test_spark_reads_and_follows_with_filters(spark: SparkSession, pond: millpond.Pond, tmp_path: Path) -> None:
    for number in range(30):
        headers = {"job_id": str(number % 3), "Team": "a&b" if number % 2 else "c"}
        pond.events.append("etl", "nightly", [NewEvent(number, b"", "failed" if number % 5 else "running", headers)])
    filters = {"kind": ["failed", "lost"], "header.Team": ["a&b"]}
    wanted = sorted(event.id for event in pond.events.read("etl", "nightly", filters=filters))
    options = {"pond": str(pond.folder), "filters": "kind=failed&kind=lost&header.Team=a%26b"}
    read = spark.read.format("millpond.events").options(**options).load()
    assert sorted(row.id for row in read.collect()) == wanted and len(wanted) == 12
    reader = spark.readStream.format("millpond.events").options(**options, maxEventsPerTrigger="5")
    query = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "followed"))
    query = query.option("checkpointLocation", str(tmp_path / "following")).trigger(availableNow=True)
    running = query.start()
    running.awaitTermination()
    sizes = [progress.numInputRows for progress in running.recentProgress if progress.numInputRows]
    assert max(sizes) == 5
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "followed")).collect()) == wanted
