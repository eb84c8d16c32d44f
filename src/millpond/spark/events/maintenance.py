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
from typing import TYPE_CHECKING, Any

from millpond.clock import SystemClock
from millpond.events.days import latest_due_day
from millpond.events.maintenance import EventMaintenance, MaintenanceReport, MaintenanceRules, due_streams
from millpond.events.protocol import StreamRules, StreamStore, Work
from millpond.spark.events.places import store_place
from millpond.spark.places import PondLike, place_of
from millpond.spark.private_api import need_classic
from millpond.times.durations import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.events.names import StreamName
    from millpond.spark.events.places import PondEvents, RedisEvents

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
    day = latest_due_day(SystemClock().now_ms(), after_ms) if after_ms else -1
    job = _Job(session, _place(session, pond))
    return job.run(Work.COMPRESS, day, lambda work, streams: work.compress(day=day, streams=streams), rules)


def expire_events(
    session: SparkSession, after: str | int = "14d", *, pond: PondLike | None = None
) -> MaintenanceReport:
    """Drop the days that ended so long ago (`14d`, or milliseconds) on executors; forget streams without events.

    Raises: as `compress_events`.
    """
    need_classic(session, *_INSTEAD)
    after_ms = parse_duration(after)
    rules, now_ms = MaintenanceRules(retention_ms=after_ms), SystemClock().now_ms()
    day = latest_due_day(now_ms, after_ms) if after_ms else -1
    job = _Job(session, _place(session, pond))

    def expire(work: EventMaintenance, streams: Iterable[StreamName]) -> MaintenanceReport:
        return work.expire(day=day, streams=streams)

    report = job.run(Work.EXPIRE, day, expire, rules)
    return report + job.run(Work.FORGET, latest_due_day(now_ms, StreamRules().forget_ms), expire, rules)


def _place(session: SparkSession, pond: PondLike | None) -> PondEvents | RedisEvents:
    if isinstance(pond, str) and pond.startswith(("redis://", "rediss://")):
        return store_place(pond)
    return store_place(place_of(pond, session))


class _Job:
    """Rounds of Spark jobs over the streams that the registry lists."""

    def __init__(self, session: SparkSession, place: PondEvents | RedisEvents) -> None:
        self._spark, self._place = session.sparkContext, place

    def run(
        self, work: Work, day: int, act: Callable[[EventMaintenance, Iterable[StreamName]], MaintenanceReport],
        rules: MaintenanceRules,
    ) -> MaintenanceReport:  # fmt: skip
        place, report = self._place, MaintenanceReport()

        def done(streams: Iterator[StreamName]) -> Iterator[MaintenanceReport]:
            with place.open() as store:
                yield act(_maintenance(store, rules), streams)

        with place.open() as store:
            due = due_streams(store, work, day)
            while some := list(islice(due, ROUND_STREAMS)):
                tasks = max(-(-len(some) // TASK_STREAMS), min(len(some), self._spark.defaultParallelism))
                rows: Any = self._spark.parallelize(some, tasks)
                for one in rows.mapPartitions(done).collect():
                    report += one
        return report


def _maintenance(store: StreamStore, rules: MaintenanceRules) -> EventMaintenance:
    return EventMaintenance(store, SystemClock(), rules, StreamRules().forget_ms)
