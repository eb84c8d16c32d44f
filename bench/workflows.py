"""Runs of one task, end to end, with the unmodified `littlehorse-client` as caller and as worker.

* **throughput**: runs are posted as fast as `--in-flight` allows; the rate counts from the first RunWf to the last run
  seen COMPLETED by its worker's report, with 1 and with 10 workers in one process of their own;
* **one in flight**: RunWf sent → the run read as COMPLETED, polled without pause.

    python bench/workflows.py                            starts `millpond serve` on an empty folder, and ends it
    python bench/workflows.py --quick                    fewer runs
    python bench/workflows.py --bucket                   a node on a bucket of a local S3 server, beside its bare puts;
                                                         then the requests of a run, of an engine in this process
    python bench/workflows.py --port 2024 --pid 4711     any server of this API that runs
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import littlehorse
import numpy as np
import psutil
from littlehorse.config import LHConfig
from littlehorse.model import (
    LHStatus,
    ReportTaskRun,
    RunWfRequest,
    ScheduledTask,
    TaskStatus,
    WfRunId,
)
from littlehorse.worker import LHTaskWorker
from littlehorse.workflow import Workflow, WorkflowThread

import millpond
from _results import Run, counted
from millpond.clock import SystemClock
from millpond.pipelines.engine import open_engine
from millpond.pipelines.runs import Calls
from millpond.stores.objects import open_objects
from millpond.workflows.processor import Applied
from millpond.workflows.tasks.queues import Worker
from tests.harness.buckets.requests import counted_requests
from tests.s3_server import start_server

IN_FLIGHT = 64


async def greet(name: str) -> str:
    return f"hello {name}"


def one_task(wf: WorkflowThread) -> None:
    wf.execute("greet", wf.declare_str("name").required())


def config(port: int, worker: str = "") -> LHConfig:
    """The client's configuration for a server of this machine."""
    found = LHConfig()
    found.load({"LHC_API_HOST": "127.0.0.1", "LHC_API_PORT": str(port), "LHW_TASK_WORKER_ID": worker or "bench"})
    return found


async def work(port: int, workers: int) -> None:
    """Be so many workers, each with a connection of its own, until the process ends."""
    await littlehorse.start(*(LHTaskWorker(greet, "greet", config(port, f"worker-{n}")) for n in range(workers)))


async def completed(stub: Any, run: str) -> None:
    """Wait until a run is COMPLETED, by reading it again and again."""
    while (await stub.GetWfRun(WfRunId(id=run))).status != LHStatus.COMPLETED:
        await asyncio.sleep(0)


async def start_run(stub: Any) -> str:
    variables = {"name": littlehorse.to_variable_value("you")}
    run = uuid.uuid4().hex
    await stub.RunWf(RunWfRequest(wf_spec_name="one-task", id=run, variables=variables))
    return run


async def throughput(stub: Any, runs: int, pid: int | None = None) -> tuple[float, float]:
    """Runs a second, with so many in flight that no worker is idle; milliseconds of the server's processor for each."""
    posted: list[str] = []
    room = asyncio.Semaphore(IN_FLIGHT)

    async def post() -> None:
        async with room:
            posted.append(await start_run(stub))

    began, spent = time.perf_counter(), cpu(pid)
    await asyncio.gather(*(post() for _ in range(runs)))
    # Tasks are handed out in order, so those posted last end last; the rest is checked all the same.
    for run in reversed(posted):
        while (await stub.GetWfRun(WfRunId(id=run))).status != LHStatus.COMPLETED:
            await asyncio.sleep(0.01)
        if run is posted[-IN_FLIGHT if len(posted) > IN_FLIGHT else 0]:
            seconds, spent = time.perf_counter() - began, cpu(pid) - spent
    return runs / seconds, 1000 * spent / runs


async def latencies(stub: Any, runs: int) -> np.ndarray[Any, Any]:
    """Milliseconds from RunWf to COMPLETED, one run at a time."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        await completed(stub, await start_run(stub))
        found.append(1000 * (time.perf_counter() - began))
    return np.array(found)


def cpu(pid: int | None) -> float:
    """Seconds of processor time of the server so far."""
    if pid is None:
        return float("nan")
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def measure(run: Run, port: int, pid: int | None, runs: int, single: int) -> None:
    littlehorse.create_task_def(greet, "greet", config(port))
    littlehorse.create_workflow_spec(Workflow("one-task", one_task), config(port))
    stub = config(port).stub(async_channel=True)
    print("| workers | runs/s | server CPU per run | one in flight p50 / p99 |\n|---|---|---|---|")
    for workers in (1, 10):
        process = subprocess.Popen([sys.executable, __file__, "--port", str(port), "--work", str(workers)],
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            await asyncio.sleep(3)  # until the workers poll
            await throughput(stub, runs // 5)
            rate, per_run = await throughput(stub, runs, pid)
            p50, p99 = np.percentile(await latencies(stub, single), [50, 99])
            run.note(counted(workers, "worker"), "Millpond", rate, unit="/s")
            run.note(f"{counted(workers, 'worker')}, processor of a run", "Millpond", per_run / 1e3)
            run.note(f"{counted(workers, 'worker')}, one in flight", "Millpond", p50 / 1e3)
            run.note(f"{counted(workers, 'worker')}, one in flight, 99 %", "Millpond", p99 / 1e3)
            print(f"| {workers} | {rate:.0f} | {per_run:.2f} ms | {p50:.1f} / {p99:.1f} ms |", flush=True)
        finally:
            process.kill()
            process.wait()
    if pid is not None:
        run.note("resident memory of the server", "Millpond", psutil.Process(pid).memory_info().rss, unit="B")
        print(f"\nresident: {psutil.Process(pid).memory_info().rss >> 20} MB")


@contextmanager
def own_server(place: str = "") -> Iterator[tuple[int, int]]:
    """The gRPC port and the process of a server on an empty folder, or a bucket."""
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, "-m", "millpond", "serve", "--data", place or f"{folder}/pond", "--port", "0", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | {"MILLPOND_CLIENT_CACHE": folder},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            yield int(json.loads(server.stdout.readline())["grpc_port"]), server.pid
        finally:
            server.terminate()
            server.wait()


def on_bucket(run: Run, runs: int, single: int) -> None:
    """A node on a bucket; then an engine in this process, whose requests are counted."""
    with ExitStack() as stack:
        server = start_server(stack)
        os.environ.update(server.environment)
        url = server.make_bucket("runs")
        objects = open_objects(f"{url}/bare")
        bare = statistics.median(timed(lambda n=n: objects.swap(f"{n}", bytes(2_000), None)) for n in range(200))  # type: ignore[misc]
        print(f"bare PUT of 2,000 bytes, p50: {1000 * bare:.1f} ms\n")
        with own_server(f"{url}/node") as (port, pid):
            asyncio.run(measure(run, port, pid, runs, single))
        with tempfile.TemporaryDirectory() as cache, millpond.open(f"{url}/engine", cache=cache) as pond:
            for runs_at_once in (1, 10, 64):
                count_requests(pond, runs_at_once, single)


def timed(act: Callable[[], object]) -> float:
    """The seconds that an act takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def count_requests(pond: Any, at_once: int, runs: int) -> None:
    """Runs of one task, so many at a time, by an engine in this process that carries its tasks out at once."""
    ended = queue.Queue[ScheduledTask]()

    def passed_on(ends: Sequence[Applied]) -> None:
        for end in ends:
            if end.worker is not None:
                ended.put(end.reply)  # type: ignore[arg-type]

    clock = SystemClock()
    engine = open_engine(pond, clock, passed_on)
    send = cast("LHConfig", Calls(lambda _, request: engine.submit("default", request).result()))
    littlehorse.create_task_def(greet, "greet", send)
    littlehorse.create_workflow_spec(Workflow("one-task", one_task), send)
    inputs = {"name": littlehorse.to_variable_value("you")}

    def work(count: int) -> None:
        for _ in range(count):
            run = RunWfRequest(wf_spec_name="one-task", id=uuid.uuid4().hex, variables=inputs)
            engine.submit("default", run).result()
            engine.workers.wait(Worker(("default", "greet"), "bench"))
            task = ended.get()
            report = ReportTaskRun(task_run_id=task.task_run_id, attempt_number=0, status=TaskStatus.TASK_SUCCESS)
            report.output.CopyFrom(littlehorse.to_variable_value("hello"))
            engine.submit("default", report).result()

    threads = [threading.Thread(target=work, args=(runs // at_once,)) for _ in range(at_once)]
    with counted_requests() as counts:
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    engine.stop()
    done = at_once * (runs // at_once)
    requests = ", ".join(f"{count / done:.2f} {verb}" for verb, count in sorted(counts.items()))
    took = 1000 * seconds * at_once / done
    print(f"{at_once} at a time: {done / seconds:.0f} runs/s, {took:.1f} ms a run, {requests} a run", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, help="the gRPC port of a server that runs")
    options.add_argument("--pid", type=int)
    options.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--bucket", action="store_true")
    given = options.parse_args()
    run = Run("workflows")
    counts = (500, 200) if given.quick else (3000, 1000)
    if given.work:
        asyncio.run(work(given.port, given.work))
    elif given.bucket:
        on_bucket(run, *counts)
    elif given.port:
        asyncio.run(measure(run, given.port, given.pid, *counts))
        run.write(whole=False, runs=counts[0])
    else:
        with own_server() as (port, pid):
            asyncio.run(measure(run, port, pid, *counts))
        run.write(whole=not given.quick, runs=counts[0])


if __name__ == "__main__":
    main()
