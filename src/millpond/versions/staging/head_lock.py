"""Those who move the head of one branch go one after another, in this process and in others.

The lock of a head is one of this process, and a lease in the space (`kernel/lease.py`), which is deleted at its end. It
is taken and given back within writes that its holder makes anyway, so it costs none.

Invariants:
* It only saves work: whoever moves a head compares the branch with what it was, and a late holder loses.
* Nobody waits for a holder that died longer than `LEASE_SECONDS`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millpond.clock import Clock
from millpond.errors import Unavailable
from millpond.kernel.lease import LeaseRow, LeaseWatch
from millpond.kernel.signal import Signal, last_change_of
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.versions.keyspaces import TURN

__all__ = ("HeadLock", "HeadLockBusy", "HeadLocks")

LEASE_SECONDS = 10.0
WAIT_SECONDS_MAX = 300.0


class HeadLockBusy(Unavailable):
    """Another process moves the head; it stays between a lock and its holder, who looks again."""

    kind = "branch_busy"


class HeadLock:
    """The lock of the head of one branch, to be written down within the holder's own writes."""

    def __init__(self, row: LeaseRow, holder: str) -> None:
        self._row, self._holder = row, holder

    def take(self, tx: Transaction) -> None:
        """Note in the space that it is ours, or go on holding it.

        Raises: `HeadLockBusy`.
        """
        if self._row.take(tx, self._holder) is None:
            raise HeadLockBusy("another process moves the head of the branch", hint="try again")

    def noted(self, tx: ReadTransaction) -> bool:
        """True while the space says that it is ours."""
        return self._row.read(tx).holder == self._holder

    def give_back(self, tx: Transaction) -> None:
        """Note in the space that it is over."""
        if self.noted(tx):
            tx.delete(self._row.key)


class HeadLocks:
    """The turns of a process: one queue a branch. `watch` sees the leases of the whole space, `changes` all else."""

    def __init__(self, space: Space, clock: Clock) -> None:
        self._space, self._clock = space, clock
        self.watch = LeaseWatch(clock)
        self.changes = Signal(clock, last_change_of(space))
        self._locks: dict[tuple[str, str], tuple[threading.Lock, int]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def hold(self, uid: str, branch: str) -> Iterator[HeadLock]:
        """Wait until it is this thread's turn in this process; what is noted in the space is cleared at the end.

        Raises: `Unavailable` after a long wait.
        """
        key = (uid, branch)
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, users + 1
        try:
            if not lock.acquire(timeout=WAIT_SECONDS_MAX):
                raise Unavailable(
                    "others move the head of the branch for too long", kind="branch_busy", branch=branch,
                    hint="try again",
                )  # fmt: skip
            try:
                row = LeaseRow(TURN[uid].pack(branch), LEASE_SECONDS, self.watch)
                yield from self._held(HeadLock(row, self._clock.random_id()))
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = lock, users - 1

    def _held(self, head_lock: HeadLock) -> Iterator[HeadLock]:
        try:
            yield head_lock
        finally:
            with self._space.read() as tx:
                noted = head_lock.noted(tx)
            if noted:
                self._space.write(head_lock.give_back)

    def write(self, head_lock: HeadLock, change: Callable[[Transaction], object]) -> object:
        """Make a write that needs the turn, when other processes let it.

        Raises: `Unavailable` after a long wait; what the write raises.
        """

        def act(tx: Transaction) -> object:
            head_lock.take(tx)
            return change(tx)

        def attempt() -> tuple[object] | HeadLockBusy:
            try:
                return (self._space.write(act),)
            except HeadLockBusy as taken:
                return taken

        due = self._clock.monotonic() + WAIT_SECONDS_MAX
        done = self.changes.wait_for(attempt, due, lambda done: isinstance(done, tuple))
        if isinstance(done, HeadLockBusy):
            raise done
        return done[0]
