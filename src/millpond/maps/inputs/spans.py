"""The two times between which a question combines rows, and those of a bucket that is wider than those of the map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import OnInvalid, key_array, moments_of
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import coarser_buckets, shown_ends, shown_from, shown_starts
from millpond.maps.model.store_limits import between_unsupported
from millpond.times.buckets import BucketWidth, bucket_ends, bucket_starts, starts_before, window_width
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN

if TYPE_CHECKING:
    import numpy.typing as npt

    from millpond.maps.snapshots.snapshot import Snapshot

    I64: TypeAlias = npt.NDArray[np.int64]

__all__ = (
    "Between", "Spans", "check_span", "coarser", "lookup_combined", "span_of", "spans_before", "spans_of_buckets",
    "spans_of_window",
)  # fmt: skip

Between: TypeAlias = tuple[Any, Any]
"""Two times, or columns of times: from the first on, and before the second."""
Spans: TypeAlias = "Callable[[Aggregation, I64], tuple[I64, I64]]"
"""For each instant the times from and before which the rows of a state with these buckets are combined."""


def check_span(name: str, at: object, between: object, resolution: object, window: object) -> None:
    """Refuse a question to a map that says twice which buckets it combines.

    Raises: `Invalid`, kinds `between` and `window`.
    """
    if between is not None and resolution is None and at is not None:
        raise Invalid("a lookup is at a time, or between two", kind="between", map=name, hint="leave one out")
    if window is not None and (between is not None or resolution is not None):
        raise Invalid("a window says which buckets are combined", kind="window", map=name, window=shown(window),
                      hint="leave between and resolution out")  # fmt: skip


def span_of(between: object) -> Between:
    """The two times of a question.

    Raises: `Invalid`, kind `between`, for what is no pair.
    """
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise Invalid(
            "between is a pair of times", kind="between", between=shown(between),
            hint="write a pair of times: from the first on, and before the second",
        )  # fmt: skip
    return between[0], between[1]


def coarser(definition: MapDefinition, resolution: str) -> Aggregation:
    """The aggregation of a map with wider buckets, that its own make up.

    Raises: `Invalid`, kinds `resolution`, `resolution_finer`; `between_unsupported` for a map of another kind.
    """
    return coarser_buckets(_aggregation_of(definition), resolution)


def _aggregation_of(definition: MapDefinition) -> Aggregation:
    if definition.aggregation is None:
        raise between_unsupported(definition)
    return definition.aggregation


def spans_of_buckets(
    definition: MapDefinition, keys: Any, at: Any, resolution: str, between: object, on_invalid: OnInvalid = "error"
) -> tuple[pa.Array, Between]:  # fmt: skip
    """The keys of a question as one array, and for each the bucket of a coarser resolution that holds its time.

    Raises: as `coarser`; as `moments_of`; `Invalid`, kind `between`, for a question that has its own span.
    """
    if between is not None:
        raise Invalid("a lookup is at a resolution, or between two times", kind="between", map=definition.name,
                      hint="leave one out")  # fmt: skip
    wide, array = coarser(definition, resolution), key_array(definition, keys)
    instants, there = moments_of(at, len(array), on_invalid)
    starts = shown_starts(wide, instants)
    ends = shown_ends(wide, starts, bucket_ends(starts, wide.resolution, wide.time_zone))
    if wide.resolution == "none":
        starts = np.full(len(starts), INSTANT_MIN, np.int64)
    bounds = (np.maximum(starts, INSTANT_MIN), np.minimum(ends, INSTANT_MAX + 1))
    mask = ~there if len(there) else np.zeros(len(instants), np.bool_)
    columns = [pa.array(np.broadcast_to(bound, len(array)), pa.int64()) for bound in bounds]
    missing = pa.array(np.broadcast_to(mask, len(array)))
    since, until = (pc.if_else(missing, None, column).cast(INSTANT) for column in columns)
    return array, (since, until)


def spans_of_window(definition: MapDefinition, window: str) -> Spans:
    """The windows that end where the buckets of instants begin: in each state in the buckets that it has.

    Raises: `Invalid`, kind `window`; `between_unsupported` for a map of another kind.
    """
    return partial(_before, window_width(window, _aggregation_of(definition).resolution))


def _before(width: BucketWidth, aggregation: Aggregation, instants: I64) -> tuple[I64, I64]:
    until = shown_starts(aggregation, instants)
    since = np.maximum(starts_before(until, width, aggregation.time_zone), INSTANT_MIN)
    since = bucket_starts(since, aggregation.resolution, aggregation.time_zone)  # a day may begin at one o'clock
    return shown_from(aggregation, since), until


def spans_before(definition: MapDefinition, at: Any, count: int, window: str, on_invalid: OnInvalid) -> Between:
    """For each of so many questions, or for all, the window that ends where the bucket of its time begins.

    `definition` is that of the state that is asked: there older buckets may be wider.

    Raises: as `spans_of_window`; as `moments_of`.
    """
    spans = spans_of_window(definition, window)
    instants, there = moments_of(at, count, on_invalid)
    since, until = spans(_aggregation_of(definition), instants)
    mask = ~there if len(there) else None
    return pa.array(since, pa.int64(), mask=mask).cast(INSTANT), pa.array(until, pa.int64(), mask=mask).cast(INSTANT)


def lookup_combined(
    snapshot: Snapshot, keys: Any, at: Any, between: Between | None, resolution: str | None, window: str | None,
    on_invalid: OnInvalid,
) -> pa.Array:  # fmt: skip
    """The answers of a snapshot of an aggregate `between` two times, at a coarser resolution, or in a window.

    Raises: as `spans_of_buckets` and `spans_before`; as `Snapshot.lookup_between`.
    """
    if window is not None:
        keys = key_array(snapshot.definition, keys)
        between = spans_before(snapshot.definition, at, len(keys), window, on_invalid)
    if resolution is not None:
        keys, between = spans_of_buckets(snapshot.definition, keys, at, resolution, between, on_invalid)
    return snapshot.lookup_between(keys, span_of(between), on_invalid=on_invalid)
