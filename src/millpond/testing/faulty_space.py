"""A space whose commits fail on purpose, for those who must bear it: over any other space.

space = FaultySpace(MemorySpace())
with space.losing_results(committed=True):
    space.write(change)        # is made, and raises `Uncertain`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from millpond.clock import ManualClock
from millpond.errors import Unavailable, Uncertain
from millpond.kernel.space import ReadTransaction, Space, Transaction

__all__ = ("FaultySpace",)

T = TypeVar("T")


class _Withdrawn(Exception):
    """Ends a write whose function has run, so that nothing of it stays."""


class FaultySpace:
    """A `Space` that loses answers, is full, slow or silent while it is to."""

    def __init__(self, inner: Space) -> None:
        self.inner = inner
        self._committed: bool | None = None
        self._silent = self._lost = self._full = self._unreachable = False
        self._delay: Callable[[], None] | None = None

    @contextmanager
    def losing_results(self, *, committed: bool, silent: bool = False) -> Iterator[None]:
        """Let the answers of writes be lost meanwhile, after they were made or before.

        `silent`: from the first that was lost on, nothing is read either.
        """
        self._committed, self._silent = committed, silent
        try:
            yield
        finally:
            self._committed, self._silent, self._lost = None, False, False

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Let nothing be read or written meanwhile."""
        self._unreachable = True
        try:
            yield
        finally:
            self._unreachable = False

    @contextmanager
    def slow(self, clock: ManualClock, ms: int) -> Iterator[None]:
        """Let each write take so many milliseconds of a clock meanwhile."""
        self._delay = lambda: clock.advance(ms)
        try:
            yield
        finally:
            self._delay = None

    @contextmanager
    def full(self) -> Iterator[None]:
        """Let the disk have no room for any write meanwhile."""
        self._full = True
        try:
            yield
        finally:
            self._full = False

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        if self._unreachable or (self._silent and self._lost):
            raise Unavailable("the space does not answer", kind="space_silent")
        return self.inner.read(wait=wait)

    def write(self, change: Callable[[Transaction], T]) -> T:
        if self._unreachable:
            raise Unavailable("the space does not answer", kind="space_silent")
        if self._delay is not None:
            self._delay()
        if self._full:
            raise Unavailable("the disk did not take the write", kind="disk_full", hint="free some space")
        if self._committed is None:
            return self.inner.write(change)
        if self._committed:
            self.inner.write(change)
        else:
            self._withdraw(change)
        self._lost = True
        raise Uncertain("the answer of the commit was lost", kind="commit_lost", hint="look whether it was made")

    def _withdraw(self, change: Callable[[Transaction], object]) -> None:
        def run(tx: Transaction) -> None:
            change(tx)
            raise _Withdrawn

        try:
            self.inner.write(run)
        except _Withdrawn:
            return

    def close(self) -> None:
        self.inner.close()
