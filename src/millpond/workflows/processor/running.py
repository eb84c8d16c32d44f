"""The attempts of a partition that run: those whose timers are set."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

from littlehorse.model import LHErrorType, LHTaskError, ReportTaskRun, TaskRun, TaskRunId, TaskStatus

from millpond.workflows.keyspaces import TIMER_TIME
from millpond.workflows.processor.processor import Processor, read_rows
from millpond.workflows.processor.rows import ReadRows

__all__ = ("RunningAttempt", "running_attempts")


class RunningAttempt(NamedTuple):
    """An attempt that was handed to a worker, and has not ended."""

    tenant: str
    worker: str
    task: TaskRunId
    number: int

    def lost(self, reason: str, now_ms: int) -> ReportTaskRun:
        """The report that its worker is gone: it may be tried again."""
        report = ReportTaskRun(
            task_run_id=self.task, attempt_number=self.number, status=TaskStatus.TASK_TIMEOUT,
            error=LHTaskError(type=LHErrorType.TIMEOUT, message=reason),
        )  # fmt: skip
        report.time.FromMilliseconds(now_ms)
        return report


def running_attempts(processor: Processor) -> list[RunningAttempt]:
    """The attempts of a partition that run now, of all tenants."""
    with processor.space.read() as tx:
        names = [cast("tuple[str, ...]", TIMER_TIME.unpack(key)) for key in tx.keys(TIMER_TIME.range())]
    running = []
    for tenant, *name in names:
        if len(name) != 4 or name[1] != "attempt":
            continue
        number = int(name[3])
        task = read_rows(processor, tenant, partial(ReadRows.get, kind=TaskRun, key=(name[0], name[2])))
        if task is not None and number < len(task.attempts):
            attempt = task.attempts[number]
            if attempt.status == TaskStatus.TASK_RUNNING:
                running.append(RunningAttempt(tenant, attempt.task_worker_id, task.id, number))
    return running
