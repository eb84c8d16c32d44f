"""Defects that the reference server is known for: each is a test that passes here."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    DeleteWfRunRequest,
    ExternalEvent,
    LHStatus,
    NodeRun,
    PutTaskDefRequest,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    RunWfRequest,
    StopWfRunRequest,
    TaskRun,
    TaskStatus,
    ThreadRun,
    VariableAssignment,
    VariableValue,
    WfRun,
    WfRunId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Invalid
from millpond.workflows.engine import AttemptTimedOut, TaskClaim, run_id
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from tests.models.workflows.specs import request
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_scenarios import parsed, prepared


def found_run(stage: Stage, path: str) -> WfRun:
    run = stage.rows.get(WfRun, (path,))
    assert run is not None
    return run


def first_thread(stage: Stage, path: str) -> ThreadRun:
    return found_run(stage, path).thread_runs[0]


def test_a_variable_that_grows_too_large_fails_its_node_by_name() -> None:
    stage = Stage()

    def grows(wf: WorkflowThread) -> None:
        text = wf.declare_str("text", "x" * 600_000)
        wf.execute("work")
        text.assign(text.add("y" * 600_000))

    stage.do(PutTaskDefRequest(name="work"))
    stage.do(Workflow("grows", grows).compile())
    stage.run("grows", "r", {})
    claimed = stage.claim("work")
    assert claimed is not None
    stage.report("r", claimed.task_run_id.task_guid, 0, "done", VariableValue())
    assert found_run(stage, "r").status == LHStatus.ERROR
    row = stage.rows.get(NodeRun, ("r", 0, 1))
    assert row is not None and "text" in row.failures[0].message and str(VALUE_BYTES_MAX) in row.failures[0].message


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("width", [60, 100])
def test_a_run_with_many_child_threads_completes(width: int) -> None:
    stage = prepared()
    stage.run("per-element", "r", {"items": parsed(json.dumps([str(number) for number in range(width)]))})
    for _number in range(width):
        claimed = stage.claim("greet")
        assert claimed is not None
        stage.report("r", claimed.task_run_id.task_guid, 0, "done", parsed('"hello"'))
    run = found_run(stage, "r")
    assert run.status == LHStatus.COMPLETED and len(run.thread_runs) == width + 1


def test_a_run_that_is_stopped_shows_it_and_one_that_is_resumed_too() -> None:
    stage = prepared()
    stage.run("awaits", "r", {})
    stage.do(StopWfRunRequest(wf_run_id=run_id("r")))
    assert found_run(stage, "r").status == first_thread(stage, "r").status == LHStatus.HALTED
    stage.do(ResumeWfRunRequest(wf_run_id=run_id("r")))
    assert found_run(stage, "r").status == first_thread(stage, "r").status == LHStatus.RUNNING


def test_a_child_run_is_resumed_and_rescued_under_its_whole_id() -> None:
    stage = prepared()
    stage.do(Workflow("parent", lambda wf: wf.wait_for_event("ready")).compile())
    stage.do(Workflow("child", lambda wf: wf.execute("work"), parent_wf="parent").compile())
    stage.run("parent", "p", {})
    stage.do(RunWfRequest(wf_spec_name="child", id="c", parent_wf_run_id=WfRunId(id="p")))
    stage.do(StopWfRunRequest(wf_run_id=run_id("p_c")))
    assert found_run(stage, "p_c").status == LHStatus.HALTED and stage.claim("work") is None
    stage.do(ResumeWfRunRequest(wf_run_id=run_id("p_c")))
    claimed = stage.claim("work")
    assert claimed is not None
    stage.report("p_c", claimed.task_run_id.task_guid, 0, "failed", VariableValue(), "no")
    assert found_run(stage, "p_c").status == LHStatus.ERROR
    stage.do(RescueThreadRunRequest(wf_run_id=run_id("p_c")))
    assert found_run(stage, "p_c").status == LHStatus.RUNNING and stage.claim("work") is not None


def test_case_13_an_attempt_is_handed_out_once() -> None:
    stage = prepared()
    stage.run("timed", "r", {})
    task = stage.queues["work"][0]
    first = stage.claim("work")
    assert first is not None and first.attempt_number == 0
    assert stage.do(TaskClaim(task, "worker-2")) is None, "the second worker gets nothing"
    stage.pass_time(1999)
    assert stage.do(TaskClaim(task, "worker-2")) is None
    stage.pass_time(1)
    second = stage.claim("work")
    assert second is not None and second.attempt_number == 1
    stage.report("r", task.task_guid, 0, "done", VariableValue())
    row = stage.rows.get(TaskRun, ("r", task.task_guid))
    assert row is not None and row.status == TaskStatus.TASK_RUNNING, "the late report of the first changes nothing"


def test_a_timeout_of_an_ended_attempt_changes_nothing() -> None:
    stage = prepared()
    stage.run("timed", "r", {})
    claimed = stage.claim("work")
    assert claimed is not None
    stage.report("r", claimed.task_run_id.task_guid, 0, "done", VariableValue())
    before = dict(stage.rows.bytes)
    stage.do(AttemptTimedOut(claimed.task_run_id, 0))
    assert stage.rows.bytes == before and not stage.timers


def test_a_mutation_that_fails_names_its_variable() -> None:
    stage = prepared()
    stage.run("atomic", "r", {})
    claimed = stage.claim("work")
    assert claimed is not None
    stage.report("r", claimed.task_run_id.task_guid, 0, "done", VariableValue())
    row = stage.rows.get(NodeRun, ("r", 0, 1))
    assert row is not None and "mutation of b" in row.failures[0].message


@pytest.mark.usefixtures("processor")
def test_case_39_a_large_run_is_deleted_whole_and_only_it() -> None:
    stage = prepared()
    stage.run("per-element", "r", {"items": parsed(json.dumps(["x"] * 900))})
    stage.run("awaits", "other", {})
    stage.event("r", "other", parsed('"unclaimed"'), "guid")
    others = {place: row for place, row in stage.rows.bytes.items() if place[1][0] != "r"}
    for _again in range(2):
        stage.do(DeleteWfRunRequest(id=run_id("r")))
        assert stage.rows.bytes == others and not stage.queues["greet"]
    assert not list(stage.rows.list(ExternalEvent, ("r",))) and found_run(stage, "other").status == LHStatus.RUNNING


@pytest.mark.parametrize("name", ["sleeps-until", "condition", "throws", "awaits-in-time", "per-element", "approves"])
def test_an_undeclared_variable_is_refused_wherever_a_node_reads_it(name: str) -> None:
    stage = prepared()
    spec = request(name)
    ghost = VariableAssignment(variable_name="ghost")
    for node in spec.thread_specs["entrypoint"].nodes.values():
        match node.WhichOneof("node"):
            case "sleep":
                node.sleep.timestamp.CopyFrom(ghost)
            case "wait_for_condition":
                node.wait_for_condition.condition.CopyFrom(ghost)
            case "throw_event":
                node.throw_event.content.CopyFrom(ghost)
            case "external_event":
                node.external_event.timeout_seconds.CopyFrom(ghost)
            case "wait_for_threads":
                node.wait_for_threads.thread_list.CopyFrom(ghost)
            case "user_task":
                node.user_task.notes.CopyFrom(ghost)
    with pytest.raises(Invalid, match=r"a variable is not declared.*node=.*variable=ghost.*\(declare it"):
        stage.do(spec)


@pytest.mark.parametrize(
    ("event", "variable", "problem"),
    [
        ("alarm", "declare_str", None),
        ("moved", "declare_int", None),
        ("moved", "declare_str", None),
        ("moved", "declare_double", None),
        ("alarm", "declare_int", "another type than its event has.*type=INT given=STR"),
        ("moved", "declare_json_obj", "another type than its event has.*type=JSON_OBJ given=INT"),
    ],
)
def test_the_input_of_an_interrupt_handler_has_the_type_of_its_event(
    event: str, variable: str, problem: str | None
) -> None:
    stage = prepared()

    def body(wf: WorkflowThread) -> None:
        wf.add_interrupt_handler(event, lambda handler: getattr(handler, variable)("INPUT") and None)
        wf.wait_for_event("ready")

    if problem is None:
        stage.do(Workflow("shop", body).compile())
        return
    with pytest.raises(Invalid, match=problem):
        stage.do(Workflow("shop", body).compile())


def test_a_handler_that_could_never_start_is_refused() -> None:
    stage = prepared()

    def needs(name: str) -> Callable[[WorkflowThread], None]:
        return lambda handler: handler.declare_str(name).required() and None

    def on_error(wf: WorkflowThread) -> None:
        wf.handle_error(wf.execute("work"), needs("INPUT"))

    def on_interrupt(wf: WorkflowThread) -> None:
        wf.add_interrupt_handler("alarm", needs("other"))
        wf.execute("work")

    def on_exception(wf: WorkflowThread) -> None:
        wf.handle_exception(wf.execute("work"), needs("INPUT"), "sad")

    for body, name in ((on_error, "INPUT"), (on_interrupt, "other")):
        with pytest.raises(Invalid, match=f"given no such variable.*variable={name}"):
            stage.do(Workflow("shop", body).compile())
    stage.do(Workflow("shop", on_exception).compile())
