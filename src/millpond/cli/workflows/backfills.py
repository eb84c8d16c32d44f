"""`millpond pipeline backfill`: a run of a pipeline for each partition of time, in this process or on a node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, Master, PondLocation, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.pipelines import Which, declared_of, leaving
from millpond.cli.workflows.runs import pairs_in
from millpond.cli.workflows.server import ServerBeside, Tenant, connected, opened_here, server_beside
from millpond.cli.workflows.spark_location import DeployMode, Shared, name_spark
from millpond.client.location import FolderLocation, NodesLocation, parse_location
from millpond.errors import Invalid
from millpond.workflows.backfill import Backfill, NodeRuns, Runs, check_parameter, partitions
from millpond.workflows.deferred import pipeline_starts

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.pipelines.runs import RunsHere
    from millpond.pond import Pond

__all__ = ("backfill",)

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _OfProcess:
    """The runs of a pipeline whose steps this process carries out."""

    runs: RunsHere
    pipeline: str

    def status(self, run: str) -> str:
        return self.runs.status(run)

    def begin(self, run: str, parameters: Mapping[str, str]) -> None:
        self.runs.begin(self.pipeline, run, parameters)


@verb(
    "pipeline backfill",
    "millpond pipeline backfill nightly --from 2026-01-01 --to 2026-03-31 --every day",
    "millpond pipeline backfill nightly.py --from 2026-01-01 --to 2026-01-31 --parallel 4 --pond pond",
    "millpond pipeline backfill nightly.py --from 2026-01-01 --to 2026-01-31 --pond http://localhost:7433",
    "millpond pipeline backfill nightly --from 2026-01-01 --to 2026-01-31 --branch fix --pond http://localhost:7433",
)
def backfill(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A pipeline of a node, or a file (.py), whose steps this process does."),
    ],
    first: Annotated[str, typer.Option("--from", metavar="TIME", help="The first partition.")],
    last: Annotated[str, typer.Option("--to", metavar="TIME", help="The last partition.")],
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="More parameters of each run.", show_default=False)
    ] = None,
    every: Annotated[str, typer.Option("--every", metavar="STEP", help="hour, day, week or month.")] = "day",
    parameter: Annotated[
        str, typer.Option("--parameter", metavar="NAME", help="The parameter that is the partition.")
    ] = "day",
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=1_000, help="So many runs at a time.")] = 1,
    failed: Annotated[bool, typer.Option("--failed", help="Begin another run where the last one failed.")] = False,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            metavar="NAME",
            show_default=False,
            help="Run on this branch of maps instead of main; made when missing, of the pond of --pond.",
        ),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge/--leave", help="Merge the branch when all is done.")] = True,
    which: Which = None,
    pond: PondLocation = "pond",
    master: Master = None,
    deploy_mode: DeployMode = "client",
    shared: Shared = None,
    server: ServerBeside = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Run a pipeline for each partition of time that has not had its run; a report of what is done, failed and left.

    Runs have ids of their pipeline and parameters, as `pipeline run` gives them: the same command again goes on.
    """
    texts, parameters = partitions(first, last, every), pairs_in(inputs or [])
    if branch is not None:
        parameters[pipeline_starts.BRANCH] = branch

    def of(runs: Runs, pipeline: str, names: Sequence[str]) -> Backfill:
        check_parameter(pipeline, parameter, names)
        return Backfill(runs, pipeline, parameter, texts, parameters, parallel, begins_failed=failed, tell=console.tell)

    if name.endswith(".py"):
        if server is not None:
            raise Invalid("the runs of a file are of the pond that is named", kind="pipeline_place", file=name,
                          server=server, hint="name the node by --pond http://HOST:7433")  # fmt: skip
        name_spark(master, deploy_mode, shared)
        report, merged = _in_process(name, which, pond, of, branch, merge=merge)
    else:
        server = server_beside(server, pond)
        report, merged = _on_node(name, server, tenant, of, pond, branch, merge=merge)
    at = f"--pond {pond}" if name.endswith(".py") else f"--server {server}"
    _report(report, branch, merged, at, json=json)


def _in_process(
    file: str, which: str | None, location: str, of: Callable[[Runs, str, Sequence[str]], Backfill],
    branch: str | None, *, merge: bool,
) -> tuple[Backfill, str]:  # fmt: skip
    program, declared = declared_of(file, which)
    plan = declared.plan
    with _opened(location, branch) as (opened, runs), leaving():
        own = of(_OfProcess(runs, plan.name), plan.name, [parameter.name for parameter in plan.parameters])
        runs.check(declared, own.inputs_of(own.partitions[0]))
        runs.define(declared, program)
        return own, _on_branch(opened, branch, own, lambda: runs.work(own.advance), merge=merge)


@contextmanager
def _opened(location: str, branch: str | None) -> Iterator[tuple[Any, RunsHere]]:
    """A pond, of a node only where its branch is wanted, and its runs whose steps this process carries out."""
    if isinstance(parse_location(location), NodesLocation):
        from millpond.cli.workflows.on_node import on_node

        of_branch = nullcontext() if branch is None else existing_pond(location)
        with of_branch as opened, on_node(location, _tell_failures) as on:
            yield opened, on
        return
    from millpond.pipelines.embedded import embedded

    with opened_here(location) as opened, embedded(opened, location, _tell_failures) as runs:
        yield opened, runs


def _on_branch(
    pond: Pond | RemotePond, branch: str | None, own: Backfill, work: Callable[[], None], *, merge: bool
) -> str:  # fmt: skip
    """Work on a backfill, on its branch if it has one; a text when that is merged."""
    from millpond.pipelines.branches import whole_branch

    if branch is None:
        work()
        return ""
    whole_branch(pond, branch, merged=False)
    work()
    if not merge or own.left() or own.failed:
        return ""
    return whole_branch(pond, branch, merged=True) or "before"


_QUIET = (": done, ", ": skipped, ", ": begins", ": done after ")
"""The words about a step that does not fail."""


def _tell_failures(line: str) -> None:
    if not any(words in line for words in _QUIET):
        console.tell(line)


def _on_node(
    name: str, server: str, tenant: str, of: Callable[[Runs, str, Sequence[str]], Backfill], location: str,
    branch: str | None, *, merge: bool,
) -> tuple[Backfill, str]:  # fmt: skip
    from millpond.cli.workflows.deployed import parameters_of

    with ExitStack() as stack:
        call = stack.enter_context(connected(server, tenant))
        own = of(NodeRuns(call, name), name, parameters_of(call, name))
        pond: Any = None if branch is None else stack.enter_context(existing_pond(_url(location, branch)))
        return own, _on_branch(pond, branch, own, lambda: _until_done(own), merge=merge)


def _until_done(own: Backfill) -> None:
    while own.advance():
        threading.Event().wait(_LOOK_SECONDS)


def _url(location: str, branch: str) -> str:
    """The address of the pond whose branch it is.

    Raises: `Invalid` for a folder, such as the default, which need not be that of the node.
    """
    if isinstance(parse_location(location), FolderLocation):
        raise Invalid("the branch of runs on a node is one of its pond", kind="pipeline_place", branch=branch,
                      pond=location, hint="name the node: --pond http://HOST:7433")  # fmt: skip
    return location


def _report(own: Backfill, branch: str | None, merged: str, at: str, *, json: bool) -> None:
    if json:
        of_branch = {} if branch is None else {"branch": branch, "merged": merged}
        ends = {"done": own.done, "failed": own.failed, "stopped": own.stopped}
        of_ends = {name: dict(sorted(runs.items())) for name, runs in ends.items()}
        report = {"pipeline": own.pipeline, **of_ends, "left": own.left(), **of_branch}
        console.print_json(report)
    else:
        for partition, run in own.failed.items():
            console.say(f"failed {partition}: millpond run logs {run} {at}")
        for partition, run in own.stopped.items():
            resume = f"pipeline run FILE {own.parameter}={partition} … --id" if "--pond" in at else "run resume"
            console.say(f"stopped {partition}: millpond {resume} {run} {at}")
        console.say(f"{own.pipeline}: {len(own.done)} done, {len(own.failed)} failed, {len(own.left())} left")
        if branch is not None:
            stays = f"the branch {branch} stays: millpond diff pond/main...{branch}"
            console.say(f"merged {branch} into main" if merged else stays)
    if own.failed or own.stopped:
        raise typer.Exit(1)
