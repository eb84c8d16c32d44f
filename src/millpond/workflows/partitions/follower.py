"""A process that follows a partition: a processor whose commands come from a log, one write for all entries that came.

    submit ─▶ the log ─▶ a thread that reads ─▶ the processor ─▶ sent on to other partitions ─▶ replies, tasks
                 ▲                                   │
                 └── timers that are due, claims ────┘    if it is the owner

Invariants:
* a reply is given after the entry of its command is durable in the log, applied here, and all that it caused is in the
  logs of the partitions which that concerns;
* an entry is applied once, also when the process died between two entries: see `followed`;
* a write that fails is made again, for its entries stand in the log;
* a clock that was ahead delays no timer: the owner puts its time into the log, and all set those timers anew;
* what only the owner does may be done by two for a while: a timer is taken by one of the entries that name it, a task
  is claimed by the first of two claims, and what is sent on is numbered;
* a worker whose claim came too late, or is not decided, waits again, before all others; a queue whose claim is not
  decided is read again from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import cast

from littlehorse.model import ScheduledTask

from millpond.clock import Clock
from millpond.errors import MillpondError, NotFound, Unavailable, Uncertain
from millpond.kernel.space import Space, Transaction
from millpond.kernel.worker import WorkerThread
from millpond.workflows.logs import CommandLog, Entry
from millpond.workflows.partitions.entries import (
    ClockEntry,
    CommandEntry,
    LogEntry,
    OutputEntry,
    SentEntry,
    StoryEntry,
    TimerEntry,
    encode_entry,
)
from millpond.workflows.partitions.followed import FollowedPartition, put_out, read_cursor
from millpond.workflows.processor import Measures
from millpond.workflows.processor.batch import Batch
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.partition import Applied
from millpond.workflows.processor.processor import RETRY_SECONDS, Ends, Incoming, Processor, claim_of
from millpond.workflows.processor.timers import DueTimer, due_timers
from millpond.workflows.store import Initialization
from millpond.workflows.tasks.queues import Queue, Worker, Workers

__all__ = ("Follower",)

ENTRIES_READ_MAX = 4_096
"""Entries that were read and wait to be applied; the next ones are read later."""
ENTRIES_PER_READ = 256
TIMERS_PER_ROUND = 100
SENT_PER_ROUND = 1_000
_ROUND_SECONDS = 0.5
_SEND_SECONDS = 30.0
_LOG = logging.getLogger(__name__)


class Follower(Processor):
    """Follows one partition of a log into its space, and begins without owning it."""

    partition: FollowedPartition

    def __init__(
        self, log: CommandLog, number: int, space: Space, clock: Clock,
        passed_on: Callable[[Sequence[Applied]], None], workers: Workers | None = None,
        measures: Measures | None = None, *, stories: bool = False,
    ) -> None:  # fmt: skip
        self.number, self._log = number, log
        self._claims: dict[str, Worker] = {}
        self._undecided: set[Queue] = set()
        self._fired: set[DueTimer] = set()
        self._sent, self._unsent, self._clock_position = (0, 0), True, 0
        self.behind = False
        """True when the log was trimmed beyond what is applied here: it cannot be followed any more."""
        super().__init__(space, clock, passed_on, workers, measures, stories=stories, owning=False)
        with space.read() as tx:
            self._cursor = self.partition.cursor = read_cursor(tx)
        self._read = self._cursor.position
        self._reading = WorkerThread(f"partition {number}", self._follow, clock, retry_seconds=RETRY_SECONDS)

    def _opened(self, initialization: Initialization, stories: bool, outputs: bool) -> FollowedPartition:
        del outputs  # what a tenant is told is a function of the log
        return FollowedPartition(initialization, self.number, self._log.partitions, stories=stories)

    @property
    def position(self) -> int:
        """The position of the last entry that was applied."""
        return self._cursor.position

    @property
    def queued(self) -> int:
        """The number of commands of callers that are under way."""
        return len(self._callers)

    def start(self) -> None:
        """Begin to follow."""
        super().start()
        self._reading.start()

    def stop(self) -> None:
        """End after the write that is under way; callers that wait get an error. The space is its owner's to close."""
        self._reading.interrupt()
        super().stop()
        with self._lock:
            self._lock.notify_all()
        self._reading.stop()

    def finish(self, seconds: float) -> None:
        """Wait until no caller waits for a reply, or until some seconds are over."""
        with self._lock:
            self._clock.wait_for(self._lock, lambda: not self._callers, self._clock.monotonic() + seconds)

    def own(self, owning: bool) -> None:
        """Do the work of the partition's owner from now on, or no longer: then callers and workers wait for another."""
        self._unsent = True  # the owner before may have left something
        super().own(owning)
        for command in () if owning else list(self._claims):
            self._give_back(command)

    def note(self, entry: StoryEntry | OutputEntry, *, wait: bool) -> None:
        """Note in the log up to which place stories are told, or records written: then every process forgets them."""
        position = self._put(entry).result(_SEND_SECONDS)
        if wait:
            self.wait_until(position, _SEND_SECONDS)

    def wait_until(self, position: int, seconds: float) -> None:
        """Wait until an entry is applied.

        Raises:
            Unavailable: kind `partition_behind`: it was not, in time.
        """

        def is_applied() -> bool:
            return self._cursor.position >= position or self._stopping.is_set()

        if self._cursor.position >= position:
            return
        with self._lock:
            self._clock.wait_for(self._lock, is_applied, self._clock.monotonic() + seconds)
        if self._cursor.position < position:
            raise Unavailable(
                "the partition is behind its log", kind="partition_behind", partition=self.number, wanted=position,
                applied=self._cursor.position, hint="ask again in a moment",
            )  # fmt: skip

    # -- to the log, and from it --------------------------------------------------------------------------

    def _put(self, entry: LogEntry) -> Future[int]:
        return self._log.append(self.number, encode_entry(entry))

    def _append(self, command: LoggedCommand) -> None:
        self._put(CommandEntry(command, self._clock.now_ms())).add_done_callback(
            lambda appended: self._appended(command, appended)
        )

    def _appended(self, command: LoggedCommand, appended: Future[int]) -> None:
        error = appended.exception()
        if error is not None:
            shown = error if isinstance(error, MillpondError) else self._gone()
            self._answer([self._ended(Applied(command, 0, error=shown), True)])

    def _gone(self) -> MillpondError:
        return Uncertain(
            "the partition moved to another process before the reply", kind="command_moved",
            hint="look if it was done before you send it again",
        )  # fmt: skip

    def _follow(self) -> None:
        try:
            self._read_entries()
        except NotFound as error:
            self.behind = error.kind == "log_trimmed"
            raise

    def _read_entries(self) -> None:
        """Read entries, as long as there is room for them."""
        with closing(self._log.follow(self.number, self._read)) as following:
            while not self._stopping.is_set():
                entries = following.next(ENTRIES_PER_READ, _ROUND_SECONDS)
                with self._lock:
                    self._lock.wait_for(lambda: self._stopping.is_set() or len(self._queue) < ENTRIES_READ_MAX)
                    self._queue.extend(entries)
                self._read = entries[-1].position if entries else self._read
                self._wake.set()  # also without entries: to look at the time

    # -- the processor ------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Do what there is to do now; what the owner adds goes to the log."""
        while self._undecided:
            self._queues.forget(self._undecided.pop())
        more = super().turn()
        assert self._ends is not None, "a turn leaves its ends"
        if self._owning:
            self._correct_time()
            self._fire(self._ends.due)
            self._send()
        return more

    def _next_look(self, due: int | None) -> float | None:
        came = due is None or due <= self._clock.now_ms()  # its entry is in the log, and will be read
        return super()._next_look(due if self._owning and not came else None)

    def _is_due(self, due: int | None, now: int) -> bool:
        return False  # an entry of the log will say so

    def _work(self, rows: Batch, batch: list[Incoming], due: int | None, ends: Ends, now: int) -> None:
        ended = self.partition.apply_entries(rows, cast("list[Entry]", batch)) if batch else []
        ends.applied = [end.applied for end in ended if end.applied is not None]
        ends.taken = len(batch)
        self._fired.difference_update(end.timer for end in ended if end.timer is not None)

    def _claim(self, tx: Transaction, worker: Worker, ends: Ends, now: int) -> bool:
        task = self._next_task(tx, worker)
        if task is not None:
            ends.offered.append((self._command(worker.queue[0], claim_of(task, worker)), worker))
        return task is not None

    def _note_time(self, now: int, pulled: int) -> None:
        with self._lock:
            self._cursor, self._latest = self.partition.cursor, self.partition.cursor.latest_ms
            self._lock.notify_all()

    def _confirm(self, ends: Ends) -> None:
        """Put claims into the log; then callers are answered, if what they caused is in the logs that it is for."""
        for command, worker in ends.offered:
            self._claims[command.id] = worker
            self._append(command)
        confirmed = self._owning
        self._unsent |= self.partition.has_put_out
        try:
            if confirmed:
                self._send()
        except Exception as error:
            _LOG.warning("partition %s cannot send on: %s", self.number, error)
            confirmed = False
        ends.applied = [self._ended(end, confirmed) for end in ends.applied]

    def _ended(self, end: Applied, confirmed: bool) -> Applied:
        """The end of a command, as its caller gets it, or its worker if it claimed a task for one."""
        if end.command.id in self._callers:
            return end if confirmed else replace(end, error=self._gone())
        worker = self._claims.get(end.command.id)
        if worker is None:
            return end
        if not isinstance(end.reply, ScheduledTask) or not confirmed:
            if end.error is not None:
                _LOG.warning("a claim on partition %s is not decided: %s", self.number, end.error)
            self._give_back(end.command.id, decided=confirmed and end.error is None)
            return end
        return end if self._claims.pop(end.command.id, None) is None else replace(end, worker=worker)

    def _give_back(self, command: str, *, decided: bool = False) -> None:
        """Let the worker wait again for which a claim was made."""
        worker = self._claims.pop(command, None)
        if worker is not None:
            if not decided:
                self._undecided.add(worker.queue)
            self.workers.give_back(worker)

    def _answer(self, ends: Sequence[Applied]) -> None:
        super()._answer(ends)
        with self._lock:
            self._lock.notify_all()

    def _fail(self, batch: list[Incoming], error: Exception) -> None:
        """Make a write again: its entries stand in the log."""
        _LOG.warning("partition %s waits: %s", self.number, error,
                     exc_info=None if isinstance(error, MillpondError) else error)  # fmt: skip
        self._put_back(batch)
        self._clock.wait(self._stopping, self._clock.monotonic() + RETRY_SECONDS)

    # -- the owner's entries ------------------------------------------------------------------------------

    def _correct_time(self) -> None:
        """Put the time into the log when a clock was ahead that timers were set by: everybody sets them anew."""
        now = self._clock.now_ms()
        if self._went_back(now) and self._cursor.position >= self._clock_position:
            _LOG.warning("the clock of partition %s was %.1f s ahead: its timers are set anew", self.number,
                         (self._latest - now) / 1000)  # fmt: skip
            self._clock_position = self._put(ClockEntry(now)).result(_SEND_SECONDS)

    def _fire(self, due: int | None) -> None:
        """Put an entry into the log for each timer that is due; entries that came already are applied first."""
        now = self._clock.now_ms()
        if due is None or due > now:
            return
        with self.space.read() as tx:
            timers = due_timers(tx, now, TIMERS_PER_ROUND + len(self._fired))
        for timer in timers:
            if timer not in self._fired:
                self._fired.add(timer)
                appended = self._put(TimerEntry(timer.tenant, timer.name, timer.at, now))
                appended.add_done_callback(lambda done, timer=timer: self._fired_or_not(timer, done))  # type: ignore[misc]

    def _fired_or_not(self, timer: DueTimer, appended: Future[int]) -> None:
        if appended.exception() is not None:
            self._fired.discard(timer)

    def _send(self) -> None:
        """Send on what was put out for other partitions, and note in the log that it is there."""
        while self._unsent:
            with self.space.read() as tx:
                rows = put_out(tx, self._sent, SENT_PER_ROUND)
            for appended in [self._log.append(target, entry) for _, target, entry in rows]:
                appended.result(_SEND_SECONDS)
            self._unsent = self.partition.has_put_out = False
            if rows:
                self._sent, self._unsent = rows[-1][0], True
                self._put(SentEntry(*self._sent))
