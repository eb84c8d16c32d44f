"""Pipelines of a node: they are listed, and their schedules switched off and on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import RUNS, ServerBeside, Tenant, connected, every_result, server_beside
from millpond.client.location import NodesLocation, parse_location
from millpond.clock import SystemClock
from millpond.errors import Conflict, Invalid, NotFound
from millpond.workflows.deferred import engine, pipeline_starts, protocol
from millpond.workflows.newest import newest_runs
from millpond.workflows.schedules import next_runs, switch

if TYPE_CHECKING:
    from millpond.workflows.engine.cron import Cron

__all__ = (
    "check_deployed", "check_free", "count_open", "deployed_cron", "listed", "parameters_of", "pause", "put_cron",
    "resume",
)  # fmt: skip

_OPEN = ("RUNNING", "STARTING", "HALTING", "HALTED")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A pipeline that was deployed.")]
OneRun = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="This run instead of the schedule.", show_default=False)
]  # fmt: skip

AtNode = Annotated[str | None, typer.Option("--pond", metavar="URL", help="The node.", show_default=False)]


@verb("pipeline list", "millpond pipeline list", "millpond pipeline list --pond http://node-1:7433 --json", on=RUNS)
def listed(call: Any) -> console.Shown:
    """List the pipelines of a node: version, schedule and its next instant, the newest run, and the open runs.

    With a pond in a folder or a bucket, those that ran there.
    """
    now = SystemClock().now_ms()
    rows = [_row(call, name, now) for name in _names(call)]
    return console.table(
        [row for row, _ in rows], ["pipeline", "version", "schedule", "next", "last run", "state", "open"],
        [
            [row["pipeline"], row["version"], words, row["next"] or "", row["last_run"] or "",
             row["last_status"] or "", str(row["open_runs"])]
            for row, words in rows
        ],
        nothing="no pipelines; millpond pipeline deploy FILE",
    )  # fmt: skip


@verb("pipeline pause", "millpond pipeline pause nightly", "millpond pipeline pause nightly --run nightly-1")
def pause(
    name: Name, run: OneRun = None, pond: AtNode = None, server: ServerBeside = None, tenant: Tenant = "default",
) -> console.Shown:  # fmt: skip
    """Switch the schedule of a pipeline off, also for deploys that follow; or stop a run until it is resumed."""
    return _switch(name, run, _served(pond, server), tenant, paused=True)


@verb("pipeline resume", "millpond pipeline resume nightly", "millpond pipeline resume nightly --run nightly-1")
def resume(
    name: Name, run: OneRun = None, pond: AtNode = None, server: ServerBeside = None, tenant: Tenant = "default",
) -> console.Shown:  # fmt: skip
    """Switch the schedule of a pipeline on again, from its next instant; or let a run go on that was stopped."""
    return _switch(name, run, _served(pond, server), tenant, paused=False)


def _served(location: str | None, server: str | None) -> str:
    if location is not None and not isinstance(parse_location(location), NodesLocation):
        raise Invalid("only a node begins runs by itself", kind="pipeline_place", pond=location,
                      hint="name the node by its URL; without one it is millpond pipeline run --follow")  # fmt: skip
    return server_beside(server, location)


def _switch(name: str, run: str | None, server: str, tenant: str, *, paused: bool) -> console.Shown:
    at = None
    with connected(server, tenant) as call:
        check_deployed(call, name)
        if run is not None:
            _check_run(call, name, run)
            order = protocol.StopWfRunRequest if paused else protocol.ResumeWfRunRequest
            call("StopWfRun" if paused else "ResumeWfRun", order(wf_run_id=engine.run_id(run)))
        else:
            cron = deployed_cron(call, name)
            at = None if cron is None or paused else _next(replace(cron, paused=False), SystemClock().now_ms())
            if cron is None:
                raise Invalid("the pipeline has no schedule", kind="pipeline_schedule", pipeline=name,
                              hint="--run RUN for one of its runs; a schedule stands in its file")  # fmt: skip
            switch(call, pipeline_starts.spec_name(name), paused=paused)
    word, what = "paused" if paused else "resumed", run or name
    return console.said({word: what}, f"{word} {what}" + f"; its next run begins at {at}" * (at is not None))


def deployed_cron(call: Any, name: str) -> Cron | None:
    """The schedule of a pipeline; None when it has none."""
    from millpond.workflows.engine.cron import parse_cron

    with suppress(NotFound):
        return parse_cron(
            call("GetScheduledWfRun", protocol.ScheduledWfRunId(id=pipeline_starts.spec_name(name))).cron_expression
        )
    return None


def put_cron(call: Any, name: str, cron: Cron | None) -> None:
    """Give a pipeline this schedule, or none."""
    name = pipeline_starts.spec_name(name)
    if cron is None:
        call("DeleteScheduledWfRun", protocol.DeleteScheduledWfRunRequest(id=protocol.ScheduledWfRunId(id=name)))
    else:
        call("ScheduleWf", protocol.ScheduleWfRequest(id=name, wf_spec_name=name, cron_expression=cron.text()))


def parameters_of(call: Any, name: str) -> list[str]:
    """The parameters of a pipeline that was deployed.

    Raises: `NotFound`.
    """
    check_deployed(call, name)
    return [own["name"] for own in pipeline_starts.parameters_in(_spec(call, name)) or ()]


def count_open(call: Any, name: str) -> int:
    """The runs of a pipeline that have not ended, those that are stopped included."""
    requests = [
        protocol.SearchWfRunRequest(wf_spec_name=pipeline_starts.spec_name(name), status=status) for status in _OPEN
    ]
    return sum(1 for request in requests for _ in every_result(call, "SearchWfRun", request))


def _names(call: Any) -> list[str]:
    """The pipelines that are functions: the workflows of their one task that hold a program."""
    specs = every_result(call, "SearchWfSpec", protocol.SearchWfSpecRequest(task_def_name=pipeline_starts.STEP))
    names = [pipeline_starts.pipeline_name(name) for name in sorted({spec.name for spec in specs})]
    return [name for name in names if pipeline_starts.parameters_in(_spec(call, name)) is not None]


def _spec(call: Any, name: str) -> Any:
    return call("GetLatestWfSpec", protocol.GetLatestWfSpecRequest(name=pipeline_starts.spec_name(name)))


def check_free(call: Any, name: str) -> None:
    """Refuse to deploy a pipeline over a workflow that is none.

    Raises: `Conflict`.
    """
    with suppress(NotFound):
        spec = _spec(call, name)
        if pipeline_starts.parameters_in(spec) is None:
            raise Conflict("a workflow that is no pipeline has this name", kind="pipeline_deployed", pipeline=name,
                           workflow=spec.id.name, hint='give the pipeline another: @pipeline(name="…")')  # fmt: skip


def check_deployed(call: Any, name: str) -> None:
    """Refuse a name that no pipeline of a node has.

    Raises: `NotFound`.
    """
    with suppress(NotFound):
        if pipeline_starts.parameters_in(_spec(call, name)) is not None:
            return
    raise NotFound("no pipeline has this name", kind="pipeline_deployed", pipeline=name,
                   hint=f"there are: {', '.join(_names(call)) or 'none, deploy it'}")  # fmt: skip


def _check_run(call: Any, name: str, run: str) -> None:
    with suppress(NotFound):
        if call("GetWfRun", engine.run_id(run)).wf_spec_id.name == pipeline_starts.spec_name(name):
            return
    raise NotFound("the pipeline has no such run", kind="workflow_run", pipeline=name, run=run,
                   hint=f"list them: millpond runs --workflow {name}")  # fmt: skip


def _row(call: Any, name: str, now: int) -> tuple[dict[str, Any], str]:
    from millpond.pipelines.plan import cron_words

    spec, cron = _spec(call, name), deployed_cron(call, name)
    of_pipeline = protocol.SearchWfRunRequest(wf_spec_name=spec.id.name)
    newest = [call("GetWfRun", own) for own in newest_runs(call, of_pipeline, 1, now)]
    return {
        "pipeline": name, "version": f"{spec.id.major_version}.{spec.id.revision}",
        "schedule": "" if cron is None else cron.fields, "when": "" if cron is None else cron.on,
        "time_zone": "" if cron is None or cron.on else cron.time_zone or "UTC",
        "paused": cron is not None and cron.paused, "overlap": cron is not None and cron.overlap,
        "missed": "" if cron is None else cron.missed,
        "next": _next(cron, now),
        "last_run": engine.run_path(newest[0].id) if newest else None,
        "last_began": newest[0].start_time.ToJsonString() if newest else None,
        "last_status": protocol.LHStatus.Name(newest[0].status) if newest else None,
        "open_runs": count_open(call, name),
    }, cron_words(cron)  # fmt: skip


def _next(cron: Cron | None, now: int) -> str | None:
    """The instant at which a schedule begins a run, in its zone."""
    return next((at.isoformat() for at in next_runs(cron, now, 1)), None) if cron is not None else None
