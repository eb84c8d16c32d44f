"""Threads that wait in the queue of their run until fewer of it move."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    InactiveThreadRun,
    InlineStructDef,
    LHStatus,
    NodeRun,
    PutExternalEventDefRequest,
    PutStructDefRequest,
    PutWorkflowMigrationPlanRequest,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    StopWfRunRequest,
    StructDef,
    StructDefId,
    ThreadRun,
    TypeDefinition,
    VariableValue,
    WaitForThreadsStrategy,
    WfRun,
    WfSpec,
    WorkflowMigrationPlanId,
)
from littlehorse.workflow import SpawnedThreads, Workflow, WorkflowThread

from millpond.errors import Conflict
from millpond.workflows.engine import run_id, thread_queue
from millpond.workflows.engine.limits import THREADS_ACTIVE_MAX
from millpond.workflows.engine.values.conversions import value_of
from millpond.workflows.engine.values.masks import MASK, shown
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_known_defects import found_run

ANY = WaitForThreadsStrategy.WAIT_FOR_ANY


def waits(child: WorkflowThread) -> None:
    child.declare_str("INPUT")
    child.wait_for_event("go-on")


def over_items(wf: WorkflowThread) -> None:
    wf.spawn_thread_for_each(wf.declare_json_arr("items").required(), waits, "child")
    wf.wait_for_event("finish")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage on which three threads of a run may move, the first among them."""
    monkeypatch.setattr(thread_queue, "THREADS_ACTIVE_MAX", 3)
    made = Stage()
    for name in ("go-on", "finish", "fail"):
        made.do(PutExternalEventDefRequest(name=name))
    made.do(Workflow("shop", over_items).compile())
    return made


def begin(stage: Stage, children: int, spec: str = "shop") -> None:
    stage.run(spec, "r", {"items": value_of([f"item {number}" for number in range(children)])})


def go_on(stage: Stage, times: int = 1) -> None:
    for _time in range(times):
        stage.event("r", "go-on", VariableValue(str="x"), f"event-{len(stage.commands)}")


def queue(stage: Stage) -> list[int]:
    return list(found_run(stage, "r").thread_run_queue)


def moving(stage: Stage) -> list[int]:
    return [thread.number for thread in found_run(stage, "r").thread_runs if thread.status == LHStatus.RUNNING]


def queued(stage: Stage, number: int) -> ThreadRun:
    row = stage.rows.get(InactiveThreadRun, ("r", number))
    assert row is not None and row.HasField("queued")
    return row.thread_run


def reasons(stage: Stage, number: int) -> list[str | None]:
    thread = queued(stage, number)
    assert (thread.status == LHStatus.HALTED) == bool(thread.halt_reasons)
    return [reason.WhichOneof("reason") for reason in thread.halt_reasons]


def test_children_beyond_those_that_may_move_begin_in_their_order_as_others_end(stage: Stage) -> None:
    begin(stage, 6)
    assert (moving(stage), queue(stage)) == ([0, 1, 2], [3, 4, 5, 6])
    assert found_run(stage, "r").greatest_threadrun_number == 6
    assert queued(stage, 6).status == LHStatus.STARTING and stage.rows.get(NodeRun, ("r", 6, 0)) is None
    stage.event("r", "finish", VariableValue(str="x"), "finish")
    for ended in range(1, 7):
        assert found_run(stage, "r").status == LHStatus.RUNNING, "a parent waits for its queued children"
        go_on(stage)
        assert moving(stage)[1:] == list(range(1 + ended, min(7, 3 + ended)))
    assert found_run(stage, "r").status == LHStatus.COMPLETED and not queue(stage)
    assert "  6/INPUT = 'item 5'" in stage.show("r")
    assert not list(stage.rows.list(InactiveThreadRun, ("r",)))


def test_a_queued_thread_that_is_stopped_lets_others_pass_until_it_is_resumed(stage: Stage) -> None:
    begin(stage, 4)
    stage.do(StopWfRunRequest(wf_run_id=run_id("r"), thread_run_number=3))
    assert reasons(stage, 3) == ["manual_halt"]
    go_on(stage, 2)
    assert (moving(stage), queue(stage)) == ([0, 4], [3])
    stage.do(ResumeWfRunRequest(wf_run_id=run_id("r"), thread_run_number=3))
    assert (moving(stage), queue(stage)) == ([0, 4, 3], [])


def test_queued_threads_halt_with_their_parent_and_begin_when_it_runs_again(stage: Stage) -> None:
    begin(stage, 3)
    stage.do(StopWfRunRequest(wf_run_id=run_id("r")))
    assert reasons(stage, 3) == ["parent_halted"] and not moving(stage)
    stage.do(ResumeWfRunRequest(wf_run_id=run_id("r")))
    assert reasons(stage, 3) == [] and moving(stage) == [0, 1, 2]
    go_on(stage)
    assert (moving(stage), queue(stage)) == ([0, 2, 3], [])


def test_queued_threads_of_a_run_that_failed_stay_halted_until_it_is_rescued(stage: Stage) -> None:
    def body(wf: WorkflowThread) -> None:
        number = wf.declare_int("number")
        wf.spawn_thread_for_each(wf.declare_json_arr("items"), waits, "child")
        number.assign(wf.wait_for_event("fail"))

    stage.do(Workflow("fails", body).compile())
    begin(stage, 3, "fails")
    stage.event("r", "fail", VariableValue(str="not a number"), "fail")
    assert found_run(stage, "r").status == LHStatus.ERROR
    assert (queue(stage), reasons(stage, 3)) == ([3], ["parent_halted"])
    with pytest.raises(Conflict, match="not in ERROR"):
        stage.do(RescueThreadRunRequest(wf_run_id=run_id("r"), thread_run_number=3))
    stage.do(RescueThreadRunRequest(wf_run_id=run_id("r"), skip_current_node=True))
    go_on(stage, 3)
    assert found_run(stage, "r").status == LHStatus.COMPLETED and not queue(stage)


def test_a_wait_for_any_child_ends_the_queued_ones_too(stage: Stage) -> None:
    def body(wf: WorkflowThread) -> None:
        started = wf.spawn_thread_for_each(wf.declare_json_arr("items"), waits, "child")
        wf.wait_for_threads(started, ANY)

    stage.do(Workflow("any", body).compile())
    begin(stage, 4, "any")
    go_on(stage)
    assert found_run(stage, "r").status == LHStatus.COMPLETED
    assert (queue(stage), reasons(stage, 4)) == ([3, 4], ["halted_by_parent"])


def test_threads_that_wait_for_queued_ones_keep_no_place_from_them(stage: Stage) -> None:
    """Each of five children waits for a child of its own, which waits for one, too: more than may move."""

    def nested(inner: WorkflowThread, depth: int = 2) -> None:
        if depth == 0:
            inner.wait_for_event("go-on")
            return
        started = inner.spawn_thread(lambda below: nested(below, depth - 1), f"child-{depth}")
        inner.wait_for_threads(SpawnedThreads.from_list(started))

    def body(wf: WorkflowThread) -> None:
        wf.wait_for_threads(wf.spawn_thread_for_each(wf.declare_json_arr("items"), nested, "child"))

    stage.do(Workflow("nested", body).compile())
    begin(stage, 5, "nested")
    go_on(stage, 5)
    assert found_run(stage, "r").status == LHStatus.COMPLETED and len(found_run(stage, "r").thread_runs) == 16


def test_a_queued_thread_whose_inputs_have_lost_their_type_fails_alone(stage: Stage) -> None:
    stage.do(PutStructDefRequest(name="car", struct_def=InlineStructDef()))
    car = TypeDefinition(struct_def_id=StructDefId(name="car", version=0))

    def body(wf: WorkflowThread) -> None:
        made = wf.declare_struct("made", "car")
        for number in range(3):
            wf.spawn_thread(lambda inner, n=number: takes(inner, n), f"child-{number}", {f"car-{number}": made})
        wf.wait_for_event("finish")

    def takes(inner: WorkflowThread, number: int) -> None:
        inner.declare_struct(f"car-{number}", "car")
        inner.wait_for_event("go-on")

    stage.do(Workflow("cars", body).compile())
    stage.run("cars", "r", {"made": VariableValue(struct={"struct_def_id": car.struct_def_id})})
    assert queue(stage) == [3]
    del stage.rows.bytes[StructDef, ("car", 0)]
    go_on(stage)
    failed = found_run(stage, "r").thread_runs[3]
    assert (failed.number, failed.status) == (3, LHStatus.ERROR) and "car" in failed.error_message
    assert found_run(stage, "r").status == LHStatus.RUNNING


def test_the_inputs_of_a_queued_thread_are_not_shown(stage: Stage) -> None:
    begin(stage, 3)
    row = stage.rows.get(InactiveThreadRun, ("r", 3))
    assert row is not None and row.queued.input_vars["INPUT"].str == "item 2"
    assert shown(row).queued.input_vars["INPUT"].str == MASK


def test_queued_threads_go_on_with_a_new_version(stage: Stage) -> None:
    begin(stage, 3)

    def body(wf: WorkflowThread) -> None:
        wf.spawn_thread_for_each(wf.declare_json_arr("items").required(), waits, "other")
        wf.wait_for_event("finish")

    new = stage.do(Workflow("shop", body).compile())
    assert isinstance(new, WfSpec)
    old = found_run(stage, "r").wf_spec_id
    plan = PutWorkflowMigrationPlanRequest(
        name="renamed", old_wfSpec=old, major_version=new.id.major_version, revision=new.id.revision,
        thread_migrations={"child": {"new_thread_name": "other"}},
    )  # fmt: skip
    stage.do(plan)
    stage.do(ApplyWorkflowMigrationPlanRequest(id=WorkflowMigrationPlanId(name="renamed"), wfRun_id=run_id("r")))
    thread = queued(stage, 3)
    assert (thread.thread_spec_name, thread.wf_spec_id) == ("other", new.id)
    go_on(stage, 3)
    stage.event("r", "finish", VariableValue(str="x"), "finish")
    assert found_run(stage, "r").status == LHStatus.COMPLETED


@pytest.mark.usefixtures("processor")
def test_as_many_threads_move_as_the_limit_says() -> None:
    made = Stage()
    for name in ("go-on", "finish"):
        made.do(PutExternalEventDefRequest(name=name))
    made.do(Workflow("shop", over_items).compile())
    made.run("shop", "r", {"items": VariableValue(json_arr=json.dumps(["x"] * (THREADS_ACTIVE_MAX + 5)))})
    run = made.rows.get(WfRun, ("r",))
    assert run is not None and len(run.thread_runs) == THREADS_ACTIVE_MAX and len(run.thread_run_queue) == 6
