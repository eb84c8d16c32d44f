"""Newer snapshots for each micro-batch of a stream: chosen by one task of the batch, held by all others.

A streaming query is planned once and runs for weeks. The other side of a join that is not a stream Spark evaluates
anew for each micro-batch: one row, which names the snapshots, is broadcast to all tasks before they begin. So all tasks
of a micro-batch, and those that are tried again, ask the same snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.clock import SystemClock
from millpond.errors import Conflict
from millpond.times.durations import optional_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond.maps.model.definition import MapDefinition
    from millpond.spark.locations import Location, OpenPond
    from millpond.spark.planned_past import PlannedPast

__all__ = ("CHOICES", "Chosen", "choices", "parse_choices", "refresh_ms")

BATCH = "batch"
CHOICES = "__millpond_choices"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The snapshot of a map for one micro-batch; `now_ms` is when it was chosen, and `past` the end of its past."""

    manifest: str
    entry: int
    now_ms: int
    past: str = ""

    def __str__(self) -> str:
        return f"{self.manifest}:{self.entry}:{self.now_ms}:{self.past}"


def refresh_ms(refresh: object) -> int | None:
    """The age that a snapshot may have when a micro-batch begins; None for `never`.

    Raises: `Invalid` for what is neither `batch`, `never` nor a duration.
    """
    return 0 if refresh == BATCH else optional_duration(refresh)


def choices(
    session: SparkSession, location: Location, maps: Sequence[tuple[MapDefinition, PlannedPast | None]], age_ms: int
) -> DataFrame:  # fmt: skip
    """One row with one text: the snapshots of these maps, at most `age_ms` behind when it is evaluated."""
    ages = age_ms, SystemClock().now_ms()

    def choose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        with location.open() as pond:
            text = ",".join(str(_choose(location, pond, definition, past, ages)) for definition, past in maps)
        yield pa.record_batch({CHOICES: [text]})

    return session.range(1, numPartitions=1).mapInArrow(choose, f"{CHOICES} string")


def _choose(
    location: Location, pond: OpenPond, definition: MapDefinition, past: PlannedPast | None, ages: tuple[int, int]
) -> Chosen:  # fmt: skip
    now_ms = SystemClock().now_ms()
    shelf, manifest = location.pin(pond, definition.name, *ages)
    if (manifest.kind, manifest.definition.value) != (definition.kind, definition.value):
        raise Conflict(
            "the map was replaced by one of another kind or type while the query ran", kind="map_replaced",
            map=definition.name, hint="start the query again",
        )  # fmt: skip
    return Chosen(manifest.id, shelf.entry, now_ms, "" if past is None else past.mark(pond))


@lru_cache(maxsize=16)
def parse_choices(text: str) -> tuple[Chosen, ...]:
    """The snapshots that `choices` named."""
    parts = (choice.split(":") for choice in text.split(","))
    return tuple(Chosen(manifest, int(entry), int(now_ms), past) for manifest, entry, now_ms, past in parts)
