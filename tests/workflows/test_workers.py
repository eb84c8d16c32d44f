"""`millpond worker` told to stop, killed, and with attempts that nobody wants any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from littlehorse.model import (
    DeleteWfRunRequest,
    LHStatus,
    ListTaskRunsRequest,
    ResumeWfRunRequest,
    RunWfRequest,
    StopWfRunRequest,
    TaskStatus,
    VariableValue,
    WfRunId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.clock import SystemClock
from millpond.pipelines import demand
from millpond.pipelines.demand import Demand, demand_for
from tests.rings.forked import Command
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for

CLOCK = SystemClock()
STOP_SECONDS = 2.0
TASKS = """
import asyncio
from pathlib import Path
from threading import Event


async def work(name: str, seconds: float) -> str:
    if name == "long":
        threads = asyncio.gather(asyncio.to_thread(Event().wait))  # one that never ends
    Path(f"{name}.began").touch()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        Path(f"{name}.cancelled").touch()
        raise
    return name
"""


def working(wf: WorkflowThread) -> None:
    name, seconds = wf.declare_str("name").required(), wf.declare_double("seconds").required()
    wf.execute("work", name, seconds, retries=0, timeout_seconds=600)


class Site:
    """A server, and a folder in which workers work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, WorkflowServer(folder / "pond")
        (folder / "work_tasks.py").write_text(TASKS)

    def worker(self, *words: str) -> Command:
        log = self.folder / "worker.log"
        with log.open("w") as output:
            process = Command(
                ["worker", "work_tasks", *words, "--server", f"127.0.0.1:{self.server.grpc_port}"],
                stderr=output, env=self.server.environment(), cwd=self.folder,
            )  # fmt: skip
        process.stdout.close()  # all that it says is in the log
        wait_for(lambda: "working on" in log.read_text())
        return process

    def run(self, name: str, seconds: float) -> None:
        variables = {"name": VariableValue(str=name), "seconds": VariableValue(double=seconds)}
        with self.server.stub() as stub:
            stub.RunWf(RunWfRequest(wf_spec_name="working", id=name, variables=variables), timeout=SECONDS)

    def delete(self, run: str) -> None:
        with self.server.stub() as stub:
            stub.DeleteWfRun(DeleteWfRunRequest(id=WfRunId(id=run)), timeout=SECONDS)

    def attempts(self, run: str) -> list[Any]:
        with self.server.stub() as stub:
            (task,) = stub.ListTaskRuns(ListTaskRunsRequest(wf_run_id=WfRunId(id=run)), timeout=SECONDS).results
        return list(task.attempts)

    def there(self, name: str) -> bool:
        return (self.folder / name).exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    made.server.start()
    first = made.worker()
    with made.server.stub() as stub:
        stub.PutWfSpec(Workflow("working", working).compile(), timeout=SECONDS)
    first.send_signal(signal.SIGTERM)
    first.wait(SECONDS)
    yield made
    made.server.end()


def seconds_until(condition: Any) -> float:
    began = CLOCK.monotonic()
    wait_for(condition)
    return CLOCK.monotonic() - began


@pytest.mark.sample(1, of="workers that die")
def test_a_worker_that_is_killed_is_noticed_though_the_timeout_is_long(site: Site) -> None:
    worker = site.worker()
    site.run("killed", 100)
    wait_for(lambda: site.there("killed.began"))
    worker.kill()
    worker.wait()
    assert seconds_until(lambda: len(site.attempts("killed")) == 2) <= 10.5
    (lost, _) = site.attempts("killed")
    assert lost.status == TaskStatus.TASK_TIMEOUT
    assert "its worker is gone" in lost.error.message
    site.delete("killed")  # no worker after this one shall have its next attempt


@pytest.mark.sample(1, of="workers that die")
def test_an_attempt_of_a_worker_that_dies_with_its_server_is_noticed_too(site: Site) -> None:
    worker = site.worker()
    site.run("both", 100)
    wait_for(lambda: site.there("both.began"))
    worker.kill()
    site.server.end(signal.SIGKILL)
    worker.wait()
    site.server.start()
    other = site.worker("--end", "0")
    try:
        assert seconds_until(lambda: len(site.attempts("both")) == 2) <= 12
    finally:
        other.send_signal(signal.SIGTERM)
        other.wait(SECONDS)
    site.delete("both")


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_that_is_told_to_stop_is_gone_at_once(site: Site, number: signal.Signals) -> None:
    worker = site.worker()
    worker.send_signal(number)
    began = CLOCK.monotonic()
    assert worker.wait(SECONDS) == 0
    assert CLOCK.monotonic() - began <= STOP_SECONDS * (1 if (os.getloadavg()[0] < 4) else 3)


def test_a_worker_that_is_told_to_stop_ends_what_it_has_and_begins_nothing(site: Site) -> None:
    worker = site.worker()
    site.run("last", 3)
    wait_for(lambda: site.there("last.began"))
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in (site.folder / "worker.log").read_text())
    site.run("later", 0)
    assert worker.wait(SECONDS) == 0
    (done,) = site.attempts("last")
    assert done.status == TaskStatus.TASK_SUCCESS
    (queued,) = site.attempts("later")
    assert queued.status == TaskStatus.TASK_SCHEDULED and not site.there("later.began")


def test_what_does_not_end_in_time_is_handed_back(site: Site) -> None:
    worker = site.worker("--end", "1")
    site.run("long", 100)
    wait_for(lambda: site.there("long.began"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SECONDS) == 0
    assert site.there("long.cancelled")
    handed_back, following = site.attempts("long")
    assert handed_back.status == TaskStatus.TASK_TIMEOUT and "told to stop" in handed_back.error.message
    assert following.status == TaskStatus.TASK_SCHEDULED, "it costs no retry"
    site.delete("long")  # else the next worker has it, and takes its time to end


def test_an_attempt_of_a_run_that_is_stopped_or_deleted_is_cancelled(site: Site) -> None:
    worker = site.worker()
    try:
        for name in ("stopped", "deleted"):
            site.run(name, 100)
            wait_for(lambda name=name: site.there(f"{name}.began"))
        with site.server.stub() as stub:
            stub.StopWfRun(StopWfRunRequest(wf_run_id=WfRunId(id="stopped")), timeout=SECONDS)
        site.delete("deleted")
        for name in ("stopped", "deleted"):
            assert seconds_until(lambda name=name: site.there(f"{name}.cancelled")) <= 5
        with site.server.stub() as stub:
            run = WfRunId(id="stopped")
            wait_for(lambda: stub.GetWfRun(run, timeout=SECONDS).status == LHStatus.HALTED)
            (site.folder / "stopped.began").unlink()
            stub.ResumeWfRun(ResumeWfRunRequest(wf_run_id=run), timeout=SECONDS)
            wait_for(lambda: site.there("stopped.began"))
        assert [own.status for own in site.attempts("stopped")] == [TaskStatus.TASK_TIMEOUT, TaskStatus.TASK_RUNNING]
        site.delete("stopped")
    finally:
        worker.kill()
        worker.wait()


def test_the_server_says_if_an_attempt_without_a_worker_is_wanted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LHC_API_HOST", "127.0.0.1")
    monkeypatch.setenv("LHC_API_PORT", str(site.server.grpc_port))
    demand._stub.cache_clear()
    worker = site.worker()
    site.run("watched", 600)
    wait_for(lambda: site.there("watched.began"))
    with site.server.stub() as stub:
        run = WfRunId(id="watched")
        (task,) = stub.ListTaskRuns(ListTaskRunsRequest(wf_run_id=run), timeout=SECONDS).results
        watched = {"run": "watched", "task": task.id.task_guid, "thread": 0, "attempt": 0}
        assert demand_for(watched) == Demand.YES
        assert demand_for({**watched, "attempt": -1}) == Demand.ELSEWHERE
        stub.StopWfRun(StopWfRunRequest(wf_run_id=run), timeout=SECONDS)
        assert demand_for(watched) == Demand.NO
    site.delete("watched")
    assert demand_for(watched) == Demand.NO
    worker.send_signal(signal.SIGTERM)
    worker.wait(SECONDS)
    monkeypatch.setenv("LHC_API_PORT", "1")
    demand._stub.cache_clear()
    assert demand_for(watched) == Demand.UNKNOWN
