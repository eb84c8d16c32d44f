"""A process that follows a partition: one thread that applies the entries of its log, and its owner's work.

    submit ─▶ the log ─▶ this thread ─▶ one write for all entries that came ─▶ sent on to other partitions ─▶ replies
                 ▲                                          │
                 └── timers that are due, if it is the owner ┘

Invariants:
* a reply is given after the entry of its command is durable in the log, applied here, and all that it caused is in the
  logs of the partitions which that concerns;
* an entry is applied once, also when the process died between two entries: see `followed`;
* a clock that was ahead delays no timer: the owner puts its time into the log, and all set those timers anew;
* what only the owner does may be done by two for a while: a timer is taken by one of the entries that name it, and what
  is sent on is numbered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING

from millpond.errors import MillpondError, Unavailable, Uncertain
from millpond.kernel.steps import step
from millpond.kernel.worker import begin_thread
from millpond.workflows.partitions.entries import (
    ClockEntry,
    CommandEntry,
    SentEntry,
    StoryEntry,
    TimerEntry,
    encode_entry,
)
from millpond.workflows.partitions.followed import Ended, FollowedPartition, Place, put_out, read_place
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.partition import CLOCK_BACK_MS
from millpond.workflows.processor.timers import due_timers, next_due
from millpond.workflows.store import initialize

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.clock import Clock
    from millpond.kernel.space import Space, Transaction
    from millpond.workflows.engine import Key, Request
    from millpond.workflows.logs import CommandLog, Entry
    from millpond.workflows.processor import Applied

__all__ = ("COMMANDS_WAITING_MAX", "Follower")

ENTRIES_PER_WRITE = 256
TIMERS_PER_ROUND = 100
SENT_PER_ROUND = 1_000
COMMANDS_WAITING_MAX = 10_000
"""The commands of callers that may be under way on a partition; one more is sent again later."""
_ROUND_SECONDS = 0.5
_RETRY_SECONDS = 0.5
_SEND_SECONDS = 30.0
_LOG = logging.getLogger(__name__)


class Follower:
    """Follows one partition into its space. `passed_on` gets what was applied, in order, from its thread."""

    def __init__(
        self, log: CommandLog, number: int, space: Space, clock: Clock,
        passed_on: Callable[[Sequence[Applied]], None], *, stories: bool = False,
    ) -> None:  # fmt: skip
        self.number, self.space = number, space
        self._log, self._clock, self._passed_on = log, clock, passed_on
        born = space.write(lambda tx: initialize(tx, clock.now_ms()))
        self.partition = FollowedPartition(born, number, log.partitions, stories=stories)
        with space.read() as tx:
            self._place, self._due = read_place(tx), next_due(tx)
        self._replies: dict[str, Future[Message | None]] = {}
        self._changed = threading.Condition()
        self._owning = False
        self._fired: set[tuple[int, str, Key]] = set()
        self._sent, self._clock_position = (0, 0), 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def position(self) -> int:
        """The position of the last entry that was applied."""
        return self._place.position

    def start(self) -> None:
        """Begin to follow."""
        self._thread = begin_thread(f"partition {self.number}", self._run)

    def stop(self) -> None:
        """End after the write that is under way; callers that wait get an error. The space is its owner's to close."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._fail_all()

    def finish(self, seconds: float) -> None:
        """Wait until no caller waits for a reply, or until some seconds are over."""
        with self._changed:
            self._clock.wait_for(self._changed, lambda: not self._replies, self._clock.monotonic() + seconds)

    def own(self, owning: bool) -> None:
        """Do the work of the partition's owner from now on, or no longer."""
        self._owning = owning
        if not owning:
            self._fail_all()

    def submit(self, tenant: str, request: Request) -> Future[Message | None]:
        """The reply of a request, as soon as it is in the log and applied.

        Raises (the future): as `Processor.submit`; `Uncertain`, kind `command_moved`: look before you send it again.
        """
        future: Future[Message | None] = Future()
        command = LoggedCommand(tenant, self._clock.random_id() + self._clock.random_id(), request)
        entry = encode_entry(CommandEntry(command, self._clock.now_ms()))
        with self._changed:
            if self._stop.is_set():
                future.set_exception(_moved())
                return future
            if len(self._replies) >= COMMANDS_WAITING_MAX:
                future.set_exception(
                    Unavailable("more commands wait than may", kind="commands_full", queued_max=COMMANDS_WAITING_MAX,
                                hint="send it again in a moment")
                )  # fmt: skip
                return future
            self._replies[command.id] = future
        self._log.append(self.number, entry).add_done_callback(lambda appended: self._appended(command.id, appended))
        return future

    def _appended(self, command: str, appended: Future[int]) -> None:
        error = appended.exception()
        if error is not None:
            self._end(command, None, error if isinstance(error, MillpondError) else _moved())

    def note_stories(self, place: tuple[int, int], dropped: bool) -> None:
        """Note in the log up to which place stories are told, or dropped: then every process forgets them."""
        position = self._log.append(self.number, encode_entry(StoryEntry(*place, dropped))).result(_SEND_SECONDS)
        if dropped:
            self.wait_until(position, _SEND_SECONDS)

    def wait_until(self, position: int, seconds: float) -> None:
        """Wait until an entry is applied.

        Raises:
            Unavailable: kind `partition_behind`: it was not, in time.
        """

        def is_applied() -> bool:
            return self._place.position >= position or self._stop.is_set()

        if self._place.position >= position:
            return
        with self._changed:
            self._clock.wait_for(self._changed, is_applied, self._clock.monotonic() + seconds)
        if self._place.position < position:
            raise Unavailable(
                "the partition is behind its log", kind="partition_behind", partition=self.number, wanted=position,
                applied=self._place.position, hint="ask again in a moment",
            )  # fmt: skip

    # -- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except Exception as error:
                known = isinstance(error, MillpondError)
                _LOG.warning("partition %s waits: %s", self.number, error, exc_info=None if known else error)
                self._clock.wait(self._stop, self._clock.monotonic() + _RETRY_SECONDS)

    def _follow(self) -> None:
        with closing(self._log.follow(self.number, self._place.position)) as following:
            while not self._stop.is_set():
                entries = following.next(ENTRIES_PER_WRITE, self._pause())
                if entries:
                    self._apply(entries)
                if self._owning:
                    self._correct_time()
                    self._fire()
                    self._send()

    def _pause(self) -> float:
        if not self._owning or self._due is None:
            return _ROUND_SECONDS
        return min(max((self._due - self._clock.now_ms()) / 1000, 0.001), _ROUND_SECONDS)

    def _apply(self, entries: Sequence[Entry]) -> None:
        def write(tx: Transaction) -> tuple[list[Ended], Place, int | None]:
            ends = self.partition.apply_entries(tx, entries)
            step("workflows.entries_uncommitted")
            return ends, read_place(tx), next_due(tx)

        ends, place, self._due = self.space.write(write)
        step("workflows.entries_committed")
        for end in ends:
            if end.timer is not None:
                self._fired.discard((end.timer.at, end.timer.tenant, end.timer.name))
        with self._changed:
            self._place = place
            self._changed.notify_all()
        self._passed_on([end.applied for end in ends if end.applied is not None])
        owning = self._owning
        try:
            if owning:
                self._send()
        except Exception:
            for end in ends:
                if end.applied is not None:
                    self._end(end.applied.command.id, None, _moved())
            raise
        for end in ends:
            if end.applied is not None and owning:
                self._end(end.applied.command.id, end.applied.reply, end.applied.error)
            elif end.applied is not None:  # what it caused is for the next owner to send on
                self._end(end.applied.command.id, None, _moved())

    def _correct_time(self) -> None:
        """Put the time into the log when a clock was ahead that timers were set by: everybody sets them anew."""
        now = self._clock.now_ms()
        ahead_ms = self._place.latest_ms - now
        if ahead_ms > CLOCK_BACK_MS and self._place.position >= self._clock_position:
            _LOG.warning("the clock of partition %s was %.1f s ahead: its timers are set anew", self.number,
                         ahead_ms / 1000)  # fmt: skip
            entry = encode_entry(ClockEntry(now))
            self._clock_position = self._log.append(self.number, entry).result(_SEND_SECONDS)

    def _fire(self) -> None:
        """Put an entry into the log for each timer that is due; entries that came already are applied first."""
        now = self._clock.now_ms()
        if self._due is None or self._due > now:
            return
        with self.space.read() as tx:
            due = due_timers(tx, now, TIMERS_PER_ROUND + len(self._fired))
        for at, tenant, name in due:
            timer = (at, tenant, name)
            if timer not in self._fired:
                self._fired.add(timer)
                appended = self._log.append(self.number, encode_entry(TimerEntry(tenant, name, at, now)))
                appended.add_done_callback(lambda done, timer=timer: self._fired_or_not(timer, done))  # type: ignore[misc]

    def _fired_or_not(self, timer: tuple[int, str, Key], appended: Future[int]) -> None:
        if appended.exception() is not None:
            self._fired.discard(timer)

    def _send(self) -> None:
        """Send on what was put out for other partitions, and note in the log that it is there."""
        while True:
            with self.space.read() as tx:
                rows = put_out(tx, self._sent, SENT_PER_ROUND)
            if not rows:
                return
            for appended in [self._log.append(target, entry) for _, target, entry in rows]:
                appended.result(_SEND_SECONDS)
            self._sent = rows[-1][0]
            self._log.append(self.number, encode_entry(SentEntry(*self._sent)))

    # -- replies --------------------------------------------------------------------------------------

    def _end(self, command: str, reply: Message | None, error: BaseException | None) -> None:
        with self._changed:
            future = self._replies.pop(command, None)
            if not self._replies:
                self._changed.notify_all()
        if future is None or not future.set_running_or_notify_cancel():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(reply)

    def _fail_all(self) -> None:
        for command in list(self._replies):
            self._end(command, None, _moved())


def _moved() -> Uncertain:
    return Uncertain(
        "the partition moved to another process before the reply", kind="command_moved",
        hint="look if it was done before you send it again",
    )  # fmt: skip
