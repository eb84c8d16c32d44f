"""Struct definitions: fields with types, and the versions that changes make.

Invariants:

* A stored definition never changes; a definition put again as it is answers the latest version.
* A version that a compatible change made accepts the values of the version before it, and the other way round.
* A struct within a struct is named with its version.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    DeleteStructDefRequest,
    InlineStructDef,
    PutStructDefRequest,
    StructDef,
    StructDefCompatibilityType,
    StructDefId,
    StructFieldDef,
    TypeDefinition,
    ValidateStructDefEvolutionRequest,
    VariableType,
)

from millpond.errors import Invalid
from millpond.workflows.engine.commands import Command
from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.keys import check_name
from millpond.workflows.engine.metadata.definitions import same_but_for_time
from millpond.workflows.engine.metadata.struct_values import is_required, latest_struct, settled
from millpond.workflows.engine.rows import Rows
from millpond.workflows.engine.values.conversions import check_size, fits, is_null, type_name, value_type_name
from millpond.workflows.engine.work import Work

__all__ = (
    "evolution_is_valid",
    "put_struct_def",
    "delete_struct_def",
)

COMPATIBLE = StructDefCompatibilityType.FULLY_COMPATIBLE_SCHEMA_UPDATES
JSON = frozenset({VariableType.JSON_OBJ, VariableType.JSON_ARR})
_NAME_FAULTS: Final = {
    "cannot include underscores": re.compile("_"),
    "first character must be a letter": re.compile("^(?![A-Za-z])"),
    "first letter must be lowercase": re.compile("^[A-Z]"),
    "cannot include special characters": re.compile("[^A-Za-z0-9]"),
}
"""The faults of a field's name, by the sentence that clients look for."""


def put_struct_def(work: Work, request: PutStructDefRequest) -> StructDef:
    """Define a struct, or a new version of it as far as the request allows a change."""
    check_name("struct", request.name)
    latest = latest_struct(work, request.name)
    definition = StructDef(
        id=StructDefId(name=request.name, version=0 if latest is None else latest.id.version),
        description=request.description if request.HasField("description") else None,
        created_at=work.instant(),
        struct_def=request.struct_def,
    )
    for name in sorted(definition.struct_def.fields):
        _check_field(work, request.name, name, definition.struct_def.fields[name])
    if latest is not None:
        if same_but_for_time(latest, definition):
            return latest
        _check_change(request, latest.struct_def, definition.struct_def)
        definition.id.version = latest.id.version + 1
    work.rows.put((definition.id.name, definition.id.version), definition)
    return definition


def delete_struct_def(work: Work, request: DeleteStructDefRequest) -> Empty:
    """Delete one version of a struct. One that is gone is no error."""
    work.rows.delete(StructDef, (request.id.name, request.id.version))
    return Empty()


def evolution_is_valid(rows: Rows, request: ValidateStructDefEvolutionRequest) -> bool:
    """True when a struct may get a new version with these fields, under a rule for changes. It writes nothing."""
    put = PutStructDefRequest(
        name=request.struct_def_id.name, struct_def=request.struct_def, allowed_updates=request.compatibility_type
    )
    try:
        put_struct_def(Work(rows, Command("", put), 0), put)
    except Invalid:
        return False
    return True


def _fail(problem: str, struct: str, field: str, hint: str, **values: object) -> NoReturn:
    raise Invalid(problem, kind="struct_def", hint=hint, struct=struct, field=field, **values)


def _check_field(work: Work, struct: str, name: str, field: StructFieldDef) -> None:
    """Raise Invalid for a field whose name, type or default no struct can have."""
    for fault, pattern in _NAME_FAULTS.items():
        if pattern.search(name):
            hint = "use letters and digits; begin with a small letter"
            _fail(f"not a valid field name: {fault}", struct, name, hint)
    _settle_type(work, struct, name, field.field_type)
    if field.HasField("default_value"):
        _settle_default(work, struct, name, field)


def _settle_default(work: Work, struct: str, name: str, field: StructFieldDef) -> None:
    """Check the default of a field as any value of the field is checked, and give it its types."""
    if is_null(field.default_value) and not field.is_nullable:
        hint = "let the field be nullable, or give it another default"
        _fail("Non-nullable field cannot have a null default value", struct, name, hint)
    try:
        if not fits(field.default_value, field.field_type):
            raise substitution("a default is not converted")
        value = settled(work, field.default_value, field.field_type)
        check_size("the default", value)
    except NodeFailed as failed:
        expected, default = type_name(field.field_type), value_type_name(field.default_value)
        hint = "give a default of the field's type"
        reason = failed.message
        _fail("the default is of another type", struct, name, hint, type=expected, given=default, reason=reason)
    field.default_value.CopyFrom(value)


def _settle_type(work: Work, struct: str, name: str, type_: TypeDefinition) -> None:
    """Check the type of a field, and name the versions of the structs in it."""
    match type_.WhichOneof("defined_type"):
        case "primitive_type":
            if type_.primitive_type in JSON:
                kind = VariableType.Name(type_.primitive_type)
                _fail("a struct holds no JSON", struct, name, "use a struct, an array or a map", type=kind)
        case "struct_def_id":
            _settle_struct(work, struct, name, type_.struct_def_id)
        case "inline_array_def":
            _settle_type(work, struct, name, type_.inline_array_def.array_type)
        case "inline_map_def":
            _settle_type(work, struct, name, type_.inline_map_def.key_type)
            _settle_type(work, struct, name, type_.inline_map_def.value_type)
        case "inline_struct_def":
            for inner in sorted(type_.inline_struct_def.fields):
                _check_field(work, struct, inner, type_.inline_struct_def.fields[inner])
        case _:
            _fail("a field has no type", struct, name, "give the field a type")


def _settle_struct(work: Work, struct: str, name: str, named: StructDefId) -> None:
    if named.version < 0:
        latest = latest_struct(work, named.name)
        named.version = -1 if latest is None else latest.id.version
    if named.version < 0 or work.rows.get(StructDef, (named.name, named.version)) is None:
        _fail(f"Refers to non-existent StructDef {named.name[:80]}", struct, name, "define it first")


def _check_change(request: PutStructDefRequest, old: InlineStructDef, new: InlineStructDef) -> None:
    """Raise Invalid for a change of fields that the request does not allow."""
    if request.allowed_updates == COMPATIBLE:
        kind = "FULLY_COMPATIBLE_SCHEMA_UPDATES"
        reasons = {name: _breach(old, new, name) for name in sorted(_required(old) | _required(new))}
        hint = "leave required fields and their types, give new ones a default, or define another struct"
    else:
        kind = "NO_SCHEMA_UPDATES"
        changed = (name for name in sorted({*old.fields, *new.fields}) if _field(old, name) != _field(new, name))
        reasons = dict.fromkeys(changed, "it may not change")
        hint = "allow FULLY_COMPATIBLE_SCHEMA_UPDATES, or define another struct"
    broken = [name for name, reason in reasons.items() if reason]
    if broken:
        names = ", ".join(broken)
        problem = f"Incompatible StructDef evolution on field(s): [{names}] using {kind} compatibility type"
        _fail(problem, request.name, broken[0], hint, reason=reasons[broken[0]])


def _breach(old: InlineStructDef, new: InlineStructDef, name: str) -> str:
    """The reason why values of one version are none of the other, for a field; empty when they are."""
    before, after = _field(old, name), _field(new, name)
    if after is None:
        return "it is required and gone"
    if before is None or (name in _required(new) and name not in _required(old)):
        return "it is new and has no default"
    if before.field_type != after.field_type:
        return f"it was {type_name(before.field_type)}, and is {type_name(after.field_type)}"
    return ""


def _field(struct: InlineStructDef, name: str) -> StructFieldDef | None:
    return struct.fields.get(name)


def _required(struct: InlineStructDef) -> set[str]:
    return {name for name in struct.fields if is_required(struct.fields[name])}
