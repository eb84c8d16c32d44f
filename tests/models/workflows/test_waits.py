"""Waits for children, and reports: the failures of handlers, and reports of what is gone."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import LHStatus, VariableValue
from littlehorse.workflow import SpawnedThreads, Workflow, WorkflowThread

from tests.models.workflows.stage import Stage
from tests.models.workflows.test_known_defects import found_run
from tests.models.workflows.test_rules import node
from tests.models.workflows.test_scenarios import prepared


def handled(stage: Stage, handler: str) -> None:
    def child(thread: WorkflowThread) -> None:
        thread.execute("work")
        thread.fail("sad", "the child's")

    def body(wf: WorkflowThread) -> None:
        def handles(thread: WorkflowThread) -> None:
            if handler == "exception":
                thread.fail("sadder", "the handler's")
            else:
                thread.execute("repair")

        children = SpawnedThreads(None, [wf.spawn_thread(child, "child")])
        wf.wait_for_threads(children).handle_exception_on_child(handles, "sad")

    stage.do(Workflow("handled", body).compile())
    stage.run("handled", "r", {})
    stage.claim("work")
    stage.report("r", "1-1", 0, "done", VariableValue())


def test_a_handler_that_throws_fails_the_wait_with_its_exception() -> None:
    stage = prepared()
    handled(stage, "exception")
    (failure,) = node(stage, "r", 0, 2).failures
    assert (failure.failure_name, failure.message) == ("sadder", "the handler's")
    assert found_run(stage, "r").status == LHStatus.EXCEPTION


def test_a_handler_with_an_error_fails_the_wait_with_an_error_of_its_child() -> None:
    stage = prepared()
    handled(stage, "error")
    stage.claim("repair")
    stage.report("r", "2-1", 0, "failed", VariableValue(), "broken")
    (failure,) = node(stage, "r", 0, 2).failures
    assert failure.failure_name == "CHILD_FAILURE" and "thread 1 failed with TASK_FAILURE" in failure.message
    assert found_run(stage, "r").status == LHStatus.ERROR


def test_a_report_for_a_run_that_is_gone_is_no_error() -> None:
    stage = prepared()
    before = dict(stage.rows.bytes)
    stage.report("gone", "0-1", 0, "done", VariableValue(int=1))
    assert stage.rows.bytes == before
