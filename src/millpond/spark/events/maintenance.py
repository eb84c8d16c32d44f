"""Compression and expiry of many streams as jobs: the driver hands out due streams, executors do the work.

    driver      registry ─ due streams, `ROUND_STREAMS` at a time
    executors   read ─ pack ─ switch, each day fenced     ─▶ reports, summed up by the driver

Invariants:
* the rules, the fence and the outcome are those of `Events.compress` and `Events.expire`; nodes, commands and other
  jobs may do the same at the same time;
* the driver holds the names of one round; what a killed job left is found in the registry by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from pyspark.sql import SparkSession

from millpond.clock import SystemClock
from millpond.events.ages import Ages
from millpond.events.maintenance import EventMaintenance, MaintenanceReport, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import StreamRules, StreamStore, Work
from millpond.spark.events.locations import PondEvents, RedisEvents, store_location
from millpond.spark.locations import PondLike, location_of
from millpond.spark.private_api import need_classic
from millpond.times.durations import parse_duration

__all__ = ("compress_events", "expire_events")

ROUND_STREAMS = 20_000
TASK_STREAMS = 100
_INSTEAD = ("maintenance of events by Spark", "use millpond events compress and expire, or a classic session")


def compress_events(
    session: SparkSession, after: str | int = "2d", *, pond: PondLike | None = None, bytes_per_second: int = 0
) -> MaintenanceReport:
    """Compress the days that ended so long ago (`2d`, or milliseconds) on executors.

    `pond`: the pond's folder, or the URL of the Redis with its streams. `bytes_per_second`: compressed bytes of all
    tasks together; 0: any number.

    Raises: as `Events.compress`; `Invalid` for a pond on nodes.
    """
    need_classic(session, *_INSTEAD)
    after_ms = parse_duration(after)
    at_once = max(session.sparkContext.defaultParallelism, 1)
    rules = MaintenanceRules(compress_after_ms=after_ms, bytes_per_second=-(-bytes_per_second // at_once))
    job = _Job(session, _location(session, pond), rules)
    return job.run(Work.COMPRESS, lambda work, streams: work.compress(streams=streams))


def expire_events(
    session: SparkSession, after: str | int = "14d", *, pond: PondLike | None = None
) -> MaintenanceReport:
    """Drop the days that ended so long ago (`14d`, or milliseconds) on executors; forget streams without events.

    Raises: as `compress_events`.
    """
    need_classic(session, *_INSTEAD)
    after_ms = parse_duration(after)
    job = _Job(session, _location(session, pond), MaintenanceRules(retention_ms=after_ms))

    def expire(work: EventMaintenance, streams: Iterable[StreamName]) -> MaintenanceReport:
        return work.expire(streams=streams)

    return job.run(Work.EXPIRE, expire) + job.run(Work.FORGET, expire)


def _location(session: SparkSession, pond: PondLike | None) -> PondEvents | RedisEvents:
    if isinstance(pond, str) and pond.startswith(("redis://", "rediss://")):
        return store_location(pond)
    return store_location(location_of(pond, session))


class _Job:
    """Rounds of Spark jobs over the streams that the registry lists."""

    def __init__(self, session: SparkSession, location: PondEvents | RedisEvents, rules: MaintenanceRules) -> None:
        self._spark, self._location, self._rules = session.sparkContext, location, rules

    def run(
        self, work: Work, act: Callable[[EventMaintenance, Iterable[StreamName]], MaintenanceReport]
    ) -> MaintenanceReport:
        location, rules, report = self._location, self._rules, MaintenanceReport()
        with location.open() as store:
            driver = _maintenance(store, rules)
            ages = driver.ages

            def done(streams: Iterator[StreamName]) -> Iterator[MaintenanceReport]:
                with location.open() as store:
                    yield act(_maintenance(store, rules, ages), streams)

            due = (stream for stream, _ in driver.due(work, store.now_ms()))
            while some := list(islice(due, ROUND_STREAMS)):
                tasks = max(-(-len(some) // TASK_STREAMS), min(len(some), self._spark.defaultParallelism))
                rows: Any = self._spark.parallelize(some, tasks)
                for row in rows.mapPartitions(done).collect():
                    report += row
        return report


def _maintenance(store: StreamStore, rules: MaintenanceRules, ages: Ages | None = None) -> EventMaintenance:
    return EventMaintenance(store, SystemClock(), rules, StreamRules().forget_ms, ages)
