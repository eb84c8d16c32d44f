"""Session lengths as milliseconds: from text such as `15m`, Arrow durations, whole milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.faults import Mask
from millpond.maps.inputs.scalars import Converted, is_text, mask_of, present, to_long, unsuited
from millpond.times.durations import DURATION_MS_MAX, NUMBER_AND_UNIT, UNITS_MS, parse_duration

__all__ = ("to_durations",)

_NUMBERS_MS = np.array(list(UNITS_MS.values()), np.int64)


def to_durations(array: pa.Array[Any]) -> Converted:
    """A column of durations as int64 milliseconds: text as `times/durations.py` says.

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


def _bounded(values: pa.Array[Any], millis: pa.Array[Any]) -> Converted:
    raw = millis.fill_null(0).to_numpy(zero_copy_only=False)
    bad = present(millis) & ((raw < 0) | (raw > DURATION_MS_MAX))
    return Converted(
        pa.array(raw, mask=bad | ~present(millis)), ((bad, "is negative or endless"),) if bad.any() else ()
    )


def _of_text(array: pa.Array[Any]) -> Converted:
    text = pc.ascii_lower(array.cast(pa.large_string()))
    parts = pc.extract_regex(text, pattern=NUMBER_AND_UNIT)
    simple = present(parts)
    millis, good = _of_parts(parts, simple)
    there = present(array)
    others = there & ~simple
    if others.any():
        millis[others], good[others] = _one_by_one(text.filter(pa.array(others)))
    bad = there & ~good
    problem = "is not a duration such as 15m"
    return Converted(pa.array(millis, mask=~there | bad), ((bad, problem),) if bad.any() else ())


def _of_parts(parts: pa.Array[Any], simple: Mask) -> tuple[npt.NDArray[np.int64], Mask]:
    """Milliseconds of whole numbers with a unit, and which of them are within bounds."""
    units = pc.index_in(pc.struct_field(parts, "unit"), pa.array(list(UNITS_MS), pa.large_string()))
    factors = _NUMBERS_MS[units.fill_null(0).to_numpy(zero_copy_only=False)]
    counts = pc.if_else(pa.array(simple), pc.struct_field(parts, "count"), "0").cast(pa.int64()).to_numpy()
    fits = counts <= DURATION_MS_MAX // factors
    return np.where(fits, counts * factors, 0), simple & fits


def _one_by_one(text: pa.Array[Any]) -> tuple[npt.NDArray[np.int64], Mask]:
    """Milliseconds of every other form, each text once: columns of durations repeat few."""
    encoded = text.dictionary_encode()
    durations = [_parsed(text) for text in encoded.dictionary.to_pylist()]
    millis = pa.array(durations, pa.int64()).take(encoded.indices)
    return millis.fill_null(0).to_numpy(zero_copy_only=False), mask_of(millis.is_valid())


def _parsed(text: str) -> int | None:
    try:
        return parse_duration(text)
    except Invalid:
        return None
