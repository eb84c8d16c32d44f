"""Attempts at tasks, as all workers make and report them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, get_type_hints

from littlehorse.exceptions import LHTaskException
from littlehorse.lh_struct import deserialize_struct
from littlehorse.model import LHErrorType, LHTaskError, ReportTaskRun, ScheduledTask, TaskStatus
from littlehorse.model import LHTaskException as ThrownException
from littlehorse.utils import extract_value, to_variable_value
from littlehorse.worker import WorkerContext

from millpond.clock import Clock
from millpond.workflows.tasks.failures import TaskFailed
from millpond.workflows.tasks.traced import task_span

__all__ = ("RUN_STOPPED", "STOPPED", "Function", "execute")

STOPPED: Final = "the worker was told to stop"
RUN_STOPPED: Final = "its run was stopped"


Function = Callable[..., Awaitable[Any]]


async def execute(
    scheduled: ScheduledTask, function: Function, step: str, stub: Any, clock: Clock,
    watch: Callable[[asyncio.Future[Any]], Coroutine[Any, Any, None]] | None = None,
) -> tuple[object, ReportTaskRun, str]:  # fmt: skip
    """Make an attempt: its output, or what it raised; its report, and words for its end. `step` is its name in traces.

    `watch` may cancel it; who cancels this hands it back. `stub` has the calls of the client's context.
    """
    context = WorkerContext(scheduled, stub)
    working = asyncio.ensure_future(_traced(scheduled, step, function(*_inputs(function, scheduled, context))))
    watching = None if watch is None else asyncio.create_task(watch(working))
    try:
        await asyncio.wait([working])
    except asyncio.CancelledError:  # handed back
        working.cancel(STOPPED)
        await asyncio.wait([working])
    finally:
        if watching is not None:
            watching.cancel()
    outcome: object
    try:
        outcome = working.result()
    except BaseException as error:
        outcome = error
    report = ReportTaskRun(task_run_id=scheduled.task_run_id, attempt_number=scheduled.attempt_number)
    report.time.FromMilliseconds(clock.now_ms())
    if context.log_output:
        report.log_output.CopyFrom(to_variable_value(context.log_output))
    return outcome, report, _note_end(report, outcome)


async def _traced(scheduled: ScheduledTask, step: str, work: Awaitable[Any]) -> Any:
    with task_span(scheduled, step):
        return await work


def _inputs(function: Function, scheduled: ScheduledTask, context: WorkerContext) -> list[Any]:
    kinds = [kind for name, kind in get_type_hints(function).items() if name != "return"]
    arguments: list[Any] = []
    for kind, variable in zip(kinds, scheduled.variables, strict=False):
        value = variable.value
        of_struct = value.WhichOneof("value") == "struct"
        arguments.append(deserialize_struct(value.struct, kind) if of_struct else extract_value(value))
    return [*arguments, context] if WorkerContext in kinds else arguments


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
