"""The buckets of an aggregate that a question combines, and the times between which they begin.

Each state is asked in the buckets that it has: older ones may be wider there, see `model/rolled_up.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import OnInvalid, moments_of
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import coarser_buckets, shown_ends, shown_from, shown_starts
from millpond.maps.model.store_limits import between_unsupported
from millpond.times.buckets import BucketWidth, bucket_ends, bucket_starts, starts_before, window_width
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN

if TYPE_CHECKING:
    import numpy.typing as npt

    I64: TypeAlias = npt.NDArray[np.int64]
    Mask: TypeAlias = npt.NDArray[np.bool_]

__all__ = ("Between", "Buckets", "Spans", "bucket_of", "coarser")

Between: TypeAlias = tuple[Any, Any]
"""Two times, or columns of times: from the first on, and before the second."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The times from and before which questions combine rows: `between`, of a state's buckets and columns of `times`.

    A column has a time for each question, or one for all. `there` are the questions whose times are known; empty: all.
    """

    between: Callable[..., tuple[I64, I64]]
    times: tuple[I64, ...]
    there: Mask

    def of(self, aggregation: Aggregation, positions: I64 | None = None) -> tuple[I64, I64]:
        """The spans of some questions in a state; of one length, which is 1 where one is that of all."""
        times = [column if positions is None or len(column) == 1 else column[positions] for column in self.times]
        since, until = self.between(aggregation, *times)
        if len(since) != len(until):
            since, until = map(np.ascontiguousarray, np.broadcast_arrays(since, until))
        return since, until


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets that a question combines: those that begin `between` two times, that make up the one of a coarser
    `resolution`, or in a `window` before the bucket of the time; without any, that bucket.
    """

    between: Between | None = None
    resolution: str | None = None
    window: str | None = None

    def __bool__(self) -> bool:
        return self.between is not None or self.resolution is not None or self.window is not None

    def check(self, definition: MapDefinition, at: object) -> Aggregation:
        """Refuse a question that no map answers, or not this one; the buckets of the map.

        Raises: `Invalid`, kinds `between`, `window`, `resolution`, `resolution_finer`; `between_unsupported` for a map
        of another kind.
        """
        between: object = self.between
        resolution, window = self.resolution, self.window
        if window is not None and (between is not None or resolution is not None):
            raise Invalid("a window says which buckets are combined", kind="window", map=definition.name,
                          window=shown(window), hint="leave between and resolution out")  # fmt: skip
        if between is not None and (at is not None or resolution is not None):
            raise Invalid("a lookup is at a time, or between two", kind="between", map=definition.name,
                          hint="leave one out")  # fmt: skip
        if between is not None and (not isinstance(between, tuple | list) or len(between) != 2):
            raise Invalid(
                "between is a pair of times", kind="between", between=shown(between),
                hint="write a pair of times: from the first on, and before the second",
            )  # fmt: skip
        aggregation = _aggregation_of(definition)
        if resolution is not None:
            coarser_buckets(aggregation, resolution)
        if window is not None:
            window_width(window, aggregation.resolution)
        return aggregation

    def spans(self, definition: MapDefinition, at: Any, count: int, on_invalid: OnInvalid = "error") -> Spans:
        """The spans of so many questions, whose times are `at`.

        Raises: as `check`; as `moments_of`.
        """
        aggregation = self.check(definition, at)
        columns = [moments_of(time, count, on_invalid) for time in (self.between or (at,))]
        there = [mask for _, mask in columns if len(mask)]
        if self.between is not None:
            between: Callable[..., tuple[I64, I64]] = _from_and_before
        elif self.resolution is not None:
            between = partial(_coarser_bucket, self.resolution)
        elif self.window is not None:
            between = partial(_window, window_width(self.window, aggregation.resolution))
        else:
            between = bucket_of
        mask = np.logical_and.reduce(there) if there else np.zeros(0, np.bool_)
        return Spans(between, tuple(times for times, _ in columns), mask)


def coarser(definition: MapDefinition, resolution: str) -> Aggregation:
    """The aggregation of a map with wider buckets, that its own make up.

    Raises: `Invalid`, kinds `resolution`, `resolution_finer`; `between_unsupported` for a map of another kind.
    """
    return coarser_buckets(_aggregation_of(definition), resolution)


def _aggregation_of(definition: MapDefinition) -> Aggregation:
    if definition.aggregation is None:
        raise between_unsupported(definition)
    return definition.aggregation


# -- spans of times -----------------------------------------------------------------------------------


def bucket_of(aggregation: Aggregation, instants: I64) -> tuple[I64, I64]:
    """The span of the rows of the bucket of each instant."""
    since = shown_starts(aggregation, instants)
    return since, shown_ends(aggregation, since, since + 1)


def _from_and_before(aggregation: Aggregation, since: I64, until: I64) -> tuple[I64, I64]:
    return shown_from(aggregation, since), shown_from(aggregation, until)


def _coarser_bucket(resolution: str, aggregation: Aggregation, instants: I64) -> tuple[I64, I64]:
    wide = coarser_buckets(aggregation, resolution)
    starts = shown_starts(wide, instants)
    ends = shown_ends(wide, starts, bucket_ends(starts, wide.resolution, wide.time_zone))
    if wide.resolution == "none":
        starts = np.full(len(starts), INSTANT_MIN, np.int64)
    return _from_and_before(aggregation, np.maximum(starts, INSTANT_MIN), np.minimum(ends, INSTANT_MAX + 1))


def _window(width: BucketWidth, aggregation: Aggregation, instants: I64) -> tuple[I64, I64]:
    until = shown_starts(aggregation, instants)
    since = np.maximum(starts_before(until, width, aggregation.time_zone), INSTANT_MIN)
    since = bucket_starts(since, aggregation.resolution, aggregation.time_zone)  # a day may begin at one o'clock
    return shown_from(aggregation, since), until
