"""Commands of user tasks: assign, save, complete and cancel one.

Invariants:

* A user task ends once; what comes later is answered without effect, or is a conflict where it would change results.
* Results hold the fields of the definition and no others, each of its type; a completed task has all required ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    AssignUserTaskRunRequest,
    CancelUserTaskRunRequest,
    CompleteUserTaskRunRequest,
    SaveUserTaskRunProgressRequest,
    TypeDefinition,
    UserTaskDef,
    UserTaskEvent,
    UserTaskRun,
    UserTaskRunId,
    UserTaskRunStatus,
    VariableType,
    VariableValue,
)

from millpond.errors import Conflict, Invalid, NotFound
from millpond.workflows.engine.advance import advance
from millpond.workflows.engine.assignments import Scope
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.keys import key_of, run_path
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.runs import Run, existing
from millpond.workflows.engine.threads import fail
from millpond.workflows.engine.user_tasks.endings import ENDED, cancel, close
from millpond.workflows.engine.user_tasks.nodes import assign
from millpond.workflows.engine.values.conversions import fits, is_null, value_type_name
from millpond.workflows.engine.work import Work

__all__ = (
    "find_user_task",
    "put_user_task",
    "assign_user_task",
    "save_progress",
    "complete_user_task",
    "cancel_user_task",
)

IGNORE_CLAIM = SaveUserTaskRunProgressRequest.IGNORE_CLAIM


def find_user_task(work: Work, name: UserTaskRunId) -> UserTaskRun:
    """The user task run with an id; raises NotFound when there is none."""
    user_task = work.rows.get(UserTaskRun, key_of(name))
    if user_task is None:
        raise NotFound(
            "no user task run with this id",
            kind="user_task_run",
            run=run_path(name.wf_run_id),
            user_task=name.user_task_guid,
        )
    return user_task


def put_user_task(work: Work, task: UserTaskRun) -> None:
    """Write a user task run; raises Invalid when its results, events and comments are too large together."""
    size = task.ByteSize()
    if size > VALUE_BYTES_MAX:
        raise Invalid(
            "the user task is too large",
            kind="value_bytes",
            user_task=task.id.user_task_guid,
            bytes=size,
            limit=VALUE_BYTES_MAX,
        )
    work.rows.put(key_of(task.id), task)


def _scope_of(work: Work, task: UserTaskRun) -> tuple[Run, Scope]:
    """The run of a user task, and the scope of its thread."""
    run = existing(work, run_path(task.id.wf_run_id), task.node_run_id.thread_run_number)
    return run, Scope(run, run.thread(task.node_run_id.thread_run_number))


def _conflict(problem: str, task: UserTaskRun) -> Conflict:
    return Conflict(
        problem,
        kind="failed_precondition",
        user_task=task.id.user_task_guid,
        status=UserTaskRunStatus.Name(task.status),
    )


def assign_user_task(work: Work, request: AssignUserTaskRunRequest) -> Empty:
    """Give an open user task to a user, a group or both; a field that is not given is cleared."""
    user = request.user_id if request.HasField("user_id") else None
    group = request.user_group if request.HasField("user_group") else None
    if (user is None and group is None) or any(part is not None and not part.strip() for part in (user, group)):
        raise Invalid("a user task is assigned to a user or a group, neither of them blank", kind="user_task_assignee")
    task = find_user_task(work, request.user_task_run_id)
    if task.status in ENDED:
        raise _conflict("the user task has ended", task)
    if task.HasField("user_id") and not request.override_claim:
        raise _conflict("the user task has a user; assign it with override_claim", task)
    run, scope = _scope_of(work, task)
    row = run.node_run_at(task.node_run_id.thread_run_number, task.node_run_id.position)
    try:
        assign(scope, run.node(row).user_task, task, user, group)
    except NodeFailed as failed:
        fail(run, scope.thread, failed)
    put_user_task(work, task)
    advance(run, [task.node_run_id.thread_run_number])
    return Empty()


def save_progress(work: Work, request: SaveUserTaskRunProgressRequest) -> UserTaskRun:
    """Replace the results of an open user task; the run goes no further."""
    task = find_user_task(work, request.user_task_run_id)
    if task.status in ENDED:
        raise _conflict("the user task has ended", task)
    claimed = task.HasField("user_id") and task.user_id != request.user_id
    if claimed and request.policy != IGNORE_CLAIM:
        raise _conflict("another user has the user task; save it with IGNORE_CLAIM", task)
    _check_results(work, task, request.results, complete=False)
    _set_results(task, request.results)
    saved = UserTaskEvent.UTESaved(user_id=request.user_id, results=dict(request.results))
    task.events.append(UserTaskEvent(time=work.instant(), saved=saved))
    put_user_task(work, task)
    return task


def complete_user_task(work: Work, request: CompleteUserTaskRunRequest) -> Empty:
    """Complete a user task with its results, whoever had it before. One that has ended takes no notice."""
    task = find_user_task(work, request.user_task_run_id)
    if task.status in ENDED:
        return Empty()
    _check_results(work, task, request.results, complete=True)
    run, _scope = _scope_of(work, task)
    if request.user_id and request.user_id != task.user_id:
        task.user_id = request.user_id
    _set_results(task, request.results)
    task.status = UserTaskRunStatus.DONE
    task.events.append(UserTaskEvent(time=work.instant(), completed=UserTaskEvent.UTECompleted()))
    put_user_task(work, task)
    close(run, run.node_run_at(task.node_run_id.thread_run_number, task.node_run_id.position), task)
    advance(run, [task.node_run_id.thread_run_number])
    return Empty()


def cancel_user_task(work: Work, request: CancelUserTaskRunRequest) -> Empty:
    """Cancel an open user task; its node fails."""
    task = find_user_task(work, request.user_task_run_id)
    if task.status in ENDED:
        return Empty()
    run, _scope = _scope_of(work, task)
    row = run.node_run_at(task.node_run_id.thread_run_number, task.node_run_id.position)
    cancel(run, row, "the user task was cancelled")
    advance(run, [task.node_run_id.thread_run_number])
    return Empty()


def _set_results(task: UserTaskRun, results: Mapping[str, VariableValue]) -> None:
    task.results.clear()
    for name, value in results.items():
        task.results[name].CopyFrom(value)


def _check_results(work: Work, task: UserTaskRun, results: Mapping[str, VariableValue], *, complete: bool) -> None:
    """Raise Invalid for results that do not fit the fields of a user task."""
    name = task.user_task_def_id
    definition = work.rows.get(UserTaskDef, (name.name, name.version))
    if definition is None:
        raise _conflict("the definition of the user task was deleted; cancel the user task", task)
    fields = {field.name: field for field in definition.fields}
    for field_name in sorted(results):
        if field_name not in fields:
            raise Invalid(
                "the user task has no such field", kind="user_task_field", user_task=name.name, field=field_name
            )
        type_ = fields[field_name].type
        if not fits(results[field_name], TypeDefinition(primitive_type=type_)):
            raise Invalid(
                "a field of the user task has another type",
                kind="user_task_field",
                user_task=name.name,
                field=field_name,
                type=VariableType.Name(type_),
                given=value_type_name(results[field_name]),
            )
    for field in definition.fields:
        if complete and field.required and (field.name not in results or is_null(results[field.name])):
            raise Invalid(
                "a required field of the user task is missing",
                kind="user_task_field",
                user_task=name.name,
                field=field.name,
            )
