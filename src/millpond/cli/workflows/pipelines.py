"""`millpond pipeline`: files of pipelines are shown, run in this process, and deployed to a node."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, Master, PondLocation, existing_pond
from millpond.cli.terminal import console, exits
from millpond.cli.verbs import verb
from millpond.cli.workflows.runs import pairs_in
from millpond.cli.workflows.server import ServerBeside, Tenant, connected, node_of, opened_here, server_beside
from millpond.cli.workflows.spark_location import DeployMode, Shared, name_spark
from millpond.client.location import NodesLocation, parse_location
from millpond.errors import Denied, Invalid, Unavailable
from millpond.json_forms import plain
from millpond.workflows.backfill import newest_run, run_name
from millpond.workflows.deferred import pipeline_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.pipelines.declare import Declared
    from millpond.pipelines.plan import Plan
    from millpond.pipelines.programs import Program
    from millpond.pipelines.runs import RunsHere

__all__ = ("Which", "declared_of", "deploy", "leaving", "run", "show")

File = Annotated[str, typer.Argument(metavar="FILE", help="A file of Python with a pipeline.")]
Which = Annotated[
    str | None, typer.Option("--pipeline", metavar="NAME", help="The pipeline, where a file has several.")
]  # fmt: skip

PondLookedAt = Annotated[
    str | None,
    typer.Option("--pond", metavar="FOLDER|URL", show_default="not looked at",
                 help="The node, by its URL, or else the pond of the workers: it is to have the maps, columns and"
                 " branches of the steps."),
]  # fmt: skip


@verb(
    "pipeline show",
    "millpond pipeline show nightly.py",
    "millpond pipeline show nightly.py --pond pond",
    "millpond pipeline show nightly.py --svg nightly.svg",
)
def show(
    file: File,
    which: Which = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Draw the graph into this file.", show_default=False)
    ] = None,
    pond: PondLookedAt = None,
) -> console.Shown:  # fmt: skip
    """Check a pipeline, and show its plan: its parameters, its steps and what each takes. Nothing runs."""
    from millpond.pipelines.plan import drawn, drawn_svg, shown_plan

    _, declared = declared_of(file, which)
    if pond is not None:
        _check_pond(declared.plan, pond)
    if svg is not None:
        Path(svg).write_text(drawn_svg(declared.plan))
    return console.said(plain(shown_plan(declared.plan)), "\n".join(drawn(declared.plan)))


@verb(
    "pipeline run",
    "millpond pipeline run nightly.py day=2026-01-01 --pond pond",
    "millpond pipeline run nightly.py day=2026-01-01 --again",
    "millpond pipeline run nightly.py day=2026-01-01 --rescue",
    "millpond pipeline run nightly.py --follow",
    "millpond pipeline run nightly.py day=2026-01-01 --pond http://localhost:7433",
)
def run(
    file: File,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Parameters of the pipeline.", show_default=False)
    ] = None,
    which: Which = None,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the run.",
                                 show_default="made of the pipeline and its parameters")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Start another run, also when there was one.")] = False,
    rescue: Annotated[
        bool, typer.Option("--rescue", help="Let the step try again at which the run failed; what it did stays.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay, and run it by its schedule, or when its data come.")
    ] = False,
    pond: PondLocation = "pond",
    master: Master = None,
    deploy_mode: DeployMode = "client",
    shared: Shared = None,
) -> console.Shown | None:  # fmt: skip
    """Run a pipeline in this process. After a kill the same command goes on where it was.

    With the URL of a node as `--pond` the run is one of the node, and its steps are carried out here alone; what is
    deployed there stays as it is.

    The tables of its steps are in `pipeline-files`, or where `MILLPOND_PIPELINE_FILES` says.
    """
    name_spark(master, deploy_mode, shared)
    program, declared = declared_of(file, which)
    parameters = pairs_in(inputs or [])
    if follow:
        _follow(pond, program, declared, parameters)
        return None
    name = name or run_name(declared.plan.name, parameters)
    with _runs_of(pond) as runs, leaving():
        last, _, following = newest_run(name, runs.status)
        if again:
            name = following
        elif rescue:
            name = last
        elif runs.status(name) == "COMPLETED":
            console.tell(f"{name} has ended; --again starts another run")
        ended = runs.run(declared, program, parameters, name, rescues=rescue)
    return console.said(
        {"run": ended.run, "status": ended.status, "values": ended.values}, f"{ended.run}  {ended.status}"
    )


@contextmanager
def leaving() -> Iterator[None]:
    """Work that carries out steps: interrupted, the process ends at once, as the threads of steps may not."""
    try:
        yield
    except KeyboardInterrupt:
        console.tell("stopped; the same command goes on")
        exits.leave(exits.EXIT_INTERRUPTED)


@contextmanager
def _runs_of(location: str) -> Iterator[RunsHere]:
    if isinstance(parse_location(location), NodesLocation):
        from millpond.cli.workflows.on_node import on_node

        with on_node(location, console.tell) as runs:
            yield runs
        return
    from millpond.pipelines.embedded import embedded

    with opened_here(location) as opened, embedded(opened, location, console.tell) as runs:
        yield runs


def _follow(location: str, program: Program, declared: Declared, parameters: dict[str, str]) -> None:
    from millpond.pipelines.embedded import embedded

    if isinstance(parse_location(location), NodesLocation):
        raise Invalid("it is the node that follows what begins the runs of its pipelines", kind="pipeline_place",
                      pond=location, hint="millpond pipeline deploy FILE --pond URL")  # fmt: skip
    if parameters:
        raise Invalid("a run that begins by itself has the defaults of its parameters", kind="pipeline_value",
                      parameter=next(iter(parameters)), hint="leave it out, or run without --follow")  # fmt: skip
    with opened_here(location) as opened, embedded(opened, location, console.tell) as runs, leaving():
        runs.follow(declared, program)


@verb(
    "pipeline deploy",
    "millpond pipeline deploy nightly.py --pond http://node-1:7433",
    "millpond pipeline deploy nightly.py --server node-1:7434",
)
def deploy(
    file: File,
    which: Which = None,
    pond: Annotated[
        str | None,
        typer.Option("--pond", metavar="FOLDER|URL", show_default="that of the server",
                     help="The node, by its URL, or else the pond of the workers: it is to have the maps, columns and"
                     " branches of the steps."),
    ] = None,
    server: ServerBeside = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:  # fmt: skip
    """Give a pipeline to a node: its text, its task, and its schedule, which starts its runs; a pause stays.

    Runs that are open end with the text with which they began. `millpond worker millpond.pipelines` works for it.
    """
    import littlehorse

    from millpond.cli.workflows.deployed import check_free, count_open, deployed_cron, put_cron
    from millpond.pipelines.compiled import compiled
    from millpond.pipelines.plan import cron_words
    from millpond.pipelines.tasks import step

    program, declared = declared_of(file, which)
    plan = declared.plan
    cron = plan.cron()
    with connected(server_beside(server, pond), tenant) as call:
        _check_pond(plan, pond, call)
        check_free(call, plan.name)
        littlehorse.create_task_def(step, pipeline_starts.STEP, _config(call))
        spec = call("PutWfSpec", compiled(plan, program).compile())
        before = deployed_cron(call, plan.name)
        paused = before is not None and before.paused
        after = None if cron is None else cron.switched(paused=paused)
        if before is None or after != replace(
            before, last="", after=""
        ):  # the same one goes on, with what it waits for
            put_cron(call, plan.name, after)
        still = count_open(call, plan.name)
    version = f"{spec.id.major_version}.{spec.id.revision}"
    if json:
        console.print_json({"pipeline": plan.name, "version": version, "schedule": plan.schedule, "when": plan.when,
                            "time_zone": plan.time_zone, "paused": paused, "open_runs": still})  # fmt: skip
        return
    at = f", starts {'at ' * (not after.on)}{cron_words(after)}" if after else ""
    ends = f"; {still} open runs end with the version they began with" if still else ""
    console.say(f"deployed {plan.name} {version}{at}{ends}")


def _check_pond(plan: Plan, location: str | None, call: Any = None) -> None:
    """Refuse a plan that the pond of its workers, or else of the node that `call` reaches, makes fail; or tell that it
    was not looked at.

    Raises: as `existing_pond` and `check_pond`.
    """
    from millpond.pipelines.pond_check import check_pond

    served = location or node_of(call)
    if served is None:
        console.tell(f"{plan.name} was not held against the maps of a pond: --pond names that of its workers")
        return
    try:
        with existing_pond(served) as opened:
            check_pond(opened, plan)
    except (Denied, Unavailable) as error:
        if location is not None and isinstance(error, Unavailable):
            raise
        console.tell(f"the maps of the pond were not looked at: {error}")


def declared_of(file: str, which: str | None) -> tuple[Program, Declared]:
    """A program, and the pipeline of it that is meant.

    Raises: `Invalid` when it has several and none is named; as `pipelines_of`.
    """
    from millpond.pipelines.programs import pipelines_of, read_program

    program = read_program(file)
    pipelines = pipelines_of(program)
    if which is None and len(pipelines) == 1:
        which = next(iter(pipelines))
    if which not in pipelines:
        raise Invalid("which pipeline is meant", kind="pipeline_program", file=file, pipeline=which,
                      hint=f"--pipeline, one of: {', '.join(pipelines)}")  # fmt: skip
    return program, pipelines[which]


def _config(call: Any) -> Any:
    """The client's configuration whose calls are made by `call`."""
    from millpond.pipelines.runs import Calls

    return Calls(lambda method, request: call(method, request))
