"""Struct definitions: versions, compatible changes, mistakes."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    DeleteStructDefRequest,
    InlineArrayDef,
    InlineStructDef,
    PutStructDefRequest,
    StructDef,
    StructDefCompatibilityType,
    StructDefId,
    StructFieldDef,
    TypeDefinition,
    VariableType,
    VariableValue,
)

from millpond.errors import Invalid
from tests.models.workflows.stage import Stage

COMPATIBLE = StructDefCompatibilityType.FULLY_COMPATIBLE_SCHEMA_UPDATES
STR = TypeDefinition(primitive_type=VariableType.STR)
INT = TypeDefinition(primitive_type=VariableType.INT)
NAME, AGE = StructFieldDef(field_type=STR), StructFieldDef(field_type=INT)
NICK = StructFieldDef(field_type=STR, default_value=VariableValue(str=""))


def put(
    stage: Stage, struct: str, *, compatible: bool = False, text: str | None = None, **fields: StructFieldDef
) -> int:
    """Define a struct; the version that it became."""
    request = PutStructDefRequest(name=struct, struct_def=InlineStructDef(fields=fields), description=text)
    if compatible:
        request.allowed_updates = COMPATIBLE
    found = stage.do(request)
    assert isinstance(found, StructDef)
    return found.id.version


def test_versions_of_a_struct() -> None:
    stage = Stage()
    assert put(stage, "person", name=NAME) == 0
    assert put(stage, "person", name=NAME) == 0, "put again as it is"
    assert put(stage, "person", name=NAME, text="a human") == 1, "a description alone makes a version"
    assert put(stage, "person", compatible=True, name=NAME, nick=NICK, text="a human") == 2
    assert put(stage, "person", compatible=True, name=NAME, text="a human") == 3, "an optional field may vanish"
    for _again in range(2):
        stage.do(DeleteStructDefRequest(id=StructDefId(name="person", version=3)))
    assert put(stage, "person", compatible=True, name=NAME, nick=NICK, text="a human") == 2


@pytest.mark.parametrize(
    ("fields", "compatible", "problem"),
    [
        ({"name": NAME, "nick": NICK, "age": AGE}, False, r"on field\(s\): \[age\] using NO_SCHEMA.*FULLY_COMPATIBLE"),
        ({"name": AGE}, False, r"on field\(s\): \[name, nick\] using NO_SCHEMA_UPDATES compatibility type"),
        ({"name": NAME, "nick": NICK, "age": AGE}, True, r"\[age\] using FULLY_COMPATIBLE.*no default"),
        ({"nick": NICK}, True, r"\[name\] using.*is required and gone"),
        ({"name": AGE, "nick": NICK}, True, r"\[name\] using.*it was STR, and is INT"),
        ({"name": NAME, "nick": NAME}, True, r"\[nick\] using.*no default"),
        ({"nick": NAME, "age": AGE}, True, r"on field\(s\): \[age, name, nick\] using"),
    ],
)
def test_a_change_that_breaks_values_is_refused(
    fields: dict[str, StructFieldDef], compatible: bool, problem: str
) -> None:
    stage = Stage()
    put(stage, "person", name=NAME, nick=NICK)
    before = dict(stage.rows.bytes)
    with pytest.raises(Invalid, match=problem):
        put(stage, "person", compatible=compatible, **fields)
    assert stage.rows.bytes == before


@pytest.mark.parametrize(
    ("name", "field", "problem"),
    [
        ("Name", NAME, "not a valid field name: first letter must be lowercase"),
        ("first_name", NAME, "not a valid field name: cannot include underscores"),
        ("1st", NAME, "not a valid field name: first character must be a letter"),
        ("", NAME, "not a valid field name: first character must be a letter"),
        ("first name", NAME, "not a valid field name: cannot include special characters"),
        ("name\n", NAME, "not a valid field name: cannot include special characters"),
        ("a", StructFieldDef(), "no type"),
        ("a", StructFieldDef(field_type={"primitive_type": VariableType.JSON_OBJ}), "no JSON.*JSON_OBJ"),
        (
            "a",
            StructFieldDef(field_type={"struct_def_id": {"name": "ghost", "version": -1}}),
            "non-existent StructDef ghost",
        ),
        ("a", StructFieldDef(field_type=INT, default_value=VariableValue(str="x")), "default.*type=INT given=STR"),
    ],
)
def test_a_field_that_no_struct_can_have_is_refused(name: str, field: StructFieldDef, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        put(Stage(), "person", **{name: field})


def test_a_struct_within_a_struct_is_named_with_its_version() -> None:
    stage = Stage()
    put(stage, "person", name=NAME)
    put(stage, "person", name=NAME, text="newer")
    inner = TypeDefinition(struct_def_id=StructDefId(name="person", version=-1))
    put(
        stage,
        "team",
        members=StructFieldDef(field_type=TypeDefinition(inline_array_def=InlineArrayDef(array_type=inner))),
    )
    found = stage.rows.get(StructDef, ("team", 0))
    assert found is not None
    assert found.struct_def.fields["members"].field_type.inline_array_def.array_type.struct_def_id.version == 1
