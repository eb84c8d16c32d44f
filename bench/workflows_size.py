"""Workflows as what is stored grows: the cost of a run, the memory of a server, and the time from a kill to service.

Runs of one task each are started in a folder until there are so many, all open, each with a queued task of the same
definition. At each power of ten a hundred runs of *another* definition go from RunWf over claim and report to their
end, in the processor alone, and their time is measured. Then a server serves the folder, is killed with SIGKILL, and
begun anew; the time counts from the kill to the first reply to a RunWf.

    python bench/workflows_size.py            1,000,000 runs
    python bench/workflows_size.py --quick    100,000 runs
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import psutil
from littlehorse.model import (
    PutTaskDefRequest,
    ReportTaskRun,
    RunWfRequest,
    ScheduledTask,
    TaskRunId,
    TaskStatus,
    service_pb2_grpc,
)
from littlehorse.workflow import Workflow, WorkflowThread

import millpond
from _results import Run
from millpond.clock import SystemClock
from millpond.kernel.space import Space
from millpond.workflows.engine import Request, TaskClaim
from millpond.workflows.processor import Partition
from millpond.workflows.processor.batch import Batch, RecentRows
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.store import initialize

BATCH = 250
PROBES = 100
RESTARTS = 5


def one_task(name: str) -> Workflow:
    def thread(wf: WorkflowThread) -> None:
        wf.execute(f"task-{name}")

    return Workflow(name, thread)


class Store:
    """The rows of workflows in a space, changed by commands without a server."""

    def __init__(self, space: Space) -> None:
        self.space, self.clock, self.recent = space, SystemClock(), RecentRows()
        self.partition = Partition(space.write(lambda tx: initialize(tx, self.clock.now_ms())))

    def do(self, requests: Iterable[Request]) -> list[Any]:
        """The replies of some requests, applied in one write."""
        commands = [LoggedCommand("default", uuid.uuid4().hex, request) for request in requests]

        def write(tx: Any) -> list[Any]:
            batch = Batch(tx, self.recent)
            ends = self.partition.apply(batch, commands, self.clock.now_ms())
            batch.end()
            for end in ends:
                assert end.error is None, end.error
            return [end.reply for end in ends]

        return self.space.write(write)

    def define(self, name: str) -> None:
        self.do([PutTaskDefRequest(name=f"task-{name}")])
        self.do([one_task(name).compile()])

    def start(self, name: str, runs: int) -> list[Any]:
        return self.do(RunWfRequest(wf_spec_name=name, id=uuid.uuid4().hex) for _ in range(runs))

    def probe(self) -> float:
        """Milliseconds of processor time of a run from its start to its end."""
        began = time.process_time()
        for _ in range(PROBES):
            (run,) = self.start("probe", 1)
            task = TaskRunId(wf_run_id=run.id, task_guid="0-1")
            (claimed,) = self.do([TaskClaim(task, "bench")])
            assert isinstance(claimed, ScheduledTask)
            self.do([ReportTaskRun(task_run_id=task, status=TaskStatus.TASK_SUCCESS, attempt_number=0)])
        return 1000 * (time.process_time() - began) / PROBES


def fill(run: Run, folder: Path, runs: int) -> None:
    with millpond.open(folder) as pond:
        store = Store(pond.space)
        store.define("open")
        store.define("probe")
        store.probe()
        stored, size = 0, 1_000
        print("| open runs, a queued task each | processor time of a run of another definition |\n|---|---|")
        while size <= runs:
            while stored < size:
                store.start("open", BATCH)
                stored += BATCH
            milliseconds = store.probe()
            run.note("processor of a run", "Millpond", milliseconds / 1e3, size=f"{size:,} open runs")
            print(f"| {size:,} | {milliseconds:.2f} ms |", flush=True)
            size *= 10


def serve(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A server with its bytecode, as an installed one has it: to compile its modules takes half a second."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", "serve", "--data", str(folder), "--port", "0", "--json"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(json.loads(process.stdout.readline())["grpc_port"])


def start_run(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = service_pb2_grpc.LittleHorseStub(channel)  # type: ignore[no-untyped-call]
        stub.RunWf(RunWfRequest(wf_spec_name="open", id=uuid.uuid4().hex), wait_for_ready=True, timeout=60)


def restarts(run: Run, folder: Path) -> None:
    process, port = serve(folder)
    seconds = []
    try:
        for _ in range(RESTARTS):
            start_run(port)
            process.send_signal(signal.SIGKILL)
            began = time.perf_counter()
            process.wait()
            process, port = serve(folder)
            start_run(port)
            seconds.append(time.perf_counter() - began)
        resident = psutil.Process(process.pid).memory_full_info().uss >> 20
    finally:
        process.kill()
        process.wait()
    run.note("from SIGKILL to the first reply", "Millpond", seconds)
    run.note("memory of the server", "Millpond", resident << 20, unit="B")
    print(f"\nfrom SIGKILL to the first reply: {min(seconds):.1f} to {max(seconds):.1f} s")
    print(f"memory of its own of the server: {resident} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick, run = parser.parse_args().quick, Run("workflows_size")
    runs = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        fill(run, Path(folder) / "pond", runs)
        restarts(run, Path(folder) / "pond")
    run.write(whole=not quick, runs=runs)


if __name__ == "__main__":
    main()
