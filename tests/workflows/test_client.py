"""The client as installed against a real server: it registers, runs, works and reads, also over a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from littlehorse.model import (
    DeleteWfRunRequest,
    LHStatus,
    ListNodeRunsRequest,
    PutTaskDefRequest,
    PutTenantRequest,
    RunWfRequest,
    SearchWfRunRequest,
    TaskDefId,
    VariableValue,
    WfRunId,
)

import millpond
from tests.workflows.conftest import PROGRAM, SECONDS, code_of

if TYPE_CHECKING:
    from tests.workflows.conftest import WorkflowServer

RUNS = 12


def run_all(server: WorkflowServer) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "all"], env=server.environment(), text=True, capture_output=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [line for line in done.stdout.splitlines() if not line.startswith("Establishing")]


def test_a_program_registers_runs_and_reads(workflow_server: WorkflowServer) -> None:
    assert run_all(workflow_server) == [
        "greeting ['hello anna']", "thrown anna", "alarms 1 handled yes", "found [True]", "caller anonymous version 1",
    ]  # fmt: skip
    with workflow_server.stub() as stub:
        nodes = stub.ListNodeRuns(ListNodeRunsRequest(wf_run_id=WfRunId(id="all"), limit=3), timeout=SECONDS)
        assert [node.id.position for node in nodes.results] == [0, 1, 2]
        rest = stub.ListNodeRuns(ListNodeRunsRequest(wf_run_id=WfRunId(id="all"), bookmark=nodes.bookmark))
        assert not {node.id.position for node in rest.results if node.id.thread_run_number == 0} & {0, 1, 2}
        assert code_of(stub.GetWfRun, WfRunId(id="none"))[0] == grpc.StatusCode.NOT_FOUND
        assert code_of(stub.RunWf, RunWfRequest(wf_spec_name="none"))[0] == grpc.StatusCode.NOT_FOUND
        taken = RunWfRequest(wf_spec_name="everything", id="all", variables={"name": VariableValue(str="x")})
        assert code_of(stub.RunWf, taken)[0] == grpc.StatusCode.ALREADY_EXISTS
        assert code_of(stub.PutTaskDef, PutTaskDefRequest(name="a_b"))[0] == grpc.StatusCode.INVALID_ARGUMENT
        status, words = code_of(stub.SearchWfRun, SearchWfRunRequest(bookmark=b"nonsense"))
        assert (status, "bookmark" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert "no name of a tenant" not in code_of(stub.GetTaskDef, TaskDefId(name="x"))[1]
        own = (("tenantid", "other"),)
        assert code_of(stub.GetTaskDef, TaskDefId(name="x"), metadata=own)[0] == grpc.StatusCode.PERMISSION_DENIED
        stub.PutTenant(PutTenantRequest(id="other"))
        assert code_of(stub.GetTaskDef, TaskDefId(name="greet"), metadata=own)[0] == grpc.StatusCode.NOT_FOUND
        bad = (("tenantid", "no name"),)
        assert code_of(stub.GetTaskDef, TaskDefId(name="greet"), metadata=bad)[0] == grpc.StatusCode.INVALID_ARGUMENT
        stub.DeleteWfRun(DeleteWfRunRequest(id=WfRunId(id="all")), timeout=SECONDS)
        assert code_of(stub.GetWfRun, WfRunId(id="all"))[0] == grpc.StatusCode.NOT_FOUND
    workflow_server.end()
    with millpond.open(workflow_server.folder) as pond:
        assert pond.verify().ok, "a pond knows the rows of workflows"


@pytest.mark.sample(1)
@pytest.mark.parametrize("workflow_server", ["pond", "rocksdb"], indirect=True)
def test_runs_end_though_the_server_is_killed(workflow_server: WorkflowServer, tmp_path: Path) -> None:
    """Every run completes, and no attempt of a task is executed twice."""
    server, done = workflow_server, tmp_path / "done"
    run_all(server)
    with (tmp_path / "worker.log").open("w") as log:
        worker = server.program("work", str(done), output=log)
        try:
            start_run(server, "run-0")
            wait_for(done.exists)  # a worker that finds no server when it begins gives up
            for at in range(1, RUNS):
                start_run(server, f"run-{at}")
                if at in (3, 7):
                    server.end(signal.SIGKILL)
                    server.start()
            with server.stub() as stub:
                wait_for(lambda: len(completed(stub)) >= RUNS + 1)
        finally:
            worker.kill()
            worker.wait()
    executed = Counter(done.read_text().splitlines())
    assert set(executed.values()) == {1}
    assert {line.split()[0] for line in executed} >= {f"run-{at}" for at in range(RUNS)}


def start_run(server: WorkflowServer, name: str) -> None:
    """Start a run."""
    with server.stub() as stub:
        request = RunWfRequest(wf_spec_name="greeting", id=name, variables={"name": VariableValue(str=name)})
        stub.RunWf(request, timeout=SECONDS, wait_for_ready=True)


def completed(stub: Any) -> list[WfRunId]:
    request = SearchWfRunRequest(wf_spec_name="greeting", status=LHStatus.COMPLETED)
    found = stub.SearchWfRun(request, timeout=SECONDS)
    return list(found.results)


def wait_for(true: Callable[[], object], seconds: int = SECONDS) -> None:
    pause = threading.Event()
    for _ in range(10 * seconds):
        if true():
            return
        pause.wait(0.1)
    raise AssertionError("it did not come")
