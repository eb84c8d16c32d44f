"""Python and Arrow values as the JSON text that `json` values hold.

| value | is written as |
|---|---|
| text, numbers, booleans, null, lists, objects | JSON's own |
| a map of Arrow | an object; names that are not text as above, in text |
| instants | ISO 8601 in UTC: `"2013-02-08T18:00:00.123456Z"`; without a zone as it stands, without one |
| dates, times of day | ISO 8601: `"2013-02-08"`, `"18:00:00"` |
| durations | ISO 8601 in days and seconds: `"P1DT0.5S"`, `"-PT90S"` |
| bytes | Base64 |
| decimals, UUIDs | text: a number of JSON would lose digits |

What has no form here (NaN, infinity, sets, names that are bytes, other objects) is refused: nothing falls back to
Python's own way of showing it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.inputs.faults import Mask, no_rows
from millpond.maps.inputs.nesting import TOO_DEEP, is_deep_value

__all__ = ("json_column", "json_text", "with_dicts")

_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS


def json_text(value: object) -> str:
    """A value as JSON text.

    >>> from datetime import timedelta
    >>> json_text({"raw": b"a", "lasts": timedelta(minutes=1.5)})
    '{"raw": "YQ==", "lasts": "PT90S"}'

    Raises: `ValueError` saying what in it has no form.
    """
    if is_deep_value(value):
        raise ValueError(TOO_DEEP)
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """The value in dicts, lists, text, numbers and null. It recurses: depth has been checked."""
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"holds {value}, which JSON has no form for")
            return value
        case Mapping():
            return {_name(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple() if not hasattr(value, "_fields"):
            return [_plain(inner) for inner in value]
        case np.ndarray():
            return [_plain(inner) for inner in value]
        case np.generic():
            return _plain(_of_numpy(value))
    return _text(value)


def _name(name: object) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, int | float) or name is None:
        return json.dumps(_plain(name))
    if isinstance(name, date | time | Decimal | UUID):
        return str(_text(name))
    raise ValueError(f"names a field by {type(name).__name__}, which JSON has no form for")


def _of_numpy(value: np.generic) -> object:
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else str(np.datetime_as_string(value))
    if isinstance(value, np.timedelta64):
        return None if np.isnat(value) else _duration(int(value.astype("timedelta64[ns]").astype(np.int64)))
    plain: object = value.item()
    return repr(plain) if isinstance(plain, np.generic) else plain


def _text(value: object) -> str | None:
    match value:
        case datetime() if value != value:
            return None
        case datetime():
            return _instant(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(_nanoseconds(value))
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Decimal() | UUID():
            return str(value)
    raise ValueError(f"holds {type(value).__name__}, which JSON has no form for")


def _instant(value: datetime) -> str:
    if value.utcoffset() is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _nanoseconds(value: timedelta) -> int:
    whole = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return whole * 1000 + int(getattr(value, "nanoseconds", 0))  # pandas' Timedelta has them


def _duration(nanoseconds: int) -> str:
    """ISO 8601 in days, which are 24 hours, and seconds.

    >>> _duration(-90_000_000_000), _duration(86_400_500_000_000), _duration(0)
    ('-PT90S', 'P1DT0.5S', 'PT0S')
    """
    days, rest = divmod(abs(nanoseconds), _DAY_NS)
    seconds, fraction = divmod(rest, _SECOND_NS)
    clock = f"T{seconds}" + (f".{fraction:09d}".rstrip("0") if fraction else "") + "S"
    text = "P" + (f"{days}D" if days else "") + (clock if rest or not days else "")
    return f"-{text}" if nanoseconds < 0 else text


# -- Arrow --------------------------------------------------------------------------------------------


def json_column(array: pa.Array[Any]) -> tuple[pa.Array[Any], list[tuple[Mask, str]]]:
    """Lists, structs and maps as JSON text; and the rows that have no such form, with reasons.

    Raises: `Invalid` when the column holds times of day finer than a microsecond, calendar intervals, or `VARIANT`.
    """
    texts: list[str | None] = []
    faults: dict[str, Mask] = {}
    for row, scalar in enumerate(_exact(array)):
        try:
            value = with_dicts(scalar.as_py(), array.type)
            texts.append(None if value is None else json_text(value))
        except (ValueError, OverflowError) as error:
            texts.append(None)
            faults.setdefault(_reason(error), no_rows(len(array)))[row] = True
    return pa.array(texts, pa.string()), [(mask, reason) for reason, mask in faults.items()]


def _reason(error: Exception) -> str:
    text = str(error)
    if text.startswith(("holds ", "names ")) or text == TOO_DEEP:
        return text
    return "holds a time, a duration or fields that have no form in JSON"


def with_dicts(value: Any, kind: pa.DataType) -> Any:
    """A value of an Arrow type, with a dict for each map, which Arrow hands out as a list of pairs.

    Raises: `ValueError` for a map that names something twice, or by what is no name in JSON.
    """
    types = pa.types
    if value is None or not types.is_nested(kind) or types.is_union(kind):
        return value
    if types.is_map(kind):
        named = {_name(name): with_dicts(inner, kind.item_type) for name, inner in value}
        if len(named) < len(value):
            raise ValueError("names something twice in a map, which JSON has no form for")
        return named
    if types.is_struct(kind):
        return {field.name: with_dicts(value[field.name], field.type) for field in kind}
    return [with_dicts(inner, kind.value_type) for inner in value]


def _exact(array: pa.Array[Any]) -> pa.Array[Any]:
    """The column with times of day in microseconds: Python's would cut the finer ones in silence."""
    try:
        return array.cast(_by_microsecond(array.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(
            "column holds values that JSON has no form for", kind="column_type", type=array.type,
            reason=str(error).splitlines()[0], hint="cast them to text first",
        ) from error  # fmt: skip


_VARIANT = {("metadata", True), ("value", True)}
"""The fields of the struct in which Spark and Parquet keep a `VARIANT`."""


def _by_microsecond(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_struct(kind):
        if {(field.name, types.is_binary(field.type)) for field in kind} == _VARIANT:
            raise Invalid("a VARIANT comes as its bytes, not as JSON", kind="column_type", type=kind,
                          hint="write it as text first, in Spark by to_json")  # fmt: skip
        return pa.struct([field.with_type(_by_microsecond(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_by_microsecond(kind.key_type), _by_microsecond(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_by_microsecond(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_by_microsecond(kind.value_type))
    if types.is_list(kind):
        return pa.list_(_by_microsecond(kind.value_type))
    return kind
