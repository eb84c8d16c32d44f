"""Runs of pipelines without a server: the engine, its log and a worker in one process, on a pond.

    run ─▶ processor (its thread) ─▶ a task is handed over ─▶ carried out here ─▶ report ─▶ …

Invariants:
* one process at a time works so on a pond; the engine and its rows are those of a node, which may serve the pond later;
* a run that was cut off goes on when the same is begun again: what its attempts had done by a checkpoint stays done.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import littlehorse
from littlehorse.config import LHConfig
from littlehorse.exceptions import LHTaskException
from littlehorse.model import (
    Checkpoint,
    LHErrorType,
    LHStatus,
    LHTaskError,
    ReportTaskRun,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    RunWfRequest,
    ScheduledTask,
    ScheduledWfRun,
    ScheduledWfRunId,
    ScheduleWfRequest,
    TaskRun,
    TaskStatus,
    Variable,
    VariableId,
    WfRun,
    WfRunId,
)
from littlehorse.model import LHTaskException as ThrownException
from littlehorse.utils import extract_value, to_variable_value
from littlehorse.worker import WorkerContext

from millpond.clock import SystemClock
from millpond.error_values import ShownAsTable
from millpond.errors import AlreadyExists, Invalid
from millpond.nodes.data_starts import DataStarts
from millpond.pipelines import tasks
from millpond.pipelines.compiled import compiled
from millpond.pipelines.engine import open_engine
from millpond.pipelines.plan import cron_words
from millpond.pipelines.step import held
from millpond.server.workflows.data_watch import LOOK_SECONDS, at_cursor
from millpond.workflows.engine import key_of
from millpond.workflows.engine.cron import parse_cron
from millpond.workflows.engine.pipeline_starts import PARAMETERS, STEP, spec_name
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.processor import Applied
from millpond.workflows.processor.running import running_attempts
from millpond.workflows.tasks.queues import BEATING, Worker

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from littlehorse.model import LittleHorseStub

    from millpond.pipelines.declare import Declared
    from millpond.pipelines.programs import Program
    from millpond.pond import Pond

__all__ = ("Calls", "EmbeddedRuns", "Ended", "embedded")

TENANT = "default"
SLOTS = 4
"""The steps of different runs that are carried out at a time."""
LOOK_AGAIN_SECONDS = 0.2
"""The time after which it is looked again whether to go on, when no step has begun or ended."""
_FAILED = (TaskStatus.TASK_FAILED, TaskStatus.TASK_TIMEOUT, TaskStatus.TASK_EXCEPTION)
_OPEN = ("STARTING", "RUNNING", "HALTING")
_OVER = (LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION)


@dataclass(frozen=True, slots=True)
class Ended(ShownAsTable):
    """A run that has ended: its id, its status, and the outputs of its steps by their names, secrets masked."""

    run: str
    status: str
    values: dict[str, Any]


@contextmanager
def embedded(pond: Pond, place: str, tell: Callable[[str], object]) -> Iterator[EmbeddedRuns]:
    """An engine on the pond, while this lasts; `tell` gets a line for each event.

    Raises: as `open_engine`.
    """
    runs = EmbeddedRuns(pond, tell)
    before = os.environ.get("MILLPOND_POND")
    os.environ["MILLPOND_POND"] = place
    try:
        with held(place, pond), redirect_stdout(sys.stderr):  # standard output is the command's
            yield runs
    finally:
        os.environ.pop("MILLPOND_POND")
        if before is not None:
            os.environ["MILLPOND_POND"] = before
        runs.close()


class EmbeddedRuns:
    """An engine, and the worker beside it."""

    def __init__(self, pond: Pond, tell: Callable[[str], object]) -> None:
        self._pond, self._tell, self._clock = pond, tell, SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handed: asyncio.Queue[ScheduledTask | None] = asyncio.Queue()
        self._id = f"embedded-{os.getpid()}{BEATING}"
        self._engine = open_engine(pond, self._clock, self._pass_on)
        try:
            self._report_lost()
        except BaseException:
            self._engine.stop()
            raise

    def _report_lost(self) -> None:
        for attempt in [attempt for processor in self._engine.processors() for attempt in running_attempts(processor)]:
            lost = attempt.lost("the process that worked on it is gone", self._clock.now_ms())
            self._engine.submit(attempt.tenant, lost).result()

    def close(self) -> None:
        """End the engine; runs that have not ended go on when it is begun again."""
        self._engine.stop()

    def run(
        self, declared: Declared, program: Program, inputs: Mapping[str, Any], run: str, *, rescues: bool = False
    ) -> Ended:
        """Run a pipeline to its end, or go on with the run of this id, also with one that was stopped.

        With `rescues` the step at which it failed tries again, and has what its checkpoints hold.

        Raises: `Invalid`, kind `pipeline_failed`, with the step that failed; as the engine.
        """
        self.define(declared, program)
        self.begin(declared.plan.name, run, inputs)
        if self.status(run) in ("HALTING", "HALTED"):
            self._send(ResumeWfRunRequest(wf_run_id=WfRunId(id=run)))
        elif rescues and self.status(run) in ("ERROR", "EXCEPTION"):
            self._send(RescueThreadRunRequest(wf_run_id=WfRunId(id=run)))
        self.work(lambda: self.status(run) in _OPEN)
        row = self._row(WfRun, WfRunId(id=run))
        if row is None or row.status not in _OVER:
            raise Invalid("the run was stopped, or deleted", kind="pipeline_stopped", run=run,
                          status=self.status(run) or "deleted", hint="the same command goes on")  # fmt: skip
        variable = self._row(Variable, VariableId(wf_run_id=WfRunId(id=run), thread_run_number=0, name="values"))
        values = extract_value(shown(variable).value) if variable is not None else {}
        if row.status != LHStatus.COMPLETED:
            reason = self._failure_of(declared, run) or row.thread_runs[0].error_message
            raise Invalid("the run failed", kind="pipeline_failed", run=run, reason=reason,
                          hint="mend it, and let the step try again: millpond pipeline run FILE --rescue; or start "
                          "another run: --again")  # fmt: skip
        return Ended(run, LHStatus.Name(row.status), values)

    def define(self, declared: Declared, program: Program) -> None:
        """Let runs begin of a pipeline as it is now."""
        config = cast("LHConfig", Calls(lambda _, request: self._send(request)))
        littlehorse.create_task_def(tasks.step, STEP, config)
        self._send(compiled(declared.plan, program).compile())

    def follow(self, declared: Declared, program: Program) -> None:
        """Carry out the runs that begin by the pipeline's schedule, or when its data come, until it is interrupted.

        Raises: `Invalid` when the pipeline has neither.
        """
        name, cron = spec_name(declared.plan.name), declared.plan.cron()
        if cron is None:
            raise Invalid("nothing begins runs of the pipeline", kind="pipeline_schedule", pipeline=declared.plan.name,
                          hint="give it schedule=… or when=…")  # fmt: skip
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

    def begin(self, pipeline: str, run: str, inputs: Mapping[str, Any]) -> None:
        """Begin a run of a pipeline; one that is there is no error."""
        variables = {PARAMETERS: to_variable_value(dict(inputs))}
        with suppress(AlreadyExists):
            self._send(RunWfRequest(wf_spec_name=spec_name(pipeline), id=run, variables=variables))

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Carry out steps of all runs, while `goes_on` says so."""
        asyncio.run(self._until(goes_on))

    def status(self, run: str) -> str:
        """The status of a run; nothing when there is none."""
        row = self._row(WfRun, WfRunId(id=run))
        return "" if row is None else LHStatus.Name(row.status)

    def _send(self, request: Message) -> Message | None:
        return self._engine.submit(TENANT, request).result()

    def _row(self, kind: type[Any], name: Message) -> Any:
        return self._engine.read(TENANT, lambda rows: rows.get(kind, key_of(name)))

    def is_over(self, run: str) -> bool:
        """True when there is a run of this id, and it has ended."""
        row = self._row(WfRun, WfRunId(id=run))
        return row is not None and row.status in _OVER

    def _failure_of(self, declared: Declared, run: str) -> str:
        """The step at which a run failed, and the words of its last attempt; nothing when it was none."""
        names = {PARAMETERS, *(step.name for step in declared.plan.steps)}
        tasks = self._engine.read(TENANT, lambda rows: [row for _, row in rows.list(TaskRun, (run,))])
        for task in tasks:
            name = extract_value(task.input_variables[0].value)["name"]
            if task.status in _FAILED and name in names:
                last = task.attempts[-1]
                words = last.exception.message if last.HasField("exception") else last.error.message
                number = f" attempt {len(task.attempts) - 1}" * (len(task.attempts) > 1)
                return f"{name}{number}: {words}"
        return ""

    # -- the worker ---------------------------------------------------------------------------------

    def _pass_on(self, ends: Sequence[Applied]) -> None:
        """Called by the processor's thread."""
        for end in ends:
            if end.worker is not None and isinstance(end.reply, ScheduledTask) and self._loop is not None:
                self._loop.call_soon_threadsafe(self._handed.put_nowait, end.reply)

    async def _until(self, goes_on: Callable[[], bool]) -> None:
        self._loop, self._handed = asyncio.get_running_loop(), asyncio.Queue()
        idle = [Worker((TENANT, STEP), self._id) for _ in range(SLOTS)]
        working: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            working.discard(task)
            self._handed.put_nowait(None)  # what the runs have come to is looked at

        for worker in idle:
            self._engine.workers.wait(worker)
        try:
            while goes_on():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                        scheduled = await self._handed.get()
                    if scheduled is not None:
                        task = asyncio.create_task(self._execute(scheduled))
                        working.add(task)
                        task.add_done_callback(ended)
        finally:
            while self._engine.workers.take((TENANT, STEP)) is not None:
                pass  # all are this loop's, and a task that were handed to one of them now would be lost
            for task in tuple(working):
                task.cancel()
            if working:
                await asyncio.wait(working)
            self._loop = None

    async def _execute(self, scheduled: ScheduledTask) -> None:
        planned, values, program = (extract_value(variable.value) for variable in scheduled.variables)
        context = WorkerContext(scheduled, cast("LittleHorseStub", _Checkpoints(self)))
        name = f"{planned['name']}" + (f" attempt {scheduled.attempt_number}" if scheduled.attempt_number else "")
        began = self._clock.monotonic()
        report = ReportTaskRun(task_run_id=scheduled.task_run_id, attempt_number=scheduled.attempt_number)
        try:
            output = await tasks.step(planned, values, program, context)
        except LHTaskException as thrown:
            words = f"failed: {thrown.message}"
            report.status = TaskStatus.TASK_EXCEPTION
            thrown_exception = ThrownException(
                name=thrown.exception_name, message=thrown.message, content=thrown.content
            )  # fmt: skip
            report.exception.CopyFrom(thrown_exception)
        except Exception as error:
            words = f"failed: {error}"
            report.status = TaskStatus.TASK_FAILED
            report.error.CopyFrom(LHTaskError(type=LHErrorType.TASK_ERROR, message=str(error)))
        else:
            words = "skipped" if output.get("$skipped") else "done"
            report.status = TaskStatus.TASK_SUCCESS
            report.output.CopyFrom(to_variable_value(output))
        if context.log_output:
            report.log_output.CopyFrom(to_variable_value(context.log_output))
        report.time.FromMilliseconds(self._clock.now_ms())
        # Its next task shares a write with the report.
        self._engine.workers.wait(Worker((TENANT, STEP), self._id))
        await self.submit(report)
        if planned["kind"] != PARAMETERS or words != "done":
            self._tell(f"{name}: {words}, {self._clock.monotonic() - began:.1f} s")

    async def submit(self, request: Message) -> Message | None:
        """The reply to a request of the worker."""
        return await asyncio.wrap_future(self._engine.submit(TENANT, request))

    def checkpoint(self, name: Message) -> Any:
        """A checkpoint that is there."""
        return self._row(Checkpoint, name)


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    """The calls by which the client's context retains and finds what an earlier attempt has computed."""

    runs: EmbeddedRuns

    def __getattr__(self, method: str) -> Callable[[Message], Coroutine[Any, Any, Any]]:
        async def call(request: Message) -> Any:
            return self.runs.checkpoint(request) if method == "GetCheckpoint" else await self.runs.submit(request)

        return call


@dataclass(frozen=True, slots=True)
class Calls:
    """The client's configuration, and the stub that it gives, whose calls a function makes by their names."""

    send: Callable[[str, Any], Any]

    def stub(self, *_: Any, **__: Any) -> Calls:
        """Its methods."""
        return self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(request: Any, **_: Any) -> Any:
            return self.send(method, request)

        return call
