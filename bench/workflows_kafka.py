"""Workflows on a real broker of Kafka: runs of one task end to end, and the hand-over of a killed process's partitions.

* **end to end**: as `bench/workflows.py`, with one process of Millpond on a topic of its own;
* **hand-over**: three processes, of which one is killed. The time counts from the kill until every partition has
  answered a RunWf, called at one that lives: with the killed one away, and begun anew at once.

    make kafka && PYTHONPATH=. python bench/workflows_kafka.py [--quick] [--only end-to-end|hand-over]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import littlehorse
from bench.workflows import measure
from littlehorse.config import LHConfig
from littlehorse.model import RunWfRequest
from littlehorse.workflow import Workflow, WorkflowThread

from _results import Run
from millpond.workflows.partitions import partition_of_key
from tests.workflows.shared_servers import shared_servers

if TYPE_CHECKING:
    from tests.workflows.shared_servers import SharedServer

PARTITIONS = 5
PATIENCE_SECONDS = 60.0


def nothing(wf: WorkflowThread) -> None:
    wf.declare_str("unused")


def answered(stub: Any, partition: int) -> float | None:
    """Seconds that a RunWf on a partition took; None when it failed."""
    run = uuid.uuid4().hex
    while partition_of_key("default", run, PARTITIONS) != partition:
        run = uuid.uuid4().hex
    began = time.perf_counter()
    try:
        stub.RunWf(RunWfRequest(wf_spec_name="nothing", id=run), timeout=PATIENCE_SECONDS)
    except grpc.RpcError:
        return None
    return time.perf_counter() - began


def until_all_answer(server: SharedServer) -> float:
    """Seconds until each partition has answered a call at a process."""
    began = time.perf_counter()

    def until_answer(partition: int) -> None:
        while time.perf_counter() < began + PATIENCE_SECONDS and answered(stub, partition) is None:
            time.sleep(0.05)

    with server.stub() as stub:
        threads = [threading.Thread(target=until_answer, args=(number,)) for number in range(1, PARTITIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return time.perf_counter() - began


def hand_over(run: Run, folder: Path, rounds: int) -> None:
    with shared_servers(folder, 3) as servers:
        found = LHConfig()
        found.load({"LHC_API_HOST": "127.0.0.1", "LHC_API_PORT": str(servers[0].grpc_port)})
        littlehorse.create_workflow_spec(Workflow("nothing", nothing), found)
        until_all_answer(servers[0])
        time.sleep(5)  # until the group has shared out the partitions
        away: list[float] = []
        anew: list[float] = []
        print("| hand-over | all partitions answer after |\n|---|---|")
        for number in range(rounds):
            victim = servers[1 + number % 2]
            victim.end(signal.SIGKILL)
            away.append(until_all_answer(servers[0]))
            print(f"| killed, and away | {away[-1]:.1f} s |", flush=True)
            victim.start()
            time.sleep(8)
            victim.end(signal.SIGKILL)
            began = time.perf_counter()
            victim.start()
            up = time.perf_counter() - began
            seconds = up + until_all_answer(servers[0])
            anew.append(seconds)
            print(f"| killed, and begun anew at once | {seconds:.1f} s, of which it starts {up:.1f} s |", flush=True)
            time.sleep(8)
        run.note("hand-over: killed, and away", "Millpond", away)
        run.note("hand-over: killed, and begun anew", "Millpond", anew)


def end_to_end(run: Run, folder: Path, quick: bool) -> None:
    with shared_servers(folder, 1) as servers:
        process = servers[0].process
        assert process is not None
        asyncio.run(measure(run, servers[0].grpc_port, process.pid, *((500, 200) if quick else (3000, 1000))))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--only", choices=("end-to-end", "hand-over"))
    given, run = options.parse_args(), Run("workflows_kafka")
    if given.only != "hand-over":
        with tempfile.TemporaryDirectory() as folder:
            end_to_end(run, Path(folder), given.quick)
    if given.only != "end-to-end":
        with tempfile.TemporaryDirectory() as folder:
            hand_over(run, Path(folder), 1 if given.quick else 3)
    run.write(whole=not (given.quick or given.only))


if __name__ == "__main__":
    main()
