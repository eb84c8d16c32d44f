"""A worker: it takes tasks from the processes of a server, works on them, and watches that they are still wanted.

    ┌▶ beat: every 2 s, to each process ─▶ its processes ─▶ a stream of polls for each of them and each task
    │
    └── told to stop ─▶ no more polls ─▶ what runs ends, or is handed back after a time ─▶ gone

Invariants:
* its ids end with `BEATING`, so that servers may take silence for its end, see `server.workflows.lost_workers`;
* it has an id for each process that it polls, a new one when the connection was lost, and beats under these, and those
  of what it has: what was handed to it and did not come is so noticed as lost;
* it beats as long as anything runs, also while it stops;
* an attempt that is wanted no more (its timeout is over, its run was stopped or deleted) is cancelled within seconds;
* told to stop, it polls no more from that moment; what it hands back costs no retry, nor does a run that is stopped;
* threads of attempts that are over may go on until the process ends, which waits for none of them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, product
from typing import Any, NamedTuple

import grpc
from littlehorse.config import LHConfig
from littlehorse.model import (
    PollTaskRequest,
    RegisterTaskWorkerRequest,
    ReportTaskRun,
    ScheduledTask,
    TaskDefId,
    TaskStatus,
)
from littlehorse.worker import LHTask, LHTaskWorker

from millpond.cli.workflows.server import classify_error
from millpond.clock import SystemClock
from millpond.json_forms import parse_object
from millpond.pipelines.attempt_threads import THREADS_MAX
from millpond.process_settings import tracing_target
from millpond.tracing import begin_tracing
from millpond.workflows.engine import run_path
from millpond.workflows.engine.halting import is_halted_by_hand
from millpond.workflows.engine.pipeline_starts import is_step
from millpond.workflows.tasks.attempt_reports import RUN_STOPPED, STOPPED, Function, execute
from millpond.workflows.tasks.progress import METADATA, beaten, rows_in
from millpond.workflows.tasks.queues import BEATING

__all__ = ("BEAT_SECONDS", "END_SECONDS", "TaskWorker", "step_of")

BEAT_SECONDS = 2.0
WATCH_SECONDS = 1.0
"""The time between two looks at an attempt: is it still wanted?"""
END_SECONDS = 30.0
"""The time in which a worker that is told to stop ends what it has; the rest is handed back."""
_CALL_SECONDS = 30.0
_REPORTS_MAX = 15
_REPORT_RETRY_SECONDS = 2.0


class TaskWorker:
    """Works on the tasks that `functions` name, and on those that it takes up, until it is told to stop; `tell` gets a
    line for each event.
    """

    def __init__(
        self, functions: Mapping[str, Function], config: LHConfig, tell: Callable[[str], object], *,
        end_seconds: float = END_SECONDS,
    ) -> None:  # fmt: skip
        self._functions, self._config, self._tell, self._end_seconds = dict(functions), config, tell, end_seconds
        self._ids: dict[str, str] = {}
        self._numbers = count()
        self._stirred = asyncio.Event()  # it is of the loop that first waits for it
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[str, LHTask] = {}
        self._polls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._running: dict[asyncio.Task[None], str] = {}
        self._clock = SystemClock()

    def register(self) -> None:
        """Define the tasks that are not; before `run`.

        Raises: `Unavailable` when the server cannot be reached; as it says, when it has a task of another shape.
        """
        for name, function in self._functions.items():
            self.take(name, function)

    def take(self, name: str, function: Function) -> None:
        """Define a task, if it is not, and work on it from now on; also while it runs, from another thread.

        Raises: as `register`.
        """
        self._functions[name] = function
        try:
            LHTaskWorker(function, name, self._config).register_task_def()
            definition = self._config.stub().GetTaskDef(TaskDefId(name=name), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise classify_error(error, self._config.bootstrap_server, changes=False) from None
        self._tasks[name] = LHTask(function, definition)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stirred.set)

    def leave(self, name: str) -> None:
        """Take no more of a task; what runs of it goes on. From any thread."""
        self._tasks.pop(name, None)

    async def run(self, ready: Callable[[], object]) -> None:
        """Work on the tasks until it is told to stop; `ready` is called once it can be told."""
        loop = self._loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS_MAX))
        begin_tracing(tracing_target())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note_signal)
        ready()
        while not self._stopping:
            self._stirred.clear()
            await self._beat()
            await _within(self._stirred.wait(), BEAT_SECONDS)
        self._loop = None
        for poll in self._polls.values():
            poll.cancel()
        await self._end()

    def stop(self) -> None:
        """Take no more work; `run` returns when what runs has ended, or was handed back."""
        self._stopping = True
        self._stirred.set()

    def _note_signal(self) -> None:
        if not self._stopping:
            self._tell(f"stopping: {len(self._running)} attempts run")
        self.stop()

    @property
    def stopped(self) -> bool:
        """True when it was told to stop."""
        return self._stopping

    async def _end(self) -> None:
        until = self._clock.monotonic() + self._end_seconds
        while self._running and self._clock.monotonic() < until:
            await _within(asyncio.wait(self._running), BEAT_SECONDS)
            await self._beat()
        for running in tuple(self._running):
            running.cancel(STOPPED)
        if self._running:
            await asyncio.wait(self._running)

    # -- the server ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Show every process of the server that this worker is there, and poll those that are not polled."""
        hosts = {self._config.bootstrap_server, *(host for host, _ in self._polls)}
        registered_at: set[str] = set()
        for host in sorted(hosts):
            with suppress(grpc.RpcError):
                registered_at |= await self._registered(host)
        tasks = dict(self._tasks)
        if self._stopping or (tasks and not registered_at):
            return
        for (host, name), poll in tuple(self._polls.items()):
            if poll.done() or host not in registered_at or name not in tasks:
                self._polls.pop((host, name)).cancel()
        for host in registered_at:
            for name, task in tasks.items():
                if (host, name) not in self._polls:
                    self._polls[host, name] = asyncio.create_task(self._poll(host, task))

    def _id_of(self, host: str) -> str:
        return self._ids.setdefault(host, f"{self._config.task_worker_id}-{next(self._numbers)}{BEATING}")

    async def _registered(self, host: str) -> set[str]:
        stub = self._stub(host)
        hosts = set()
        ids = {*self._ids.values(), *self._running.values()} or {self._id_of(host)}
        for worker, task in product(sorted(ids), self._tasks.values()):
            request = RegisterTaskWorkerRequest(task_worker_id=worker, task_def_id=task.task_def.id)
            reply = await stub.RegisterTaskWorker(request, timeout=BEAT_SECONDS, metadata=_beat())
            hosts |= {f"{own.host}:{own.port}" for own in reply.your_hosts}
        return hosts

    def _stub(self, host: str) -> Any:
        return self._config.stub(server=host, async_channel=True)

    async def _poll(self, host: str, task: LHTask) -> None:
        """Ask a process for tasks, one after another; it ends when the process is gone."""
        slots = asyncio.Semaphore(self._config.num_worker_threads)
        stub = self._stub(host)
        call = stub.PollTask()
        worker = self._id_of(host)
        request = PollTaskRequest(
            client_id=worker, task_worker_version=self._config.worker_version, task_def_id=task.task_def.id
        )
        try:
            while True:
                await slots.acquire()
                await call.write(request)
                reply = await call.read()
                if reply is grpc.aio.EOF:
                    break
                if not reply.HasField("result"):
                    slots.release()
                    continue
                running = asyncio.create_task(self._execute(stub, task, reply.result))
                self._running[running] = worker
                running.add_done_callback(self._running.pop)
                running.add_done_callback(lambda _: slots.release())
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass
        finally:
            call.cancel()
        if self._ids.get(host) == worker:
            del self._ids[host]

    # -- an attempt ---------------------------------------------------------------------------------

    async def _execute(self, stub: Any, task: LHTask, scheduled: ScheduledTask) -> None:
        """Make an attempt, and report how it ended."""
        function, began = self._functions[task.task_name], self._clock.monotonic()
        run, step = run_path(scheduled.task_run_id.wf_run_id), step_of(task.task_name, scheduled.variables)
        about = f"{run} {step} attempt {scheduled.attempt_number}"
        self._tell(f"{about}: begins")
        watch = partial(self._watch, stub, scheduled)
        outcome, report, words = await execute(scheduled, function, step, stub, self._clock, watch)
        rows = rows_in(outcome) if report.status == TaskStatus.TASK_SUCCESS else ""
        self._tell(f"{about}: {words} after {self._clock.monotonic() - began:.1f} s{rows}")
        await self._report(stub, report)

    async def _watch(self, stub: Any, scheduled: ScheduledTask, working: asyncio.Future[Any]) -> None:
        """Cancel an attempt as soon as nobody wants it any more."""
        while True:
            await _pause(WATCH_SECONDS)
            try:
                reason = await _unwanted(stub, scheduled)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    continue  # the server is away: the attempt goes on, and is looked at again
                reason = "its run was deleted"
            if reason:
                working.cancel(reason)
                return

    async def _report(self, stub: Any, report: ReportTaskRun) -> None:
        for _ in range(_REPORTS_MAX):
            try:
                await stub.ReportTask(report, timeout=_CALL_SECONDS)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    return  # its run was deleted
                self._tell(f"a report is sent again: {error.details()}")
                await _pause(_REPORT_RETRY_SECONDS)
            else:
                return


class _Entry(NamedTuple):
    key: str
    value: str | bytes


class _Metadata(grpc.aio.Metadata):
    """Metadata as the client's interceptors read them."""

    def __iter__(self) -> Iterator[Any]:
        return (_Entry(*pair) for pair in super().__iter__())


def _beat() -> _Metadata | None:
    progress = beaten()
    return _Metadata((METADATA, progress)) if progress else None


def step_of(task: str, variables: Sequence[Any]) -> str:
    """The step that a task run is: of a pipeline that is a function its name, else the task's."""
    first = variables[0].value if variables else None
    if is_step(task) and first is not None and first.WhichOneof("value") == "json_obj":
        return str(parse_object(first.json_obj.encode()).get("name", task))
    return task


async def _unwanted(stub: Any, scheduled: ScheduledTask) -> str:
    """The reason for which an attempt is wanted no more; nothing while it is.

    Raises: `grpc.RpcError`, of status NOT_FOUND when its run was deleted.
    """
    task = await stub.GetTaskRun(scheduled.task_run_id, timeout=_CALL_SECONDS)
    number = scheduled.attempt_number
    if len(task.attempts) <= number or task.attempts[number].status != TaskStatus.TASK_RUNNING:
        return "its attempt is over: the timeout of the step, or another worker has it"
    if scheduled.source.WhichOneof("task_run_source") != "task_node":
        return ""
    node = scheduled.source.task_node.node_run_id
    run = await stub.GetWfRun(node.wf_run_id, timeout=_CALL_SECONDS)
    return RUN_STOPPED if is_halted_by_hand(run, node.thread_run_number) else ""


async def _within(work: Awaitable[Any], seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def _pause(seconds: float) -> None:
    await _within(asyncio.Event().wait(), seconds)
