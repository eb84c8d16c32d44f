"""The partitions of this process: opened when the group gives them, closed when it takes them.

    group: wanted ─▶ store opened (checkpoint, log) ─▶ followed to the end ─▶ owned: requests, timers, tasks
                                                                          ─▶ checkpoints, at intervals

Invariants:
* a partition is owned only when its store is at the end that the log had when it was given;
* partition 0, the metadata, is followed by every process, and owned by one;
* a step that fails is tried again, as long as the group wants it;
* a store that fell behind the beginning of its log is made anew, of a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError
from millpond.kernel.signal import Signal
from millpond.kernel.worker import WorkerThread
from millpond.server.workflows.outbox import Outbox
from millpond.workflows.partitions import METADATA, Checkpoints, Follower, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.clock import Clock
    from millpond.workflows.logs import CommandLog
    from millpond.workflows.processor import Applied, Measures
    from millpond.workflows.tasks.queues import Workers

__all__ = ("CHECKPOINT_ENTRIES", "Ownership")

CHECKPOINT_ENTRIES = 50_000
"""A checkpoint is made of a partition after so many entries, also before its interval is over."""
_RETRY_SECONDS = 0.5
_FINISH_SECONDS = 2.0
_REPLAY_SECONDS = 600.0
_LOOK_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class Ownership:
    """Opens and closes partitions, from a thread of its own, until they are those that `wanted` says."""

    def __init__(
        self, log: CommandLog, folder: Path, checkpoints: Checkpoints, clock: Clock, *,
        assigned: Callable[[], frozenset[int]], passed_on: Callable[[Sequence[Applied]], None], workers: Workers,
        measures: Measures, interval: float, stories: bool = False,
        outboxes: Callable[[int, Follower], Sequence[Outbox[Any]]] = lambda *_: (),
    ) -> None:  # fmt: skip
        """Open the metadata. `outboxes` makes those of a partition that is owned here, from whose rows they send."""
        self._log, self._folder, self._checkpoints, self._clock = log, folder, checkpoints, clock
        self._assigned, self._interval = assigned, interval
        self._for_followers = clock, passed_on, workers, measures
        self._stories, self._outboxes_of = stories, outboxes
        self._outboxes: dict[int, Sequence[Outbox[Any]]] = {}
        self._open: dict[int, Follower] = {}
        self._saved: dict[int, tuple[float, int]] = {}
        self.owned: dict[int, Follower] = {}
        self.changed = Signal(clock)
        """Rung when `owned` has changed."""
        self.metadata = self._opened(METADATA)
        self._settling = WorkerThread("the partitions of this node", self._settle, clock, retry_seconds=_RETRY_SECONDS)
        self._saving = WorkerThread("checkpoints of partitions", self._save_all, clock, retry_seconds=_LOOK_SECONDS)

    def start(self) -> None:
        """Begin to open what is wanted."""
        self._settling.start()
        self._saving.start()

    def stop(self) -> None:
        """Own nothing any more, answer the commands that wait, and close everything."""
        self._settling.stop()
        self._saving.stop()
        followers = list(self.owned.values())
        self.owned.clear()  # first: commands that come now are for the next owner
        until = self._clock.monotonic() + _FINISH_SECONDS
        for follower in followers:
            follower.finish(until - self._clock.monotonic())
        for number in list(self._open):
            self._stop_sending(number)
            self._close(number)

    def wake(self) -> None:
        """Note that what is wanted may have changed."""
        self._settling.wake()

    # -- partitions -----------------------------------------------------------------------------------

    def _settle(self) -> float:
        self._reopen_behind()
        numbers = self._assigned()
        for number in sorted(self.owned.keys() - numbers):
            self._lose(number)
        missing = sorted(numbers - self.owned.keys())
        if not missing:
            return self._clock.monotonic() + _LOOK_SECONDS
        # One after another, and what is wanted is looked up anew between two.
        return self._clock.monotonic() + (0 if self._gained(missing[0]) else _RETRY_SECONDS)

    def _gained(self, number: int) -> bool:
        try:
            follower = self._opened(number)
            follower.wait_until(self._log.end(number), _REPLAY_SECONDS)
        except Exception as error:
            is_ours = isinstance(error, MillpondError)
            _LOG.warning("partition %s cannot be opened: %s", number, error, exc_info=None if is_ours else error)
            return False
        follower.own(True)
        self._outboxes[number] = self._outboxes_of(number, follower)
        for outbox in self._outboxes[number]:
            follower.written.listeners.append(outbox.wake)
            outbox.start()
        self.owned[number] = follower
        self.changed.ring()
        return True

    def _reopen_behind(self) -> None:
        """Open stores anew that the log no longer reaches back to: it was trimmed while this process stood still."""
        for number in [number for number, follower in self._open.items() if follower.behind]:
            _LOG.warning("partition %s is behind its log: it is opened anew", number)
            if number in self.owned:
                self._lose(number)
            if number in self._open:
                self._close(number)
        self.metadata = self._opened(METADATA)  # also after a round in which it could not be opened

    def _lose(self, number: int) -> None:
        follower = self.owned.pop(number)
        self.changed.ring()
        self._stop_sending(number)
        follower.own(False)
        if number != METADATA:
            self._close(number)

    def _opened(self, number: int) -> Follower:
        if number in self._open:
            return self._open[number]
        saved = max(self._checkpoints.positions(number), default=0)
        space = open_store(self._folder, number, self._log, self._checkpoints)
        follower = Follower(self._log, number, space, *self._for_followers, stories=self._stories)
        follower.start()
        self._open[number] = follower
        self._saved[number] = self._clock.monotonic(), saved
        return follower

    def _stop_sending(self, number: int) -> None:
        self._open[number].written.listeners.clear()
        for outbox in self._outboxes.pop(number, ()):
            outbox.stop()

    def _close(self, number: int) -> None:
        follower = self._open.pop(number)
        follower.stop()
        follower.space.close()

    # -- checkpoints ----------------------------------------------------------------------------------

    def _save_all(self) -> float:
        for number in sorted(self.owned):
            try:
                self._save(number)
            except Exception as error:
                is_ours = isinstance(error, MillpondError)
                _LOG.warning("no checkpoint of partition %s: %s", number, error, exc_info=None if is_ours else error)
        return self._clock.monotonic() + min(_LOOK_SECONDS, self._interval)

    def save_many(self, entries: int) -> None:
        """Make checkpoints now of the partitions with so many entries since their last one."""
        for number, follower in list(self.owned.items()):
            if follower.position - self._saved[number][1] >= entries:
                self._saved[number] = float("-inf"), self._saved[number][1]
                self._save(number)

    def _save(self, number: int) -> None:
        follower = self.owned.get(number)
        if follower is None:
            return
        at, position = self._saved.get(number, (0.0, 0))
        entries, now = follower.position - position, self._clock.monotonic()
        if entries >= CHECKPOINT_ENTRIES or (entries > 0 and now - at >= self._interval):
            reached = follower.position
            before = self._checkpoints.save(number, follower.space)
            self._saved[number] = now, reached
            self._log.trim(number, before)
