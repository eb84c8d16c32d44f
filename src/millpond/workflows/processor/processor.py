"""The processor of a partition: one thread that takes the commands that have come, and applies them in one write.

    submit ─▶ waiting commands ─▶ one write for all that wait, the timers that are due, and the claims of workers that
    wait for what they queued ─▶ synced ─▶ replies, tasks, effects

A `Processor` keeps the log of its commands itself, in the write that applies them. A `partitions.Follower` is one that
gets them from a log of several processes, and puts there what it adds: timers that are due, and claims.

Invariants:
* commands are applied in the order in which they were submitted;
* a reply is given, a task handed out, and effects are passed on, after the write that made them is durable;
* a write that fails changes nothing: all its commands get the error, its workers wait again, and commands that come
  later are tried;
* only an owner answers, claims tasks and lets timers fire; a log of one process has one for ever;
* a write whose end is not known is an error of that kind for each of its callers, who look before they try again;
* a timer fires once, soon after its instant, also when the process was down then;
* a clock that was ahead, and is right again, delays no timer: those that it set are set anew;
* a run whose deletion was cut off is deleted to its end;
* rows of the legacy layout move when a command reads them, and the others while no command waits.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar, cast

from google.protobuf.message import Message
from littlehorse.model import TaskRunId

from millpond.clock import Clock
from millpond.errors import Closed, Internal, MillpondError, Unavailable
from millpond.kernel.signal import Signal
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.kernel.worker import WorkerThread
from millpond.workflows.engine import Request, TaskClaim, TimersOfRunCancelled, run_id
from millpond.workflows.keyspaces import DELETION
from millpond.workflows.logs import Entry
from millpond.workflows.processor.backlog import Backlog, backlog_of
from millpond.workflows.processor.batch import Batch, RecentRows
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.partition import CLOCK_BACK_MS, Applied, Partition, derived_id
from millpond.workflows.processor.rows import ReadRows, queued_after
from millpond.workflows.processor.timers import TIMERS_PULLED_PER_WRITE, due_timers, next_due, pull_back
from millpond.workflows.store import Initialization, RunStore, initialize
from millpond.workflows.store.legacy import ROWS
from millpond.workflows.store.run_slices import delete_run
from millpond.workflows.tasks.queues import Queue, QueuedTask, TaskQueues, Worker, Workers
from millpond.workflows.tasks.traced import tell_ended

__all__ = ("Ends", "Incoming", "Measures", "Processor", "QUEUED_MAX", "RETRY_SECONDS", "claim_of", "read_rows")

COMMANDS_PER_WRITE = 256
TIMERS_PER_WRITE = 100
CLAIMS_PER_WRITE = 256
APPLY_SECONDS_MIN, APPLY_SECONDS_MAX = 0.001, 0.02
"""The time in which one write applies commands: at least about a sync, so that a write is not all sync."""
GATHER_SECONDS = 0.001
"""The time for which workers that come wait for a command: they ask just before they report, and both share a write."""
LOOK_SECONDS = 60
"""The time after which a processor that waits for a timer looks at the clock again, which may have been set."""
RETRY_SECONDS = 0.5
"""The time after which a processor that could not go on tries again."""
QUEUED_MAX = 10_000
"""The commands that may wait for the processor; one more is sent again later."""
_LOG = logging.getLogger(__name__)

T = TypeVar("T")
Incoming: TypeAlias = "LoggedCommand | Entry"
"""An item that is yet to be applied: a command, or an entry of a log."""


@dataclass(slots=True)
class Ends:
    """The yield of one write: the ends of timers, of commands, and of claims for workers that waited."""

    fired: list[Applied] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    claimed: list[Applied] = field(default_factory=list)
    offered: list[tuple[LoggedCommand, Worker]] = field(default_factory=list)
    """Claims that are yet to be applied, and the workers for which they are."""
    taken: int = 0
    """The number of those that waited that were applied."""
    due: int | None = None
    pulled: int = 0
    """Timers that a clock that was ahead had set, and that were set anew."""
    unmatched: set[Queue] = field(default_factory=set)
    """Queues whose turn comes with the next write."""
    touched: set[Queue] = field(default_factory=set)
    """Queues that the write looked at: what they hold is another thing if it is not made."""

    def all(self) -> list[Applied]:
        return [*self.fired, *self.applied, *self.claimed]


@dataclass(slots=True)
class Measures:
    """Counts of processors since they began."""

    commands: int = 0
    claims: int = 0
    timers: int = 0
    failed: int = 0
    writes: int = 0
    write_seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, ends: Ends, seconds: float) -> None:
        """Count a write, and what ended in it."""
        every = ends.all()
        claims = sum(end.worker is not None for end in every)
        with self.lock:
            self.commands += len(every) - len(ends.fired) - claims
            self.claims += claims
            self.timers += len(ends.fired)
            self.failed += sum(end.unheard or isinstance(end.error, Internal) for end in every)
            self.writes += 1
            self.write_seconds += seconds


class Processor:
    """Applies commands to the partition in a space. `passed_on` gets what was applied, in order, from its thread."""

    def __init__(
        self, space: Space, clock: Clock, passed_on: Callable[[Sequence[Applied]], None],
        workers: Workers | None = None, measures: Measures | None = None, *, stories: bool = False,
        outputs: bool = False, owning: bool = True,
    ) -> None:  # fmt: skip
        """Open the partition. `workers` are those that wait for a task; several processors may share them, and counts.

        Commands note what they tell of their runs with `stories`, and what they tell their tenants with `outputs`.
        """
        self.space, self._clock, self._passed_on = space, clock, passed_on
        self.workers = workers or Workers()
        self.partition = self._opened(space.write(lambda tx: initialize(tx, clock.now_ms())), stories, outputs)
        self._legacy = ROWS.start if self.partition.initialization.legacy else None
        self.measures = measures or Measures()
        self._ends: Ends | None = None
        self._queues, self._recent = TaskQueues(), RecentRows()
        self._queue: deque[Incoming] = deque()
        self._callers: dict[str, tuple[LoggedCommand, Future[Message | None] | None]] = {}
        self._joined: set[Queue] = set()
        self._looks = self._served = self._latest = 0
        # A random id for each command would cost two calls of the system, after which a thread waits for its turn.
        self._session, self._numbers = clock.random_id(), itertools.count()
        self._lock, self.written = threading.Condition(), Signal(clock)
        """`written`: rung after each write."""
        self._worker = WorkerThread("workflows", self._turn_on, clock, retry_seconds=RETRY_SECONDS)
        self._wake, self._stopping = self._worker.woken, self._worker.stopping
        self.own(owning)

    def _opened(self, initialization: Initialization, stories: bool, outputs: bool) -> Partition:
        return Partition(initialization, stories=stories, outputs=outputs)

    def start(self) -> None:
        """Begin to apply commands."""
        self._worker.start()

    def stop(self) -> None:
        """End after the write that is under way; commands that wait get an error. The space is its owner's to close."""
        with self._lock:
            self._worker.interrupt()
        self._worker.stop()
        self.own(False)

    def own(self, owning: bool) -> None:
        """Do the work of the partition's owner from now on, or no longer: then callers that wait get an error."""
        self._owning = owning
        self.workers.unwatch(self._look)
        if owning:
            self._queues = TaskQueues()
            self.workers.watch(self._look)
            for queue in self.workers.queues():
                self._look(queue)
        else:
            self._answer([Applied(command, 0, error=self._gone()) for command, _ in list(self._callers.values())])

    def submit(self, tenant: str, request: Request) -> Future[Message | None]:
        """The reply of a request, as soon as it is applied and durable.

        Raises (the future): the caller's mistake, as the engine says it; `Internal`, kind `command_failed`;
            `Unavailable`, kind `commands_full`, or when the disk is full; `Closed`.
        """
        future: Future[Message | None] = Future()
        try:
            self._add(tenant, request, future)
        except MillpondError as error:
            future.set_exception(error)
        return future

    def post(self, tenant: str, request: Request) -> str:
        """The id of the command of a request: its end is passed on, with this id.

        Raises:
            Unavailable: kind `commands_full`.
            Closed: the processor has stopped.
        """
        return self._add(tenant, request, None).id

    @property
    def queued(self) -> int:
        """The number of commands that wait for their turn."""
        return len(self._queue)

    def _look(self, queue: Queue) -> None:
        """Look for tasks of a queue: a worker waits for one."""
        self._joined.add(queue)
        self._looks += 1
        self._wake.set()

    def _add(self, tenant: str, request: Request, future: Future[Message | None] | None) -> LoggedCommand:
        command = self._command(tenant, request)
        with self._lock:
            if self._stopping.is_set():
                raise self._gone()
            if self.queued >= QUEUED_MAX:
                raise Unavailable("more commands wait than may", kind="commands_full", queued_max=QUEUED_MAX,
                                  hint="send it again in a moment")  # fmt: skip
            self._callers[command.id] = command, future
            self._append(command)
        return command

    def _command(self, tenant: str, request: Request) -> LoggedCommand:
        return LoggedCommand(tenant, f"{self._session}{next(self._numbers):016x}", request)

    def _append(self, command: LoggedCommand) -> None:
        self._queue.append(command)
        if not self._wake.is_set():  # else the thread has yet to look, and meets the command
            self._wake.set()

    def _gone(self) -> MillpondError:
        """The error of callers that nobody answers any more."""
        return Closed("the processor has stopped", kind="workflows_stopped", hint="ask again when the node is up")

    def _take(self, most: int) -> list[Incoming]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _take_joined(self) -> set[Queue]:
        """The queues for which workers wait since the last look, and in which there may be tasks."""
        return set(filter(self._queues.may_hold, [self._joined.pop() for _ in range(len(self._joined))]))

    # -- the thread -----------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Do what there is to do now, in one write; False when there is nothing. Called by its thread, or without one.

        The first turn ends deletions that a crash cut off.
        """
        if self._ends is None:
            self._end_deletions()
            self._ends = Ends(due=self._first_due())
            return True
        batch = self._take(COMMANDS_PER_WRITE)
        looked = self._take_joined() | self._ends.unmatched
        due = self._ends.due
        if batch or looked or self._is_due(due, self._clock.now_ms()):
            self._ends = self._apply(batch, looked, due)
            return True
        if self._legacy is not None:
            self._migrate(self._legacy)
            return True
        return False

    def _turn_on(self) -> float | None:
        """Turn until there is nothing to do; the monotonic time of the next look."""
        while True:
            # In this order, as the worker has it: an interrupt sets the other one first.
            self._wake.clear()
            if self._stopping.is_set():
                return 0.0
            if self._joined and not self._queue:
                self._wake.wait(GATHER_SECONDS)
            if not self.turn():
                assert self._ends is not None
                return self._next_look(self._ends.due)

    def _next_look(self, due: int | None) -> float | None:
        if due is None:
            return None
        return self._clock.monotonic() + min((due - self._clock.now_ms()) / 1000, LOOK_SECONDS)

    def _is_due(self, due: int | None, now: int) -> bool:
        return self._went_back(now) or (due is not None and due <= now)

    def _went_back(self, now: int) -> bool:
        """True when the clock was ahead, by the instants of earlier writes."""
        return self._latest - now > CLOCK_BACK_MS

    def _note_time(self, now: int, pulled: int) -> None:
        """Note the latest instant of a write; once no timer is left that was set later than it, that is now."""
        if not self._went_back(now):
            self._latest = max(self._latest, now)
        elif pulled < TIMERS_PULLED_PER_WRITE:
            _LOG.warning("the clock went back by %.1f s: timers that it had set are set anew",
                         (self._latest - now) / 1000)  # fmt: skip
            self._latest = now

    def _migrate(self, start: bytes) -> None:
        """Move some legacy rows while there is nothing else to do."""

        def migrate(tx: Transaction) -> tuple[bytes | None, Initialization]:
            return self.partition.migrate(tx, start), initialize(tx, self._clock.now_ms())

        try:
            self._legacy, self.partition.initialization = self.space.write(migrate)
        except MillpondError as error:
            _LOG.error("legacy rows are left as they are, and read from there: %s", error)
            self._legacy = None
        self._recent.forget()
        step("workflows.migrated_slice")

    def _first_due(self) -> int | None:
        with self.space.read() as tx:
            self._latest = self.partition.latest_ms(tx)
            return next_due(tx)

    def _apply(self, batch: list[Incoming], looked: set[Queue], due: int | None) -> Ends:
        """Apply commands, the timers that are due, and claims for the workers of some queues."""
        now, began = self._clock.now_ms(), self._clock.monotonic()
        before = ends = Ends()

        def write(tx: Transaction) -> None:
            nonlocal ends
            if ends is not before:  # it is run again
                self._undo(ends)
            ends = Ends()
            rows = Batch(tx, self._recent)
            self._work(rows, batch, due, ends, now)
            self._hand_out(rows, looked, ends, now)
            rows.end()
            step("workflows.batch_uncommitted")
            ends.due = next_due(tx)

        try:
            self.space.write(write)
        except Exception as error:
            self._undo(ends)
            self._fail(batch, error)
            return Ends(due=due, unmatched=looked)
        step("workflows.batch_committed")
        self.written.ring()
        self._note_time(now, ends.pulled)
        seconds = self._clock.monotonic() - began
        self._served = len(ends.claimed)
        self._put_back(batch[ends.taken :])
        self._confirm(ends)
        if self._owning:
            self.measures.note(ends, seconds)
        self._answer(ends.all())
        if any(isinstance(effect, TimersOfRunCancelled) for end in ends.all() for effect in end.effects):
            self._end_deletions()  # of runs with more rows than one write deletes
        return ends

    def _work(self, rows: Batch, batch: list[Incoming], due: int | None, ends: Ends, now: int) -> None:
        """Apply what came, and the timers that are due."""
        ends.pulled = pull_back(rows, now, TIMERS_PULLED_PER_WRITE) if self._went_back(now) else 0
        if due is not None and due <= now:
            ends.fired = self.partition.fire(rows, due_timers(rows, now, TIMERS_PER_WRITE), now)
        ends.applied = self.partition.apply(rows, cast("list[LoggedCommand]", batch), now, self._until())
        ends.taken = len(ends.applied)

    def _confirm(self, ends: Ends) -> None:
        """Make sure of the ends of a write before anybody hears of them."""

    def backlog(self) -> Backlog:
        """The work that waits, as its rows have it.

        Raises: `Closed`, once the space is.
        """
        with self.space.read() as tx:
            return backlog_of(tx, self.partition)

    def _until(self) -> Callable[[], bool]:
        """True when a write has applied commands for long enough.

        Workers come back at about the same time for their next task, and wait for the next write. So a write goes on
        until half of those are there that the last one served, as long as it is neither very short nor very long.
        """
        monotonic, began, count = self._clock.monotonic, self._clock.monotonic(), max(1, self._served // 2)

        def over() -> bool:
            seconds = monotonic() - began
            return seconds >= (APPLY_SECONDS_MIN if self._looks >= count else APPLY_SECONDS_MAX)

        self._looks = 0
        return over

    def _put_back(self, batch: list[Incoming]) -> None:
        if batch:
            with self._lock:
                self._queue.extendleft(reversed(batch))
            self._wake.set()

    def _answer(self, ends: Sequence[Applied]) -> None:
        """Pass on what was applied, and give callers their replies."""
        self._passed_on(ends)
        if self._owning:
            tell_ended(run for end in ends for run in end.ended)
        for end in ends:
            _, future = self._callers.pop(end.command.id, (None, None))
            if future is not None:
                _settle(future, end)

    def _fail(self, batch: list[Incoming], error: Exception) -> None:
        """Answer commands with the error of their write."""
        shown = error if isinstance(error, MillpondError) else _unexpected(error)
        self._answer([Applied(cast("LoggedCommand", command), 0, error=shown) for command in batch])
        if not batch:  # timers and claims alone: they are tried again, and not at once
            self._clock.wait(self._wake, self._clock.monotonic() + 1.0)

    # -- tasks for workers that wait ------------------------------------------------------------------

    def _hand_out(self, tx: Transaction, looked: set[Queue], ends: Ends, now: int) -> None:
        """Claim tasks for workers: of the queues in which there are new tasks, or for which workers came."""
        if not self._owning:
            return
        queues = ends.touched = set(looked)
        for end in (*ends.fired, *ends.applied):
            for queued in end.queued:
                queue = (end.command.tenant, queued.definition)
                self._queues.add(queue, queued.task)
                queues.add(queue)
        for queue in sorted(queues):
            while (worker := self.workers.take(queue)) is not None:
                full = len(ends.claimed) + len(ends.offered) >= CLAIMS_PER_WRITE
                if full or not self._claim(tx, worker, ends, now):
                    self.workers.give_back(worker)
                    if full:
                        ends.unmatched.add(queue)
                    break

    def _claim(self, tx: Transaction, worker: Worker, ends: Ends, now: int) -> bool:
        """Claim the oldest task for a worker; False when nothing is queued."""
        while (task := self._next_task(tx, worker)) is not None:
            command = LoggedCommand(worker.queue[0], derived_id("claim", *task.position), claim_of(task, worker))
            (end,) = self.partition.apply(tx, [command], now)
            if end.reply is not None or end.error is not None:
                ends.claimed.append(replace(end, worker=worker))
                return True
        return False

    def _next_task(self, tx: ReadTransaction, worker: Worker) -> QueuedTask | None:
        return self._queues.next(worker.queue, lambda queue, after, limit: queued_after(tx, *queue, after, limit))

    def _undo(self, ends: Ends) -> None:
        """Forget what a write did to queues and workers that was not made, or is made again."""
        for worker in (*(worker for _, worker in ends.offered), *(end.worker for end in reversed(ends.claimed))):
            assert worker is not None
            self.workers.give_back(worker)
        for queue in ends.touched:
            self._queues.forget(queue)
        self._recent.forget()

    def _end_deletions(self) -> None:
        """Delete runs to their end whose deletion a crash cut off, or that were too large for one write."""
        with self.space.read() as tx:
            tenants = {str(DELETION.unpack(key)[0]) for key in tx.keys(DELETION.range())}
        for tenant in tenants:
            store = RunStore(tenant, self.partition.initialization, lambda _: ())
            with self.space.read() as tx:
                runs = list(store.deletions(tx))
            for run in runs:
                delete_run(self.space, store, run)
        if tenants:
            self._recent.forget()


def read_rows(processor: Processor, tenant: str, act: Callable[[ReadRows], T], *, wait: bool = True) -> T:
    """The result of a function that reads a tenant's rows in a partition.

    Raises: as the function; `WouldBlock`, unless it may `wait` for the space.
    """
    with processor.space.read(wait=wait) as tx:
        return act(processor.partition.reads(tx, tenant))


def claim_of(task: QueuedTask, worker: Worker) -> TaskClaim:
    """The request that claims a task for a worker."""
    return TaskClaim(TaskRunId(wf_run_id=run_id(task.run), task_guid=task.guid), worker.id, worker.version)


def _settle(future: Future[Message | None], end: Applied) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if end.error is not None:
        future.set_exception(end.error)
    else:
        future.set_result(end.reply)


def _unexpected(error: Exception) -> Internal:
    _LOG.error("a write of workflows failed unexpectedly", exc_info=error)
    return Internal("the write of the command failed", kind="command_failed", reason=repr(error))
