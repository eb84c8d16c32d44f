"""The run of a task of Airflow on a real node: retries find it, who clears the task gets another one."""

from __future__ import annotations

import pytest
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.airflow.location import NodeLocation
from millpond.airflow.runs import begun_or_found, name_of, state_of, stop
from millpond.errors import NotFound
from tests.workflows.conftest import SECONDS, WorkflowServer


def patient(wf: WorkflowThread) -> None:
    wf.declare_json_obj("parameters")
    wf.wait_for_event("ready")


def failing(wf: WorkflowThread) -> None:
    wf.declare_json_obj("parameters")
    wf.fail("refused", "never on a Sunday")


def test_each_try_finds_the_run_before_it_unless_that_failed(workflow_server: WorkflowServer) -> None:
    from littlehorse.model import PutExternalEventDefRequest

    place = NodeLocation(f"http://127.0.0.1:{workflow_server.port}", f"127.0.0.1:{workflow_server.grpc_port}")
    with workflow_server.stub() as stub:
        stub.PutExternalEventDef(PutExternalEventDefRequest(name="ready"), timeout=SECONDS)
        for name, body in (("waiting", patient), ("failing", failing)):
            stub.PutWfSpec(Workflow(name, body).compile(), timeout=SECONDS)

    def begun(workflow: str, *tries: int) -> tuple[str, str]:
        state = begun_or_found(place, workflow, {"day": "2026-01-01"}, workflow, range(tries[0], tries[-1] + 1))
        return state["run"], state["status"]

    assert state_of(place, "waiting-1") is None
    assert [begun("waiting", 1), begun("waiting", 1), begun("waiting", 1, 3)] == [("waiting-1", "RUNNING")] * 3
    stop(place, "waiting-1")
    assert begun("waiting", 1, 2) == ("waiting-1", "HALTED")
    assert state_of(place, "waiting-1") == {"run": "waiting-1", "status": "RUNNING", "ended": False, "reason": ""}
    assert begun("waiting", 4) == ("waiting-4", "RUNNING")  # cleared before its fourth try
    assert begun("failing", 1) == ("failing-1", "RUNNING")
    assert begun("failing", 1) == ("failing-1", "EXCEPTION")
    assert begun("failing", 1, 2) == ("failing-2", "RUNNING")
    state = state_of(place, "failing-2")
    assert state is not None and state["ended"] and "never on a Sunday" in state["reason"]
    with pytest.raises(NotFound):
        begun("nothing", 1)


def test_names_are_of_their_task_alone() -> None:
    words = ("dag", "manual__2026-01-01T00:00:00+00:00", "a.b", "-1")
    assert name_of(*words) == name_of(*words)
    others = [("dag", words[1], "a-b", "-1"), ("dag", words[1], "a.b", "1"), ("dag-" + words[1], "", "a.b", "-1")]
    assert len({name_of(*other) for other in [words, *others]}) == 4
    assert len(name_of("d" * 250, "r" * 250, "t" * 250, "0")) <= 71
