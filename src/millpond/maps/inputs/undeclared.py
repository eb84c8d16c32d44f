"""Values of maps without a declared type: any scalar column, or text with the name of its type beside it.

The pair `value_type, value` is what such a map shows when it is read (`values.present_values`), so that what
was read can be loaded again: the type names are those, and binary text is base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.scalars import Converted, by_type, is_text, mask_of, masked, present, to_scalar, unsuited
from millpond.maps.model.definition import ScalarType, ValueType
from millpond.maps.model.one_value import NULL, XML
from millpond.maps.model.values import encode_values

__all__ = ("encode_any", "encode_named")


def encode_any(array: pa.Array[Any]) -> Converted:
    """A column of any scalar type, or of several, as `<type><value>`; a null is the byte 00.

    Raises: `Invalid` when the column is no scalar.
    """
    return by_type(array, _encode_plain)


def _encode_plain(array: pa.Array[Any]) -> Converted:
    if pa.types.is_null(array.type):
        return Converted(_nulls(len(array)))
    return _encode_scalar(array, _scalar_of(array))


def _nulls(count: int) -> pa.Array[Any]:
    return pa.repeat(pa.scalar(NULL, pa.binary()), count)


def _encode_scalar(array: pa.Array[Any], scalar: ScalarType) -> Converted:
    converted = to_scalar(array, scalar)
    encoded = encode_values(converted.values, ValueType(scalar=scalar)).to_arrow().cast(pa.binary())
    return Converted(encoded, converted.faults)


def _scalar_of(array: pa.Array[Any]) -> ScalarType:
    kind, types = array.type, pa.types
    if types.is_boolean(kind):
        return ScalarType.BOOLEAN
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale == 0):
        return ScalarType.LONG
    if types.is_floating(kind):
        return ScalarType.DOUBLE
    if types.is_timestamp(kind):
        return ScalarType.TIMESTAMP
    if is_text(kind):
        return ScalarType.STRING
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return ScalarType.BINARY
    raise Invalid(
        "value column has a type that a map without a declared value type cannot hold",
        kind="value_type_unknown", type=kind,
        hint="create the map with a value type, such as json, or cast the column to one scalar type",
    )  # fmt: skip


def encode_named(names: pa.Array[Any], texts: pa.Array[Any]) -> Converted:
    """Texts as values of the types named beside them; without a name they are strings.

    Raises: `Invalid` when either column is not text.
    """
    names, texts = _text(names, "value type names"), _text(texts, "the text of typed values")
    names = pc.utf8_lower(names).fill_null(str(ScalarType.STRING))
    if not len(texts):
        return Converted(_nulls(0))
    there = present(texts)
    parts = ((name, np.flatnonzero(mask_of(pc.equal(names, name)))) for name in pc.unique(names).to_pylist())
    encoded = Converted.joined(
        len(texts), ((rows, _encode_name(name, texts.take(pa.array(rows)))) for name, rows in parts)
    )
    values = pc.if_else(pa.array(there), encoded.values, pa.scalar(NULL, pa.binary()))
    return Converted(values, tuple((mask & there, problem) for mask, problem in encoded.faults))


def _text(array: pa.Array[Any], target: str) -> pa.Array[Any]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or is_text(array.type):
        return array.cast(pa.string())
    raise unsuited(array, target)


def _encode_name(name: str, texts: pa.Array[Any]) -> Converted:
    if name == "null":
        return Converted(_nulls(len(texts)))
    if name == "xml":
        return Converted(_tagged(XML, texts))
    if name == ScalarType.BINARY:
        decoded = _from_base64(texts)
        return Converted(_encode_scalar(decoded.values, ScalarType.BINARY).values, decoded.faults)
    if name in list(ScalarType):
        return _encode_scalar(texts, ScalarType(name))
    everywhere = np.ones(len(texts), np.bool_)
    return Converted(_nulls(len(texts)), ((everywhere, f"has the unknown value type {name!r}"),))


def _tagged(code: int, texts: pa.Array[Any]) -> pa.Array[Any]:
    separator = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(
        pa.scalar(bytes([code]), pa.binary()), texts.cast(pa.binary()), separator
    ).fill_null(NULL)


def _from_base64(texts: pa.Array[Any]) -> Converted:
    decoded = [_base64(text) for text in texts.to_pylist()]
    values = pa.array(decoded, pa.binary())
    bad = present(texts) & ~present(values)
    return Converted(masked(values, bad), ((bad, "is not base64"),) if bad.any() else ())


def _base64(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
