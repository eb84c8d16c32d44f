"""`millpond schedule`: schedules of workflows, with their next runs; switched off and on, and run by hand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.definitions import versions_by_name
from millpond.cli.workflows.server import RUNS, TENANT
from millpond.clock import SystemClock
from millpond.errors import Conflict
from millpond.workflows.deferred import protocol
from millpond.workflows.named import fetch, spec_of
from millpond.workflows.schedules import run_now, schedule_facts, switch

__all__ = ("delete", "list_schedules", "pause", "resume", "run")

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The id of the schedule.")]


@verb("schedule list", "millpond schedule list", "millpond schedule list --workflow nightly --json", on=RUNS)
def list_schedules(
    call: Any,
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only those of it.", show_default="all workflows")
    ] = None,
) -> console.Shown:
    """List the schedules: when they begin runs, and the next of them."""
    from millpond.pipelines.plan import cron_words
    from millpond.workflows.engine.cron import parse_cron

    names = versions_by_name(call) if workflow is None else [spec_of(call, workflow).id.name]
    searches = [protocol.SearchScheduledWfRunRequest(wf_spec_name=name) for name in names]
    listed = [call("SearchScheduledWfRun", search).results for search in searches]
    rows = [call("GetScheduledWfRun", id) for ids in listed for id in ids]
    facts = [{"workflow": row.wf_spec_id.name, **schedule_facts(row, SystemClock().now_ms())} for row in rows]
    return console.table(
        facts,
        ["schedule", "workflow", "begins", "next runs"],
        [
            [own["id"], own["workflow"], cron_words(parse_cron(row.cron_expression)), ", ".join(own["next"])]
            for own, row in zip(facts, rows, strict=True)
        ]
    )  # fmt: skip


@verb("schedule pause", "millpond schedule pause nightly", on=TENANT)
def pause(call: Any, name: Name) -> console.Shown:
    """Switch a schedule off."""
    return _switch(call, name, paused=True)


@verb("schedule resume", "millpond schedule resume nightly", on=TENANT)
def resume(call: Any, name: Name) -> console.Shown:
    """Switch a schedule on again, from its next instant."""
    return _switch(call, name, paused=False)


def _switch(call: Any, name: str, *, paused: bool) -> console.Shown:
    _stored(call, name)
    switch(call, name, paused=paused)
    return console.done("paused" if paused else "resumed", name)


@verb("schedule run", "millpond schedule run nightly", on=TENANT)
def run(call: Any, name: Name) -> console.Shown:
    """Start a run as a schedule would, now, beside those that it begins."""
    from millpond.workflows.engine.values.masks import MASK

    row = _stored(call, name)
    if any(MASK in str(value) for value in row.variables.values()):  # a run would begin with the mask
        raise Conflict("inputs of the schedule are hidden", kind="failed_precondition", schedule=name,
                       hint="run it on the console's page of its workflow")  # fmt: skip
    begun = run_now(call, row)
    return console.done("started", begun)


@verb("schedule delete", "millpond schedule delete nightly", on=TENANT)
def delete(call: Any, name: Name) -> console.Shown:
    """Delete a schedule; its runs stay."""
    call("DeleteScheduledWfRun", protocol.DeleteScheduledWfRunRequest(id=_stored(call, name).id))
    return console.done("deleted", name)


def _stored(call: Any, name: str) -> Any:
    return fetch(call, "GetScheduledWfRun", protocol.ScheduledWfRunId(id=name), "schedule", name)
