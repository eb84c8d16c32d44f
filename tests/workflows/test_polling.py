"""Workers' streams over a stop and a kill of the server, with the client's own stub."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from littlehorse.model import (
    PollTaskRequest,
    PutTaskDefRequest,
    RunWfRequest,
    ScheduledTask,
    TaskDefId,
    WfRunId,
)
from littlehorse.workflow import Workflow

from millpond.clock import SystemClock
from millpond.nodes.limits import LIMITS
from millpond.server.workflows.service import ONE_REQUEST_SECONDS
from tests.workflows.conftest import SECONDS

if TYPE_CHECKING:
    from tests.workflows.conftest import WorkflowServer

CLOCK = SystemClock()
ASKS = PollTaskRequest(client_id="worker", task_def_id=TaskDefId(name="work"))


def prepare(server: WorkflowServer, seconds: int) -> None:
    def body(wf: Any) -> None:
        wf.execute("work", retries=1, timeout_seconds=seconds)

    with server.stub() as stub:
        stub.PutTaskDef(PutTaskDefRequest(name="work"), timeout=SECONDS)
        stub.PutWfSpec(Workflow("timed", body).compile())
        stub.RunWf(RunWfRequest(wf_spec_name="timed", id="r"))


def next_task(stub: Any) -> ScheduledTask:
    """The next task that a worker gets; its stream stays open meanwhile."""
    over = threading.Event()

    def requests() -> Iterator[PollTaskRequest]:
        yield ASKS
        over.wait(SECONDS)

    stream = stub.PollTask(requests(), timeout=SECONDS, wait_for_ready=True)
    found: ScheduledTask = next(stream).result
    over.set()
    stream.cancel()
    return found


def test_case_13_an_attempt_is_handed_out_once_though_the_server_is_killed(workflow_server: WorkflowServer) -> None:
    prepare(workflow_server, 2)
    with workflow_server.stub() as stub:
        assert next_task(stub).attempt_number == 0
    workflow_server.end(signal.SIGKILL)
    workflow_server.start()
    with workflow_server.stub() as stub:
        assert next_task(stub).attempt_number == 1, "after the timeout, which counts from the claim"
        assert len(stub.GetWfRun(WfRunId(id="r")).thread_runs) == 1


def test_case_47_a_stream_ends_with_unavailable_when_the_server_stops(workflow_server: WorkflowServer) -> None:
    prepare(workflow_server, 60)
    over = threading.Event()

    def requests() -> Iterator[PollTaskRequest]:
        yield ASKS
        yield ASKS
        over.wait(SECONDS)

    with workflow_server.stub() as stub:
        stream = stub.PollTask(requests(), timeout=SECONDS)
        assert next(stream).result.attempt_number == 0
        began = CLOCK.monotonic()
        stop = threading.Thread(target=workflow_server.end)
        stop.start()
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert CLOCK.monotonic() - began < LIMITS.shutdown_seconds / 2, "it has no task, and waits for none"
        over.set()
        stop.join()
    assert ended.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_worker_that_closes_its_side_gets_no_task_any_more(workflow_server: WorkflowServer) -> None:
    closed = threading.Event()

    def requests() -> Iterator[PollTaskRequest]:
        yield ASKS
        closed.wait(4 * ONE_REQUEST_SECONDS)

    with workflow_server.stub() as stub:
        stub.PutTaskDef(PutTaskDefRequest(name="work"), timeout=SECONDS)
        assert list(stub.PollTask(requests(), timeout=SECONDS)) == [], "it ends well: the worker ended it"
        prepare(workflow_server, 60)
        assert next_task(stub).attempt_number == 0, "the task waited for a worker that is there"


def test_a_client_with_one_request_waits_for_its_task(workflow_server: WorkflowServer) -> None:
    with workflow_server.stub() as stub:
        stub.PutTaskDef(PutTaskDefRequest(name="work"), timeout=SECONDS)
        stream = stub.PollTask(iter([ASKS]), timeout=SECONDS)
        prepare(workflow_server, 60)
        assert [reply.result.attempt_number for reply in stream] == [0]
