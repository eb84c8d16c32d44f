"""Nodes on a bucket serve workflows: one owns them, any takes calls, another goes on. The client is as installed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc
import pytest

pytest.importorskip("littlehorse")
pytest.importorskip("rocksdict")

from littlehorse.model import (
    GetLatestWfSpecRequest,
    LHStatus,
    RegisterTaskWorkerRequest,
    RunWfRequest,
    SearchWfRunRequest,
    TaskDefId,
    VariableValue,
    WfRunId,
)

from millpond.clock import SystemClock
from tests.workflows.conftest import SECONDS, WorkflowServer, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.sample(1, of="file")

_NUMBERS = count(1)
CLOCK = SystemClock()


@pytest.fixture
def url(s3_server: S3Server) -> str:
    return f"{s3_server.make_bucket(f'runs-{os.getpid()}-{next(_NUMBERS)}')}/pond"


@pytest.fixture
def serve(url: str, s3_server: S3Server, tmp_path: Path) -> Iterator[Callable[[], WorkflowServer]]:
    """Begin one more node on the bucket; all share a folder for copies."""
    servers: list[WorkflowServer] = []

    def start() -> WorkflowServer:
        server = WorkflowServer(tmp_path / "node")
        server.data = url
        server.settings = {**s3_server.environment, "MILLPOND_CLIENT_CACHE": str(tmp_path / "cache")}
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.end(signal.SIGKILL)


def until(what: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first outcome that is true, of something that a node answers, or is moving."""
    due = CLOCK.monotonic() + seconds
    while True:
        try:
            outcome = what()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            outcome = None
        if outcome:
            return outcome
        assert CLOCK.monotonic() < due, "it did not come"
        threading.Event().wait(0.1)


def begin(stub: Any, run: str) -> None:
    stub.RunWf(
        RunWfRequest(wf_spec_name="greeting", id=run, variables={"name": VariableValue(str=run)}), timeout=SECONDS
    )


def status(stub: Any, run: str) -> Any:
    return stub.GetWfRun(WfRunId(id=run), timeout=SECONDS).status


def test_one_node_serves_all_kinds_of_runs_and_goes_on_after_it_was_killed(
    serve: Callable[[], WorkflowServer], tmp_path: Path
) -> None:
    node = serve()
    program = node.program("all")
    assert program.wait(SECONDS) == 0
    with node.stub() as stub:
        begin(stub, "waits")
        assert code_of(stub.RunWf, RunWfRequest(wf_spec_name="greeting", id="waits"))[0] in (
            grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT,
        )  # fmt: skip
        before = status(stub, "all")
    node.end(signal.SIGKILL)
    node.start()
    done = tmp_path / "done"
    worker = node.program("work", str(done))
    try:
        with node.stub() as stub:
            assert until(lambda: status(stub, "waits") == LHStatus.COMPLETED)
            assert status(stub, "all") == before == LHStatus.COMPLETED
    finally:
        worker.terminate()
        worker.wait(SECONDS)
    assert set(Counter(line for line in done.read_text().splitlines()).values()) == {1}


def test_another_node_answers_for_every_run_and_takes_over_from_one_that_died(
    serve: Callable[[], WorkflowServer], tmp_path: Path
) -> None:
    one, other = serve(), serve()
    assert one.program("all").wait(SECONDS) == 0
    with one.stub() as first, other.stub() as second:
        assert status(second, "all") == LHStatus.COMPLETED
        for number, stub in enumerate([first, second] * 3):
            begin(stub, f"any-{number}")
        for number, stub in enumerate((first, second)):
            runs = stub.SearchWfRun(SearchWfRunRequest(wf_spec_name="greeting", status=LHStatus.RUNNING)).results
            assert {run.id for run in runs} == {f"any-{number}" for number in range(6)}
            request = RegisterTaskWorkerRequest(task_worker_id=f"w-{number}", task_def_id=TaskDefId(name="greet"))
            assert [host.port for host in stub.RegisterTaskWorker(request).your_hosts] == [one.grpc_port]
        assert until(lambda: {"w-0", "w-1"} <= set(first.GetTaskWorkerGroup(TaskDefId(name="greet")).task_workers))
    one.end(signal.SIGKILL)
    with other.stub() as second:
        died = CLOCK.monotonic()
        assert until(lambda: status(second, "any-5") == LHStatus.RUNNING)
        begin(second, "after")
        assert CLOCK.monotonic() - died < 60
        assert second.GetLatestWfSpec(GetLatestWfSpecRequest(name="greeting")).id.name == "greeting"
        names = {*(f"any-{number}" for number in range(6)), "after"}
        search = SearchWfRunRequest(wf_spec_name="greeting", status=LHStatus.RUNNING)
        assert {run.id for run in second.SearchWfRun(search).results} == names
        worker = other.program("work", str(tmp_path / "done"))
        try:
            assert until(lambda: not second.SearchWfRun(search).results)
        finally:
            worker.terminate()
            worker.wait(SECONDS)
    attempts = Counter((tmp_path / "done").read_text().splitlines())
    assert {line.split()[0] for line in attempts} == names
    assert set(attempts.values()) == {1}, "no task is handed out twice"


@pytest.mark.full
def test_an_owner_that_stood_still_does_no_harm_when_it_goes_on(serve: Callable[[], WorkflowServer]) -> None:
    one, other = serve(), serve()
    assert one.program("all").wait(SECONDS) == 0
    with one.stub() as first, other.stub() as second:
        begin(first, "before")
        assert one.process is not None
        one.process.send_signal(signal.SIGSTOP)
        assert until(lambda: status(second, "before") == LHStatus.RUNNING)
        begin(second, "meanwhile")
        one.process.send_signal(signal.SIGCONT)
        assert until(lambda: status(first, "meanwhile") == LHStatus.RUNNING)
        inputs = {"name": VariableValue(str="x")}
        again = RunWfRequest(wf_spec_name="greeting", id="meanwhile", variables=inputs)
        # It may say for a moment that the workflows are moving; clients ask again.
        assert until(lambda: code_of(first.RunWf, again)[0] == grpc.StatusCode.ALREADY_EXISTS)
        begin(first, "after")
        for stub in (first, second):
            search = SearchWfRunRequest(wf_spec_name="greeting", status=LHStatus.RUNNING)
            assert {run.id for run in stub.SearchWfRun(search).results} == {"before", "meanwhile", "after"}
