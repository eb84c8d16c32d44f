"""`millpond jobs`, `jobs run`, `jobs pause` and `jobs resume`: what nodes do by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from millpond.cli.options import Json, NodeLocation
from millpond.cli.terminal import console, exits
from millpond.cli.verbs import verb
from millpond.client.location import FolderLocation, parse_location
from millpond.errors import Invalid
from millpond.json_forms import plain

if TYPE_CHECKING:
    from millpond.client.transport import Connection, Nodes, Outcome

__all__ = ("jobs", "pause", "resume", "run")

_WAIT_SECONDS = 20.0

AllNodes = Annotated[bool, typer.Option("--all", help="Every node of the pond, not only this one.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `millpond jobs` prints it.")]


@verb("jobs", "millpond jobs", "millpond jobs --pond http://localhost:7433 --all", "millpond jobs --workers --json")
def jobs(
    context: typer.Context,
    purpose: Annotated[bool, typer.Option("--explain", help="Say what each job is for.")] = False,
    only_workers: Annotated[
        bool, typer.Option("--workers", help="Show its threads instead; also of a folder.")
    ] = False,
    everywhere: AllNodes = False,
    pond: NodeLocation = None,
    json: Json = False,
) -> None:
    """Show what a node does by itself: how often, how it went, and when next."""
    from millpond.settings import load_settings

    if context.invoked_subcommand is not None:
        return
    location = parse_location(pond or load_settings().own_url())
    outcomes: Sequence[Outcome[Any]] = ()
    if only_workers and isinstance(location, FolderLocation):
        answers = [_of_folder(location)]
    else:
        with _nodes(pond, everywhere) as nodes:
            outcomes = nodes.all(lambda node: node.request("GET", "/v1/jobs").json())
        answers = _answered(outcomes)
    if json:
        what = "workers" if only_workers else "jobs"
        console.print_json_list({"node": answer["node"]} | row for answer in answers for row in answer[what])
    for answer in () if json else answers:
        if len(outcomes) > 1:
            console.say(answer["node"])
        table = _workers(answer) if only_workers else _table(answer["jobs"], answer["clock_ms"], purpose)
        console.print_table(*table, whole=("job", "every", "worker", "state", "last", "next"))
    _raise_first(outcomes)


@verb("jobs run", "millpond jobs run condense", "millpond jobs run compact --all --no-wait")
def run(
    name: JobName,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    everywhere: AllNodes = False,
    pond: NodeLocation = None,
    json: Json = False,
) -> None:
    """Run a job now, also when it is paused. Ends with 1 when the run went wrong."""
    with _nodes(pond, everywhere) as nodes, console.working(f"running {name}", quiet=json):
        outcomes = nodes.all(lambda node: _run(node, name, wait=wait))
    failed = False
    for outcome in outcomes:
        if outcome.value is not None:
            last = outcome.value["last"] if wait else None
            failed = failed or (last is not None and last["error"] is not None)
            _tell(outcome.node, outcome.value, _ended(last) if last else "begun", as_json=json, named=len(outcomes) > 1)
    _raise_first(outcomes)
    if failed:
        raise typer.Exit(exits.EXIT_NO_ANSWER)


@verb("jobs pause", "millpond jobs pause retain", "millpond jobs pause compact --all --json")
def pause(name: JobName, everywhere: AllNodes = False, pond: NodeLocation = None, json: Json = False) -> None:
    """Do not run a job by itself any more, also after a restart of the node."""
    _switch(name, "pause", "paused; it still runs on request", pond, everywhere, as_json=json)


@verb("jobs resume", "millpond jobs resume retain", "millpond jobs resume compact --all")
def resume(name: JobName, everywhere: AllNodes = False, pond: NodeLocation = None, json: Json = False) -> None:
    """Run a paused job by itself again."""
    _switch(name, "resume", "runs by itself", pond, everywhere, as_json=json)


def _switch(name: str, act: str, deed: str, pond: str | None, everywhere: bool, *, as_json: bool) -> None:
    with _nodes(pond, everywhere) as nodes:
        outcomes = nodes.all(lambda node: node.request("POST", f"/v1/jobs/{name}/{act}", repeatable=True).json())
    for outcome in outcomes:
        if outcome.value is not None:
            _tell(outcome.node, outcome.value, deed, as_json=as_json, named=len(outcomes) > 1)
    _raise_first(outcomes)


# -- asking -------------------------------------------------------------------------------------------


@contextmanager
def _nodes(pond: str | None, everywhere: bool) -> Iterator[Nodes]:
    from millpond.client.transport import Nodes
    from millpond.settings import load_settings

    settings = load_settings()
    nodes = parse_location(pond or settings.own_url()).either(_no_jobs, lambda urls: Nodes(urls, settings))
    try:
        if everywhere:
            nodes.learn()
        yield nodes
    finally:
        nodes.close()


def _of_folder(location: FolderLocation) -> dict[str, Any]:
    """The answer of a folder: the threads of a process that has opened it, which is this one."""
    from millpond.kernel.worker import workers

    with location.open_existing() as pond:
        threads = [plain(worker) for worker in workers()]
        return {"node": str(pond.folder), "clock_ms": pond.clock.now_ms(), "jobs": [], "workers": threads}


def _no_jobs(folder: Path) -> NoReturn:
    raise Invalid(
        "jobs run on nodes, and this is a folder", kind="jobs_folder", pond=folder,
        hint="name the node that serves it: --pond http://localhost:7433",
    )  # fmt: skip


def _run(node: Connection, name: str, *, wait: bool) -> dict[str, Any]:
    seconds = _WAIT_SECONDS if wait else 0.0
    job: dict[str, Any] = node.request("POST", f"/v1/jobs/{name}/run", query={"wait": seconds}, repeatable=True).json()
    number = job["run"]
    while wait and job["runs"] < number:
        job = node.request("GET", f"/v1/jobs/{name}", query={"run": number, "wait": _WAIT_SECONDS}).json()
    return job


def _answered(outcomes: Sequence[Outcome[Any]]) -> list[Any]:
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def _raise_first(outcomes: Sequence[Outcome[Any]]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


# -- telling ------------------------------------------------------------------------------------------


def _tell(node: str, job: dict[str, Any], deed: str, *, as_json: bool, named: bool) -> None:
    said = f"{node}: {job['name']}: {deed}" if named else f"{job['name']}: {deed}"
    console.said({"node": node} | job, said).show(as_json=as_json)


def _ended(last: dict[str, Any]) -> str:
    error = f" · error: {last['error']}" if last["error"] else ""
    return f"{last['summary']} ({last['seconds']:.1f} s){error}"


def _table(jobs: Sequence[dict[str, Any]], now_ms: int, purpose: bool) -> tuple[list[str], list[list[str]]]:
    from millpond.settings import duration_in_words

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "job": lambda job: job["name"],
        "for": lambda job: job["purpose"],
        "every": lambda job: duration_in_words(job["interval_ms"]),
        "last": lambda job: _last(job, now_ms),
        "result": _result,
        "next": lambda job: _next(job, now_ms),
    }
    if not purpose:
        del columns["for"]
    return list(columns), [[cell(job) for cell in columns.values()] for job in jobs]


def _workers(answer: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    def ago(at_ms: int | None) -> str:
        return "" if at_ms is None else f"{console.human_span(answer['clock_ms'] - at_ms)} ago"

    rows = [
        [worker["name"], worker["state"], ago(worker["last_ms"]),
         f"{ago(worker['failed_ms'])}: {worker['failure']}" if worker["failure"] else ""]
        for worker in answer["workers"]
    ]  # fmt: skip
    return ["worker", "state", "last", "last failure"], rows


def _last(job: dict[str, Any], now_ms: int) -> str:
    last = job["last"]
    return "" if last is None else f"{console.human_span(now_ms - last['began_ms'])} ago"


def _result(job: dict[str, Any]) -> str:
    last = job["last"]
    if last is None:
        return ""
    return f"{last['summary']} · error: {last['error']}" if last["error"] else str(last["summary"])


def _next(job: dict[str, Any], now_ms: int) -> str:
    if job["running_since_ms"] is not None:
        return f"runs, {console.human_span(now_ms - job['running_since_ms'])}"
    if job["paused"]:
        return "paused"
    if job["next_ms"] is None:
        return "on request"
    return f"in {console.human_span(job['next_ms'] - now_ms)}"
