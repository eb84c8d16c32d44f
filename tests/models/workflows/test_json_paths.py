"""JSON paths in assignments and mutations: where they begin, where they may end, what is behind nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import VariableValue
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.workflows.engine.values.conversions import plain
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_rules import failure, value


@pytest.mark.parametrize(("given", "found"), [('{"a":{"b":1}}', 1), ('{"a":{}}', None)])
def test_a_path_may_end_where_nothing_is(given: str, found: object) -> None:
    stage = Stage()
    stage.do(Workflow("reads", reads).compile())
    stage.run("reads", "r", {"object": VariableValue(json_obj=given)})
    assert plain(value(stage, "r", "found")) == found
    assert plain(value(stage, "r", "object"))["a"]["c"] == 2


@pytest.mark.parametrize("given", ["{}", '{"a":null}'])
def test_a_path_that_goes_on_behind_nothing_is_an_error(given: str) -> None:
    stage = Stage()
    for name, body in (("reads", reads), ("writes", writes)):
        stage.do(Workflow(name, body).compile())
        stage.run(name, name, {"object": VariableValue(json_obj=given)})
        assert failure(stage, name).startswith("VAR_SUB_ERROR: Missing property in path '$.a.b'")


def test_a_path_need_not_begin_at_the_root() -> None:
    stage = Stage()

    def body(wf: WorkflowThread) -> None:
        whole, found = wf.declare_json_obj("whole", {"a": {"b": [1, 2]}}), wf.declare_int("found")
        found.assign(whole.with_json_path("$.a['b'][1]"))
        whole.with_json_path("$.a.c").assign(3)

    spec = Workflow("shop", body).compile()
    [edge] = spec.thread_specs["entrypoint"].nodes["0-entrypoint-ENTRYPOINT"].outgoing_edges
    edge.variable_mutations[0].rhs_assignment.json_path = "a['b'][1]"
    edge.variable_mutations[1].lhs_json_path = "['a'].c"
    stage.do(spec)
    stage.run("shop", "r", {})
    assert value(stage, "r", "found").int == 2
    assert plain(value(stage, "r", "whole")) == {"a": {"b": [1, 2], "c": 3}}


def reads(wf: WorkflowThread) -> None:
    found, part = wf.declare_int("found"), wf.declare_json_obj("object")
    found.assign(part.with_json_path("$.a.b"))
    part.with_json_path("$.a.c").assign(2)


def writes(wf: WorkflowThread) -> None:
    wf.declare_json_obj("object").with_json_path("$.a.b").assign(2)
