"""Defaults of structs against a model: a value has every field of its definition, or it is no value of the struct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from littlehorse.model import (
    InlineStructDef,
    PutStructDefRequest,
    PutWfSpecRequest,
    RunWfRequest,
    Struct,
    StructDef,
    StructDefId,
    StructField,
    StructFieldDef,
    TypeDefinition,
    Variable,
    VariableType,
    VariableValue,
)
from littlehorse.workflow import Workflow

from millpond.errors import Invalid
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.values.conversions import plain
from tests.models.workflows.stage import Stage

Plain: TypeAlias = "int | str | dict[str, Plain] | list[Plain] | None"
NONE = "no default"
"""The mark of a field without a default; the default itself may be null."""


@dataclass(frozen=True)
class Field:
    """A field: an INT (`struct` is None), a struct by its number, or an array of such."""

    struct: int | None
    array: bool
    nullable: bool
    default: Any = NONE


Fields = dict[str, Field]


def completed(structs: list[Fields], field: Field, value: Plain) -> Plain:
    """The model: a value with all the defaults that it lacks; ValueError for what is no value of the field."""
    if value is None:
        if field.nullable:
            return None
        raise ValueError("null")
    if field.array:
        if not isinstance(value, list):
            raise ValueError("no array")
        item = Field(field.struct, array=False, nullable=True)
        return [completed(structs, item, part) for part in value]
    if field.struct is None:
        if not isinstance(value, int):
            raise ValueError("no number")
        return value
    if not isinstance(value, dict):
        raise ValueError("no struct")  # noqa: TRY004 - one error for whatever does not fit
    result = dict(value)
    for name, inner in structs[field.struct].items():
        if name in value:
            result[name] = completed(structs, inner, value[name])
        elif inner.default != NONE:
            result[name] = completed(structs, inner, inner.default)
        elif inner.nullable:
            result[name] = None
        else:
            raise ValueError("missing")
    return result


PLAIN: st.SearchStrategy[Plain] = st.recursive(
    st.one_of(st.integers(0, 9), st.none(), st.just("text")),
    lambda parts: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), parts, max_size=3), st.lists(parts, max_size=2)
    ),
    max_leaves=6,
)


def likely(structs: list[Fields], field: Field) -> st.SearchStrategy[Plain]:
    """Values that a field may well have."""
    if field.struct is None:
        one: st.SearchStrategy[Plain] = st.integers(0, 9)
    else:
        fields = {name: likely(structs, inner) for name, inner in structs[field.struct].items()}
        one = st.fixed_dictionaries({}, optional=fields)
    several = st.lists(one, max_size=2) if field.array else one
    return st.one_of(several, several, several, st.none(), PLAIN)


@st.composite
def definitions(draw: st.DrawFn) -> list[Fields]:
    """One to three structs, each of which may hold those before it."""
    structs: list[Fields] = []
    for number in range(draw(st.integers(1, 3))):
        fields: Fields = {}
        for name in draw(st.sampled_from([("a",), ("a", "b"), ("a", "b", "c")])):
            inner = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
            field = Field(inner, draw(st.booleans()), draw(st.booleans()))
            default = draw(st.one_of(st.just(NONE), likely(structs, field)))
            fields[name] = Field(field.struct, field.array, field.nullable, default)
        structs.append(fields)
    return structs


def typed(value: Plain) -> VariableValue:
    """A value as a client sends it, without the names of structs."""
    match value:
        case None:
            return VariableValue()
        case int():
            return VariableValue(int=value)
        case str():
            return VariableValue(str=value)
        case list():
            return VariableValue(array={"items": [typed(item) for item in value]})
    fields = {name: StructField(value=typed(part)) for name, part in value.items()}
    return VariableValue(struct=Struct(struct={"fields": fields}))


def type_of(field: Field) -> TypeDefinition:
    one = TypeDefinition(primitive_type=VariableType.INT)
    if field.struct is not None:
        one = TypeDefinition(struct_def_id=StructDefId(name=f"s{field.struct}", version=-1))
    return TypeDefinition(inline_array_def={"array_type": one}) if field.array else one


def put(stage: Stage, number: int, fields: Fields) -> None:
    every = {}
    for name, field in fields.items():
        every[name] = StructFieldDef(field_type=type_of(field), is_nullable=field.nullable)
        if field.default != NONE:
            every[name].default_value.CopyFrom(typed(field.default))
    stage.do(PutStructDefRequest(name=f"s{number}", struct_def=InlineStructDef(fields=every)))


def fits(structs: list[Fields], field: Field, value: Plain) -> bool:
    try:
        completed(structs, field, value)
    except ValueError:
        return False
    return True


def flow(number: int, default: VariableValue | None = None) -> PutWfSpecRequest:
    request = Workflow("flow", lambda wf: wf.declare_struct("it", f"s{number}") and None).compile()
    if default is not None:
        request.thread_specs["entrypoint"].variable_defs[0].var_def.default_value.CopyFrom(default)
    return request


@given(data=st.data(), structs=definitions())
def test_a_value_has_every_field_of_its_struct(data: st.DataObject, structs: list[Fields]) -> None:
    stage = Stage()
    for number, fields in enumerate(structs):
        sound = all(field.default == NONE or fits(structs, field, field.default) for field in fields.values())
        if not sound:
            event("a default is refused")
            with pytest.raises(Invalid):
                put(stage, number, fields)
            return
        put(stage, number, fields)
    whole = Field(len(structs) - 1, array=False, nullable=True)
    value = data.draw(likely(structs, whole))
    expected = completed(structs, whole, value) if fits(structs, whole, value) else NONE
    event("a value is refused" if expected == NONE else "a value is taken")
    stage.do(flow(len(structs) - 1))
    request = RunWfRequest(wf_spec_name="flow", id="r", variables={"it": typed(value)})
    if expected == NONE:
        with pytest.raises(Invalid):
            stage.do(request)
        with pytest.raises(Invalid):
            stage.do(flow(len(structs) - 1, typed(value)))
        return
    stage.do(request)
    stage.do(flow(len(structs) - 1, typed(value)))
    stage.do(RunWfRequest(wf_spec_name="flow", id="defaulted"))
    for path in ("r", "defaulted"):
        stored = stage.rows.get(Variable, (path, 0, "it"))
        assert stored is not None and plain(stored.value) == expected


def test_a_default_that_is_refused_is_told_with_its_place() -> None:
    stage = Stage()
    put(stage, 0, {"a": Field(None, array=False, nullable=False)})
    lacking = Field(0, array=False, nullable=False, default={})
    with pytest.raises(Invalid, match=r"is of another type.*struct=s1 field=b.*the struct s0 needs the field a"):
        put(stage, 1, {"b": lacking})
    with pytest.raises(Invalid, match=r"Non-nullable field cannot have a null default value.*struct=s1 field=b"):
        put(stage, 1, {"b": Field(0, array=False, nullable=False, default=None)})
    with pytest.raises(Invalid, match=r"default is no value of its type.*variable=it.*the struct s0 needs the field a"):
        stage.do(flow(0, typed({})))


def test_the_sum_of_defaults_has_a_limit() -> None:
    stage = Stage()
    large = "x" * (VALUE_BYTES_MAX // 10)
    field = StructFieldDef(
        field_type=TypeDefinition(primitive_type=VariableType.STR), default_value=VariableValue(str=large)
    )
    stage.do(PutStructDefRequest(name="s0", struct_def=InlineStructDef(fields={"a": field})))
    put(stage, 1, {"a": Field(0, array=True, nullable=False)})
    stage.do(flow(1))
    with pytest.raises(Invalid, match=r"defaults of absent fields have more bytes than value_bytes_max"):
        stage.do(RunWfRequest(wf_spec_name="flow", id="r", variables={"it": typed({"a": [{} for _item in range(99)]})}))


def test_a_default_lacks_nothing_where_it_is_stored() -> None:
    stage = Stage()
    put(stage, 0, {"a": Field(None, array=False, nullable=False, default=7)})
    put(stage, 1, {"b": Field(0, array=False, nullable=False, default={})})
    stored = stage.rows.get(StructDef, ("s1", 0))
    assert stored is not None and plain(stored.struct_def.fields["b"].default_value) == {"a": 7}
    put(stage, 1, {"b": Field(0, array=False, nullable=False, default={})})
    assert stage.rows.get(StructDef, ("s1", 1)) is None, "put again as it was, it is the same one"
