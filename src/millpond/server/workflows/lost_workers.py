"""Workers that are gone: their attempts end at once, and not when the timeouts of their steps are over.

    a worker registers ─▶ it beats
    a task is handed to it ─▶ its attempt is watched ─▶ a report: no more
    silence for `LOST_SECONDS` ─▶ its attempts are reported as timed out, by a command as of the worker itself

Invariants:
* only workers are watched whose ids say that they beat, see `BEATING`; of others the timeout alone counts;
* a process that was held up does not take that for the silence of its workers;
* attempts that were handed out before this process owned their partition are watched as well: they are read from its
  timers, and their workers have `LOST_SECONDS` to be heard.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync
from littlehorse.model import ReportTaskRun, ScheduledTask, TaskRunId

from millpond.errors import MillpondError
from millpond.server.workflows.looking import Looking
from millpond.workflows.engine import run_path
from millpond.workflows.processor.running import RunningAttempt, running_attempts
from millpond.workflows.tasks.queues import BEATING

if TYPE_CHECKING:
    from millpond.server.workflows.service import WorkflowService
    from millpond.workflows.processor import Processor

__all__ = ("LOST_SECONDS", "LostWorkers")

LOST_SECONDS = 8.0
"""The silence after which a worker that beats is gone: four of its beats."""
LOOK_SECONDS = 1.0
_LOG = logging.getLogger(__name__)

_Worker = tuple[str, str]
"""A tenant, and the id of one of its workers."""
_Attempt = tuple[str, str, int]
"""The path of a run, the guid of a task run, and the number of the attempt."""


class LostWorkers:
    """The workers that beat, and the attempts that they have. Used from one event loop."""

    def __init__(self, service: WorkflowService) -> None:
        self._service = service
        self._heard: dict[_Worker, float] = {}
        self._attempts: dict[_Worker, dict[_Attempt, TaskRunId]] = {}
        self._looked = 0.0
        self._read: dict[int, Processor] = {}
        self.looking = Looking("lost workers", LOOK_SECONDS, self._look)

    def beat(self, tenant: str, worker: str) -> None:
        """Note that a worker was heard."""
        if worker.endswith(BEATING):
            self._heard[tenant, worker] = self._service.clock.monotonic()
            if not self.looking.begun:
                self._looked = self._service.clock.monotonic()
                self.looking.begin()

    def handed(self, tenant: str, worker: str, scheduled: ScheduledTask) -> None:
        """Note that an attempt was handed to a worker."""
        if worker.endswith(BEATING):
            self._note(tenant, worker, scheduled.task_run_id, scheduled.attempt_number)

    def reported(self, tenant: str, report: ReportTaskRun) -> None:
        """Note that an attempt has ended."""
        if not self._attempts:
            return
        attempt = _attempt(report.task_run_id, report.attempt_number)
        for (of, _), attempts in self._attempts.items():
            if of == tenant and attempts.pop(attempt, None) is not None:
                return

    def _note(self, tenant: str, worker: str, task: TaskRunId, number: int) -> None:
        self._heard.setdefault((tenant, worker), self._service.clock.monotonic())
        self._attempts.setdefault((tenant, worker), {})[_attempt(task, number)] = task

    async def _look(self) -> None:
        now = self._service.clock.monotonic()
        late = now - self._looked - LOOK_SECONDS
        self._looked = now
        if late > LOOK_SECONDS:  # beats that came meanwhile are not read yet
            self._heard = {worker: heard + late for worker, heard in self._heard.items()}
        await self._read_partitions()
        for worker in [worker for worker, heard in self._heard.items() if now - heard > LOST_SECONDS]:
            del self._heard[worker]
            await self._lose(worker)

    async def _lose(self, worker: _Worker) -> None:
        tenant, name = worker
        attempts = self._attempts.pop(worker, {})
        if attempts:
            _LOG.warning("the worker %s is gone: %d attempts that it had are over", name, len(attempts))
        for (_, _, number), task in attempts.items():
            reason = f"its worker is gone: nothing was heard of {name} for {LOST_SECONDS:g} s"
            report = RunningAttempt(tenant, name, task, number).lost(reason, self._service.clock.now_ms())
            with suppress(MillpondError):  # its run was deleted
                await self._service.submit(tenant, report)

    async def _read_partitions(self) -> None:
        """Watch the attempts that were handed out before this process had their partition."""
        owned = self._service.partitions.owned
        self._read = {number: processor for number, processor in self._read.items() if owned.get(number) is processor}
        for number, processor in list(owned.items()):
            if number not in self._read:
                self._read[number] = processor
                for attempt in await run_sync(running_attempts, processor):
                    if attempt.worker.endswith(BEATING):
                        self._note(*attempt)


def _attempt(task: TaskRunId, number: int) -> _Attempt:
    return run_path(task.wf_run_id), task.task_guid, number
