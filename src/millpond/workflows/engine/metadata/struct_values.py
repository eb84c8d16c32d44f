"""Structs, arrays and maps: values get the types that are declared for them, whatever the client said, at any depth.

A struct is checked against the fields of its definition. It may hold more of them; those that it lacks get their
default, which is null for a nullable field. A default was settled when its struct was defined, so it lacks nothing.
One without a name, as a builder makes it within another, is of the type that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import Message
from littlehorse.model import (
    InlineStruct,
    InlineStructDef,
    StructDef,
    StructDefId,
    StructFieldDef,
    TypeDefinition,
    VariableValue,
)

from millpond.errors import Invalid
from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.values.conversions import coerced, is_null, kind_of, type_name, value_type_name
from millpond.workflows.engine.values.messages import parts_of
from millpond.workflows.engine.work import Work, copied

__all__ = ("is_required", "latest_struct", "pin_structs", "settled")

_VALUES = frozenset({"struct", "array", "map"})


def latest_struct(work: Work, name: str) -> StructDef | None:
    """The newest version of a struct's definition, or None."""
    return max(work.rows.list(StructDef, (name,)), key=lambda version: version.id.version, default=None)


def settled(work: Work, value: VariableValue, type_: TypeDefinition) -> VariableValue:
    """A value of a type: its structs with the versions that they were checked against and the masks of their fields,
    its arrays and maps with the types of their elements.

    Raises:
        NodeFailed: VAR_SUB_ERROR; a struct lacks a field, or a field has another type than its definition says.
    """
    if kind_of(value) not in _VALUES or type_.WhichOneof("defined_type") is None:
        return value
    result = copied(value)
    _Settling(work).settle(result, type_)
    return result


def pin_structs(work: Work, message: Message, before: Message | None = None, *, owner: str = "") -> None:
    """Give each struct that a definition names the number of its newest version, where the number is open.

    A struct that an earlier form of the definition, `before`, names has the number that it has there: a definition
    that is put again, as it was asked for, is the same one. A refusal begins with the `owner`, where there is one.

    Raises:
        Invalid: a struct is not defined.
    """
    versions = {} if before is None else {struct.name: struct.version for struct in _structs(before)}
    for struct in _structs(message):
        definition = _definition(work, struct)
        if definition is None:
            refers = f"{owner} refers" if owner else "Refers"
            raise Invalid(f"{refers} to non-existent StructDef {struct.name[:80]}", kind="struct_def",
                          struct=struct.name, hint="define it first")  # fmt: skip
        if struct.version < 0:
            struct.version = versions.get(struct.name, definition.id.version)


def _structs(message: Message) -> Iterator[StructDefId]:
    if isinstance(message, StructDefId):
        yield message
    else:
        for part in parts_of(message):
            yield from _structs(part)


def _definition(work: Work, name: StructDefId) -> StructDef | None:
    if name.version >= 0:
        return work.rows.get(StructDef, (name.name, name.version))
    return latest_struct(work, name.name)


@dataclass(slots=True)
class _Settling:
    """One value that gets its types, and the bytes of the defaults that it got with them."""

    work: Work
    added: int = 0

    def settle(self, value: VariableValue, type_: TypeDefinition) -> None:
        """Give a value, and all within it, their types."""
        if is_null(value):
            return
        match type_.WhichOneof("defined_type"):
            case "struct_def_id":
                definition = _definition(self.work, type_.struct_def_id)
                if definition is None:
                    raise substitution(f"the struct {type_.struct_def_id.name} is not defined")
                value.struct.struct_def_id.CopyFrom(definition.id)
                self._settle_fields(definition.id.name, value.struct.struct, definition.struct_def)
            case "inline_struct_def":
                self._settle_fields("of this type", value.struct.struct, type_.inline_struct_def)
            case "inline_array_def":
                value.array.element_type.CopyFrom(type_.inline_array_def.array_type)
                for item in value.array.items:
                    self.settle(item, type_.inline_array_def.array_type)
            case "inline_map_def":
                value.map.map_type.CopyFrom(type_.inline_map_def)
                for entry in value.map.entries:
                    self.settle(entry.value, type_.inline_map_def.value_type)

    def _settle_fields(self, struct: str, content: InlineStruct, definition: InlineStructDef) -> None:
        for name in sorted(definition.fields):
            field = definition.fields[name]
            if name not in content.fields:
                if is_required(field):
                    raise substitution(f"the struct {struct} needs the field {name}")
                self._add_default(name, content.fields[name].value, field)
            value = content.fields[name].value
            if is_null(value) and not field.is_nullable:
                raise substitution(f"the field {name} of the struct {struct} cannot be null")
            try:
                value.CopyFrom(coerced(value, field.field_type))
            except NodeFailed as failed:
                other = f"{type_name(field.field_type)}, not {value_type_name(value)}"
                raise substitution(f"the field {name} of the struct {struct} is of type {other}") from failed
            content.fields[name].masked = field.field_type.masked
            self.settle(value, field.field_type)

    def _add_default(self, name: str, value: VariableValue, field: StructFieldDef) -> None:
        """Give an absent field its default, or null. A small value may lack many fields: their sum has a limit."""
        value.CopyFrom(field.default_value)
        self.added += len(name) + value.ByteSize()
        if self.added > VALUE_BYTES_MAX:
            raise substitution(f"the defaults of absent fields have more bytes than value_bytes_max={VALUE_BYTES_MAX}")


def is_required(field: StructFieldDef) -> bool:
    """True for a field that every struct has to give: it has no default, not even null."""
    return not field.HasField("default_value") and not field.is_nullable
