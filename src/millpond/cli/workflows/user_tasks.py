"""`millpond user-task`: what runs ask people for is listed, shown, assigned, answered and cancelled."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.runs import pairs_in
from millpond.cli.workflows.server import RUNS, TENANT, every_result, plain_message
from millpond.errors import Conflict, Invalid
from millpond.workflows.deferred import conversions, engine, protocol
from millpond.workflows.named import answer_in, fetch

__all__ = ("answer", "assign", "cancel", "list_tasks", "show")

_OPEN = "UNASSIGNED", "ASSIGNED"
Task = Annotated[str, typer.Argument(metavar="RUN/GUID", help="The user task, as `list` shows it.")]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user.", show_default=False)]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="The group.", show_default=False)]


@verb("user-task list", "millpond user-task list", "millpond user-task list --user anna --json", on=RUNS)
def list_tasks(
    call: Any,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Only of this definition.", show_default="all")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="UNASSIGNED, ASSIGNED, DONE or CANCELLED.",
                                 show_default="those that are open")
    ] = None,
    user: User = None,
    group: Group = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="So many at most, the oldest first.")] = 20,
) -> console.Shown:  # fmt: skip
    """List user tasks: the questions that runs ask people."""
    statuses = _OPEN if status is None else (status.upper(),)
    if not set(statuses) <= set(protocol.UserTaskRunStatus.keys()):
        raise Invalid("no user task has this status", kind="run_status", status=status,
                      hint=f"one of {', '.join(protocol.UserTaskRunStatus.keys())}")  # fmt: skip
    searches = [
        protocol.SearchUserTaskRunRequest(
            status=own, user_task_def_name=task, user_id=user, user_group=group, limit=limit
        )
        for own in statuses
    ]
    names = [islice(every_result(call, "SearchUserTaskRun", search), limit) for search in searches]
    rows = [call("GetUserTaskRun", name) for own in names for name in own]
    rows = sorted(rows, key=lambda row: row.scheduled_time.ToMilliseconds())[:limit]
    return console.table(
        (plain_message(row) for row in rows),
        ["user task", "asks", "status", "user", "group", "since"],
        [
            [_path(row.id), row.user_task_def_id.name, protocol.UserTaskRunStatus.Name(row.status), row.user_id,
             row.user_group, row.scheduled_time.ToJsonString().replace("T", " ")[:19]]
            for row in rows
        ],
        spared=["user", "group"]
    )  # fmt: skip


@verb("user-task show", "millpond user-task show n-1/1f0a", "millpond user-task show n-1/1f0a --json", on=RUNS)
def show(call: Any, name: Task, json: Json = False) -> console.Shown:
    """Show a user task: its state, whom it is for, and the fields of an answer."""
    row = _row(call, name)
    fields = [] if json else call("GetUserTaskDef", row.user_task_def_id).fields
    return console.facts(
        plain_message(row),
        {
            "asks": row.user_task_def_id.name, "status": protocol.UserTaskRunStatus.Name(row.status),
            "user": row.user_id or None, "group": row.user_group or None, "notes": row.notes or None,
            **{f"field {own.name}": protocol.VariableType.Name(own.type).lower() + ", required" * own.required
               for own in fields},
            **{f"answer {key}": conversions.plain(value) for key, value in sorted(row.results.items())},
        }
    )  # fmt: skip


@verb("user-task assign", "millpond user-task assign n-1/1f0a --user anna", on=TENANT)
def assign(
    call: Any,
    name: Task,
    user: User = None,
    group: Group = None,
    override: Annotated[bool, typer.Option("--override", help="Also when it has a user.")] = False,
) -> console.Shown:
    """Give a user task to a user, a group or both."""
    row = _open(call, name)
    if row.user_id and not override:
        raise Conflict("the user task has a user", kind="failed_precondition", user_task=name, user=row.user_id,
                       hint="--override takes it from them")  # fmt: skip
    call("AssignUserTaskRun", protocol.AssignUserTaskRunRequest(
        user_task_run_id=row.id, user_id=user, user_group=group, override_claim=override))  # fmt: skip
    return console.done("assigned", name)


@verb("user-task answer", "millpond user-task answer n-1/1f0a --field approved=true --user anna", on=TENANT)
def answer(
    call: Any,
    name: Task,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=VALUE", help="A field: JSON, or text as it stands. Again for more."),
    ] = None,
    user: User = None,
) -> console.Shown:
    """Complete a user task with an answer: its run goes on."""
    texts, row = pairs_in(field or []), _open(call, name)
    call("CompleteUserTaskRun", protocol.CompleteUserTaskRunRequest(
        user_task_run_id=row.id, user_id=user or row.user_id, results=answer_in(call, row, texts)))  # fmt: skip
    return console.done("answered", name)


@verb("user-task cancel", "millpond user-task cancel n-1/1f0a", on=TENANT)
def cancel(call: Any, name: Task) -> console.Shown:
    """Cancel a user task: the step of its run fails."""
    call("CancelUserTaskRun", protocol.CancelUserTaskRunRequest(user_task_run_id=_open(call, name).id))
    return console.done("cancelled", name)


def _open(call: Any, name: str) -> Any:
    """A user task that is open.

    Raises: `NotFound`; `Conflict` for one that has ended.
    """
    row = _row(call, name)
    status = protocol.UserTaskRunStatus.Name(row.status)
    if status not in _OPEN:
        raise Conflict("the user task has ended", kind="failed_precondition", user_task=name, status=status)
    return row


def _row(call: Any, name: str) -> Any:
    run, _, guid = name.partition("/")
    task = protocol.UserTaskRunId(wf_run_id=engine.run_id(run), user_task_guid=guid)
    return fetch(call, "GetUserTaskRun", task, "user-task", name)


def _path(name: Any) -> str:
    return f"{engine.run_path(name.wf_run_id)}/{name.user_task_guid}"
