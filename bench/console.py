"""First pages of the console over a pond that holds much: their time on loopback, and their size.

The pond is filled by the cheapest real means: maps by the catalogue, branches in one write, streams by appends of
many at once. Of each workflow the engine makes a run that ends well and one that fails; all others are the rows of
those, with another id and time, a second apart, one in a hundred failed, and every other one of the same workflow. One
workflow has as many schedules as there are branches; maps have as many, of which some differ, and one job set has
many events. Then `millpond serve` serves it, and pages are asked for in turn, again and again, searches for runs with
their second page. The goal is 300 ms and 250 kB, the time of the node's processor: a
page that misses it is marked. The first request of a page, which compiles its template, is not counted.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil
import urllib3
from littlehorse.model import (
    NodeRun,
    PutTaskDefRequest,
    RunWfRequest,
    ScheduleWfRequest,
    Variable,
    VariableValue,
    WfRun,
)
from littlehorse.workflow import Workflow, WorkflowThread

import millpond
from _results import Run
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.kernel.keys import KeyRange, encode
from millpond.kernel.space import Transaction
from millpond.maps.loads.load import load_job_set
from millpond.pond import Pond
from millpond.stores.memory import MemorySpace
from millpond.versions.repository import Repository, new_branch
from millpond.versions.staging.branches import BranchRecord
from millpond.workflows.store.addresses import Kind, address_of
from millpond.workflows.store.initialization import initialization
from millpond.workflows.store.run_store import RunReads, RunStore
from workflows_size import Store

Rows: TypeAlias = list[tuple[bytes, bytes]]

MAPS, BRANCHES, DIFFERING = 1_000, 10_000, 40
WORKFLOWS, JOBS = 200, 25_000
BATCH = 1_000
YEARLY, SINCE = "0 3 1 1 *", "2020-01-01T00:00Z"
RUN, SECONDS = "f0" * 16, 1_767_225_600
_RUN = RUN.encode()
ROUNDS = 7
SECONDS_MAX, BYTES_MAX = 0.3, 250_000
PAGES = {
    "overview": "/", "maps": "/console/maps", "a map": "/console/maps/map_0500", "repositories": "/console/versions",
    "a repository": "/console/versions/flights", "streams": "/console/events",
    "streams of a queue": "/console/events?queue=queue-7",
    "a job set of 100,000 events": "/console/events/stream?queue=large&job_set=night", "runs": "/console/runs",
    "runs of a workflow": "/console/runs?workflow=flow-007", "failed runs": "/console/runs?status=EXCEPTION",
    "runs by a tag": "/console/runs?workflow=flow-007&tag=count%3D1",
    "runs by a tag that one has": "/console/runs?workflow=flow-007&tag=count%3D2",
    "failed runs by a tag": f"/console/runs?workflow=flow-007&tag=count%3D9&status=EXCEPTION&since={SINCE}",
    "failed runs by the tag of those that end well": "/console/runs?workflow=flow-007&tag=count%3D1&status=EXCEPTION",
    "runs by a tag that half a million have": f"/console/runs?workflow=flow-000&tag=count%3D1&since={SINCE}",
    "failed runs by that tag": "/console/runs?workflow=flow-000&tag=count%3D1&status=EXCEPTION",
    "SQL over nothing": "/console/sql?q=select+1",
    "SQL over refs": "/console/sql?q=select+count(*)+from+refs+where+repository%3D'flights'",
    "SQL over runs": "/console/sql?q=select+status,+count(*)+from+runs+where+workflow%3D'flow-007'+group+by+1",
    "workflows": "/console/workflows", "a workflow": "/console/workflows/workflow?name=flow-007",
    "a workflow with 10,000 schedules": "/console/workflows/workflow?name=flow-009",
    "tasks": "/console/workflows/tasks", "start a run": "/console/runs/start", "jobs": "/console/jobs",
    "find a map": "/console/find?q=map_0500/x", "find nothing": "/console/find?q=nothing",
}  # fmt: skip


def flow(name: str) -> Workflow:
    def thread(wf: WorkflowThread) -> None:
        count = wf.declare_int("count").searchable()
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
    main.commit("first")
    put_branches(repository)
    for number in range(DIFFERING):
        with pond.branch(f"a-{number}", source="main") as branch:
            branch.map(f"map_{number:04}").load([{"key": "x", "value": 2.0}], commit=number % 2 == 0)
    put_branches(pond.repository("pond"))


def put_branches(repository: Repository) -> None:
    """Make branches at the head of a repository's first branch."""
    head = repository.ref("main").head().id

    def put(tx: object) -> None:
        for number in range(BRANCHES):
            new_branch(tx, repository.context.uid, f"branch-{number:05}", BranchRecord(head, uuid.uuid4().hex))  # type: ignore[arg-type]

    repository.context.space.write(put)


def fill_streams(pond: Pond, streams: int) -> None:
    now_ms = int(time.time() * 1000)
    for start in range(0, streams, BATCH):
        pond.events.append_batches([
            EventBatch(StreamName(f"queue-{number % 100}", f"set-{number}"), [NewEvent(now_ms, b"{}", "submitted")])
            for number in range(start, min(start + BATCH, streams))
        ])  # fmt: skip


def fill_job_set(pond: Pond) -> None:
    kinds = ("submitted", "leased", "running", "succeeded")
    for start in range(0, JOBS, BATCH):
        events = [
            NewEvent(0, b"{}", kind, {"job_id": f"job-{number}"}) for number in range(start, start + BATCH)
            for kind in kinds
        ]  # fmt: skip
        pond.events.append("large", "night", events)


def fill_runs(pond: Pond, runs: int) -> None:
    store = Store(pond.space)
    names = [f"flow-{number:03}" for number in range(WORKFLOWS)]
    store.do(PutTaskDefRequest(name=f"task-{name}") for name in names)
    store.do(flow(name).compile() for name in names)
    store.do(ScheduleWfRequest(id=name, wf_spec_name=name, cron_expression=YEARLY) for name in names)
    for start in range(0, BRANCHES, BATCH):
        store.do(
            ScheduleWfRequest(id=f"schedule-{number}", wf_spec_name=names[9], cron_expression=YEARLY)
            for number in range(start, start + BATCH)
        )
    begun(store, names, 2)
    good, bad = ([rows_of(pond, run) for run in begun(store, names, count)] for count in (1, 9))
    began = int(time.time())
    for start in range(0, runs, 10 * BATCH):

        def put(tx: Transaction, start: int = start) -> None:
            for number in range(start, min(start + 10 * BATCH, runs)):
                failed = number % 100 == 0
                rows = bad[number // 100 % WORKFLOWS] if failed else good[number % WORKFLOWS * (number % 2)]
                put_again(tx, rows, began - (runs - number))

        pond.space.write(put)


def begun(store: Store, names: list[str], count: int) -> list[WfRun]:
    """A run of each workflow, which has ended."""
    inputs = {"count": VariableValue(int=count)}
    return store.do(RunWfRequest(wf_spec_name=name, variables=inputs, id=uuid.uuid4().hex) for name in names)


def rows_of(pond: Pond, run: WfRun) -> Rows:
    """The rows of a run, as they would be if it were `RUN`, begun and ended at `SECONDS`."""
    with pond.space.read() as tx:
        log = initialization(tx)
        assert log is not None
        reads, kinds = RunReads("default", log), (Kind.RUN, Kind.NODE_RUN, Kind.VARIABLE)
        objects = [row for kind in kinds for row in reads.objects(tx, (run.id.id,), kind)]
    for row in objects:
        match row:
            case WfRun():
                row.id.id = RUN
                row.start_time.FromSeconds(SECONDS)
                row.end_time.FromSeconds(SECONDS)
            case NodeRun():
                row.id.wf_run_id.id = RUN
            case Variable():
                row.id.wf_run_id.id = RUN
                row.created_at.FromSeconds(SECONDS)
    space, store = MemorySpace(), RunStore("default", log, lambda _: ("",))
    space.write(lambda tx: [store.replace(tx, address_of(row.id), row) for row in objects])
    with space.read() as tx:
        return list(tx.scan(KeyRange(b"\0", None)))


def put_again(tx: Transaction, rows: Rows, seconds: int) -> None:
    """Put the rows of a run once more, under another id of the same length, as begun at another second."""
    run, of_tag, of_row = uuid.uuid4().hex.encode(), encode((seconds * 1_000,)), varint(seconds)
    for key, value in rows:
        tx.put(
            key.replace(_RUN, run).replace(_OF_TAG, of_tag),
            value.replace(_RUN, run).replace(_OF_TAG, of_tag).replace(_OF_ROW, of_row),
        )


def varint(number: int) -> bytes:
    """A number as messages hold it: seven bits a byte, the lowest first."""
    return bytes([number >> shift & 127 | 128 * (number >> shift > 127) for shift in range(0, 35, 7)])


def filled(folder: Path, things: int) -> None:
    """Fill a folder, unless that was done."""
    if (folder / "filled").exists():
        return
    steps: dict[str, Callable[[Pond], object]] = {
        "maps and branches": fill_maps, "streams": lambda pond: fill_streams(pond, things),
        "a job set": fill_job_set, "runs": lambda pond: fill_runs(pond, things),
    }  # fmt: skip
    with millpond.open(folder / "pond") as pond:
        for name, step in steps.items():
            began = time.perf_counter()
            step(pond)
            print(f"filled in {time.perf_counter() - began:.0f} s: {name}", flush=True)
    (folder / "filled").touch()


def with_second(pool: urllib3.PoolManager, url: str) -> Iterator[tuple[str, str]]:
    """The pages, and of searches for runs the second one, where there is one."""
    for page, path in PAGES.items():
        yield page, path
        if path.startswith("/console/runs?"):
            data = pool.request("GET", url + path, headers={"Accept": "application/json"}).json()
            if data["next"]:
                yield f"{page}: the second page", data["next"]


def measured(run: Run, folder: Path) -> None:
    """Ask for each page, and print a table."""
    command = [sys.executable, "-m", "millpond", "serve", "--data", str(folder / "pond"), "--port", "0", "--json"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        began = json.loads(process.stdout.readline())
        pool = urllib3.PoolManager(headers={"Accept": "text/html"})
        node = psutil.Process(process.pid)
        print("| page | processor, the middle of seven | time that passed | size |\n|---|---|---|---|")
        for page, path in with_second(pool, began["url"]):
            seconds, passed = [], []
            for _ in range(ROUNDS + 1):
                began_at, worked = time.perf_counter(), sum(node.cpu_times()[:2])
                answer = pool.request("GET", began["url"] + path, redirect=False)
                passed.append(time.perf_counter() - began_at)
                seconds.append(sum(node.cpu_times()[:2]) - worked)
                assert answer.status in (200, 303, 404), (path, answer.status, answer.data[:300])
            del seconds[0], passed[0]
            run.note(f"page of {page}", "Millpond", seconds)
            run.note(f"page of {page}", "Millpond", len(answer.data), unit="B", size="bytes")
            missed = statistics.median(seconds) > SECONDS_MAX or len(answer.data) > BYTES_MAX
            middle, most = 1e3 * statistics.median(seconds), 1e3 * statistics.median(passed)
            print(
                f"| {page} | {middle:.0f} ms{' MISSED' * missed} | {most:.0f} ms | {len(answer.data) / 1e3:.0f} kB |",
                flush=True,
            )
    finally:
        process.terminate()
        process.wait()


_OF_TAG, _OF_ROW = encode((SECONDS * 1_000,)), varint(SECONDS)


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
