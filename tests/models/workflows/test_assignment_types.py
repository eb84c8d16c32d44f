"""Specifications that could never run are refused by their types; what is refused would fail in every run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from littlehorse.model import (
    InlineStructBuilder,
    InlineStructDef,
    InlineStructFieldValue,
    PutExternalEventDefRequest,
    PutStructDefRequest,
    PutTaskDefRequest,
    PutUserTaskDefRequest,
    PutWorkflowEventDefRequest,
    ReturnType,
    StructBuilder,
    StructDefId,
    StructFieldDef,
    TypeDefinition,
    UserTaskField,
    VariableAssignment,
    VariableDef,
    VariableType,
    VariableValue,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Invalid
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.values.conversions import assignable, castable, coerced, type_of_value
from tests.models.workflows.stage import Stage

KINDS = [VariableType.INT, VariableType.DOUBLE, VariableType.STR, VariableType.BOOL, VariableType.BYTES]
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda number: VariableValue(int=number)),
    st.floats(-1e15, 1e15).map(lambda number: VariableValue(double=number)),
    st.sampled_from(["", "7", "1.5", "true", "x"]).map(lambda text: VariableValue(str=text)),
    st.booleans().map(lambda truth: VariableValue(bool=truth)),
    st.binary(max_size=3).map(lambda data: VariableValue(bytes=data)),
)


def of(kind: VariableType) -> TypeDefinition:
    """A primitive type."""
    return TypeDefinition(primitive_type=kind)


@pytest.fixture
def stage() -> Stage:
    """A stage with tasks that take and give numbers and texts, an event with a text, and a struct."""
    found = Stage()
    for name, kind in (("number", VariableType.INT), ("text", VariableType.STR)):
        inputs = [VariableDef(name="in", type_def=of(kind))]
        found.do(PutTaskDefRequest(name=name, input_vars=inputs, return_type=ReturnType(return_type=of(kind))))
    found.do(PutExternalEventDefRequest(name="paid", content_type=ReturnType(return_type=of(VariableType.STR))))
    fields = {"wheels": StructFieldDef(field_type=of(VariableType.INT))}
    found.do(PutStructDefRequest(name="car", struct_def=InlineStructDef(fields=fields)))
    child = Workflow("child", lambda wf: wf.declare_int("count").required() and None)
    found.do(child.compile())
    found.do(Workflow("says", lambda wf: wf.complete("hello")).compile())
    found.do(PutWorkflowEventDefRequest(name="sold", content_type=ReturnType(return_type=of(VariableType.INT))))
    approval = UserTaskField(name="yes", type=VariableType.BOOL)
    found.do(PutUserTaskDefRequest(name="approval", fields=[approval]))
    return found


def text_to_number(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_str("s"))


def literal_text_to_number(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign("seven")


def output_to_variable(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.execute("text", "x"))


def output_to_input(wf: WorkflowThread) -> None:
    wf.execute("number", wf.execute("text", "x"))


def event_to_input(wf: WorkflowThread) -> None:
    wf.execute("number", wf.wait_for_event("paid"))


def number_to_bool(wf: WorkflowThread) -> None:
    wf.declare_bool("b").assign(wf.declare_int("n"))


def number_cast_to_bool(wf: WorkflowThread) -> None:
    wf.declare_bool("b").assign(wf.declare_int("n").cast_to_bool())


def arithmetic_on_text(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_str("s").multiply(2))


def text_added_to_number(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_int("m").add("x"))


def field_that_a_struct_lacks(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_struct("car", "car").get("wings"))


def field_of_another_type(wf: WorkflowThread) -> None:
    wf.declare_bool("b").assign(wf.declare_struct("car", "car").get("wheels"))


def part_of_a_number(wf: WorkflowThread) -> None:
    wf.declare_int("m").assign(wf.declare_int("n").get("part"))


def two_types_returned(wf: WorkflowThread) -> None:
    flag = wf.declare_bool("flag")
    wf.do_if(flag.is_equal_to(True), lambda inner: inner.complete(1))
    wf.complete("text")


def value_and_nothing_returned(wf: WorkflowThread) -> None:
    flag = wf.declare_bool("flag")
    wf.do_if(flag.is_equal_to(True), lambda inner: inner.complete(1))


def child_without_its_input(wf: WorkflowThread) -> None:
    wf.run_wf("child", {})


def child_with_an_unknown_input(wf: WorkflowThread) -> None:
    wf.run_wf("child", {"count": 1, "colour": 2})


def child_with_a_wrong_input(wf: WorkflowThread) -> None:
    wf.run_wf("child", {"count": "many"})


def child_that_does_not_exist(wf: WorkflowThread) -> None:
    wf.run_wf("nobody", {})


def output_of_a_child(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.wait_for_child_wf(wf.run_wf("says", {})))


def results_of_a_user_task(wf: WorkflowThread) -> None:
    wf.declare_bool("b").assign(wf.assign_user_task("approval", "anna"))


def thread_without_its_input(wf: WorkflowThread) -> None:
    wf.spawn_thread(lambda inner: inner.declare_int("count").required() and None, "other", {})


def thread_with_an_unknown_input(wf: WorkflowThread) -> None:
    wf.spawn_thread(lambda inner: inner.execute("text", "x") and None, "other", {"colour": 2})


def threads_for_a_number(wf: WorkflowThread) -> None:
    wf.spawn_thread_for_each(wf.declare_int("n"), lambda inner: inner.execute("text", "x") and None, "other")


def content_of_a_thrown_event(wf: WorkflowThread) -> None:
    wf.throw_event("sold", wf.declare_str("s"))


def condition_that_is_none(wf: WorkflowThread) -> None:
    wf.wait_for_condition(wf.declare_int("n").add(1))


def number_extended(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_int("m").extend(2))


def text_as_an_index(wf: WorkflowThread) -> None:
    listed = wf.declare_json_arr("list")
    listed.assign(listed.remove_index(wf.declare_str("s")))


REFUSED = [
    text_as_an_index,
    output_of_a_child, results_of_a_user_task, thread_without_its_input, thread_with_an_unknown_input,
    threads_for_a_number, content_of_a_thrown_event, condition_that_is_none, number_extended, text_to_number,
    literal_text_to_number, output_to_variable, output_to_input, event_to_input, number_to_bool,
    number_cast_to_bool, arithmetic_on_text, text_added_to_number, field_that_a_struct_lacks, field_of_another_type,
    part_of_a_number, two_types_returned, value_and_nothing_returned, child_without_its_input,
    child_with_an_unknown_input, child_with_a_wrong_input, child_that_does_not_exist,
]  # fmt: skip


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_what_no_run_could_do_is_refused(stage: Stage, body: Callable[[WorkflowThread], None]) -> None:
    with pytest.raises(Invalid) as refused:
        stage.do(Workflow("wrong", body).compile())
    assert (refused.value.kind, refused.value.values["spec"]) == ("workflow_spec_invalid", "wrong")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"car": {"wheels": 4}, "owner": "anna"}, None),
        ({"car": {}, "owner": None}, "The struct needs the field wheels"),
        ({"car": {"wheels": 4}}, "The struct needs the field owner"),
        ({"car": {"wheels": "x"}, "owner": "anna"}, "The field wheels of the struct expects type INT but is type STR"),
        ({"car": 4, "owner": "anna"}, "The field car of the struct expects type STRUCT car but is type INT"),
        ({"car": {"wheels": 4}, "owner": {}}, "The field owner of the struct expects type STR but is type STRUCT"),
    ],
    ids=str,
)
def test_a_struct_is_built_with_the_fields_of_its_definition(
    stage: Stage, fields: dict[str, Any], words: str | None
) -> None:
    inside = StructFieldDef(field_type=TypeDefinition(struct_def_id=StructDefId(name="car", version=-1)))
    definition = InlineStructDef(fields={"car": inside, "owner": StructFieldDef(field_type=of(VariableType.STR))})
    stage.do(PutStructDefRequest(name="parked", struct_def=definition))
    request = Workflow("wrong", lambda wf: wf.declare_struct("place", "parked").assign(None)).compile()
    [edge] = request.thread_specs["entrypoint"].nodes["0-entrypoint-ENTRYPOINT"].outgoing_edges
    builder = StructBuilder(struct_def_id=StructDefId(name="parked", version=-1), value=built(fields))
    edge.variable_mutations[0].rhs_assignment.CopyFrom(VariableAssignment(struct_builder=builder))
    if words is None:
        stage.do(request)
    else:
        with pytest.raises(Invalid, match=words):
            stage.do(request)


def built(fields: dict[str, Any]) -> InlineStructBuilder:
    """A builder of a struct: a dict is a struct within it."""
    parts = {
        name: InlineStructFieldValue(sub_structure=built(value))
        if isinstance(value, dict)
        else InlineStructFieldValue(simple_value=VariableAssignment(literal_value=literal(value)))
        for name, value in fields.items()
    }
    return InlineStructBuilder(fields=parts)


def literal(value: str | int | None) -> VariableValue:
    return VariableValue(str=value) if isinstance(value, str) else VariableValue(int=value)


def cast_text(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_str("s").cast_to_int())


def widened(wf: WorkflowThread) -> None:
    wf.declare_double("d").assign(wf.declare_int("n"))
    wf.declare_str("s").assign(wf.execute("number", 7))


def out_of_json(wf: WorkflowThread) -> None:
    wf.execute("number", wf.declare_json_obj("o").with_json_path("$.n"))


def field_of_a_struct(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_struct("car", "car").get("wheels"))


def truncated(wf: WorkflowThread) -> None:
    number = wf.declare_int("n")
    number.assign(number.multiply(1.5))


def one_type_returned(wf: WorkflowThread) -> None:
    wf.do_if(wf.declare_bool("flag").is_equal_to(True), lambda inner: inner.complete(1))
    wf.complete(2)


def child_with_its_input(wf: WorkflowThread) -> None:
    wf.run_wf("child", {"count": wf.declare_int("n")})


def output_of_a_child_as_text(wf: WorkflowThread) -> None:
    wf.declare_str("s").assign(wf.wait_for_child_wf(wf.run_wf("says", {})))


def output_of_the_same_workflow(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.wait_for_child_wf(wf.run_wf("right", {})))
    wf.complete("text")


def content_of_the_event(wf: WorkflowThread) -> None:
    wf.throw_event("sold", wf.execute("number", 1))
    wf.throw_event("sold", wf.declare_json_obj("o").with_json_path("$.n"))
    wf.throw_event("sold", None)


def threads_for_elements(wf: WorkflowThread) -> None:
    def body(inner: WorkflowThread) -> None:
        inner.execute("number", inner.declare_int("INPUT"))

    wf.wait_for_threads(wf.spawn_thread_for_each(wf.declare_json_arr("list"), body, "other"))


ACCEPTED = [
    output_of_a_child_as_text, output_of_the_same_workflow, content_of_the_event,
    threads_for_elements, cast_text,
    widened, out_of_json, field_of_a_struct, truncated, one_type_returned, child_with_its_input,
]  # fmt: skip


@pytest.mark.parametrize("body", ACCEPTED, ids=lambda body: body.__name__)
def test_what_a_run_may_do_is_accepted(stage: Stage, body: Callable[[WorkflowThread], None]) -> None:
    stage.do(Workflow("right", body).compile())


@given(value=VALUES, kind=st.sampled_from(KINDS))
def test_the_rules_of_types_are_those_of_values(value: VariableValue, kind: VariableType) -> None:
    found, wanted = type_of_value(value), of(kind)
    for cast, allowed in ((False, assignable(found, wanted)), (True, castable(found, wanted))):
        try:
            coerced(value, wanted, cast=cast)
        except NodeFailed:
            assert cast or not allowed, "without a cast, the type decides"
        else:
            assert allowed


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("+12", 12), ("-0", 0), ("1_000", None), (" 12", None), ("12.0", None), ("", None), ("٣", None)],
)
def test_texts_that_are_an_int(text: str, number: int | None) -> None:
    assert cast_of(text, VariableType.INT) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12.0), (" 1.5e3\n", 1500.0), (".5", 0.5), ("5.", 5.0), ("2.5f", 2.5), ("-Infinity", -math.inf),
        ("1_000.0", None), ("inf", None), ("nan", None), ("1 2", None), ("", None), ("٣", None),
    ],
)  # fmt: skip
def test_texts_that_are_a_double(text: str, number: float | None) -> None:
    assert cast_of(text, VariableType.DOUBLE) == number


def cast_of(text: str, type_: VariableType) -> float | None:
    """The number that a cast makes of a text; None when it is refused."""
    try:
        value = coerced(VariableValue(str=text), TypeDefinition(primitive_type=type_), cast=True)
    except NodeFailed:
        return None
    return value.int if type_ == VariableType.INT else value.double
