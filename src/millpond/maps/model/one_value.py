"""One value of its bytes, without an array; `values.py` draws them and has the same for columns."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from millpond.errors import Corrupt
from millpond.maps.model.definition import ScalarType, ValueType

__all__ = ("CODES", "NULL", "SCALARS", "STRUCT", "TYPE_NAMES", "WIDTHS", "XML", "python_value")

NULL = b"\x00"
STRUCT = 66
CODES: dict[ScalarType, int] = {
    ScalarType.BOOLEAN: 1, ScalarType.DOUBLE: 3, ScalarType.LONG: 5, ScalarType.TIMESTAMP: 6,
    ScalarType.STRING: 7, ScalarType.BINARY: 64, ScalarType.JSON: 65,
}  # fmt: skip
"""The type byte of each scalar."""
SCALARS = {code: scalar for scalar, code in CODES.items()}
XML = 13
TYPE_NAMES: dict[int, str] = {0: "null", 13: "xml", STRUCT: "struct"} | {c: str(s) for s, c in CODES.items()}
WIDTHS: dict[ScalarType, int] = {
    ScalarType.BOOLEAN: 1, ScalarType.DOUBLE: 8, ScalarType.LONG: 8, ScalarType.TIMESTAMP: 8,
}  # fmt: skip
"""The bytes of scalars of one size."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def python_value(encoded: bytes, value: ValueType | None) -> Any:
    """One `<type><value>` as a Python value: a dict for a struct, None for null."""
    code, payload = encoded[0], encoded[1:]
    if code == 0:
        return None
    if code == STRUCT:
        assert value is not None and value.fields, "structs are stored only in maps that declare them"
        return _python_struct(payload, value)
    if code == XML:
        return payload.decode()
    if code in SCALARS:
        return _python_scalar(payload, SCALARS[code])
    raise Corrupt("stored value has an unknown type byte", kind="value_type_stored", found=code)


def _python_scalar(payload: bytes, scalar: ScalarType) -> Any:
    match scalar:
        case ScalarType.STRING | ScalarType.JSON:
            return payload.decode()
        case ScalarType.BINARY:
            return payload
        case ScalarType.BOOLEAN:
            return payload[0] == 1
        case ScalarType.DOUBLE:
            return struct.unpack(">d", payload)[0]
        case ScalarType.LONG:
            return int.from_bytes(payload, "big", signed=True)
        case ScalarType.TIMESTAMP:
            return _EPOCH + timedelta(microseconds=int.from_bytes(payload, "big", signed=True))


def _python_struct(payload: bytes, value: ValueType) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    at = len(value.fields)
    for index, (name, scalar) in enumerate(value.fields):
        if not payload[index]:
            fields[name] = None
            continue
        width = WIDTHS.get(scalar, 0)
        if not width:
            width = int.from_bytes(payload[at : at + 4], "big")
            at += 4
        fields[name] = _python_scalar(payload[at : at + width], scalar)
        at += width
    return fields
