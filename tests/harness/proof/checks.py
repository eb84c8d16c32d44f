"""A run that has ended, held against the model: each check yields a sentence for what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from millpond.json_forms import parse_object
from millpond.maps.model.definition import COLUMNS
from tests.harness.proof.model import FlightsModel, Rows

if TYPE_CHECKING:
    from millpond.client.map import RemoteMap
    from millpond.client.pond import RemotePond
    from millpond.clock import Clock
    from millpond.demo.workflow import FlightsPipeline

__all__ = ("STEPS", "SUCCESS", "EndedRun", "problems")

STEPS = ("load", "load", "load", "check", "load", "load", "load", "load", "check", "enrich", "notify")
STORY_SECONDS = 60.0
"""The time within which the server tells that a run has ended, also when it was killed just before."""
SUCCESS = 2
"""The client's number of a task that was successful."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run: its id, its pipeline, the name of its status, and its task runs as the client gives them."""

    id: str
    pipeline: FlightsPipeline
    status: str
    tasks: tuple[Any, ...]

    def outputs(self, step: str) -> list[Mapping[str, Any]]:
        """The outputs of the steps of one kind, in order."""
        found = [task for task in self.tasks if task.task_def_id.name == step]
        return [parse_object(task.attempts[-1].output.json_obj) for task in found]


def problems(run: EndedRun, pond: RemotePond, model: FlightsModel, clock: Clock) -> Iterator[str]:
    """All that is wrong with a run; nothing when it ended right."""
    if run.status != "COMPLETED":
        yield f"it is {run.status}"
        return
    yield from _of_tasks(run)
    yield from _of_loads(run, pond)
    yield from _of_maps(run, pond, model)
    yield from _of_flights(run, model)
    yield from _of_events(run, pond)
    yield from _of_story(run, pond, clock)


def _of_tasks(run: EndedRun) -> Iterator[str]:
    steps = tuple(task.task_def_id.name for task in run.tasks)
    if steps != STEPS:
        yield f"its tasks are {steps}"
    for task in run.tasks:
        done = [attempt.status for attempt in task.attempts].count(SUCCESS)
        if done != 1:
            yield f"task {task.id.task_guid} was successful {done} times"


def _of_loads(run: EndedRun, pond: RemotePond) -> Iterator[str]:
    """Each step is one load of its map, under the step's key."""
    expected = [output["load"] for output in run.outputs("load")]
    names = [planned.name for planned in run.pipeline.maps]
    entered: dict[str, list[str]] = {name: [] for name in names}
    after, page = 0, pond.log.entries(0)
    while page:
        for entry in page:
            after = entry.position
            for name in entered.keys() & set(entry.maps) if entry.kind == "load" else ():
                entered[name].append(str(entry.body["load"]))
        page = pond.log.entries(after)
    for name, load in zip(names, expected, strict=True):
        if entered[name] != [load]:
            yield f"the loads of {name} are {entered[name]}, and the step's is {load}"


def _of_maps(run: EndedRun, pond: RemotePond, model: FlightsModel) -> Iterator[str]:
    for name, expected in model.maps.items():
        found = _rows(pond.map(run.pipeline.name_of(name)))
        if found != expected:
            wrong = [
                address for address in found.keys() | expected.keys() if found.get(address) != expected.get(address)
            ]
            yield f"map {name} has {len(found)} rows of {len(expected)}; wrong at {sorted(map(str, wrong))[:3]}"


def _rows(pond_map: RemoteMap) -> Rows:
    address = COLUMNS[pond_map.kind]
    found: Rows = {}
    for row in pond_map.scan().read_all().to_pylist():
        values = [value for name, value in row.items() if name not in address]
        value = values[0] if len(values) == 1 else tuple(values) or None
        found[tuple(row[name] for name in address)] = tuple(value.values()) if isinstance(value, dict) else value
    return found


def _of_flights(run: EndedRun, model: FlightsModel) -> Iterator[str]:
    """The enrichment was published once, and is right."""
    folders = [path for path in run.pipeline.out.iterdir() if path.name.startswith(f"{run.id}_")]
    (output,) = run.outputs("enrich")
    if [str(path) for path in folders] != [output["path"]]:
        yield f"the flights lie in {[path.name for path in folders]}, and the step's is {Path(output['path']).name}"
        return
    found = Counter(
        (row["carrier"], row["flight"], row["time_hour"], row["airline"], (row["weather"] or {}).get("temp"))
        for row in parquet.read_table(output["path"]).to_pylist()
    )
    airlines = model.maps["airlines"]
    expected = Counter(
        (row["carrier"], int(row["flight"]), row["time_hour"], airlines.get((row["carrier"],)),
         model.temperature(row["origin"], row["time_hour"]))
        for row in model.flights
    )  # fmt: skip
    if found != expected:
        yield f"{found.total()} flights of {expected.total()}, {(found - expected).total()} of them wrong"


def _of_events(run: EndedRun, pond: RemotePond) -> Iterator[str]:
    """The story is complete and in order: one step after another, each done once and last; the notice came once."""
    story = [event for event in pond.events.read("default", run.id) if "step" in event.headers]
    jobs: dict[str, list[tuple[str, int]]] = {}
    for event in story:
        jobs.setdefault(event.headers["job_id"], []).append((event.kind, int(event.headers["attempt"])))
    steps = tuple(next(event.headers["step"] for event in story if event.headers["job_id"] == job) for job in jobs)
    if steps != STEPS:
        yield f"the story tells of {steps}"
    if [job for job, _ in groupby(event.headers["job_id"] for event in story)] != list(jobs):
        yield "the stories of steps are mixed"
    for job, events in jobs.items():
        kinds = [kind for kind, _ in events]
        if kinds.count("succeeded") != 1 or kinds[-1] != "succeeded":
            yield f"the story of {job} is {events}"
        begun = [attempt for kind, attempt in events if kind == "running"]
        if begun != sorted(set(begun)):
            yield f"attempts of {job} began in the order {begun}"
    notices = [
        event for event in pond.events.read("flights", "demo") if event.headers["job_id"].startswith(f"{run.id}_")
    ]
    if len(notices) != 1:
        yield f"{len(notices)} notices came"


def _of_story(run: EndedRun, pond: RemotePond, clock: Clock) -> Iterator[str]:
    """The story that the server tells is what the rows say: each attempt queued, begun and ended, once and in order."""
    story: list[tuple[str, str, str]] = []
    until = clock.monotonic() + STORY_SECONDS
    with pond.events.watch("default", run.id) as watch:
        while (run.id, "succeeded", "") not in story and clock.monotonic() < until:
            events = [event for event in watch.next_batch(until) if "step" not in event.headers]
            story += [(event.headers["job_id"], event.kind, event.headers.get("attempt", "")) for event in events]
    if [event for event in story if event[0] == run.id] != [(run.id, "running", ""), (run.id, "succeeded", "")]:
        yield f"the server tells of the run {[event for event in story if event[0] == run.id]}"
    elif (story[0][0], story[-1][0]) != (run.id, run.id):
        yield f"the story begins with {story[0]} and ends with {story[-1]}"
    for task in run.tasks:
        ends = ["succeeded" if attempt.status == SUCCESS else "failed" for attempt in task.attempts]
        wanted = [(kind, str(at)) for at, end in enumerate(ends) for kind in ("queued", "running", end)]
        found = [(kind, at) for job, kind, at in story if job == task.id.task_guid]
        if found != wanted:
            yield f"the server tells of task {task.id.task_guid} {found}, and its rows say {wanted}"
