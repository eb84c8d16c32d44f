"""Reports of attempts that have ended, as all workers send them."""

from __future__ import annotations

import asyncio
import traceback
from typing import Final

from littlehorse.exceptions import LHTaskException
from littlehorse.model import LHErrorType, LHTaskError, ReportTaskRun, ScheduledTask, TaskStatus
from littlehorse.model import LHTaskException as ThrownException
from littlehorse.utils import to_variable_value

from millpond.workflows.tasks.failures import TaskFailed

__all__ = ("RUN_STOPPED", "STOPPED", "attempt_report")

STOPPED: Final = "the worker was told to stop"
RUN_STOPPED: Final = "its run was stopped"


def attempt_report(scheduled: ScheduledTask, outcome: object, log: object, now_ms: int) -> tuple[ReportTaskRun, str]:
    """The report of an attempt with its log, and words for its end: `outcome` is its output, or what it raised."""
    report = ReportTaskRun(task_run_id=scheduled.task_run_id, attempt_number=scheduled.attempt_number)
    report.time.FromMilliseconds(now_ms)
    if log:
        report.log_output.CopyFrom(to_variable_value(log))
    return report, _note_end(report, outcome)


def _note_end(report: ReportTaskRun, outcome: object) -> str:
    """Note in a report how an attempt ended; the words for it."""
    if isinstance(outcome, asyncio.CancelledError):
        reason = str(outcome) or "nobody said why"
        if reason in (STOPPED, RUN_STOPPED):  # as of a worker that is gone: it costs none of the task's retries
            report.status = TaskStatus.TASK_TIMEOUT
            report.error.CopyFrom(LHTaskError(type=LHErrorType.TIMEOUT, message=reason))
            return f"handed back: {reason}"
        report.status = TaskStatus.TASK_FAILED
        report.error.CopyFrom(LHTaskError(type=LHErrorType.TASK_ERROR, message=f"cancelled: {reason}"))
        return f"cancelled: {reason}"
    if isinstance(outcome, LHTaskException):
        report.status = TaskStatus.TASK_EXCEPTION
        report.exception.CopyFrom(
            ThrownException(name=outcome.exception_name, message=outcome.message, content=outcome.content)
        )
        return f"failed: {outcome.exception_name} {outcome.message}"
    if isinstance(outcome, BaseException):
        report.status = TaskStatus.TASK_FAILED
        own = outcome if isinstance(outcome, TaskFailed) else TaskFailed("".join(traceback.format_exception(outcome)))
        report.error.CopyFrom(own.row())
        return f"failed: {outcome}" if own is outcome else f"failed: {type(outcome).__name__}: {outcome}"
    try:
        report.output.CopyFrom(to_variable_value(outcome))
    except TypeError as wrong:
        report.status = TaskStatus.TASK_OUTPUT_SERDE_ERROR
        report.error.CopyFrom(LHTaskError(type=LHErrorType.VAR_SUB_ERROR, message=f"its output is no value: {wrong}"))
        return f"failed: its output is no value: {wrong}"
    report.status = TaskStatus.TASK_SUCCESS
    return "done"
