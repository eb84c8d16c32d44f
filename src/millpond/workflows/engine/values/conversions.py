"""Values of variables: types, coercion, JSON and text.

A value is the client's `VariableValue`; one without content is null, which fits every type.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from littlehorse.model import TypeDefinition, VariableDef, VariableType, VariableValue

from millpond.json_forms import parse_list, parse_object, to_json
from millpond.workflows.engine.failures import substitution
from millpond.workflows.engine.keys import run_id, run_path
from millpond.workflows.engine.limits import JSON_DEPTH_MAX, VALUE_BYTES_MAX

__all__ = (
    "NULL",
    "INT_MIN",
    "INT_MAX",
    "is_instant",
    "kind_of",
    "is_null",
    "type_of_def",
    "kind_name",
    "type_name",
    "type_of_value",
    "value_type_name",
    "fits",
    "assignable",
    "castable",
    "coerced",
    "integer",
    "text_of",
    "plain",
    "value_of",
    "json_text",
    "check_size",
)

NULL: Final = VariableValue()
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
_NUMBERS: Final = {
    VariableType.INT: re.compile(r"[+-]?[0-9]{1,4000}"),
    VariableType.DOUBLE: re.compile(
        r"[ \t\r\n]*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)[ \t\r\n]*"
    ),
}
"""The texts that are numbers; Python would take more."""

_PRIMITIVES: Final = {
    "json_obj": VariableType.JSON_OBJ,
    "json_arr": VariableType.JSON_ARR,
    "double": VariableType.DOUBLE,
    "bool": VariableType.BOOL,
    "str": VariableType.STR,
    "int": VariableType.INT,
    "bytes": VariableType.BYTES,
    "wf_run_id": VariableType.WF_RUN_ID,
    "utc_timestamp": VariableType.TIMESTAMP,
}
_CONTAINERS: Final = {"struct": "struct_def_id", "array": "inline_array_def", "map": "inline_map_def"}
_TO_TEXT: Final = frozenset({"str", "int", "double", "bool", "bytes", "wf_run_id"})
_PARSED: Final = frozenset(_PRIMITIVES[kind] for kind in ("int", "double", "bool", "bytes", "wf_run_id"))
_TEXTS: Final = frozenset(_PRIMITIVES[kind] for kind in _TO_TEXT)


def kind_of(value: VariableValue) -> str | None:
    """The field of a value that is set, or None for null."""
    return value.WhichOneof("value")


def is_null(value: VariableValue) -> bool:
    """True for the value without content."""
    return kind_of(value) is None


def type_of_def(definition: VariableDef) -> TypeDefinition:
    """The type of a variable, also where an older client gives it in the deprecated field."""
    if definition.HasField("type_def"):
        return definition.type_def
    return TypeDefinition(primitive_type=definition.type, masked=definition.masked_value)


def kind_name(type_: TypeDefinition) -> str:
    """The kind of a type: the name of a primitive type, STRUCT, ARRAY or MAP; ANY for an open type."""
    field = type_.WhichOneof("defined_type")
    if field == "primitive_type":
        return VariableType.Name(type_.primitive_type)
    return "ANY" if field is None else field.removeprefix("inline_").partition("_")[0].upper()


def type_name(type_: TypeDefinition) -> str:
    """The name of a type for messages.

    >>> type_name(TypeDefinition(inline_array_def={"array_type": {"primitive_type": VariableType.STR}}))
    'ARRAY of STR'
    """
    kind = kind_name(type_)
    match type_.WhichOneof("defined_type"):
        case "struct_def_id":
            return f"STRUCT {type_.struct_def_id.name}"
        case "inline_array_def" if type_.inline_array_def.HasField("array_type"):
            return f"ARRAY of {type_name(type_.inline_array_def.array_type)}"
        case "inline_map_def":
            return f"MAP of {type_name(type_.inline_map_def.key_type)} to {type_name(type_.inline_map_def.value_type)}"
    return kind


def value_type_name(value: VariableValue) -> str:
    """The name of a value's type for messages."""
    kind = kind_of(value)
    if kind is None:
        return "NULL"
    return VariableType.Name(_PRIMITIVES[kind]) if kind in _PRIMITIVES else kind.upper()


def type_of_value(value: VariableValue, *, parts: bool = False) -> TypeDefinition:
    """The type of a value that is not null; what it says of its parts, as its sender may, only with `parts`."""
    kind = kind_of(value)
    if kind in _PRIMITIVES:
        return TypeDefinition(primitive_type=_PRIMITIVES[kind])
    if kind == "struct":
        return TypeDefinition(struct_def_id=value.struct.struct_def_id)
    if kind == "array":
        return TypeDefinition(inline_array_def={"array_type": value.array.element_type} if parts else {})
    return TypeDefinition(inline_map_def=value.map.map_type if parts else {})


def is_instant(instant: Timestamp) -> bool:
    """True for an instant between the years 1 and 9999; messages may hold any numbers.

    >>> is_instant(Timestamp(seconds=0)), is_instant(Timestamp(seconds=1 << 60)), is_instant(Timestamp(nanos=-1))
    (True, False, False)
    """
    return -62_135_596_800 <= instant.seconds <= 253_402_300_799 and 0 <= instant.nanos < 1_000_000_000


def fits(value: VariableValue, type_: TypeDefinition) -> bool:
    """True when a value may be stored as a type without a change."""
    kind, field = kind_of(value), type_.WhichOneof("defined_type")
    if kind is None or field is None:
        return True
    if field == "primitive_type":
        same = _PRIMITIVES.get(kind) == type_.primitive_type
        return same and (kind != "utc_timestamp" or is_instant(value.utc_timestamp))
    if field == "struct_def_id":
        return kind == "struct" and value.struct.struct_def_id.name in ("", type_.struct_def_id.name)
    if field == "inline_struct_def":
        return kind == "struct"
    if _CONTAINERS.get(kind) != field:
        return False
    if kind == "array":
        return all(fits(item, type_.inline_array_def.array_type) for item in value.array.items)
    entries = value.map.entries
    keys, values = type_.inline_map_def.key_type, type_.inline_map_def.value_type
    return all(fits(entry.key, keys) and fits(entry.value, values) for entry in entries)


def assignable(source: TypeDefinition, target: TypeDefinition) -> bool:
    """True when a value of one type may be used as another without a cast; an open type may be anything."""
    kinds = source.WhichOneof("defined_type"), target.WhichOneof("defined_type")
    match kinds:
        case (None, _) | (_, None):
            return True
        case ("primitive_type", "primitive_type"):
            pair = source.primitive_type, target.primitive_type
            widened = {(VariableType.INT, VariableType.DOUBLE), (VariableType.TIMESTAMP, VariableType.INT)}
            to_text = target.primitive_type == VariableType.STR and source.primitive_type in _TEXTS
            return pair[0] == pair[1] or pair in widened or to_text
        case ("struct_def_id", "struct_def_id"):
            return source.struct_def_id.name in ("", target.struct_def_id.name)
        case ("struct_def_id" | "inline_struct_def", "struct_def_id" | "inline_struct_def"):
            return True
        case ("inline_array_def", "inline_array_def"):
            return assignable(source.inline_array_def.array_type, target.inline_array_def.array_type)
        case ("inline_map_def", "inline_map_def"):
            from_map, to_map = source.inline_map_def, target.inline_map_def
            keys = assignable(from_map.key_type, to_map.key_type)
            return keys and assignable(from_map.value_type, to_map.value_type)
        case _:
            return kinds[0] == kinds[1]


def castable(source: TypeDefinition, target: TypeDefinition) -> bool:
    """True when some value of one type may be cast to another, as `coerced` does it with `cast`."""
    if assignable(source, target):
        return True
    pair = (source.primitive_type, target.primitive_type)
    kinds = source.WhichOneof("defined_type"), target.WhichOneof("defined_type")
    parsed = source.primitive_type == VariableType.STR and target.primitive_type in _PARSED
    return kinds == ("primitive_type",) * 2 and (parsed or pair == (VariableType.DOUBLE, VariableType.INT))


def coerced(value: VariableValue, type_: TypeDefinition, *, cast: bool = False) -> VariableValue:
    """A value as a type: the same, or converted as the type permits, at any depth; `cast` permits more of a scalar.

    Raises:
        NodeFailed: VAR_SUB_ERROR; the value cannot be converted.
    """
    if fits(value, type_):
        return value
    kind, field = kind_of(value), type_.WhichOneof("defined_type")
    if field == "primitive_type":
        converted = _converted(value, type_.primitive_type, cast)
        if converted is not None:
            return converted
    elif field in ("inline_array_def", "inline_map_def") and _CONTAINERS.get(kind or "") == field:
        return _with_parts(value, type_)
    raise substitution(f"a value of type {value_type_name(value)} cannot be used as {type_name(type_)}")


def _with_parts(value: VariableValue, type_: TypeDefinition) -> VariableValue:
    """An array or a map with its parts converted."""
    result = VariableValue()
    for item in value.array.items:
        result.array.items.append(coerced(item, type_.inline_array_def.array_type))
    for entry in value.map.entries:
        key = coerced(entry.key, type_.inline_map_def.key_type)
        result.map.entries.add(key=key, value=coerced(entry.value, type_.inline_map_def.value_type))
    return result


def _converted(value: VariableValue, type_: VariableType, cast: bool) -> VariableValue | None:
    """The value converted, or None where no conversion exists."""
    kind = kind_of(value)
    if type_ == VariableType.DOUBLE and kind == "int":
        return VariableValue(double=float(value.int))
    if type_ == VariableType.STR and kind in _TO_TEXT:
        return VariableValue(str=text_of(value))
    if type_ == VariableType.INT and kind == "utc_timestamp":
        return VariableValue(int=value.utc_timestamp.seconds * 1000)
    if not cast:
        return None
    if type_ == VariableType.INT and kind == "double":
        return integer(value.double)
    return _parsed(value.str, type_) if kind == "str" else None


def _parsed(text: str, type_: VariableType) -> VariableValue | None:
    """A text read as a type, as a cast does it; numbers as LittleHorse's Java reads them, not as Python does."""
    form = _NUMBERS.get(type_)
    if form is not None and not form.fullmatch(text):
        raise substitution(f"the text {text[:80]!r} is not of type {VariableType.Name(type_)}")
    if type_ == VariableType.INT:
        return integer(int(text))
    if type_ == VariableType.DOUBLE:
        return VariableValue(double=float(text.strip().rstrip("fFdD")))
    if type_ == VariableType.BOOL and text.lower() in ("true", "false"):
        return VariableValue(bool=text.lower() == "true")
    if type_ == VariableType.BYTES:
        return VariableValue(bytes=text.encode())
    if type_ == VariableType.WF_RUN_ID:
        return VariableValue(wf_run_id=run_id(text))
    return None


def integer(number: float) -> VariableValue:
    """An INT, cut off behind the point; numbers beyond 64 bits raise NodeFailed."""
    if not math.isfinite(number) or not INT_MIN <= int(number) <= INT_MAX:
        raise substitution(f"the number {str(number)[:40]} is beyond 64 bits")
    return VariableValue(int=int(number))


def text_of(value: VariableValue) -> str:
    """A value as text.

    >>> text_of(VariableValue(bool=True)), text_of(VariableValue(double=1.5))
    ('true', '1.5')
    """
    match kind_of(value):
        case None:
            return "null"
        case "bool":
            return str(value.bool).lower()
        case "bytes":
            return base64.b64encode(value.bytes).decode()
        case "wf_run_id":
            return run_path(value.wf_run_id)
        case "utc_timestamp":
            return value.utc_timestamp.ToJsonString()
        case "struct" | "array" | "map":
            return json_text(plain(value))
        case kind:
            return str(getattr(value, kind))


def plain(value: VariableValue) -> Any:
    """A value as JSON's types: None, bool, int, float, str, list and dict."""
    match kind_of(value):
        case None:
            return None
        case "json_obj":
            return _parsed_json(value.json_obj, parse_object)
        case "json_arr":
            return _parsed_json(value.json_arr, parse_list)
        case "array":
            return [plain(item) for item in value.array.items]
        case "map":
            return {text_of(entry.key): plain(entry.value) for entry in value.map.entries}
        case "struct":
            fields = value.struct.struct.fields
            return {name: plain(fields[name].value) for name in sorted(fields)}
        case "bytes" | "wf_run_id" | "utc_timestamp":
            return text_of(value)
        case kind:
            return getattr(value, kind)


def value_of(plain_value: Any) -> VariableValue:
    """JSON's types as a value."""
    match plain_value:
        case None:
            return NULL
        case bool():
            return VariableValue(bool=plain_value)
        case int():
            return integer(plain_value)
        case float():
            return VariableValue(double=plain_value)
        case str():
            return VariableValue(str=plain_value)
        case list():
            return VariableValue(json_arr=json_text(plain_value))
        case _:
            return VariableValue(json_obj=json_text(plain_value))


def _parsed_json(text: str, parse: Callable[[str], Any]) -> Any:
    """A JSON text read; a broken or too deep one raises NodeFailed."""
    if _depth(text) > JSON_DEPTH_MAX:
        raise substitution(f"JSON nested deeper than json_depth_max={JSON_DEPTH_MAX}")
    try:
        return parse(text)
    except ValueError as broken:
        raise substitution(f"not valid JSON: {text[:80]!r}") from broken


def _depth(text: str) -> int:
    """An upper bound of the levels of a JSON text: brackets inside strings count too."""
    opened = text.count("[") + text.count("{")
    if opened <= JSON_DEPTH_MAX:
        return opened
    depth = deepest = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest


def json_text(plain_value: Any) -> str:
    """JSON's types as text, without spaces."""
    return to_json(plain_value).decode()


def check_size(name: str, value: VariableValue) -> None:
    """Raise NodeFailed with the name of what is too large to be stored."""
    size = value.ByteSize()
    if size > VALUE_BYTES_MAX:
        raise substitution(f"{name} has {size} bytes, which is more than value_bytes_max={VALUE_BYTES_MAX}")
