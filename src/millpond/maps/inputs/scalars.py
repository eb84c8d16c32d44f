"""Whole columns turned into the Arrow type of a declared scalar, exactly or not at all.

A conversion never rounds, wraps or guesses: a value that the target cannot hold is a fault of its row, and a
column whose type has nothing to do with the target is refused as a whole.

Invariants:
* A null stays null and is no fault.
* Where a row is at fault its converted value is null.
* Floats become whole numbers only within 2^53, where every whole number is itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.faults import Mask, no_rows
from millpond.maps.inputs.json_text import json_column
from millpond.maps.inputs.nesting import TOO_DEEP, NestedTooDeep, decode_json
from millpond.maps.model.columns import MOMENT, scalar_arrow
from millpond.maps.model.definition import ScalarType
from millpond.times.instants import read_times

__all__ = (
    "NAIVE_TEXT", "NOT_UTF8", "TOO_LARGE", "WIDE", "Convert", "Converted", "by_type", "dates_as_text", "is_text",
    "mask_of", "masked", "plain_digits", "present", "to_instants", "to_long", "to_scalar", "unsuited",
)  # fmt: skip

TOO_LARGE = "does not fit 64 bits"
NOT_UTF8 = "is not UTF-8"

_EXACT_FLOAT = 2.0**53
_FLOAT_TEXT = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
_INFINITE_TEXT = r"(?i)inf"
_DAY_MS = 86_400_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
NAIVE_TEXT = r"^ *[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?)? *$"
"""Times and dates that lack nothing but their zone."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A column in its target type, and the rows that have none: each mask with what is wrong with them."""

    values: pa.Array[Any]
    faults: tuple[tuple[Mask, str], ...] = ()

    @staticmethod
    def joined(count: int, parts: Iterable[tuple[npt.NDArray[np.int64], Converted]]) -> Converted:
        """One column of `count` rows that were converted part by part: each has its rows; together they have all."""
        converted: list[pa.Array[Any]] = []
        faults: list[tuple[Mask, str]] = []
        positions = np.empty(count, np.int64)
        done = 0
        for rows, part in parts:
            for mask, problem in part.faults:
                spread = no_rows(count)
                spread[rows[mask]] = True
                faults.append((spread, problem))
            positions[rows] = done + np.arange(len(rows))
            done += len(rows)
            converted.append(part.values)
        return Converted(pa.concat_arrays(converted).take(pa.array(positions)), tuple(faults))


Convert: TypeAlias = "Callable[[pa.Array[Any]], Converted]"


def present(array: pa.Array[Any]) -> Mask:
    """Mask of the rows that are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def masked(array: pa.Array[Any], gone: Mask) -> pa.Array[Any]:
    """The column with nulls where `gone`."""
    return pc.if_else(pa.array(~gone), array, pa.scalar(None, array.type)) if gone.any() else array


WIDE = pa.decimal256(76, 0)
"""The type of whole numbers of Python and JSON where some are beyond 64 bits."""


def is_text(kind: pa.DataType) -> bool:
    """True when a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def unsuited(array: pa.Array[Any], target: str) -> Invalid:
    """The refusal of a whole column."""
    return Invalid(
        f"column cannot be read as {target}", kind="column_type", type=array.type,
        hint="cast the column first, or map another one",
    )  # fmt: skip


def by_type(array: pa.Array[Any], convert: Convert) -> Converted:
    """`convert` for plain, dictionary- or run-end-encoded and mixed (union) columns alike."""
    array = _plain(array)
    if pa.types.is_dictionary(array.type):
        return by_type(_plain(array.dictionary).take(array.indices), convert)
    if not pa.types.is_union(array.type):
        return convert(array)
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))  # a slice of a union still tells the whole's codes
    codes = array.type_codes.to_numpy()
    parts = ((number, np.flatnonzero(codes == code)) for number, code in enumerate(array.type.type_codes))
    return Converted.joined(
        len(array), ((rows, by_type(_union_part(array, number, rows), convert)) for number, rows in parts)
    )


def _plain(array: pa.Array[Any]) -> pa.Array[Any]:
    """Views and runs as what they stand for: Arrow can do little with them."""
    if pa.types.is_run_end_encoded(array.type):
        return _plain(pc.run_end_decode(array))
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def _union_part(array: pa.Array[Any], number: int, rows: npt.NDArray[np.int64]) -> pa.Array[Any]:
    child = array.field(number)
    if array.type.mode == "dense":
        return child.take(pa.array(array.offsets.to_numpy()[rows]))
    return child.take(pa.array(rows))


def to_scalar(array: pa.Array[Any], scalar: ScalarType) -> Converted:
    """A column as the Arrow type of `scalar` (`columns.scalar_arrow`).

    Raises: `Invalid` when the column's own type does not suit, or holds times without a zone.
    """
    return by_type(array, lambda part: _to_scalar(part, scalar))


def _to_scalar(array: pa.Array[Any], scalar: ScalarType) -> Converted:
    if pa.types.is_null(array.type):
        return Converted(array.cast(scalar_arrow(scalar)))
    match scalar:
        case ScalarType.STRING:
            return _to_string(array)
        case ScalarType.LONG:
            return to_long(array)
        case ScalarType.DOUBLE:
            return _to_double(array)
        case ScalarType.BOOLEAN:
            return _to_boolean(array)
        case ScalarType.TIMESTAMP:
            converted = to_instants(array, "us")
            return Converted(converted.values.cast(MOMENT), converted.faults)
        case ScalarType.BINARY:
            return _to_binary(array)
        case ScalarType.JSON:
            return _to_json(array)


# -- whole numbers ------------------------------------------------------------------------------------


def to_long(array: pa.Array[Any]) -> Converted:
    """Whole numbers of 64 bits, from numbers and from text."""
    kind = array.type
    if pa.types.is_uint64(kind):
        return _checked(array, array.fill_null(0).to_numpy(False) <= 2**63 - 1, TOO_LARGE)
    if pa.types.is_integer(kind):
        return Converted(array.cast(pa.int64()))
    if pa.types.is_floating(kind):
        raw = array.cast(pa.float64()).fill_null(0).to_numpy(False)
        return _checked(array, _whole(raw), "is not an exact whole number")
    if pa.types.is_decimal(kind):
        return to_long(pc.replace_substring_regex(plain_digits(array), r"\.0+$", ""))
    if is_text(kind):
        return _long_of_text(array)
    raise unsuited(array, "whole numbers")


def _whole(raw: npt.NDArray[np.float64]) -> Mask:
    mask: Mask = np.isfinite(raw) & (np.floor(raw) == raw) & (np.abs(raw) < _EXACT_FLOAT)
    return mask


def _checked(array: pa.Array[Any], good: Mask, problem: str) -> Converted:
    bad = present(array) & ~good
    return Converted(masked(array, bad).cast(pa.int64()), ((bad, problem),) if bad.any() else ())


def _long_of_text(array: pa.Array[Any]) -> Converted:
    text = pc.utf8_trim_whitespace(array.cast(pa.large_string()).fill_null(""))
    digits = pc.utf8_ltrim(text, characters="+-")
    digits = pc.utf8_ltrim(digits, characters="0")
    mask = mask_of(pc.match_substring_regex(text, r"^[+-]?[0-9]+$"))
    digits = pc.if_else(pc.equal(digits, ""), "0", digits)
    short = mask_of(pc.less_equal(pc.binary_length(digits), 19))
    magnitude = pc.if_else(pa.array(mask & short), digits, "0").cast(pa.uint64()).to_numpy()
    negative = mask_of(pc.starts_with(text, "-"))
    fits = short & (magnitude <= np.where(negative, np.uint64(2**63), np.uint64(2**63 - 1)))
    values = np.where(negative, np.uint64(0) - magnitude, magnitude).view(np.int64)
    there = present(array)
    faults = (
        (there & ~mask, "is not a whole number"),
        (there & mask & ~fits, TOO_LARGE),
    )
    good = there & mask & fits
    return Converted(pa.array(values, mask=~good), faults if (there & ~good).any() else ())


def plain_digits(array: pa.Array[Any]) -> pa.Array[Any]:
    """Decimals as text without an exponent: Arrow writes one where there are many zeros after the point."""
    text = array.cast(pa.string())
    exponents = pc.match_substring(text, "E").fill_null(False)
    if not pc.any(exponents).as_py():
        return text
    return pa.array([None if number is None else f"{Decimal(number):f}" for number in text.to_pylist()], pa.string())


def mask_of(flags: pa.Array[Any]) -> Mask:
    """A boolean column without nulls as NumPy."""
    mask: Mask = flags.to_numpy(zero_copy_only=False)
    return mask


# -- the other scalars --------------------------------------------------------------------------------


def _to_double(array: pa.Array[Any]) -> Converted:
    kind = array.type
    if pa.types.is_floating(kind):
        return Converted(array.cast(pa.float64()))
    if kind == WIDE:
        inexact = np.array([value is not None and int(float(value)) != value for value in array.to_pylist()], np.bool_)
        values = array.cast(pa.string()).cast(pa.float64())
        return Converted(masked(values, inexact), ((inexact, "is not exact as a double"),) if inexact.any() else ())
    if pa.types.is_decimal(kind):
        # Through text: Arrow multiplies by a power of ten, and so makes 65492907.800000004 of 65492907.8.
        return Converted(array.cast(pa.string()).cast(pa.float64()))
    if pa.types.is_integer(kind):
        values = array.cast(pa.float64(), safe=False)
        back = values.fill_null(0).to_numpy(False)
        wide = array.fill_null(0).to_numpy(False)
        inexact = present(array) & ~_survived(wide, back)
        return Converted(masked(values, inexact), ((inexact, "is not exact as a double"),) if inexact.any() else ())
    if is_text(kind):
        return _double_of_text(array)
    raise unsuited(array, "doubles")


def _survived(wide: npt.NDArray[Any], back: npt.NDArray[np.float64]) -> Mask:
    """Mask of the whole numbers that survived the way to a float and back."""
    top = 2.0**64 if wide.dtype == np.uint64 else 2.0**63
    inside = np.where(back < top, back, 0.0)
    mask: Mask = (back < top) & (inside.astype(wide.dtype) == wide)
    return mask


def _double_of_text(array: pa.Array[Any]) -> Converted:
    text = pc.utf8_trim_whitespace(array.cast(pa.large_string()).fill_null(""))
    mask = mask_of(pc.match_substring_regex(text, _FLOAT_TEXT))
    values = pc.if_else(pa.array(mask), text, "0").cast(pa.float64())
    endless = np.isinf(values.to_numpy()) & ~mask_of(pc.match_substring_regex(text, _INFINITE_TEXT))
    there = present(array)
    faults = ((there & ~mask, "is not a number"), (there & endless, "is too large for a double"))
    bad = ~there | ~mask | endless
    return Converted(masked(values, bad), faults if (there & bad).any() else ())


def _to_boolean(array: pa.Array[Any]) -> Converted:
    kind = array.type
    if pa.types.is_boolean(kind):
        return Converted(array)
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise unsuited(array, "booleans")
    text = pc.utf8_lower(pc.utf8_trim_whitespace(array.cast(pa.large_string())))
    true = pc.is_in(text, pa.array(["true", "1"], pa.large_string()))
    mask = mask_of(pc.is_in(text, pa.array(["true", "1", "false", "0"], pa.large_string())))
    bad = present(array) & ~mask
    return Converted(masked(true, ~mask), ((bad, "is neither true nor false"),) if bad.any() else ())


def to_instants(array: pa.Array[Any], ticks: str = "ms", unit: str | None = None) -> Converted:
    """UTC milliseconds or microseconds (`ticks`) as int64; numbers count in `unit`, see `times.read_times`.

    For milliseconds, by which rows are found, finer is floored; a value in microseconds is never cut.
    """
    read = read_times(array, ticks, unit)
    invalid = mask_of(read.invalid)
    finer = read.finer if ticks == "us" else no_rows(len(array))
    if not (invalid.any() or finer.any() or read.vague.any()):
        return Converted(read.values)
    unclear = read.vague | (invalid & _bare_numbers(array)) if unit is None else read.vague
    return Converted(masked(read.values, finer | read.vague), (
        (unclear, "is a number that could count another unit than milliseconds: say which (time_unit, --time-unit)"),
        (invalid & _naive(array), "is a time without a zone: write one, or say which it is (zone, --zone ZONE)"),
        (invalid, "is not a time with a zone in the years 1 to 9999"),
        (finer, "is finer than a microsecond"),
    ))  # fmt: skip


def _bare_numbers(array: pa.Array[Any]) -> Mask:
    """Mask of the rows that are text of nothing but digits, or whole numbers."""
    if not is_text(array.type):
        return present(array) & bool(pa.types.is_integer(array.type))
    return mask_of(pc.match_substring_regex(array.cast(pa.large_string()), r"^ *-?[0-9]+ *$").fill_null(False))


def _naive(array: pa.Array[Any]) -> Mask:
    """Mask of the rows that are times without a zone, and otherwise valid."""
    if not is_text(array.type):
        return no_rows(len(array))
    return mask_of(pc.match_substring_regex(array.cast(pa.large_string()), NAIVE_TEXT).fill_null(False))


def _to_string(array: pa.Array[Any]) -> Converted:
    kind = array.type
    types = pa.types
    if is_text(kind) or (types.is_primitive(kind) and not types.is_temporal(kind)):
        return Converted(array.cast(pa.string()))
    if types.is_date(kind):
        return dates_as_text(array)
    if types.is_decimal(kind) or types.is_boolean(kind):
        return Converted(array.cast(pa.string()))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return _decoded(array)
    raise unsuited(array, "text")


def dates_as_text(array: pa.Array[Any]) -> Converted:
    """Dates as ISO 8601, such as `2013-02-08`; those of other years than 1 to 9999 have no such form."""
    numbers = array.cast(pa.int64() if pa.types.is_date64(array.type) else pa.int32()).fill_null(0)
    days = numbers.to_numpy(zero_copy_only=False) // (_DAY_MS if pa.types.is_date64(array.type) else 1)
    bad = (days < 1 - _EPOCH_DAY) | (days > date.max.toordinal() - _EPOCH_DAY)
    text = masked(array, bad).cast(pa.date32(), safe=False).cast(pa.string())
    return Converted(text, ((bad, "is not a date in the years 1 to 9999"),))


def _decoded(array: pa.Array[Any]) -> Converted:
    try:
        return Converted(array.cast(pa.string()))
    except pa.ArrowInvalid:
        # Some row is not UTF-8; which one only a look at each can tell.
        bad = np.array([not _is_utf8(value.as_py()) for value in array], np.bool_)
        return Converted(masked(array, bad).cast(pa.string()), ((bad, NOT_UTF8),))


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _to_binary(array: pa.Array[Any]) -> Converted:
    kind = array.type
    types = pa.types
    if types.is_fixed_size_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return Converted(array.cast(pa.binary()))
    if types.is_binary(kind) or is_text(kind):
        return Converted(array.cast(pa.binary()))
    raise unsuited(array, "bytes")


def _refuse(word: str) -> object:
    raise ValueError(word)


_JSON = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


def _to_json(array: pa.Array[Any]) -> Converted:
    if pa.types.is_nested(array.type):
        values, faults = json_column(array)
        return Converted(values, tuple(faults))
    text = _to_string(array)
    # JSON has no grammar a column can be matched against: each text is parsed.
    problems = [_json_problem(value) for value in text.values.to_pylist()]
    faults = [
        (np.array([problem == reason for problem in problems], np.bool_), reason) for reason in set(problems) if reason
    ]
    bad = np.array([bool(problem) for problem in problems], np.bool_)
    return Converted(masked(text.values, bad), (*text.faults, *faults))


def _json_problem(text: str | None) -> str:
    if text is None:
        return ""
    try:
        decode_json(text, _JSON.decode)
    except NestedTooDeep:
        return TOO_DEEP
    except ValueError:
        return "is not JSON"
    return ""
