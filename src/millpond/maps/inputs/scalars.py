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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.columns import INSTANT, scalar_arrow
from millpond.maps.inputs.faults import Mask, no_rows
from millpond.maps.inputs.times import to_millis
from millpond.maps.kinds import ScalarType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = (
    "NAIVE_TEXT", "Convert", "Converted", "by_type", "is_text", "mask_of", "masked", "present", "to_instants",
    "to_long", "to_scalar", "unsuited",
)  # fmt: skip

_EXACT_FLOAT = 2.0**53
_FLOAT_TEXT = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
_INFINITE_TEXT = r"(?i)inf"
NAIVE_TEXT = r"^ *[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?)? *$"
"""Times and dates that lack nothing but their zone."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A column in its target type, and the rows that have none: each mask with what is wrong with them."""

    values: pa.Array[Any]
    faults: tuple[tuple[Mask, str], ...] = ()


Convert: TypeAlias = "Callable[[pa.Array[Any]], Converted]"


def present(array: pa.Array[Any]) -> Mask:
    """Which rows are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    found: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def masked(array: pa.Array[Any], gone: Mask) -> pa.Array[Any]:
    """The column with nulls where `gone`."""
    return pc.if_else(pa.array(~gone), array, pa.scalar(None, array.type)) if gone.any() else array


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def unsuited(array: pa.Array[Any], target: str) -> Invalid:
    """The refusal of a whole column."""
    return Invalid(
        f"column cannot be read as {target}", kind="column_type", type=array.type,
        hint="cast the column first, or map another one",
    )  # fmt: skip


def by_type(array: pa.Array[Any], convert: Convert) -> Converted:
    """`convert` for plain, dictionary-encoded and mixed (union) columns alike."""
    if pa.types.is_dictionary(array.type):
        plain = _plain(array.dictionary)
        return by_type(pa.DictionaryArray.from_arrays(array.indices, plain).dictionary_decode(), convert)
    array = _plain(array)
    if not pa.types.is_union(array.type):
        return convert(array)
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))  # a slice of a union still tells the whole's codes
    codes = array.type_codes.to_numpy()
    converted: list[pa.Array[Any]] = []
    faults: list[tuple[Mask, str]] = []
    places = np.empty(len(array), np.int64)
    done = 0
    for number, code in enumerate(array.type.type_codes):
        rows = np.flatnonzero(codes == code)
        part = by_type(_union_part(array, number, rows), convert)
        for mask, problem in part.faults:
            spread = no_rows(len(array))
            spread[rows[mask]] = True
            faults.append((spread, problem))
        places[rows] = done + np.arange(len(rows))
        done += len(rows)
        converted.append(part.values)
    return Converted(pa.concat_arrays(converted).take(pa.array(places)), tuple(faults))


def _plain(array: pa.Array[Any]) -> pa.Array[Any]:
    """Views as what they view: Arrow can do little with them."""
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
            converted = to_instants(array)
            return Converted(converted.values.cast(INSTANT), converted.faults)
        case ScalarType.BINARY:
            return _to_binary(array)
        case ScalarType.JSON:
            return _to_json(array)


# -- whole numbers ------------------------------------------------------------------------------------


def to_long(array: pa.Array[Any]) -> Converted:
    """Whole numbers of 64 bits, from numbers and from text."""
    kind = array.type
    if pa.types.is_uint64(kind):
        return _checked(array, array.fill_null(0).to_numpy(False) <= 2**63 - 1, "does not fit 64 bits")
    if pa.types.is_integer(kind):
        return Converted(array.cast(pa.int64()))
    if pa.types.is_floating(kind):
        raw = array.cast(pa.float64()).fill_null(0).to_numpy(False)
        return _checked(array, _whole(raw), "is not an exact whole number")
    if pa.types.is_decimal(kind):
        return to_long(pc.replace_substring_regex(array.cast(pa.string()), r"\.0+$", ""))
    if is_text(kind):
        return _long_of_text(array)
    raise unsuited(array, "whole numbers")


def _whole(raw: npt.NDArray[np.float64]) -> Mask:
    found: Mask = np.isfinite(raw) & (np.floor(raw) == raw) & (np.abs(raw) < _EXACT_FLOAT)
    return found


def _checked(array: pa.Array[Any], good: Mask, problem: str) -> Converted:
    bad = present(array) & ~good
    return Converted(masked(array, bad).cast(pa.int64()), ((bad, problem),) if bad.any() else ())


def _long_of_text(array: pa.Array[Any]) -> Converted:
    text = pc.utf8_trim_whitespace(array.cast(pa.large_string()).fill_null(""))
    digits = pc.utf8_ltrim(text, characters="+-")
    digits = pc.utf8_ltrim(digits, characters="0")
    written = mask_of(pc.match_substring_regex(text, r"^[+-]?[0-9]+$"))
    digits = pc.if_else(pc.equal(digits, ""), "0", digits)
    short = mask_of(pc.less_equal(pc.binary_length(digits), 19))
    magnitude = pc.if_else(pa.array(written & short), digits, "0").cast(pa.uint64()).to_numpy()
    negative = mask_of(pc.starts_with(text, "-"))
    fits = short & (magnitude <= np.where(negative, np.uint64(2**63), np.uint64(2**63 - 1)))
    values = np.where(negative, np.uint64(0) - magnitude, magnitude).view(np.int64)
    there = present(array)
    faults = (
        (there & ~written, "is not a whole number"),
        (there & written & ~fits, "does not fit 64 bits"),
    )
    good = there & written & fits
    return Converted(pa.array(values, mask=~good), faults if (there & ~good).any() else ())


def mask_of(flags: pa.Array[Any]) -> Mask:
    """A boolean column without nulls as NumPy."""
    found: Mask = flags.to_numpy(zero_copy_only=False)
    return found


# -- the other scalars --------------------------------------------------------------------------------


def _to_double(array: pa.Array[Any]) -> Converted:
    kind = array.type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Converted(array.cast(pa.float64()))
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
    """Which whole numbers survived the way to a float and back."""
    top = 2.0**64 if wide.dtype == np.uint64 else 2.0**63
    inside = np.where(back < top, back, 0.0)
    found: Mask = (back < top) & (inside.astype(wide.dtype) == wide)
    return found


def _double_of_text(array: pa.Array[Any]) -> Converted:
    text = pc.utf8_trim_whitespace(array.cast(pa.large_string()).fill_null(""))
    written = mask_of(pc.match_substring_regex(text, _FLOAT_TEXT))
    values = pc.if_else(pa.array(written), text, "0").cast(pa.float64())
    endless = np.isinf(values.to_numpy()) & ~mask_of(pc.match_substring_regex(text, _INFINITE_TEXT))
    there = present(array)
    faults = ((there & ~written, "is not a number"), (there & endless, "is too large for a double"))
    bad = ~there | ~written | endless
    return Converted(masked(values, bad), faults if (there & bad).any() else ())


def _to_boolean(array: pa.Array[Any]) -> Converted:
    kind = array.type
    if pa.types.is_boolean(kind):
        return Converted(array)
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise unsuited(array, "booleans")
    text = pc.utf8_lower(pc.utf8_trim_whitespace(array.cast(pa.large_string())))
    true = pc.is_in(text, pa.array(["true", "1"], pa.large_string()))
    known = mask_of(pc.is_in(text, pa.array(["true", "1", "false", "0"], pa.large_string())))
    bad = present(array) & ~known
    return Converted(masked(true, ~known), ((bad, "is neither true nor false"),) if bad.any() else ())


def to_instants(array: pa.Array[Any]) -> Converted:
    """UTC milliseconds as int64."""
    millis, invalid = to_millis(array)
    bad = mask_of(invalid)
    if not bad.any():
        return Converted(millis)
    naive = bad & _naive(array)
    return Converted(millis, (
        (naive, "is a time without a zone: write one, or say which it is (zone, --zone ZONE)"),
        (bad, "is not a time with a zone in the years 1 to 9999"),
    ))  # fmt: skip


def _naive(array: pa.Array[Any]) -> Mask:
    """Which rows are times that lack nothing but their zone."""
    if not is_text(array.type):
        return no_rows(len(array))
    return mask_of(pc.match_substring_regex(array.cast(pa.large_string()), NAIVE_TEXT).fill_null(False))


def _to_string(array: pa.Array[Any]) -> Converted:
    kind = array.type
    types = pa.types
    if is_text(kind) or (types.is_primitive(kind) and not types.is_temporal(kind)):
        return Converted(array.cast(pa.string()))
    if types.is_date(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return Converted(array.cast(pa.string()))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return _decoded(array)
    raise unsuited(array, "text")


def _decoded(array: pa.Array[Any]) -> Converted:
    try:
        return Converted(array.cast(pa.string()))
    except pa.ArrowInvalid:
        # Some row is not UTF-8; which one only a look at each can tell.
        bad = np.array([not _is_utf8(value.as_py()) for value in array], np.bool_)
        return Converted(masked(array, bad).cast(pa.string()), ((bad, "is not UTF-8"),))


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
    text = Converted(_written_json(array)) if pa.types.is_nested(array.type) else _to_string(array)
    # JSON has no grammar a column can be matched against: each text is parsed.
    bad = np.array([not _is_json(value) for value in text.values.to_pylist()], np.bool_)
    problem = ((bad, "is not JSON"),) if bad.any() else ()
    return Converted(masked(text.values, bad), (*text.faults, *problem))


def _written_json(array: pa.Array[Any]) -> pa.Array[Any]:
    """Lists, structs and maps as JSON text."""
    return pa.array(
        [None if value is None else json.dumps(value, default=str, ensure_ascii=False) for value in array.to_pylist()],
        pa.string(),
    )


def _is_json(text: str | None) -> bool:
    try:
        _JSON.decode("null" if text is None else text)
    except (ValueError, RecursionError):
        return False
    return True
