"""Runs of pipelines without a server: the engine, its log and a worker in one process, on a pond.

    run ─▶ processor (its thread) ─▶ a task is handed over ─▶ carried out here ─▶ report ─▶ …

Invariants:
* one process at a time works so on a pond; the engine and its rows are those of a node, which may serve the pond later;
* a run that was cut off goes on when the same is begun again: what its attempts had done by a checkpoint stays done;
* a step of another run that has begun is carried out to its end, unless the process is interrupted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import littlehorse
from littlehorse.config import LHConfig
from littlehorse.model import (
    Checkpoint,
    RunWfRequest,
    ScheduledTask,
    ScheduledWfRun,
    ScheduledWfRunId,
    ScheduleWfRequest,
    TaskRun,
)
from littlehorse.utils import extract_value, to_variable_value

from millpond.clock import SystemClock
from millpond.errors import AlreadyExists, Invalid
from millpond.nodes.data_starts import DataStarts
from millpond.pipelines import tasks
from millpond.pipelines.attempt_threads import THREADS_MAX
from millpond.pipelines.compiled import compiled
from millpond.pipelines.engine import open_engine
from millpond.pipelines.plan import cron_words
from millpond.pipelines.runs import Calls, RunsHere, carried_out_here
from millpond.pipelines.step import held
from millpond.server.workflows.data_watch import LOOK_SECONDS, at_cursor
from millpond.tracing import traceparent
from millpond.workflows.engine import key_of
from millpond.workflows.engine.cron import parse_cron
from millpond.workflows.engine.pipeline_starts import PARAMETERS, STEP, spec_name
from millpond.workflows.engine.trace_context import carry
from millpond.workflows.processor import Applied
from millpond.workflows.processor.running import RunningAttempt, running_attempts
from millpond.workflows.tasks.attempt_reports import execute
from millpond.workflows.tasks.progress import rows_in
from millpond.workflows.tasks.queues import BEATING, Worker

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.pipelines.declare import Declared
    from millpond.pipelines.programs import Program
    from millpond.pond import Pond

__all__ = ("LOOK_AGAIN_SECONDS", "EmbeddedRuns", "embedded")

TENANT = "default"
SLOTS = 4
"""The steps of different runs that are carried out at a time."""
LOOK_AGAIN_SECONDS = 0.2
"""The time after which it is looked again whether to go on, when no step has begun or ended."""


@contextmanager
def embedded(pond: Pond, address: str, tell: Callable[[str], object]) -> Iterator[EmbeddedRuns]:
    """An engine on the pond, while this lasts; `tell` gets a line for each event.

    Raises: as `open_engine`.
    """
    runs = EmbeddedRuns(pond, tell)
    before = os.environ.get("MILLPOND_POND")
    os.environ["MILLPOND_POND"] = address
    try:
        with held(address, pond), redirect_stdout(sys.stderr):  # standard output is the command's
            yield runs
    finally:
        os.environ.pop("MILLPOND_POND")
        if before is not None:
            os.environ["MILLPOND_POND"] = before
        runs.close()


class EmbeddedRuns(RunsHere):
    """The runs of a pond, whose engine is in this process."""

    def __init__(self, pond: Pond, tell: Callable[[str], object]) -> None:
        self._pond, self._tell, self._clock = pond, tell, SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handed: asyncio.Queue[ScheduledTask | None] = asyncio.Queue()
        self._takes = False
        self._id = f"embedded-{os.getpid()}{BEATING}"
        self._engine = open_engine(pond, self._clock, self._pass_on)
        try:
            self._report_lost()
        except BaseException:
            self._engine.stop()
            raise

    def _report_lost(self) -> None:
        for attempt in self._running():
            lost = attempt.lost("the process that worked on it is gone", self._clock.now_ms())
            self._engine.submit(attempt.tenant, lost).result()

    def close(self) -> None:
        """End the engine; runs that have not ended go on when it is begun again."""
        self._engine.stop()

    def opened(self) -> AbstractContextManager[Pond]:
        """See `RunsHere.opened`."""
        return nullcontext(self._pond)

    def define(self, declared: Declared, program: Program) -> None:
        """See `RunsHere.define`."""
        config = cast("LHConfig", Calls(lambda _, request: self._send(request)))
        littlehorse.create_task_def(tasks.step, STEP, config)
        self._send(compiled(declared.plan, program).compile())

    def begin(self, pipeline: str, run: str, inputs: Mapping[str, Any]) -> None:
        """See `RunsHere.begin`."""
        variables = {PARAMETERS: to_variable_value(dict(inputs))}
        request = RunWfRequest(wf_spec_name=spec_name(pipeline), id=run, variables=variables)
        if caller := traceparent():
            carry(request, caller)
        with suppress(AlreadyExists):
            self._send(request)

    def follow(self, declared: Declared, program: Program) -> None:
        """Carry out the runs that begin by the pipeline's schedule, or when its data come, until it is interrupted.

        Raises: `Invalid` when the pipeline has neither.
        """
        name, cron = spec_name(declared.plan.name), declared.plan.cron()
        if cron is None:
            raise Invalid("nothing begins runs of the pipeline", kind="pipeline_schedule", pipeline=declared.plan.name,
                          hint="give it schedule=… or when=…")  # fmt: skip
        self.check(declared, {})
        self.define(declared, program)
        row = self._row(ScheduledWfRun, ScheduledWfRunId(id=name))
        if row is None or replace(parse_cron(row.cron_expression), last="", after="") != cron:
            request = ScheduleWfRequest(id=name, wf_spec_name=name, cron_expression=cron.text())
            self._send(at_cursor(self._pond, request))
        self._tell(f"{declared.plan.name} begins {cron_words(cron)}; Ctrl-C ends this")
        starts, looked = DataStarts(self._pond), self._clock.monotonic()

        def look() -> bool:
            nonlocal looked
            if self._clock.monotonic() - looked >= LOOK_SECONDS:
                looked = self._clock.monotonic()
                for processor in self._engine.processors():
                    for tenant, request in starts.look(processor):
                        self._engine.submit(tenant, request).result()
            return True

        self.work(look)

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Carry out steps of all runs, while `goes_on` says so. See `RunsHere.work`."""
        carried_out_here(self._until(goes_on))

    def _send(self, request: Message) -> Message | None:
        return self._engine.submit(TENANT, request).result()

    def _row(self, kind: type[Any], name: Message) -> Any:
        return self._engine.read(TENANT, lambda rows: rows.get(kind, key_of(name)))

    def _tasks(self, run: str) -> list[TaskRun]:
        return self._engine.read(TENANT, lambda rows: [row for _, row in rows.list(TaskRun, (run,))])

    # -- the worker ---------------------------------------------------------------------------------

    def _pass_on(self, ends: Sequence[Applied]) -> None:
        """Called by the processor's thread."""
        for end in ends:
            if end.worker is not None and isinstance(end.reply, ScheduledTask) and self._loop is not None:
                self._loop.call_soon_threadsafe(self._handed.put_nowait, end.reply)

    async def _until(self, goes_on: Callable[[], bool]) -> None:
        self._loop, self._handed = asyncio.get_running_loop(), asyncio.Queue()
        self._loop.set_default_executor(ThreadPoolExecutor(THREADS_MAX))
        stopping = asyncio.Event()
        idle = [Worker((TENANT, STEP), self._id) for _ in range(SLOTS)]
        working: set[asyncio.Task[None]] = set()
        self._takes = True

        def ended(task: asyncio.Task[None]) -> None:
            working.discard(task)
            self._handed.put_nowait(None)  # what the runs have come to is looked at

        def note_signal() -> None:
            if not stopping.is_set():
                self._tell(f"stopping: {len(working)} steps run")
            stopping.set()
            self._handed.put_nowait(None)

        with suppress(ValueError, RuntimeError):  # signals are of the main thread
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, note_signal)
        for worker in idle:
            self._engine.workers.wait(worker)
        try:
            while not stopping.is_set() and (self._takes or self._steps_go_on()):
                if self._takes and not goes_on():
                    self._take_no_more()
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                        scheduled = await self._handed.get()
                    if scheduled is not None:
                        task = asyncio.create_task(self._execute(scheduled))
                        working.add(task)
                        task.add_done_callback(ended)
        finally:
            self._take_no_more()
            for task in tuple(working):
                task.cancel()
            if working:
                await asyncio.wait(working)
            self._loop = None
        if stopping.is_set():
            raise KeyboardInterrupt

    def _take_no_more(self) -> None:
        """Withdraw the workers, which are this loop's: a task that is handed over behind its end would be lost."""
        self._takes = False
        while self._engine.workers.take((TENANT, STEP)) is not None:
            pass

    def _steps_go_on(self) -> bool:
        """True while steps are carried out whose runs are open."""
        return any(self._is_open(attempt.task.wf_run_id.id) for attempt in self._running())

    def _running(self) -> list[RunningAttempt]:
        return [attempt for processor in self._engine.processors() for attempt in running_attempts(processor)]

    async def _execute(self, scheduled: ScheduledTask) -> None:
        planned: dict[str, Any] = extract_value(scheduled.variables[0].value)
        name = f"{planned['name']}" + (f" attempt {scheduled.attempt_number}" if scheduled.attempt_number else "")
        began, stub = self._clock.monotonic(), Calls(self._call)
        outcome, report, words = await execute(scheduled, tasks.step, planned["name"], stub, self._clock)
        if isinstance(outcome, asyncio.CancelledError):
            return  # whoever works on the pond next reports it as lost
        if isinstance(outcome, dict) and outcome.get("$skipped"):
            words = "skipped"
        # Its next task shares a write with the report.
        if self._takes:
            self._engine.workers.wait(Worker((TENANT, STEP), self._id))
        await self._call("ReportTask", report)
        if planned["kind"] != PARAMETERS or words != "done":
            self._tell(f"{name}: {words}, {self._clock.monotonic() - began:.1f} s{rows_in(outcome)}")

    async def _call(self, method: str, request: Message) -> Any:
        """The reply to a call of the worker: by some the client's context retains what an earlier attempt computed."""
        if method == "GetCheckpoint":
            return self._row(Checkpoint, request)
        return await asyncio.wrap_future(self._engine.submit(TENANT, request))
