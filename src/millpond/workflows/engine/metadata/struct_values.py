"""Struct values: checked against the fields of their definition, also within arrays, maps and other structs.

A value may hold more fields than its definition, and lack those that have a default.
"""

from __future__ import annotations

from google.protobuf.message import Message
from littlehorse.model import InlineStruct, InlineStructDef, StructDef, StructDefId, TypeDefinition, VariableValue

from millpond.errors import Invalid
from millpond.workflows.engine.failures import substitution
from millpond.workflows.engine.values.conversions import fits, is_null, kind_of, type_name, value_type_name
from millpond.workflows.engine.values.messages import parts_of
from millpond.workflows.engine.work import Work, copied

__all__ = ("check_structs_defined", "latest_struct", "settled")

_VALUES = frozenset({"struct", "array", "map"})


def latest_struct(work: Work, name: str) -> StructDef | None:
    """The newest version of a struct's definition, or None."""
    return max(work.rows.list(StructDef, (name,)), key=lambda version: version.id.version, default=None)


def settled(work: Work, value: VariableValue, wanted: TypeDefinition) -> VariableValue:
    """A value of a type, its structs with the versions that they were checked against and the masks of their fields.

    Raises:
        NodeFailed: VAR_SUB_ERROR; a struct lacks a field, or a field has another type than its definition says.
    """
    if kind_of(value) not in _VALUES or not _has_structs(wanted):
        return value
    found = copied(value)
    _settle(work, found, wanted)
    return found


def check_structs_defined(work: Work, message: Message, *, pinned: bool) -> None:
    """Raise Invalid when a definition names a struct that is not defined; `pinned` names its newest version."""
    if isinstance(message, StructDefId):
        found = _definition(work, message)
        if found is None:
            raise Invalid("the struct is not defined", kind="struct_def", struct=message.name, hint="define it first")
        if pinned:
            message.version = found.id.version
        return
    for part in parts_of(message):
        check_structs_defined(work, part, pinned=pinned)


def _definition(work: Work, name: StructDefId) -> StructDef | None:
    if name.version >= 0:
        return work.rows.get(StructDef, (name.name, name.version))
    return latest_struct(work, name.name)


def _has_structs(wanted: TypeDefinition) -> bool:
    match wanted.WhichOneof("defined_type"):
        case "struct_def_id" | "inline_struct_def":
            return True
        case "inline_array_def":
            return _has_structs(wanted.inline_array_def.array_type)
        case "inline_map_def":
            return _has_structs(wanted.inline_map_def.value_type)
        case _:
            return False


def _settle(work: Work, value: VariableValue, wanted: TypeDefinition) -> None:
    if is_null(value):
        return
    match wanted.WhichOneof("defined_type"):
        case "struct_def_id":
            definition = _definition(work, wanted.struct_def_id)
            if definition is None:
                raise substitution(f"the struct {wanted.struct_def_id.name} is not defined")
            value.struct.struct_def_id.CopyFrom(definition.id)
            _settle_fields(work, definition.id.name, value.struct.struct, definition.struct_def)
        case "inline_struct_def":
            _settle_fields(work, "of this type", value.struct.struct, wanted.inline_struct_def)
        case "inline_array_def":
            for item in value.array.items:
                _settle(work, item, wanted.inline_array_def.array_type)
        case "inline_map_def":
            for entry in value.map.entries:
                _settle(work, entry.value, wanted.inline_map_def.value_type)


def _settle_fields(work: Work, struct: str, given: InlineStruct, wanted: InlineStructDef) -> None:
    for name in sorted(wanted.fields):
        field = wanted.fields[name]
        if name not in given.fields:
            if not field.HasField("default_value"):
                raise substitution(f"the struct {struct} needs the field {name}")
            continue
        value = given.fields[name].value
        if is_null(value) and not field.is_nullable:
            raise substitution(f"the field {name} of the struct {struct} cannot be null")
        if not fits(value, field.field_type):
            other = f"{type_name(field.field_type)}, not {value_type_name(value)}"
            raise substitution(f"the field {name} of the struct {struct} is of type {other}")
        given.fields[name].masked = field.field_type.masked
        _settle(work, value, field.field_type)
