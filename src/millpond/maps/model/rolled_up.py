"""The buckets of an aggregate whose older rows are in wider ones.

    rolled up: before 2024-03-01 by 1 month, before 2024-06-10 by 1 day; resolution 1 hour

    2024-01       2024-02       2024-03-01 … 2024-06-09      2024-06-10T00  T01  T02 …
    one row       one row       one row a day                one row an hour

What was rolled up is part of a state, as its layers are, and not of its rows: layers may hold narrower rows of before,
of a late load or another branch, which count as if they were in the wide bucket. So a load need not know how far the
map was rolled up when it is entered; none is refused, and none is lost. Whoever merges a load into a shard, where all
rows are in the buckets that are shown, puts them there.

Invariants:
* the start of a wide bucket is the start of a narrow one, and what is rolled up ends where a wide bucket begins: each
  instant is in one bucket;
* a bucket is never shown narrower again: what was rolled up once is as wide, or wider, in all states that follow;
* to roll up what is rolled up changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.maps.model.aggregation import Aggregation, RolledUp
from millpond.times.buckets import bucket_ends, bucket_start, bucket_starts, bucket_width, coarser_width, is_made_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from millpond.maps.model.definition import MapDefinition

    I64 = npt.NDArray[np.int64]

__all__ = (
    "coarser_buckets", "is_rolled_up", "retained_from", "narrow_in_wide", "roll_up_width", "rolled_up", "shown_ends",
    "shown_from", "shown_start", "shown_starts", "together",
)  # fmt: skip


def roll_up_width(roll_up: str, resolution: str) -> str:
    """The width of buckets that rows are rolled up to, as it is stored.

    >>> roll_up_width("day", "1 hour")
    '1 day'

    Raises: `Invalid`, kinds `resolution`, `resolution_finer`.
    """
    width = coarser_width(roll_up, resolution)
    if width == "none":
        raise Invalid("one bucket of all times does not end before any", kind="resolution", roll_up=roll_up,
                      hint="roll up to 1 year, or a narrower resolution")  # fmt: skip
    return width


def rolled_up(aggregation: Aggregation, roll_up: str, before_ms: int) -> Aggregation:
    """The aggregation with the wide buckets that lie before an instant as a whole rolled up.

    Raises: as `roll_up_width`; as `together`.
    """
    width = roll_up_width(roll_up, aggregation.resolution)
    return together(aggregation, [RolledUp(bucket_start(before_ms, width, aggregation.time_zone), width)])


def retained_from(definition: MapDefinition, instant: int) -> int:
    """The instant before which `retain` acts: a bucket goes, or is combined, as a whole, when its last event is old."""
    aggregation = definition.aggregation
    if aggregation is None:
        return instant
    return bucket_start(instant, definition.roll_up or aggregation.resolution, aggregation.time_zone)


def together(aggregation: Aggregation, others: Iterable[RolledUp]) -> Aggregation:
    """The aggregation rolled up as far as it is, and as far as others are.

    Raises: `Invalid`, kind `resolution_finer`, for buckets neither of which make up the other.
    """
    every = {*aggregation.rolled_up, *others}
    parts = [part for part in every if not any(_covers(other, part) for other in every - {part})]
    return replace(aggregation, rolled_up=tuple(sorted(parts, key=lambda part: part.before)))


def _covers(other: RolledUp, part: RolledUp) -> bool:
    """True when a part says nothing that another does not say."""
    wide, narrow = bucket_width(other.resolution), bucket_width(part.resolution)
    if not is_made_up(wide, narrow) and not is_made_up(narrow, wide):
        raise Invalid(
            "buckets that are rolled up do not make up those of the other width", kind="resolution_finer",
            resolution=part.resolution, stored=other.resolution,
            hint="roll up to the same width, or to a multiple or a part of it",
        )  # fmt: skip
    return is_made_up(wide, narrow) and other.before >= part.before


def coarser_buckets(aggregation: Aggregation, resolution: str) -> Aggregation:
    """The aggregation with wider buckets for questions; those that are rolled up to even wider ones stay as they are.

    Raises: `Invalid`, kinds `resolution`, `resolution_finer`.
    """
    wide = coarser_width(resolution, aggregation.resolution)
    parts = []
    for part in aggregation.rolled_up:
        if not is_made_up(bucket_width(wide), bucket_width(part.resolution)):
            coarser_width(part.resolution, wide)
            parts.append(part)
    return replace(aggregation, resolution=wide, rolled_up=tuple(parts))


def is_rolled_up(aggregation: Aggregation | None) -> bool:
    """True when older rows are in wider buckets: layers may have rows that combine to those."""
    return aggregation is not None and bool(aggregation.rolled_up)


def narrow_in_wide(aggregation: Aggregation) -> int:
    """The greatest number of narrow buckets that a wide one may show as one."""
    wide = max((bucket_width(part.resolution).longest_ms for part in aggregation.rolled_up), default=1)
    # A bucket that clocks are moved in is cut in two.
    return 2 * -(-wide // bucket_width(aggregation.resolution).shortest_ms)


def shown_start(aggregation: Aggregation, instant: int) -> int:
    """The start of the bucket of one instant."""
    start = bucket_start(instant, aggregation.resolution, aggregation.time_zone)
    for part in reversed(aggregation.rolled_up):
        if start < part.before:
            start = bucket_start(start, part.resolution, aggregation.time_zone)
    return start


def shown_starts(aggregation: Aggregation, instants: I64) -> I64:
    """The start of the bucket of each instant."""
    zone, starts = aggregation.time_zone, bucket_starts(instants, aggregation.resolution, aggregation.time_zone)
    for part in reversed(aggregation.rolled_up):
        old = starts < part.before
        if old.any():
            starts[old] = bucket_starts(starts[old], part.resolution, zone)
    return starts


def shown_ends(aggregation: Aggregation, starts: I64, ends: I64) -> I64:
    """The first instant after each bucket that begins at a start: `ends` for those that are not rolled up."""
    for part in reversed(aggregation.rolled_up):
        old = starts < part.before
        if old.any():
            ends[old] = bucket_ends(starts[old], part.resolution, aggregation.time_zone)
    return ends


def shown_from(aggregation: Aggregation, bounds: I64) -> I64:
    """Of each bound the first start of a bucket that is not before it; itself, where nothing is rolled up."""
    for part in reversed(aggregation.rolled_up):
        old = bounds < part.before
        if old.any():
            before = bounds[old]
            starts = bucket_starts(before, part.resolution, aggregation.time_zone)
            inside = starts < before
            starts[inside] = bucket_ends(starts[inside], part.resolution, aggregation.time_zone)
            bounds = bounds.copy()
            bounds[old] = starts
    return bounds
