"""How long a session lasts, as milliseconds: text such as `15m`, Arrow durations, whole milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.inputs.scalars import Converted, is_text, present, to_long, unsuited
from millpond.maps.inputs.times import INSTANT_MAX, INSTANT_MIN
from millpond.maps.kinds import parse_duration

__all__ = ("to_durations",)

_TEXT = r"^\s*(?P<count>[0-9]{1,15})\s*(?P<unit>ms|s|m|h|d|w|y)\s*$"
_UNITS = ("ms", "s", "m", "h", "d", "w", "y")
_LONGEST = INSTANT_MAX - INSTANT_MIN


def to_durations(array: pa.Array[Any]) -> Converted:
    """A column of durations as int64 milliseconds, in the words of `kinds.parse_duration`.

    Raises: `Invalid` when the column is neither text, durations nor whole numbers.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return Converted(array.cast(pa.int64()))
    if pa.types.is_duration(kind):
        return _bounded(array, array.cast(pa.duration("ms"), safe=False).cast(pa.int64()))
    if is_text(kind):
        return _of_text(array)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = to_long(array)
        bounded = _bounded(array, numbers.values)
        return Converted(bounded.values, (*numbers.faults, *bounded.faults))
    raise unsuited(array, "durations")


def _bounded(given: pa.Array[Any], millis: pa.Array[Any]) -> Converted:
    raw = millis.fill_null(0).to_numpy(zero_copy_only=False)
    bad = present(millis) & ((raw < 0) | (raw > _LONGEST))
    return Converted(
        pa.array(raw, mask=bad | ~present(millis)), ((bad, "is negative or endless"),) if bad.any() else ()
    )


def _of_text(array: pa.Array[Any]) -> Converted:
    parts = pc.extract_regex(array.cast(pa.string()), pattern=_TEXT)
    written = present(parts)
    units = pc.index_in(pc.struct_field(parts, "unit"), pa.array(_UNITS)).fill_null(0).to_numpy(False)
    counts = pc.if_else(pa.array(written), pc.struct_field(parts, "count"), "0").cast(pa.int64()).to_numpy()
    each = np.array([parse_duration(f"1{unit}") for unit in _UNITS], np.int64)[units]
    fits = counts <= _LONGEST // each
    there = present(array)
    bad = there & ~(written & fits)
    problem = "is not a duration such as 15m"
    return Converted(
        pa.array(np.where(fits, counts * each, 0), mask=~there | bad), ((bad, problem),) if bad.any() else ()
    )
