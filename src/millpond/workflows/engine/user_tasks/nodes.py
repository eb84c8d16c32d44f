"""The node of a user task: it arrives with a user or a group, and is done when a person has completed it.

Invariants:

* A user task is ASSIGNED exactly while it has a user and has not ended.
* Every assignment makes a new epoch and one event; an action that was set in an older epoch reassigns nothing.
* A user task that has ended has no timer.
"""

from __future__ import annotations

from littlehorse.model import (
    NodeRun,
    ThreadRun,
    UserTaskDef,
    UserTaskDefId,
    UserTaskEvent,
    UserTaskNode,
    UserTaskRun,
    UserTaskRunId,
    UserTaskRunStatus,
    UTActionTrigger,
    VariableAssignment,
    VariableValue,
)

from millpond.workflows.engine.assignments import Scope, evaluated
from millpond.workflows.engine.commands import UserTaskDue
from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.keys import is_name, key_of
from millpond.workflows.engine.limits import DELAY_SECONDS_MAX
from millpond.workflows.engine.runs import Run
from millpond.workflows.engine.user_tasks.endings import action_timer, user_task_of
from millpond.workflows.engine.values.conversions import is_null, kind_of, plain, text_of, value_of
from millpond.workflows.engine.work import Work

__all__ = (
    "find_definition",
    "arrive_user_task",
    "user_task_done",
    "assign",
    "text",
)

_BLANK = {
    "user_id": "Invalid user task assignment. UserId can't be empty",
    "user_group": "Invalid group task assignment. UserGroup can't be empty",
}
ON_ARRIVAL, ON_ASSIGNMENT = UTActionTrigger.ON_ARRIVAL, UTActionTrigger.ON_TASK_ASSIGNED


def find_definition(work: Work, node: UserTaskNode) -> UserTaskDef | None:
    """The definition of a user task: the version that its node names, or else the newest."""
    if node.HasField("user_task_def_version"):
        return work.rows.get(UserTaskDef, (node.user_task_def_name, node.user_task_def_version))
    versions = work.rows.list(UserTaskDef, (node.user_task_def_name,))
    return max(versions, key=lambda version: version.version, default=None)


def arrive_user_task(run: Run, thread: ThreadRun, node: UserTaskNode, row: NodeRun) -> None:
    """Begin a user task, and set the timers of its actions."""
    row.user_task.SetInParent()
    scope = Scope(run, thread)
    definition = find_definition(run.work, node)
    if definition is None:
        raise NodeFailed("TASK_ERROR", f"no user task is defined with the name {node.user_task_def_name}")
    user = text(scope, "user_id", node.user_id)
    group = text(scope, "user_group", node.user_group)
    if user is None and group is None:
        raise NodeFailed("VAR_ERROR", "Invalid user task assignment")
    task = UserTaskRun(
        id=UserTaskRunId(wf_run_id=run.row.id, user_task_guid=f"{thread.number}-{row.id.position}"),
        user_task_def_id=UserTaskDefId(name=definition.name, version=definition.version),
        notes=text(scope, "notes", node.notes),
        scheduled_time=run.work.instant(),
        node_run_id=row.id,
    )
    row.user_task.user_task_run_id.CopyFrom(task.id)
    assign(scope, node, task, user, group)
    _set_timers(scope, node, task, ON_ARRIVAL)


def text(scope: Scope, name: str, assignment: VariableAssignment) -> str | None:
    """The text that an assignment gives, None for null or for no assignment; a blank one fails the node."""
    if assignment.WhichOneof("source") is None:
        return None
    value = evaluated(scope, assignment)
    if is_null(value):
        return None
    content = text_of(value)
    if not content.strip():
        raise NodeFailed("VAR_ERROR", _BLANK.get(name, f"the {name} of a user task is blank"))
    return content


def user_task_done(scope: Scope, node: UserTaskNode, row: NodeRun) -> VariableValue | None:
    """The results of a completed user task as one JSON_OBJ, None while it is open."""
    task = user_task_of(scope.run, row)
    assert task is not None, "a user task node has its user task run from arrival on"
    match task.status:
        case UserTaskRunStatus.DONE:
            return value_of({name: plain(task.results[name]) for name in sorted(task.results)})
        case UserTaskRunStatus.CANCELLED:
            raise _cancelled(scope, node, task)
        case _:
            return None


def _cancelled(scope: Scope, node: UserTaskNode, task: UserTaskRun) -> NodeFailed:
    """The failure of a cancelled user task, under the name that its node gives to it."""
    message = next((event.cancelled.message for event in reversed(task.events) if event.HasField("cancelled")), "")
    name = text(scope, "on_cancellation_exception_name", node.on_cancellation_exception_name)
    if name is None:
        return NodeFailed("USER_TASK_CANCELLED", message)
    if not is_name(name):
        return substitution(f"no exception can have the name {name[:60]!r}; use letters, digits and inner hyphens")
    return NodeFailed(name, message)


def assign(scope: Scope, node: UserTaskNode, task: UserTaskRun, user: str | None, group: str | None) -> None:
    """Give a user task to a user, a group or both; what is None is cleared."""
    work = scope.run.work
    before = task.user_id if task.HasField("user_id") else None
    old_group = task.user_group if task.HasField("user_group") else None
    event = UserTaskEvent.UTEAssigned(
        old_user_id=before, old_user_group=old_group, new_user_id=user, new_user_group=group
    )
    task.events.append(UserTaskEvent(time=work.instant(), assigned=event))
    task.epoch += 1
    task.ClearField("user_id")
    task.ClearField("user_group")
    if user is not None:
        task.user_id = user
    if group is not None:
        task.user_group = group
    task.status = UserTaskRunStatus.UNASSIGNED if user is None else UserTaskRunStatus.ASSIGNED
    work.rows.put(key_of(task.id), task)
    if user is None:
        for number, action in enumerate(node.actions):
            if action.hook == ON_ASSIGNMENT:
                work.cancel_timer(action_timer(task, number))
    elif user != before:
        _set_timers(scope, node, task, ON_ASSIGNMENT)


def _set_timers(scope: Scope, node: UserTaskNode, task: UserTaskRun, hook: UTActionTrigger.UTHook) -> None:
    """Set the timers of the actions that follow arrival, or an assignment."""
    work = scope.run.work
    for number, action in enumerate(node.actions):
        if action.hook == hook:
            at = work.now + 1000 * _delay_seconds(scope, action)
            work.set_timer(action_timer(task, number), at, UserTaskDue(task.id, number, task.epoch))


def _delay_seconds(scope: Scope, action: UTActionTrigger) -> int:
    delay = evaluated(scope, action.delay_seconds)
    if kind_of(delay) != "int" or not 0 <= delay.int <= DELAY_SECONDS_MAX:
        raise substitution(f"the delay of a user task's action is an INT from 0 to {DELAY_SECONDS_MAX}, in seconds")
    return delay.int
