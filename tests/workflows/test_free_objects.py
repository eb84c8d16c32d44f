"""Correlated events, schedules and structs through the client as installed, also over a kill of the server."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import grpc
import littlehorse
import pytest
from littlehorse.config import LHConfig
from littlehorse.lh_struct import class_to_inline_struct_def, lh_struct_def, serialize_to_struct
from littlehorse.model import (
    CorrelatedEventConfig,
    CorrelatedEventId,
    DeleteCorrelatedEventRequest,
    DeleteScheduledWfRunRequest,
    ExternalEventDefId,
    LHStatus,
    ListExternalEventsRequest,
    PutCorrelatedEventRequest,
    RunWfRequest,
    ScheduledWfRunId,
    ScheduleWfRequest,
    SearchCorrelatedEventRequest,
    SearchScheduledWfRunRequest,
    StructDefId,
    ValidateStructDefEvolutionRequest,
    VariableValue,
    WfRunId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from tests.workflows.conftest import SECONDS, code_of

if TYPE_CHECKING:
    from tests.workflows.conftest import WorkflowServer

pytestmark = pytest.mark.sample(1, of="file")


def order(wf: WorkflowThread) -> None:
    number = wf.declare_str("number").required()
    paid = wf.wait_for_event(
        "payment", correlation_id=number, mask_correlation_id=True, return_type=str,
        correlated_event_config=CorrelatedEventConfig(delete_after_first_correlation=False),
    )  # fmt: skip
    receipt = wf.declare_str("receipt")
    receipt.assign(paid)


@lh_struct_def("customer")
class Customer:
    """A struct as the client declares it."""

    name: str
    age: int


@pytest.fixture
def ordering(workflow_server: WorkflowServer, monkeypatch: pytest.MonkeyPatch) -> WorkflowServer:
    """A server with the workflow `order`."""
    monkeypatch.setenv("LHC_API_HOST", "127.0.0.1")
    monkeypatch.setenv("LHC_API_PORT", str(workflow_server.grpc_port))
    littlehorse.create_workflow_spec(Workflow("order", order), LHConfig())
    return workflow_server


def start(stub: Any, run: str, number: str) -> Any:
    variables = {"number": VariableValue(str=number)}
    return stub.RunWf(RunWfRequest(wf_spec_name="order", id=run, variables=variables), timeout=SECONDS)


def test_an_event_finds_its_run_by_a_key(ordering: WorkflowServer) -> None:
    event = ExternalEventDefId(name="payment")
    name = CorrelatedEventId(key="order-1", external_event_def_id=event)
    with ordering.stub() as stub:
        assert start(stub, "first", "order-1").status == LHStatus.RUNNING
    ordering.end(signal.SIGKILL)
    ordering.start()
    with ordering.stub() as stub:
        content = VariableValue(str="42 euro")
        put = PutCorrelatedEventRequest(key="order-1", external_event_def_id=event, content=content)
        made = stub.PutCorrelatedEvent(put, timeout=SECONDS)
        assert [found.wf_run_id.id for found in made.external_events] == ["first"]
        assert stub.GetWfRun(WfRunId(id="first")).status == LHStatus.COMPLETED, "in the answered command"
        assert start(stub, "second", "order-1").status == LHStatus.RUNNING, "its reply is of its own command"
        assert stub.GetWfRun(WfRunId(id="second")).status == LHStatus.COMPLETED
        listed = stub.ListExternalEvents(ListExternalEventsRequest(wf_run_id=WfRunId(id="second"))).results
        assert [found.content.str for found in listed] == ["42 euro"]
        assert code_of(stub.PutCorrelatedEvent, put)[0] == grpc.StatusCode.ALREADY_EXISTS
        found = stub.SearchCorrelatedEvent(SearchCorrelatedEventRequest(external_event_def_id=event)).results
        assert list(found) == [name]
        assert len(stub.GetCorrelatedEvent(name).external_events) == 2
        for _again in range(2):
            stub.DeleteCorrelatedEvent(DeleteCorrelatedEventRequest(id=name))
        assert code_of(stub.GetCorrelatedEvent, name)[0] == grpc.StatusCode.NOT_FOUND
        bad = PutCorrelatedEventRequest(key="a/b", external_event_def_id=event)
        assert code_of(stub.PutCorrelatedEvent, bad)[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_schedule_is_put_found_and_deleted(ordering: WorkflowServer) -> None:
    name = ScheduledWfRunId(id="yearly")
    variables = {"number": VariableValue(str="order-2")}
    put = ScheduleWfRequest(id="yearly", wf_spec_name="order", cron_expression="0 0 1 1 *", variables=variables)
    with ordering.stub() as stub:
        stub.ScheduleWf(put, timeout=SECONDS)
    ordering.end(signal.SIGKILL)
    ordering.start()
    with ordering.stub() as stub:
        assert stub.GetScheduledWfRun(name, timeout=SECONDS).cron_expression == "0 0 1 1 *"
        assert list(stub.SearchScheduledWfRun(SearchScheduledWfRunRequest(wf_spec_name="order")).results) == [name]
        bad = ScheduleWfRequest(wf_spec_name="order", cron_expression="at noon")
        status, words = code_of(stub.ScheduleWf, bad)
        assert (status, "cron" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        for _again in range(2):
            stub.DeleteScheduledWfRun(DeleteScheduledWfRunRequest(id=name))
        assert code_of(stub.GetScheduledWfRun, name)[0] == grpc.StatusCode.NOT_FOUND


def greets(wf: WorkflowThread) -> None:
    wf.declare_struct("who", Customer).required()


def test_structs_are_checked_and_their_changes_judged(ordering: WorkflowServer) -> None:
    littlehorse.create_struct_def(Customer, LHConfig())
    littlehorse.create_workflow_spec(Workflow("greets", greets), LHConfig())
    someone = Customer(name="anna", age=7)  # type: ignore[call-arg]
    value = VariableValue(struct=serialize_to_struct(someone))
    with ordering.stub() as stub:
        run = stub.RunWf(RunWfRequest(wf_spec_name="greets", variables={"who": value}), timeout=SECONDS)
        assert run.status == LHStatus.COMPLETED
        del value.struct.struct.fields["name"]
        status, words = code_of(stub.RunWf, RunWfRequest(wf_spec_name="greets", variables={"who": value}))
        assert (status, "needs the field name" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        same = ValidateStructDefEvolutionRequest(
            struct_def_id=StructDefId(name="customer"), struct_def=class_to_inline_struct_def(Customer)
        )
        assert stub.ValidateStructDefEvolution(same).is_valid
        del same.struct_def.fields["age"]
        assert not stub.ValidateStructDefEvolution(same).is_valid
