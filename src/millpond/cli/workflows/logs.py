"""Logs of attempts, as commands show them: those of a node, and those of runs without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import SERVER, Here, Server, Tenant, every_result, opened_runs
from millpond.clock import SystemClock
from millpond.errors import NotFound
from millpond.workflows.deferred import engine, pipeline_starts, protocol
from millpond.workflows.named import run_of
from millpond.workflows.newest import newest_runs

__all__ = ("pipeline_logs", "run_logs")

Step = Annotated[
    str | None, typer.Argument(metavar="STEP", help="Only this step.", show_default="all of them")
]  # fmt: skip


@verb("run logs", "millpond run logs nightly-1", "millpond run logs nightly-1 load --json")
def run_logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of the run.")],
    step: Step = None,
    pond: Here = None,
    server: Server = SERVER,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show what the attempts at the steps of a run have written, when they have ended: their first and last lines."""
    _show(run, _tasks(server, tenant, run, pond), step, json=json)


@verb("pipeline logs", "millpond pipeline logs nightly", "millpond pipeline logs nightly load")
def pipeline_logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A pipeline that was deployed.")],
    step: Step = None,
    pond: Here = None,
    server: Server = SERVER,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show what the attempts of the newest run of a pipeline have written."""
    from millpond.cli.workflows.deployed import check_deployed

    with opened_runs(server, tenant, pond) as call:
        check_deployed(call, name)
        newest = newest_runs(
            call, protocol.SearchWfRunRequest(wf_spec_name=pipeline_starts.spec_name(name)), 1, SystemClock().now_ms()
        )
    if not newest:
        raise NotFound("the pipeline has no run", kind="workflow_run", pipeline=name,
                       hint=f"start it: millpond run start {name}")  # fmt: skip
    run = engine.run_path(newest[0])
    _show(run, _tasks(server, tenant, run, pond), step, json=json)


def _tasks(server: str, tenant: str, run: str, location: str | None) -> list[Any]:
    with opened_runs(server, tenant, location) as call:
        run_of(call, run)
        return list(every_result(call, "ListTaskRuns", protocol.ListTaskRunsRequest(wf_run_id=engine.run_id(run))))


def _show(run: str, tasks: Iterable[Any], step: str | None, *, json: bool) -> None:
    from millpond.cli.workflows.runs import reason_of
    from millpond.cli.workflows.task_worker import step_of

    tasks = sorted(tasks, key=lambda task: task.scheduled_at.ToNanoseconds())
    names = [step_of(task.task_def_id.name, task.input_variables) for task in tasks]
    if step is not None and step not in names:
        raise NotFound("the run has no such step", kind="pipeline_step", run=run, step=step,
                       hint=f"those that began: {', '.join(dict.fromkeys(names))}")  # fmt: skip
    rows = [
        {"step": name, "attempt": number,
         "status": protocol.TaskStatus.Name(attempt.status).removeprefix("TASK_").lower(),
         "reason": attempt.exception.message or attempt.error.message, "log": attempt.log_output.str}
        for name, task in zip(names, tasks, strict=True) if step in (None, name)
        for number, attempt in enumerate(task.attempts)
    ]  # fmt: skip
    if json:
        console.print_json_list(rows)
        return
    if not any(row["log"] or row["reason"] for row in rows):
        console.say("no attempt has written anything yet")
    for row in rows:
        reason = reason_of(row["reason"])
        if row["log"] or reason:
            console.say(f"── {row['step']} attempt {row['attempt']}  {row['status']}  {reason}".rstrip())
            console.say(row["log"].rstrip())
