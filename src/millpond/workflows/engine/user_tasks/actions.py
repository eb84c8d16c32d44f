"""Actions of user tasks by time: a reminder task, a reassignment, a cancellation."""

from __future__ import annotations

from littlehorse.model import (
    LHStatus,
    NodeRun,
    TaskRun,
    TaskRunSource,
    TaskStatus,
    UserTaskEvent,
    UserTaskNode,
    UserTaskRun,
    UserTaskRunStatus,
    UserTaskTriggerReference,
    UTActionTrigger,
)

from millpond.workflows.engine import attempts
from millpond.workflows.engine.advance import advance
from millpond.workflows.engine.assignments import Scope
from millpond.workflows.engine.commands import UserTaskDue
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.keys import key_of, run_path
from millpond.workflows.engine.nodes import new_task
from millpond.workflows.engine.runs import load
from millpond.workflows.engine.threads import fail
from millpond.workflows.engine.user_tasks.endings import ENDED, cancel
from millpond.workflows.engine.user_tasks.nodes import assign, text
from millpond.workflows.engine.work import Work

__all__ = (
    "action_due",
    "queue_reminder",
)


def action_due(work: Work, request: UserTaskDue) -> None:
    """Do an action of a user task whose time has come; one of a task that has ended takes no notice."""
    task = work.rows.get(UserTaskRun, key_of(request.user_task_run_id))
    run = load(work, run_path(request.user_task_run_id.wf_run_id))
    if task is None or run is None or task.status in ENDED:
        return
    row = run.node_run_at(task.node_run_id.thread_run_number, task.node_run_id.position)
    thread = run.thread(row.id.thread_run_number)
    node = run.node(row).user_task
    scope = Scope(run, thread)
    action = node.actions[request.action]
    try:
        match action.WhichOneof("action"):
            case "cancel":
                cancel(run, row, "the user task was cancelled after its deadline")
            case "reassign":
                if task.status == UserTaskRunStatus.ASSIGNED and task.epoch == request.epoch:
                    _reassign(scope, node, action, task)
            case "task":
                if row.status == LHStatus.RUNNING:
                    _remind(scope, row, action, task)
    except NodeFailed as failed:
        fail(run, thread, failed)
    advance(run, [thread.number])


def _reassign(scope: Scope, node: UserTaskNode, action: UTActionTrigger, task: UserTaskRun) -> None:
    user = text(scope, "user_id", action.reassign.user_id)
    group = text(scope, "user_group", action.reassign.user_group)
    if user is None and group is None:
        raise NodeFailed("VAR_ERROR", "Invalid user task assignment")
    assign(scope, node, task, user, group)


def _remind(scope: Scope, row: NodeRun, action: UTActionTrigger, task: UserTaskRun) -> None:
    work = scope.run.work
    number = len(task.events)
    source = TaskRunSource(
        user_task_trigger=UserTaskTriggerReference(
            node_run_id=row.id,
            user_task_event_number=number,
            user_id=task.user_id if task.HasField("user_id") else None,
            user_group=task.user_group if task.HasField("user_group") else None,
        ),
        wf_spec_id=scope.run.spec.id,
    )
    reminder = new_task(scope, action.task.task, f"ut-{task.id.user_task_guid}-{number}", source)
    executed = UserTaskEvent.UTETaskExecuted(task_run=reminder.id)
    task.events.append(UserTaskEvent(time=work.instant(), task_executed=executed))
    work.rows.put(key_of(task.id), task)
    attempts.queue(work, reminder)


def queue_reminder(work: Work, task: TaskRun) -> None:
    """Queue the next attempt of a reminder; no node waits for it, so no node queues it."""
    if task.source.WhichOneof("task_run_source") != "user_task_trigger":
        return
    due = task.status == TaskStatus.TASK_SCHEDULED and not attempts.is_queued(work, task)
    node_run = work.rows.get(NodeRun, key_of(task.source.user_task_trigger.node_run_id))
    if due and node_run is not None and node_run.status == LHStatus.RUNNING:
        attempts.queue(work, task)
