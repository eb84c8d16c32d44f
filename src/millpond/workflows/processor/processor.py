"""The processor of a partition: one thread that takes the commands that have come, and applies them in one write.

    submit ─▶ waiting commands ─▶ one write for all that wait, the timers that are due, and the claims of workers that
    wait for what they queued ─▶ synced ─▶ replies, tasks, effects

Invariants:
* commands are applied in the order in which they were submitted;
* a reply is given, a task handed out, and effects are passed on, after the write that made them is durable;
* a write that fails changes nothing: all its commands get the error, its workers wait again, and commands that come
  later are tried;
* a write whose end is not known is an error of that kind for each of its callers, who look before they try again;
* a timer fires once, soon after its instant, also when the process was down then;
* a clock that was ahead, and is right again, delays no timer: those that it set are set anew;
* a run whose deletion was cut off is deleted to its end;
* rows of the legacy layout move when a command reads them, and the others while no command waits.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from littlehorse.model import TaskRunId

from millpond.errors import Closed, Internal, MillpondError, Unavailable
from millpond.kernel.steps import step
from millpond.kernel.worker import begin_thread
from millpond.workflows.engine import TaskClaim, TimersOfRunCancelled, run_id
from millpond.workflows.keyspaces import DELETION
from millpond.workflows.processor.backlog import Backlog, backlog_of
from millpond.workflows.processor.batch import Batch, RecentRows
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.partition import CLOCK_BACK_MS, Applied, Partition
from millpond.workflows.processor.rows import queued_after
from millpond.workflows.processor.timers import TIMERS_PULLED_PER_WRITE, next_due, pull_back, take_due
from millpond.workflows.store import Initialization, RunStore, initialize
from millpond.workflows.store.legacy import ROWS
from millpond.workflows.store.run_slices import delete_run
from millpond.workflows.tasks.queues import Queue, TaskQueues, Worker, Workers

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.clock import Clock
    from millpond.kernel.space import Space, Transaction
    from millpond.workflows.engine import Request

__all__ = ("Measures", "Processor", "QUEUED_MAX")

COMMANDS_PER_WRITE = 256
TIMERS_PER_WRITE = 100
CLAIMS_PER_WRITE = 256
APPLY_SECONDS_MIN, APPLY_SECONDS_MAX = 0.001, 0.02
"""The time in which one write applies commands: at least about a sync, so that a write is not all sync."""
LOOK_SECONDS = 60
"""The time after which a processor that waits for a timer looks at the clock again."""
QUEUED_MAX = 10_000
"""The commands that may wait for the processor; one more is sent again later."""
_LOG = logging.getLogger(__name__)

_Queued = tuple[LoggedCommand, "Future[Message | None] | None"]


@dataclass(slots=True)
class _Ends:
    """The yield of one write: the ends of timers, of commands, and of claims for workers that waited."""

    fired: list[Applied] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    claimed: list[Applied] = field(default_factory=list)
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
    """Counts of a processor since it began."""

    commands: int = 0
    claims: int = 0
    timers: int = 0
    failed: int = 0
    writes: int = 0
    write_seconds: float = 0.0


class Processor:
    """Applies commands to the partition in a space. `passed_on` gets what was applied, in order, from its thread."""

    def __init__(
        self, space: Space, clock: Clock, passed_on: Callable[[Sequence[Applied]], None],
        workers: Workers | None = None, *, stories: bool = False,
    ) -> None:  # fmt: skip
        """Open the partition. `workers` are those that wait for a task; several processors may share them.

        With `stories`, commands note what they tell of their runs, for a `Teller`.
        """
        self._space, self._clock, self._passed_on = space, clock, passed_on
        self.workers = workers or Workers()
        self.partition = Partition(space.write(lambda tx: initialize(tx, clock.now_ms())), stories=stories)
        self._legacy = ROWS.start if self.partition.initialization.legacy else None
        self.measures = Measures()
        self._ends: _Ends | None = None
        self._queues = TaskQueues()
        self._recent = RecentRows()
        self._queue: deque[_Queued] = deque()
        self._joined: set[Queue] = set()
        self._looks = self._served = self._latest = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self.workers.watch(self.look)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to apply commands."""
        self._thread = begin_thread("workflows", self._run)

    def stop(self) -> None:
        """End after the write that is under way; commands that wait get an error."""
        with self._lock:
            self._stopping = True
        self.workers.unwatch(self.look)
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._fail(self._take(len(self._queue)), _closed())

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

    def look(self, queue: Queue) -> None:
        """Look for tasks of a queue: a worker waits for one."""
        self._joined.add(queue)
        self._looks += 1
        self._wake.set()

    def _add(self, tenant: str, request: Request, future: Future[Message | None] | None) -> LoggedCommand:
        command = LoggedCommand(tenant, self._new_id(), request)
        with self._lock:
            if self._stopping:
                raise _closed()
            if len(self._queue) >= QUEUED_MAX:
                raise Unavailable("more commands wait than may", kind="commands_full", queued_max=QUEUED_MAX,
                                  hint="send it again in a moment")  # fmt: skip
            self._queue.append((command, future))
        self._wake.set()
        return command

    def _new_id(self) -> str:
        return self._clock.random_id() + self._clock.random_id()

    def _take(self, most: int) -> list[_Queued]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _take_joined(self) -> set[Queue]:
        """The queues for which workers wait since the last look, and in which there may be tasks."""
        found = set()
        while self._joined:
            queue = self._joined.pop()
            if self._queues.may_hold(queue):
                found.add(queue)
        return found

    # -- the thread -----------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Do what there is to do now, in one write; False when there is nothing. Called by its thread, or without one.

        The first turn ends deletions that a crash cut off.
        """
        if self._ends is None:
            self._end_deletions()
            self._ends = _Ends(due=self._first_due())
            return True
        batch = self._take(COMMANDS_PER_WRITE)
        looked = self._take_joined() | self._ends.unmatched
        due, now = self._ends.due, self._clock.now_ms()
        if batch or looked or self._went_back(now) or (due is not None and due <= now):
            self._ends = self._apply(batch, looked, due)
            return True
        if self._legacy is not None:
            self._migrate(self._legacy)
            return True
        return False

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            if not self.turn():
                assert self._ends is not None
                self._wait(self._ends.due)

    def _wait(self, due: int | None) -> None:
        if due is None:
            self._clock.wait(self._wake, None)
            return
        seconds = min((due - self._clock.now_ms()) / 1000, LOOK_SECONDS)  # the time of day may be set meanwhile
        self._clock.wait(self._wake, self._clock.monotonic() + seconds)

    def _went_back(self, now: int) -> bool:
        """True when the clock was ahead, by the instants of earlier writes."""
        return self._latest - now > CLOCK_BACK_MS

    def _note_time(self, now: int, pulled: int) -> None:
        """Note the latest instant of a write; once no timer is left that was set later than it, that is now."""
        if not self._went_back(now):
            self._latest = max(self._latest, now)
        elif pulled < TIMERS_PULLED_PER_WRITE:
            seconds = (self._latest - now) / 1000
            _LOG.warning("the clock went back by %.1f s: timers that it had set are set anew", seconds)
            self._latest = now

    def _migrate(self, place: bytes) -> None:
        """Move some legacy rows while there is nothing else to do."""

        def migrate(tx: Transaction) -> tuple[bytes | None, Initialization]:
            return self.partition.migrate(tx, place), initialize(tx, self._clock.now_ms())

        try:
            self._legacy, self.partition.initialization = self._space.write(migrate)
        except MillpondError as error:
            _LOG.error("legacy rows are left as they are, and read from there: %s", error)
            self._legacy = None
        self._recent.forget()
        step("workflows.migrated_slice")

    def _first_due(self) -> int | None:
        with self._space.read() as tx:
            self._latest = self.partition.log.head(tx).stamp_ms
            return next_due(tx)

    def _apply(self, batch: list[_Queued], looked: set[Queue], due: int | None) -> _Ends:
        """Apply commands, the timers that are due, and claims for the workers of some queues."""
        now, began = self._clock.now_ms(), self._clock.monotonic()
        before = ends = _Ends()

        def write(tx: Transaction) -> None:
            nonlocal ends
            if ends is not before:  # it is run again
                self._undo(ends)
            ends = _Ends()
            rows = Batch(tx, self._recent)
            ends.pulled = pull_back(rows, now, TIMERS_PULLED_PER_WRITE) if self._went_back(now) else 0
            if due is not None and due <= now:
                ends.fired = self.partition.fire(rows, self._due_commands(rows, now), now)
            ends.applied = self.partition.apply(rows, [command for command, _ in batch], now, self._until())
            self._hand_out(rows, looked, ends, now)
            rows.end()
            step("workflows.batch_uncommitted")
            ends.due = next_due(tx)

        try:
            self._space.write(write)
        except Exception as error:
            self._undo(ends)
            known = error if isinstance(error, MillpondError) else _unexpected(error)
            self._fail(batch, known)
            if not batch:  # timers and claims alone: they are tried again, and not at once
                self._clock.wait(self._wake, self._clock.monotonic() + 1.0)
            return _Ends(due=due, unmatched=looked)
        step("workflows.batch_committed")
        self._note_time(now, ends.pulled)
        self._measure(ends, self._clock.monotonic() - began)
        self._served = len(ends.claimed)
        self._put_back(batch[len(ends.applied) :])
        self._pass_on(batch[: len(ends.applied)], ends)
        return ends

    def _measure(self, ends: _Ends, seconds: float) -> None:
        measures = self.measures
        measures.commands += len(ends.applied)
        measures.claims += len(ends.claimed)
        measures.timers += len(ends.fired)
        measures.failed += sum(end.unheard or isinstance(end.error, Internal) for end in ends.all())
        measures.writes += 1
        measures.write_seconds += seconds

    def backlog(self) -> Backlog:
        """The work that waits, as its rows have it.

        Raises: `Closed`, once the space is.
        """
        with self._space.read() as tx:
            return backlog_of(tx, self.partition)

    @property
    def queued(self) -> int:
        """The number of commands that wait for their turn."""
        return len(self._queue)

    def _until(self) -> Callable[[], bool]:
        """True when a write has applied commands for long enough.

        Workers come back at about the same time for their next task, and wait for the next write. So a write goes on
        until half of those are there that the last one served, as long as it is neither very short nor very long.
        """
        monotonic, began, wanted = self._clock.monotonic, self._clock.monotonic(), max(1, self._served // 2)

        def over() -> bool:
            seconds = monotonic() - began
            return seconds >= (APPLY_SECONDS_MIN if self._looks >= wanted else APPLY_SECONDS_MAX)

        self._looks = 0
        return over

    def _put_back(self, commands: list[_Queued]) -> None:
        if commands:
            with self._lock:
                self._queue.extendleft(reversed(commands))
            self._wake.set()

    def _pass_on(self, batch: list[_Queued], ends: _Ends) -> None:
        every = ends.all()
        self._passed_on(every)
        if any(isinstance(effect, TimersOfRunCancelled) for end in every for effect in end.effects):
            self._end_deletions()  # of runs with more rows than one write deletes
        for (_, future), end in zip(batch, ends.applied, strict=True):
            if future is not None:
                _settle(future, end)

    def _fail(self, batch: list[_Queued], error: MillpondError) -> None:
        ends = [Applied(command, 0, error=error) for command, _ in batch]
        self._passed_on(ends)
        for (_, future), end in zip(batch, ends, strict=True):
            if future is not None:
                _settle(future, end)

    def _due_commands(self, tx: Transaction, now: int) -> list[tuple[LoggedCommand, str]]:
        """The commands of the timers that are due, with their runs."""
        position = self.partition.log.head(tx).position
        return [
            (LoggedCommand(timer.tenant, _derived_id("timer", position, number), timer.request), str(timer.name[0]))
            for number, timer in enumerate(take_due(tx, now, TIMERS_PER_WRITE))
        ]

    # -- tasks for workers that wait ------------------------------------------------------------------

    def _hand_out(self, tx: Transaction, looked: set[Queue], ends: _Ends, now: int) -> None:
        """Claim tasks for workers: of the queues in which there are new tasks, or for which workers came."""
        queues = ends.touched = set(looked)
        for end in (*ends.fired, *ends.applied):
            for queued in end.queued:
                queue = (end.command.tenant, queued.definition)
                self._queues.add(queue, queued.task)
                queues.add(queue)
        for queue in sorted(queues):
            while (worker := self.workers.take(queue)) is not None:
                claimed = self._claim(tx, worker, now) if len(ends.claimed) < CLAIMS_PER_WRITE else None
                if claimed is None:
                    self.workers.give_back(worker)
                    if len(ends.claimed) >= CLAIMS_PER_WRITE:
                        ends.unmatched.add(queue)
                    break
                ends.claimed.append(claimed)

    def _claim(self, tx: Transaction, worker: Worker, now: int) -> Applied | None:
        """The claim of the oldest task for a worker; None when nothing is queued."""
        tenant, definition = worker.queue
        while task := self._queues.next(
            worker.queue, lambda _, after, limit: queued_after(tx, tenant, definition, after, limit)
        ):
            request = TaskClaim(
                TaskRunId(wf_run_id=run_id(task.run), task_guid=task.guid), worker.id, worker.version
            )  # fmt: skip
            command = LoggedCommand(tenant, _derived_id("claim", *task.place), request)
            (end,) = self.partition.apply(tx, [command], now)
            if end.reply is not None or end.error is not None:
                return replace(end, worker=worker)
        return None

    def _undo(self, ends: _Ends) -> None:
        """Forget what a write did to queues and workers that was not made, or is made again."""
        for end in reversed(ends.claimed):
            assert end.worker is not None
            self.workers.give_back(end.worker)
        for queue in ends.touched:
            self._queues.forget(queue)
        self._recent.forget()

    def _end_deletions(self) -> None:
        """Delete runs to their end whose deletion a crash cut off, or that were too large for one write."""
        with self._space.read() as tx:
            tenants = {str(DELETION.unpack(key)[0]) for key in tx.keys(DELETION.range())}
        for tenant in tenants:
            store = RunStore(tenant, self.partition.initialization, lambda _: ())
            with self._space.read() as tx:
                runs = list(store.deletions(tx))
            for run in runs:
                delete_run(self._space, store, run)
        if tenants:
            self._recent.forget()


def _derived_id(kind: str, position: int, number: int) -> str:
    """The id of a command that the processor makes: no other command has it."""
    return hashlib.sha256(f"{kind}/{position}/{number}".encode()).hexdigest()[:32]


def _settle(future: Future[Message | None], end: Applied) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if end.error is not None:
        future.set_exception(end.error)
    else:
        future.set_result(end.reply)


def _closed() -> Closed:
    return Closed("the processor has stopped", kind="workflows_stopped", hint="ask again when the node is up")


def _unexpected(error: Exception) -> Internal:
    _LOG.error("a write of workflows failed unexpectedly", exc_info=error)
    return Internal("the write of the command failed", kind="command_failed", reason=repr(error))
