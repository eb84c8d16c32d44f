"""`millpond runs`, `millpond run` and `millpond worker`, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from littlehorse.workflow import Workflow, WorkflowThread
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.clock import SystemClock
from millpond.errors import Unavailable, Uncertain
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.workflows.conftest import SECONDS
from tests.workflows.test_client import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workflows.conftest import WorkflowServer

TASKS = """
async def greet(name: str) -> str:
    if name == "nobody":
        raise ValueError("there is nobody")
    return f"hello {name}"
"""


def greeting(wf: WorkflowThread) -> None:
    name = wf.declare_str("name").required()
    wf.declare_int("count", 1)
    answer = wf.declare_str("answer")
    answer.assign(wf.execute("greet", name))
    wf.wait_for_event("ready")


@pytest.fixture
def working(workflow_server: WorkflowServer, tmp_path: Path) -> Iterator[WorkflowServer]:
    """A server with a worker that the command runs, and a workflow."""
    (tmp_path / "tasks.py").write_text(TASKS)
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "millpond", "worker", "tasks", "--server", address(workflow_server)], cwd=tmp_path,
            stdout=log, stderr=log, env=workflow_server.environment(),
        )  # fmt: skip
        try:
            wait_for(lambda: "working on greet" in (tmp_path / "worker.log").read_text())
            with workflow_server.stub() as stub:
                from littlehorse.model import PutExternalEventDefRequest

                stub.PutExternalEventDef(PutExternalEventDefRequest(name="ready"), timeout=SECONDS)
                stub.PutWfSpec(Workflow("greeting", greeting).compile(), timeout=SECONDS)
            yield workflow_server
        finally:
            worker.kill()
            worker.wait()


def address(server: WorkflowServer) -> str:
    return f"127.0.0.1:{server.grpc_port}"


def shell(server: WorkflowServer, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--server", address(server)], prog_name="millpond")
    assert done.exit_code == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def status(server: WorkflowServer, run: str) -> str:
    found: dict[str, Any] = json.loads(shell(server, "run", "show", run, "--json"))
    return str(found["run"]["status"])


def test_a_run_from_the_terminal(working: WorkflowServer) -> None:
    assert shell(working, "run", "start", "greeting", "--input", "name=anna", "--id", "one") == "started one\n"
    wait_for(lambda: "hello anna" in shell(working, "run", "show", "one"))
    tree = shell(working, "run", "show", "one")
    assert "attempt 0 success" in tree
    assert 'answer = "hello anna"' in tree
    assert "count = 1" in tree
    shell(working, "run", "stop", "one")
    assert status(working, "one") == "HALTED"
    assert shell(working, "run", "resume", "one") == "resumed one\n"
    assert status(working, "one") == "RUNNING"
    shell(working, "run", "start", "greeting", "--input", "name=nobody", "--input", "count=3", "--id", "two")
    wait_for(lambda: status(working, "two") in ("ERROR", "EXCEPTION"))
    tree = shell(working, "run", "show", "two")
    assert "ValueError: there is nobody" in tree and "Traceback" not in tree
    assert "Traceback" in shell(working, "run", "show", "two", "--json")
    listed = [json.loads(line) for line in shell(working, "runs", "--workflow", "greeting", "--json").splitlines()]
    assert [run["id"]["id"] for run in (listed[0] if isinstance(listed[0], list) else listed)] == ["two", "one"]
    assert "one" in shell(working, "runs", "--status", "running")
    assert json.loads(shell(working, "run", "delete", "one", "--json")) == {"deleted": "one"}
    for words in ("show", "delete"):
        assert "no run has this id (run=one)" in shell(working, "run", words, "one", code=3)
    for words in (("runs", "--workflow", "nope"), ("run", "start", "nope")):
        error = shell(working, *words, code=3)
        assert "no workflow has this name (workflow=nope)" in error and "one of: greeting" in error
    assert "one of" not in shell(working, "runs", "--workflow", "greeting", "--status", "HALTED")
    error = shell(working, "run", "start", "greeting", "--input", "nam=x", code=5)
    assert "no variable nam is declared" in error and "its inputs are: name (required), count, answer" in error
    words = shell(working, "run", "start", "greeting", "--input", "name=x", "--input", "count=many", code=5)
    assert "count" in words
    assert "NAME=VALUE" in shell(working, "run", "start", "greeting", "--input", "name", code=5)


@pytest.mark.full
def test_a_worker_is_back_soon_after_its_server_restarts(working: WorkflowServer) -> None:
    working.end()
    working.start()
    clock = SystemClock()
    began = clock.monotonic()
    shell(working, "run", "start", "greeting", "--input", "name=anna", "--id", "after")
    wait_for(lambda: "hello anna" in shell(working, "run", "show", "after"))
    assert clock.monotonic() - began < 8


def test_a_change_whose_answer_is_lost_is_uncertain(workflow_server: WorkflowServer) -> None:
    """Any other error of a server out of reach means that nothing was done."""
    with workflow_server.stub() as stub:
        stub.PutWfSpec(Workflow("empty", lambda _wf: None).compile(), timeout=SECONDS)
    with FaultyProxy(workflow_server.grpc_port) as proxy:
        for method, words, error in (  # a change, and a question
            ("RunWf", ("start", "empty", "--id", "lost"), "the node's answer was lost"),
            ("GetWfRun", ("show", "lost"), "the server cannot be reached"),
        ):
            cut = proxy.trouble(Trouble("cut", match=f"LittleHorse/{method}".encode(), down=True))
            server = f"127.0.0.1:{proxy.port}"
            done = CliRunner().invoke(app, ["run", *words, "--server", server], prog_name="millpond")
            assert cut.struck.is_set() and error in done.stderr, done.stderr
            assert (done.exit_code == Uncertain.exit_code) == (method != "GetWfRun")


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    del tmp_path
    done = CliRunner().invoke(app, ["runs", "--server", "127.0.0.1:1"], prog_name="millpond")
    assert "the server cannot be reached" in done.stderr
    assert done.exit_code not in (0, 1)
    assert "HOST" in CliRunner().invoke(app, ["runs", "--help"], prog_name="millpond").stdout
    assert os.environ.get("MILLPOND_WORKFLOWS") is None


def test_a_server_without_workflows_says_what_to_install() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = CliRunner().invoke(app, ["runs", "--server", f"127.0.0.1:{port}"], prog_name="millpond")
    finally:
        server.stop(None)
    assert done.exit_code == Unavailable.exit_code
    assert "the server serves no workflows" in done.stderr and "install 'millpond[workflows]'" in done.stderr
