"""Pipelines: a step that does nothing, without a server and on a node; many small runs; a worker that is killed.

    python bench/pipelines.py [--quick] [--spark] [--dagster PYTHON]

Each step is durable: its result is a checkpoint, and its run goes on after a kill. `--dagster` is the Python of an
environment with `pip install dagster`, whose in-process executor stores the events of its runs in SQLite. `--spark`
measures the second step of Spark after a first one, with the worker's session.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millpond
from _results import OURS, Run
from millpond.cli.workflows.server import connected
from millpond.pipelines.embedded import EmbeddedRuns, embedded
from millpond.pipelines.programs import pipelines_of, read_program

FIVE = """
from millpond.pipelines import pipeline, python, spark


def first():
    return 1


def more(value):
    return value + 1


def counted(session):
    return session.range(10).count()


def slow():
    import pathlib
    import time

    if not pathlib.Path("once").exists():
        pathlib.Path("once").touch()
        time.sleep(600)
    return 1


@pipeline
def five():
    value = python(first)
    for number in range(4):
        value = python(more, value.value, name=f"more{number}")


@pipeline
def sparks():
    rows = spark(counted, name="one")
    spark(counted, name="two", needs=[rows])


@pipeline
def lost():
    python(slow)
"""
STEPS = 6
"""The steps of a run of five: the first of all finds its parameters."""
WAY = f"{OURS}, without a server"
NODE = f"{OURS}, on a node"


@contextmanager
def engine(folder: Path) -> Iterator[EmbeddedRuns]:
    place = str(folder / "pond")
    with millpond.open(place, create=True) as pond, embedded(pond, place, lambda _: None) as runs:
        program = read_program(folder / "five.py")
        for declared in pipelines_of(program).values():
            runs.define(declared, program)
        yield runs


def embedded_runs(folder: Path, runs: int) -> float:
    """The seconds of some runs of five steps, begun at once."""
    with engine(folder) as own:
        own.begin("five", "warm", {})
        own.work(lambda: not own.is_over("warm"))
        began = time.perf_counter()
        names = [f"r-{number}" for number in range(runs)]
        for name in names:
            own.begin("five", name, {})
        open_runs = set(names)

        def goes_on() -> bool:
            for name in [name for name in list(open_runs)[:20] if own.is_over(name)]:
                open_runs.discard(name)
            return bool(open_runs)

        own.work(goes_on)
        return time.perf_counter() - began


def alone(folder: Path, runs: int) -> list[float]:
    """The seconds of a step, in runs of five one after another."""
    found = []
    with engine(folder) as own:
        for number in range(runs):
            name = f"alone-{number}"
            began = time.perf_counter()
            own.begin("five", name, {})
            own.work(lambda name=name: not own.is_over(name))
            found.append((time.perf_counter() - began) / STEPS)
    return found[1:]


def sparks(folder: Path) -> float:
    """The seconds of a second step of Spark in a run."""
    ends: list[float] = []
    place = str(folder / "pond")
    with (
        millpond.open(place, create=True) as pond,
        embedded(pond, place, lambda _: ends.append(time.perf_counter())) as own,
    ):
        program = read_program(folder / "five.py")
        own.define(pipelines_of(program)["sparks"], program)
        own.begin("sparks", "sparks-1", {})
        own.work(lambda: not own.is_over("sparks-1"))
    return ends[-1] - ends[-2]


# -- on a node ----------------------------------------------------------------------------------------


@contextmanager
def node(folder: Path) -> Iterator[tuple[Any, Callable[[], subprocess.Popen[bytes]], str]]:
    """Calls of a node that serves a new pond, a function that begins a worker, and the node's address."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = int(bound.getsockname()[1])
    log = (folder / "log.txt").open("ab")
    served = subprocess.Popen(
        [sys.executable, "-m", "millpond", "serve", "--data", str(folder / "served"), "--port", str(port), "--json"],
        stdout=subprocess.PIPE, stderr=log, cwd=folder,
    )  # fmt: skip
    assert served.stdout is not None
    address = f"127.0.0.1:{json.loads(served.stdout.readline())['grpc_port']}"
    workers: list[subprocess.Popen[bytes]] = []

    def worker() -> subprocess.Popen[bytes]:
        words = ["worker", "millpond.pipelines", "--pond", f"http://127.0.0.1:{port}", "--server", address]
        workers.append(subprocess.Popen([sys.executable, "-m", "millpond", *words], stderr=log, cwd=folder))
        return workers[-1]

    try:
        for name in ("five", "lost"):
            words = ["pipeline", "deploy", str(folder / "five.py"), "--pipeline", name, "--server", address]
            subprocess.run([sys.executable, "-m", "millpond", *words], check=True, stdout=log, stderr=log)
        with connected(address, "default") as call:
            yield call, worker, address
    finally:
        for process in [*workers, served]:
            process.send_signal(signal.SIGKILL)
            process.wait()
        log.close()


def begin(call: Any, pipeline: str, name: str) -> None:
    from littlehorse.model import RunWfRequest

    call("RunWf", RunWfRequest(wf_spec_name=pipeline, id=name))


def wait_for(call: Any, name: str) -> None:
    from littlehorse.model import LHStatus, WfRunId

    while (status := call("GetWfRun", WfRunId(id=name)).status) == LHStatus.RUNNING:
        time.sleep(0.002)
    assert status == LHStatus.COMPLETED, LHStatus.Name(status)


def on_node(folder: Path, runs: int) -> tuple[list[float], float]:
    """The seconds of a step on a node, and those until a step goes on whose worker was killed."""
    with node(folder) as (call, worker, _):
        process = worker()
        begin(call, "five", "warm")
        wait_for(call, "warm")
        found = []
        for number in range(runs):
            began = time.perf_counter()
            begin(call, "five", f"n-{number}")
            wait_for(call, f"n-{number}")
            found.append((time.perf_counter() - began) / STEPS)
        begin(call, "lost", "lost-1")
        while not (folder / "once").exists():
            time.sleep(0.01)
        other = worker()  # it is there before the first one is killed: its start does not count
        begin(call, "five", "beside")
        wait_for(call, "beside")
        assert other.poll() is None
        process.kill()
        began = time.perf_counter()
        wait_for(call, "lost-1")
        return found, time.perf_counter() - began


def dagster(python: str, runs: int) -> tuple[float, str]:
    """The seconds of the same runs by Dagster, and its version."""
    script = Path(__file__).with_name("_dagster.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, str(script), str(runs)], check=True, capture_output=True, env=environment)
    result = json.loads(done.stdout.splitlines()[-1])
    return float(result["seconds"]), str(result["version"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--dagster", metavar="PYTHON", default="")
    arguments = parser.parse_args()
    run, runs, single = Run("pipelines"), 100 if arguments.quick else 1_000, 10 if arguments.quick else 50
    rivals: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "five.py").write_text(FIVE)
        os.chdir(folder)
        run.note("a step that does nothing", WAY, alone(folder, single))
        seconds = embedded_runs(folder, runs)
        run.note("runs of five steps", WAY, 5 * runs / seconds, unit="/s")
        print(f"| without a server | {5 * runs / seconds:.0f} steps/s |", flush=True)
        steps, gone = on_node(folder, single)
        run.note("a step that does nothing", NODE, steps)
        run.note("a killed worker's step goes on", NODE, gone)
        print(f"| on a node | {1000 * sorted(steps)[len(steps) // 2]:.1f} ms a step | {gone:.1f} s after a kill |")
        if arguments.spark:
            run.note("a second step of Spark", WAY, sparks(folder))
        if arguments.dagster:
            few = max(10, runs // 10)
            theirs, rivals["Dagster"] = dagster(arguments.dagster, few)
            run.note("runs of five steps", "Dagster", 5 * few / theirs, unit="/s")
            print(f"| Dagster | {5 * few / theirs:.0f} steps/s | ours {runs / seconds / (few / theirs):.1f} × |")
    run.write(rivals, whole=bool(arguments.dagster and arguments.spark) and not arguments.quick, runs=runs)


if __name__ == "__main__":
    main()
