"""Runs of workflows in the process of a test: the engine of Millpond on a manual clock, without server or threads.

    async def charge(customer: str) -> str: ...

    runs = WorkflowRuns()
    runs.register(Workflow("subscription", body), charge)
    run = runs.start("subscription", customer="ada")
    runs.pass_time(timedelta(days=365))               timers, sleeps and retries fire, each at its instant

The tasks are called here, one after another, as the public client calls them. Specifications, timers, retries,
failures and events are those of a node: the same engine and the same rows, in memory.

Invariants:
* time passes only in `pass_time`, or where a task moves the clock; a timer fires at its own instant;
* the same test takes the same course: ids count up, tasks are called in the order in which they were queued.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from millpond.extras import need

need("littlehorse")

import littlehorse
from google.protobuf.message import Message
from littlehorse.config import LHConfig
from littlehorse.exceptions import LHTaskException as TaskException
from littlehorse.lh_struct import deserialize_struct, is_lh_struct
from littlehorse.model import (
    Checkpoint,
    LHErrorType,
    LHStatus,
    LHTaskError,
    LHTaskException,
    LittleHorseStub,
    ReportTaskRun,
    RunWfRequest,
    ScheduledTask,
    TaskStatus,
    Variable,
    VariableId,
    WfRun,
    WfRunId,
)
from littlehorse.utils import extract_value, to_variable_value
from littlehorse.worker import WorkerContext
from littlehorse.workflow import Workflow

from millpond.clock import ManualClock
from millpond.errors import NotFound
from millpond.stores.memory import MemorySpace
from millpond.testing.ponds import BEGINNING_MS
from millpond.workflows.engine import Request, key_of
from millpond.workflows.processor import Applied, Processor
from millpond.workflows.processor.timers import next_due
from millpond.workflows.tasks.queues import Worker

__all__ = ("TaskCall", "WorkerLost", "WorkflowRuns")

TENANT = "default"
CALLS_AT_ONE_INSTANT_MAX = 10_000
Task = Callable[..., Coroutine[Any, Any, Any]]


class WorkerLost(BaseException):
    """Raised by a task whose worker dies: nobody reports the attempt, and it ends by its timeout."""


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A call of a task: its name, arguments and time, the run, and the number of the attempt, from 0."""

    task: str
    arguments: tuple[Any, ...]
    at: datetime
    run: str
    attempt: int


class WorkflowRuns:
    """An engine of its own. `calls` lists every call of a task, in order.

    Not to be used within a running event loop: tasks have one of their own.
    """

    def __init__(self, *, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(now=BEGINNING_MS)
        self.calls: list[TaskCall] = []
        self.registrations: LHConfig = _Registrations(self)
        """For functions of the client that register something, as `littlehorse.create_external_event_def`."""
        self._space = MemorySpace()
        self._tasks: dict[str, Task] = {}
        self._handed: deque[ScheduledTask] = deque()
        self._at_work = False
        self._processor = self._begin()

    def _begin(self) -> Processor:
        self._polling: set[str] = set()
        return Processor(self._space, self.clock, self._hand_over)

    def register(self, workflow: Workflow, *tasks: Task) -> None:
        """Register a workflow and the tasks it calls, each an `async def` under its own name.

        Raises: `Invalid` for what a node would refuse.
        """
        for task in tasks:
            littlehorse.create_task_def(task, task.__name__, self.registrations)
            self._tasks[task.__name__] = task
        littlehorse.create_workflow_spec(workflow, self.registrations)

    def start(self, workflow: str, run: str | None = None, /, **variables: Any) -> str:
        """Start a run, and do what there is to do now; its id, which is `run` if that is given.

        Raises: `NotFound`, `Invalid`, `AlreadyExists`, as a node does.
        """
        inputs = {name: to_variable_value(value) for name, value in variables.items()}
        started = self.send(RunWfRequest(wf_spec_name=workflow, id=run, variables=inputs))
        assert isinstance(started, WfRun)
        return started.id.id

    def send(self, request: Request) -> Message | None:
        """The reply to any request of the client that changes something, as `PutExternalEventRequest`.

        Raises: the error that the caller of a node would get.
        """
        reply = self._processor.submit(TENANT, request)
        while not reply.done():
            self._processor.turn()
        self._work()
        return reply.result()

    def pass_time(self, time: timedelta) -> None:
        """Let time pass: the clock jumps from one timer to the next, and tasks are called when they are queued."""
        end = self.clock.now_ms() + time // timedelta(milliseconds=1)
        self._work()
        while (due := self._next_due()) is not None and due <= end:
            self.clock.advance(max(0, due - self.clock.now_ms()))
            self._work()
        self.clock.advance(max(0, end - self.clock.now_ms()))

    def restart(self) -> None:
        """Begin anew on the rows that are there, as a node does after it was killed."""
        self._processor = self._begin()
        self._work()

    def status(self, run: str) -> str:
        """The status of a run: `RUNNING`, `COMPLETED`, `ERROR`, `EXCEPTION` and the others of the client.

        Raises: `NotFound`.
        """
        return LHStatus.Name(self._row(WfRun, WfRunId(id=run)).status)

    def variable(self, run: str, name: str) -> Any:
        """The value of a variable of a run's first thread.

        Raises: `NotFound`.
        """
        row = self._row(Variable, VariableId(wf_run_id=WfRunId(id=run), thread_run_number=0, name=name))
        return extract_value(row.value)

    def _row(self, kind: type[Any], name: Message) -> Any:
        with self._space.read() as tx:
            row = self._processor.partition.reads(tx, TENANT).get(kind, key_of(name))
        if row is None:
            raise NotFound(f"Couldn't find specified {kind.__name__}", kind="workflow_object", type=kind.__name__,
                           id=str(key_of(name)))  # fmt: skip
        return row

    # -- work -----------------------------------------------------------------------------------------

    def _next_due(self) -> int | None:
        with self._space.read() as tx:
            return next_due(tx)

    def _hand_over(self, ends: Sequence[Applied]) -> None:
        for end in ends:
            if end.worker is not None:
                self._polling.discard(end.worker.queue[1])
                if isinstance(end.reply, ScheduledTask):
                    self._handed.append(end.reply)

    def _work(self) -> None:
        """Do all that is to be done at this instant. A request that a task sends is followed by the work under way."""
        if self._at_work:
            return
        self._at_work = True
        try:
            for _ in range(CALLS_AT_ONE_INSTANT_MAX):
                for name in sorted(self._tasks.keys() - self._polling):
                    self._polling.add(name)
                    self._processor.workers.wait(Worker((TENANT, name), "test"))
                while self._processor.turn():
                    pass
                if not self._handed:
                    return
                self._call(self._handed.popleft())
        finally:
            self._at_work = False
        raise AssertionError(f"{CALLS_AT_ONE_INSTANT_MAX} tasks were called and no time passed: a loop without a sleep")

    def _call(self, task: ScheduledTask) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise AssertionError("tasks are not called within a running event loop: use the runs from a plain function")
        name = task.task_def_id.name
        function = self._tasks[name]
        context = WorkerContext(task, cast("LittleHorseStub", _Checkpoints(self.send, self._row)))
        arguments, count = _arguments(function, task)
        self.calls.append(TaskCall(
            name, arguments, datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC),
            task.task_run_id.wf_run_id.id, task.attempt_number,
        ))  # fmt: skip
        report = ReportTaskRun(task_run_id=task.task_run_id, attempt_number=task.attempt_number)
        try:
            report.output.CopyFrom(to_variable_value(asyncio.run(function(*arguments, *[context][:count]))))
            report.status = TaskStatus.TASK_SUCCESS
        except WorkerLost:
            return
        except TaskException as raised:
            report.status = TaskStatus.TASK_EXCEPTION
            report.exception.CopyFrom(
                LHTaskException(name=raised.exception_name, message=raised.message, content=raised.content)
            )
        except Exception as raised:
            report.status = TaskStatus.TASK_FAILED
            report.error.CopyFrom(LHTaskError(type=LHErrorType.TASK_ERROR, message=repr(raised)))
        self._processor.post(TENANT, report)


def _arguments(function: Task, task: ScheduledTask) -> tuple[tuple[Any, ...], bool]:
    """The arguments of a call; True when the task wants the client's context behind them."""
    kinds = [parameter.annotation for parameter in inspect.signature(function, eval_str=True).parameters.values()]
    arguments = []
    for variable, kind in zip(task.variables, kinds, strict=False):
        if variable.value.WhichOneof("value") == "struct" and isinstance(kind, type) and is_lh_struct(kind):
            arguments.append(deserialize_struct(variable.value.struct, kind))
        else:
            arguments.append(extract_value(variable.value))
    return tuple(arguments), kinds[-1:] == [WorkerContext]


class _Registrations(LHConfig):
    """The client's configuration whose calls come to an engine of this process."""

    def __init__(self, runs: WorkflowRuns) -> None:
        super().__init__()
        self._runs = runs

    def stub(self, *_: Any, **__: Any) -> Any:
        return _Stub(self._runs.send)


@dataclass(frozen=True, slots=True)
class _Stub:
    """The methods of the client, each a request to be sent."""

    send: Callable[[Message], Message | None]

    def __getattr__(self, method: str) -> Callable[..., Message | None]:
        def call(request: Message, timeout: float | None = None, metadata: Mapping[str, str] | None = None) -> Any:
            return self.send(request)

        return call


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    """The calls by which the client's context retains and finds what an earlier attempt has computed."""

    send: Callable[[Message], Message | None]
    find: Callable[[type[Any], Message], Any]

    def __getattr__(self, method: str) -> Callable[[Message], Coroutine[Any, Any, Any]]:
        async def call(request: Message) -> Any:
            return self.find(Checkpoint, request) if method == "GetCheckpoint" else self.send(request)

        return call
