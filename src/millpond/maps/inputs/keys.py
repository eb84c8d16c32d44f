"""Keys: the one rule for what may be a key, used to store it, to look it up, in conditions, in SQL and in Spark.

| Python, NumPy | Arrow | Spark | SQL | a keyed map's key | a ranged map's number |
|---|---|---|---|---|---|
| `str` | string, large, view | string | `VARCHAR`, `ENUM` | the text | its digits, signed or not |
| `bytes` | binary, large, view, fixed | binary | `BLOB` | the text whose UTF-8 they are | type refused |
| `int` | all integers | byte … long | `TINYINT` … `UHUGEINT` | its digits | itself |
| `float` | half, float, double | float, double | `FLOAT`, `DOUBLE` | whole, below 2^53: its digits | then itself |
| `Decimal` | decimals | decimal | `DECIMAL` | its digits, as many as its scale: `1.50` | if whole: itself |
| `bool` | bool | boolean | `BOOLEAN` | `true`, `false` | type refused |
| `date`, `datetime64[D]` | date32, date64 | date | `DATE` | `2013-02-08` | type refused |
| `None`, NA, NaT | null | void, null | `NULL` | no key | no number |
| a list of several | union | | | each by its own type | each by its own type |
| | dictionary, run-end encoded | | | as its values | as its values |
| any other | any other | any other | any other | type refused | type refused |

Every door reads a single value as a column of one, so that there is no second rule. What becomes of a value:

| value | load | get, lookup, scan, SQL, Spark |
|---|---|---|
| of a type that is refused | `Invalid`, kind `key_type` | the same, before any row is read |
| null | rejected | a miss |
| that is no key (`1.5`; in ranged maps `abc`) | rejected | `Invalid`, kind `key_number`, or a miss: `on_invalid` |
| that no row can have (`NEVER_STORED`) | rejected | a miss |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.faults import Mask
from millpond.maps.inputs.scalars import (
    NOT_UTF8,
    TOO_LARGE,
    Converted,
    by_type,
    dates_as_text,
    is_text,
    masked,
    plain_digits,
    present,
    to_long,
    to_scalar,
)
from millpond.maps.model.definition import ScalarType

__all__ = (
    "KEY_BYTES_MAX", "KEY_TOO_LONG", "NEVER_STORED", "check_key_type", "to_keys", "to_numbers", "too_long",
    "type_refused",
)  # fmt: skip

KEY_BYTES_MAX = 65_536
KEY_TOO_LONG = f"is longer than {KEY_BYTES_MAX} bytes"

NEVER_STORED = frozenset((NOT_UTF8, TOO_LARGE, KEY_TOO_LONG))
"""Faults of values that are well formed, but that no row can have as its key."""


def check_key_type(kind: pa.DataType, *, keyed: bool, **values: object) -> None:
    """Refuse a type of which no value may be a key (`keyed`), or a number of a ranged map.

    Raises: `Invalid`, kind `key_type`, with the type, and `values` that name the column.
    """
    if not _suits(kind, keyed):
        raise type_refused(kind, keyed=keyed, **values)


def type_refused(kind: object, *, keyed: bool, **values: object) -> Invalid:
    """The refusal of a type, in whatever words its door has for types."""
    expected = "text, numbers, booleans, dates or bytes" if keyed else "whole numbers, in a ranged map"
    return Invalid(
        f"column cannot be read as keys: they are {expected}", kind="key_type", **values, type=kind,
        hint=f"cast it to {'text' if keyed else 'a whole number'} first",
    )  # fmt: skip


def _suits(kind: pa.DataType, keyed: bool) -> bool:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _suits(kind.value_type, keyed)
    if types.is_union(kind):
        return all(_suits(kind.field(number).type, keyed) for number in range(kind.num_fields))
    if types.is_null(kind) or is_text(kind) or types.is_integer(kind) or types.is_floating(kind):
        return True
    if types.is_decimal(kind):
        return True
    return keyed and (_is_bytes(kind) or types.is_boolean(kind) or types.is_date(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(plain or types.is_fixed_size_binary(kind))


def to_keys(array: pa.Array[Any]) -> Converted:
    """A column as keys: binary, UTF-8. Nulls stay null: the caller calls them missing.

    Raises: `Invalid` when keys cannot be of the column's type.
    """
    check_key_type(array.type, keyed=True)
    converted = by_type(array, _to_keys)
    long = too_long(converted.values)
    if not long.any():
        return converted
    return Converted(masked(converted.values, long), (*converted.faults, (long, KEY_TOO_LONG)))


def too_long(keys: pa.Array[Any]) -> Mask:
    """Mask of the keys of more bytes than a key has."""
    lengths = pc.binary_length(keys).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths > KEY_BYTES_MAX)


def to_numbers(array: pa.Array[Any]) -> Converted:
    """A column as numbers of a ranged map: int64.

    Raises: `Invalid` when they cannot be of the column's type.
    """
    check_key_type(array.type, keyed=False)
    return by_type(array, lambda part: Converted(part.cast(pa.int64())) if _is_null(part) else to_long(part))


def _is_null(array: pa.Array[Any]) -> bool:
    return bool(pa.types.is_null(array.type))


def _to_keys(array: pa.Array[Any]) -> Converted:
    kind, types = array.type, pa.types
    if types.is_floating(kind):
        # Whole numbers turn into floats where some are missing; others have no one way of being written.
        whole = to_long(array)
        bad = present(array) & ~present(whole.values)
        text = whole.values.cast(pa.string())
        return Converted(text.cast(pa.binary()), ((bad, "is a float, which has no one way of being written"),))
    if types.is_decimal(kind):
        return Converted(plain_digits(array).cast(pa.binary()))
    if types.is_date(kind):
        dates = dates_as_text(array)
        return Converted(dates.values.cast(pa.binary()), dates.faults)
    if _is_bytes(kind):
        checked = to_scalar(array.cast(pa.binary()), ScalarType.STRING)
        return Converted(checked.values.cast(pa.binary()), checked.faults)
    return Converted(array.cast(pa.string()).cast(pa.binary()))
