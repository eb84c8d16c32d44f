"""The sizes of values: texts and lists have one, at registration and in runs alike."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import PutWfSpecRequest, TypeDefinition, VariableAssignment, VariableType, VariableValue
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Invalid
from millpond.workflows.engine.values.conversions import plain
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_rules import INT, LIST, STR, array, failure, value

OBJECT = TypeDefinition(primitive_type=VariableType.JSON_OBJ)
WORDS = "size() only supports STR, ARRAY or JSON_ARR operands"


def measures(kind: TypeDefinition, path: str = "") -> PutWfSpecRequest:
    """A specification that assigns the size of a value, or of a part of it, to a number."""

    def body(wf: WorkflowThread) -> None:
        wf.declare_json_obj("measured")
        wf.declare_int("number").assign(0)

    request = Workflow("measures", body).compile()
    thread = request.thread_specs["entrypoint"]
    thread.variable_defs[0].var_def.type_def.CopyFrom(kind)
    measured = VariableAssignment(variable_name="measured", json_path=path or None)
    assigned = thread.nodes["0-entrypoint-ENTRYPOINT"].outgoing_edges[0].variable_mutations[0].rhs_assignment
    assigned.CopyFrom(VariableAssignment(size_of={"operand": measured}))
    return request


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (STR, VariableValue(str="äbc"), 3),
        (TypeDefinition(primitive_type=VariableType.JSON_ARR), VariableValue(json_arr='[1, {"a": 2}]'), 2),
        (LIST, array(1, 2, 3), 3),
        (STR, VariableValue(), None),
    ],
    ids=["text", "json", "array", "null"],
)
def test_texts_and_lists_have_a_size(kind: TypeDefinition, given: VariableValue, expected: int | None) -> None:
    stage = Stage()
    stage.do(measures(kind))
    stage.run("measures", "r", {"measured": given})
    assert plain(value(stage, "r", "number")) == expected


@pytest.mark.parametrize(
    "kind",
    [
        INT,
        OBJECT,
        TypeDefinition(primitive_type=VariableType.BYTES),
        TypeDefinition(inline_map_def={"key_type": STR, "value_type": INT}),
        TypeDefinition(inline_struct_def={"fields": {"a": {"field_type": INT}}}),
    ],
    ids=["number", "object", "bytes", "map", "struct"],
)
def test_registration_refuses_the_size_of_others(kind: TypeDefinition) -> None:
    with pytest.raises(Invalid) as refused:
        Stage().do(measures(kind))
    assert str(refused.value).startswith(WORDS)


@pytest.mark.parametrize("path", ["$.part", "$.part.a"])
def test_a_run_that_finds_another_value_within_json_ends_with_a_substitution_error(path: str) -> None:
    stage = Stage()
    stage.do(measures(OBJECT, path))
    stage.run("measures", "r", {"measured": VariableValue(json_obj='{"part": {"a": 7}}')})
    assert failure(stage, "r").startswith(f"VAR_SUB_ERROR: {WORDS}: ")
