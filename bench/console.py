"""First pages of the console over a pond that holds much: their time on loopback, and their size.

The pond is filled by the cheapest real means: maps by the catalogue, branches in one write, runs by commands of the
engine in large writes, streams by appends of many at once. Then `millpond serve` serves it, and pages are asked for in
turn, again and again. The goal is 300 ms and 250 kB: a page that misses it is marked. The first request of a page,
which compiles its template, is not counted.

    python bench/console.py            1,000 maps, 10,000 branches, 1,000,000 runs, 1,000,000 streams
    python bench/console.py --quick    as many maps and branches, 100,000 runs and streams
    python bench/console.py --quick --folder FOLDER    filled there; what an earlier one left is used again
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import urllib3
from littlehorse.model import PutTaskDefRequest, RunWfRequest, ScheduleWfRequest
from littlehorse.workflow import Workflow, WorkflowThread

import millpond
from _results import Run
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.maps.loads.load import load_job_set
from millpond.pond import Pond
from millpond.versions.repository import new_branch
from millpond.versions.staging.branches import BranchRecord
from workflows_size import Store

MAPS, BRANCHES = 1_000, 10_000
WORKFLOWS = 200
BATCH = 1_000
ROUNDS = 7
SECONDS_MAX, BYTES_MAX = 0.3, 250_000
PAGES = {
    "overview": "/", "maps": "/console/maps", "a map": "/console/maps/map_0500", "repositories": "/console/versions",
    "a repository": "/console/versions/flights", "streams": "/console/events",
    "streams of a queue": "/console/events?queue=queue-7", "runs": "/console/runs",
    "runs of a workflow": "/console/runs?workflow=flow-007", "failed runs": "/console/runs?status=ERROR",
    "workflows": "/console/workflows", "a workflow": "/console/workflows/workflow?name=flow-007",
    "tasks": "/console/workflows/tasks", "start a run": "/console/runs/start", "jobs": "/console/jobs",
    "find a map": "/console/find?q=map_0500/x", "find nothing": "/console/find?q=nothing",
}  # fmt: skip


def flow(name: str) -> Workflow:
    def thread(wf: WorkflowThread) -> None:
        count = wf.declare_int("count")
        with_count = count.is_greater_than(3)
        wf.do_if(with_count, lambda body: body.fail("too-many", "too many"))

    return Workflow(name, thread)


def fill_maps(pond: Pond) -> None:
    """Maps, each with a load that its stream reports, and branches of a repository."""
    now_ms = int(time.time() * 1000)
    for number in range(MAPS):
        pond.create_map(f"map_{number:04}", kind="state", value="double", store="layers")
    headers = {"rows": "1000", "rejected": "0", "position": "1"}
    streams = (StreamName(OWN_QUEUE, load_job_set([f"map_{number:04}"])) for number in range(MAPS))
    pond.events.append_batches(
        [EventBatch(stream, [NewEvent(now_ms, b"", "succeeded", headers)]) for stream in streams]
    )
    pond.map("map_0500").load([{"key": "x", "value": 1.0}])
    repository = pond.repositories.create("flights")
    main = repository.branch("main")
    main.put("a.csv", b"a")
    head = main.commit("first").id

    def put_branches(tx: object) -> None:
        for number in range(BRANCHES):
            new_branch(tx, repository.site.uid, f"branch-{number:05}", BranchRecord(head, uuid.uuid4().hex))  # type: ignore[arg-type]

    repository.site.space.write(put_branches)


def fill_streams(pond: Pond, streams: int) -> None:
    now_ms = int(time.time() * 1000)
    for start in range(0, streams, BATCH):
        pond.events.append_batches([
            EventBatch(StreamName(f"queue-{number % 100}", f"set-{number}"), [NewEvent(now_ms, b"{}", "submitted")])
            for number in range(start, min(start + BATCH, streams))
        ])  # fmt: skip


def fill_runs(pond: Pond, runs: int) -> None:
    store = Store(pond.space)
    names = [f"flow-{number:03}" for number in range(WORKFLOWS)]
    for name in names:
        store.do([PutTaskDefRequest(name=f"task-{name}")])
        store.do([flow(name).compile()])
        store.do([ScheduleWfRequest(id=name, wf_spec_name=name, cron_expression="0 3 1 1 *")])
    for start in range(0, runs, BATCH):
        numbers = range(start, min(start + BATCH, runs))
        store.do(RunWfRequest(wf_spec_name=names[number % WORKFLOWS], id=uuid.uuid4().hex) for number in numbers)


def filled(folder: Path, things: int) -> None:
    """Fill a folder, unless that was done."""
    if (folder / "filled").exists():
        return
    steps: dict[str, Callable[[Pond], object]] = {
        "maps and branches": fill_maps, "streams": lambda pond: fill_streams(pond, things),
        "runs": lambda pond: fill_runs(pond, things),
    }  # fmt: skip
    with millpond.open(folder / "pond") as pond:
        for name, step in steps.items():
            began = time.perf_counter()
            step(pond)
            print(f"filled in {time.perf_counter() - began:.0f} s: {name}", flush=True)
    (folder / "filled").touch()


def measured(run: Run, folder: Path) -> None:
    """Ask for each page, and print a table."""
    command = [sys.executable, "-m", "millpond", "serve", "--data", str(folder / "pond"), "--port", "0", "--json"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        began = json.loads(process.stdout.readline())
        pool = urllib3.PoolManager(headers={"Accept": "text/html"})
        print("| page | the middle of seven | the slowest | size |\n|---|---|---|---|")
        for page, path in PAGES.items():
            seconds = []
            for _ in range(ROUNDS + 1):
                began_at = time.perf_counter()
                answer = pool.request("GET", began["url"] + path, redirect=False)
                seconds.append(time.perf_counter() - began_at)
                assert answer.status in (200, 303, 404), (path, answer.status, answer.data[:300])
            del seconds[0]
            run.note(f"page of {page}", "Millpond", seconds)
            run.note(f"page of {page}", "Millpond", len(answer.data), unit="B", size="bytes")
            missed = statistics.median(seconds) > SECONDS_MAX or len(answer.data) > BYTES_MAX
            middle, most = 1e3 * statistics.median(seconds), 1e3 * max(seconds)
            print(
                f"| {page} | {middle:.0f} ms{' MISSED' * missed} | {most:.0f} ms | {len(answer.data) / 1e3:.0f} kB |",
                flush=True,
            )
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    options, run = parser.parse_args(), Run("console")
    things = 100_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(exist_ok=True)
        filled(folder, things)
        measured(run, folder)
    run.write(whole=not options.quick, maps=MAPS, branches=BRANCHES, runs=things, streams=things)


if __name__ == "__main__":
    main()
