"""Single values as JSON tells them, with their types: what crosses a line comes back as what it was.

    {"found": true, "type": "struct", "value": {"temp": {"type": "double", "value": 32.0}}}

| type | value |
|---|---|
| null | null |
| boolean, string, json, xml | itself |
| long | a whole number |
| double | a number, or "NaN", "Infinity", "-Infinity" |
| timestamp | UTC microseconds |
| binary | Base64 |
| struct | each field as `{"type", "value"}` |
| session | `{"start", "end"}` in UTC milliseconds, both held |

`found` false: there is no row; a row whose value is null is found.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from millpond.maps.model.definition import ValueType
from millpond.maps.model.one_value import TYPE_NAMES, python_value

__all__ = ("python_of", "typed_value")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def typed_value(stored: bytes | tuple[int, int] | None, value: ValueType | None) -> dict[str, Any]:
    """The JSON form of a value found by `Shard.get`.

    >>> typed_value(b"\\x07JFK", None)
    {'found': True, 'type': 'string', 'value': 'JFK'}
    >>> typed_value((0, 1000), None)
    {'found': True, 'type': 'session', 'value': {'start': 0, 'end': 1000}}
    """
    if stored is None:
        return {"found": False, "type": "null", "value": None}
    if isinstance(stored, tuple):
        return {"found": True, "type": "session", "value": {"start": stored[0], "end": stored[1]}}
    plain = python_value(stored, value)
    if isinstance(plain, dict):
        assert value is not None
        types = {name: str(scalar) for name, scalar in value.fields}
        fields = {name: _typed(types[name], inner) for name, inner in plain.items()}
        return {"found": True, "type": "struct", "value": fields}
    return {"found": True} | _typed(TYPE_NAMES[stored[0]], plain)


def _typed(kind: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "null", "value": None}
    match value:
        case float() if not math.isfinite(value):
            value = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case bytes():
            value = base64.b64encode(value).decode()
        case datetime():
            value = (value - _EPOCH) // _MICROSECOND
    return {"type": kind, "value": value}


def python_of(payload: Mapping[str, Any]) -> Any:
    """The Python value of `typed_value`'s JSON, as `Map.get` returns it: a struct is a dict, a session one of two
    instants.

    >>> python_of({"found": True, "type": "double", "value": "-Infinity"})
    -inf
    """
    value = payload["value"]
    match payload["type"]:
        case "null":
            return None
        case "double":
            return float(value)
        case "timestamp":
            return _EPOCH + timedelta(microseconds=value)
        case "binary":
            return base64.b64decode(value)
        case "struct":
            return {name: python_of(inner) for name, inner in value.items()}
        case "session":
            return {name: _moment(value[name]) for name in ("start", "end")}
    return value


def _moment(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis)
