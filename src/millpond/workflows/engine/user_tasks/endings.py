"""Ends of user tasks: what is cancelled with them, and the failure that a cancelled one gives to its node."""

from __future__ import annotations

from littlehorse.model import NodeRun, ScheduledTask, TaskRun, UserTaskEvent, UserTaskRun, UserTaskRunStatus

from millpond.workflows.engine import attempts
from millpond.workflows.engine.keys import Key, key_of
from millpond.workflows.engine.runs import Run
from millpond.workflows.engine.work import Work

__all__ = (
    "ENDED",
    "action_timer",
    "user_task_of",
    "close",
    "cancel",
)

ENDED = frozenset({UserTaskRunStatus.DONE, UserTaskRunStatus.CANCELLED})


def action_timer(task: UserTaskRun, action: int) -> Key:
    """The name of the one timer of an action of a user task."""
    path, guid = key_of(task.id)
    return (path, "user task", guid, action)


def user_task_of(run: Run, row: NodeRun) -> UserTaskRun | None:
    """The user task run of a node run, or None before it has one."""
    if not row.user_task.HasField("user_task_run_id"):
        return None
    return run.work.rows.get(UserTaskRun, key_of(row.user_task.user_task_run_id))


def close(run: Run, row: NodeRun, task: UserTaskRun) -> None:
    """Cancel the timers of a user task that has ended, and take its reminders out of their queues."""
    for action in range(len(run.node(row).user_task.actions)):
        run.work.cancel_timer(action_timer(task, action))
    for event in task.events:
        if event.WhichOneof("event") == "task_executed":
            _withdraw(run.work, key_of(event.task_executed.task_run))


def _withdraw(work: Work, reminder: Key) -> None:
    task = work.rows.get(TaskRun, reminder)
    if task is None:
        return
    if work.rows.get(ScheduledTask, reminder) is not None:
        attempts.withdraw(work, task)
    work.cancel_timer(attempts.timer_name(task, len(task.attempts) - 1))


def cancel(run: Run, row: NodeRun, message: str) -> None:
    """Cancel the user task of a node run, unless it has ended."""
    task = user_task_of(run, row)
    if task is None or task.status in ENDED:
        return
    task.status = UserTaskRunStatus.CANCELLED
    cancelled = UserTaskEvent.UTECancelled(message=message)
    task.events.append(UserTaskEvent(time=run.work.instant(), cancelled=cancelled))
    run.work.rows.put(key_of(task.id), task)
    close(run, row, task)
