"""The processor of a partition: one thread that takes the commands that have come, and applies them in one write.

    submit ─▶ waiting commands ─▶ one write for all that wait, and the timers that are due ─▶ synced ─▶ replies, effects

Invariants:
* commands are applied in the order in which they were submitted;
* a reply is given, and effects are passed on, after the write that made them is durable;
* a write that fails changes nothing: all its commands get the error, and those that come later are tried;
* a write whose end is not known is an error of that kind for each of its callers, who look before they try again;
* a timer fires once, soon after its instant, also when the process was down then;
* a run whose deletion was cut off is deleted to its end.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from millpond.errors import Closed, Internal, MillpondError, Unavailable
from millpond.kernel.steps import step
from millpond.workflows.engine import TimersOfRunCancelled
from millpond.workflows.keyspaces import DELETION
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.partition import Applied, Partition
from millpond.workflows.processor.timers import next_due, take_due
from millpond.workflows.store import RunStore, initialize
from millpond.workflows.store.slices import delete_run

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.clock import Clock
    from millpond.kernel.space import Space, Transaction
    from millpond.workflows.engine import Request

__all__ = ("Processor", "QUEUED_MAX")

COMMANDS_PER_WRITE = 256
TIMERS_PER_WRITE = 100
QUEUED_MAX = 10_000
"""The commands that may wait for the processor; one more is sent again later."""
_LOG = logging.getLogger(__name__)

_Queued = tuple[LoggedCommand, "Future[Message | None]"]


class Processor:
    """Applies commands to the partition in a space. `passed_on` gets what was applied, in order, from its thread."""

    def __init__(self, space: Space, clock: Clock, passed_on: Callable[[Sequence[Applied]], None]) -> None:
        self._space, self._clock, self._passed_on = space, clock, passed_on
        self.partition = Partition(space.write(lambda tx: initialize(tx, clock.now_ms())))
        self._queue: deque[_Queued] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to apply commands."""
        self._thread = threading.Thread(target=self._run, name="workflows", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the write that is under way; commands that wait get an error."""
        with self._lock:
            self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        for _, future in self._take(len(self._queue)):
            _fail(future, _closed())

    def submit(self, tenant: str, request: Request) -> Future[Message | None]:
        """The reply of a request, as soon as it is applied and durable.

        Raises (the future): the caller's mistake, as the engine says it; `Internal`, kind `command_failed`;
            `Unavailable`, kind `commands_full`, or when the disk is full; `Closed`.
        """
        future: Future[Message | None] = Future()
        with self._lock:
            if self._stopping:
                future.set_exception(_closed())
                return future
            if len(self._queue) >= QUEUED_MAX:
                future.set_exception(
                    Unavailable("more commands wait than may", kind="commands_full", queued_max=QUEUED_MAX,
                                hint="send it again in a moment")
                )  # fmt: skip
                return future
            self._queue.append((LoggedCommand(tenant, self._new_id(), request), future))
        self._wake.set()
        return future

    def _new_id(self) -> str:
        return self._clock.random_id() + self._clock.random_id()

    def _take(self, most: int) -> list[_Queued]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    # -- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        self._end_deletions()
        due = self._first_due()
        while not self._stopping:
            self._wake.clear()
            batch = self._take(COMMANDS_PER_WRITE)
            now = self._clock.now_ms()
            if not batch and (due is None or due > now):
                until = None if due is None else self._clock.monotonic() + (due - now) / 1000
                self._clock.wait(self._wake, until)
                continue
            due = self._apply(batch, due)

    def _first_due(self) -> int | None:
        with self._space.read() as tx:
            return next_due(tx)

    def _apply(self, batch: list[_Queued], due: int | None) -> int | None:
        """Apply commands, and the timers that are due; the instant of the next timer."""
        now = self._clock.now_ms()

        def write(tx: Transaction) -> tuple[list[Applied], int | None]:
            fired = self.partition.apply(tx, self._due_commands(tx, now), now)
            applied = self.partition.apply(tx, [command for command, _ in batch], now)
            step("workflows.batch_uncommitted")
            return [*fired, *applied], next_due(tx)

        try:
            applied, due = self._space.write(write)
        except Exception as error:
            known = error if isinstance(error, MillpondError) else _unexpected(error)
            for _, future in batch:
                _fail(future, known)
            if not batch:  # timers alone: they are tried again, and not at once
                self._clock.wait(self._wake, self._clock.monotonic() + 1.0)
            return due
        step("workflows.batch_committed")
        self._passed_on(applied)
        if any(isinstance(effect, TimersOfRunCancelled) for end in applied for effect in end.effects):
            self._end_deletions()  # of runs with more rows than one write deletes
        for (_, future), end in zip(batch, applied[len(applied) - len(batch) :], strict=True):
            if end.error is not None:
                _fail(future, end.error)
            else:
                _reply(future, end.reply)
        return due

    def _due_commands(self, tx: Transaction, now: int) -> list[LoggedCommand]:
        position = self.partition.log.head(tx).position
        return [
            LoggedCommand(timer.tenant, _timer_id(position, number), timer.request)
            for number, timer in enumerate(take_due(tx, now, TIMERS_PER_WRITE))
        ]

    def _end_deletions(self) -> None:
        """Delete runs to their end whose deletion a crash cut off, or that were too large for one write."""
        with self._space.read() as tx:
            tenants = {str(DELETION.unpack(key)[0]) for key in tx.keys(DELETION.range())}
        for tenant in tenants:
            store = RunStore(tenant, self.partition.initialization, lambda _: False)
            with self._space.read() as tx:
                runs = list(store.deletions(tx))
            for run in runs:
                delete_run(self._space, store, run)


def _timer_id(position: int, number: int) -> str:
    """The id of the command of a timer: no other command has it."""
    return hashlib.sha256(f"timer/{position}/{number}".encode()).hexdigest()[:32]


def _reply(future: Future[Message | None], reply: Message | None) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(reply)


def _fail(future: Future[Message | None], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _closed() -> Closed:
    return Closed("the processor has stopped", kind="workflows_stopped", hint="ask again when the node is up")


def _unexpected(error: Exception) -> Internal:
    _LOG.error("a write of workflows failed unexpectedly", exc_info=error)
    return Internal("the write of the command failed", kind="command_failed", reason=repr(error))
