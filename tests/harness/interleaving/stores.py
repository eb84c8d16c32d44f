"""A space, objects and a clock of one process: it pauses before and after each call of them, and may die there.

What is written is there at once for all, as from a database and a bucket that acknowledge what is durable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.clock import ManualClock
from millpond.stores.objects.memory import MemoryObjects

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Space, Transaction
    from tests.harness.interleaving.turns import Process

__all__ = ("PassingClock", "PausingClock", "PausingObjects", "PausingSpace")

T = TypeVar("T")


class PausingSpace:
    """A `Space` of a process; `written` is called after each commit, before anybody else goes on."""

    def __init__(self, inner: Space, process: Process, written: Callable[[], None]) -> None:
        self.inner, self._process, self._written = inner, process, written

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        self._process.pause()
        with self.inner.read(wait=wait) as tx:
            yield tx

    def write(self, change: Callable[[Transaction], T]) -> T:
        self._process.pause()
        with self._process.undivided():
            result = self.inner.write(change)
            self._written()
        self._process.pause()
        return result

    def close(self) -> None:
        """Close nothing: others use the same space."""


class PausingObjects(MemoryObjects):
    """The objects of a process, over those that all share."""

    def __init__(self, shared: MemoryObjects, process: Process) -> None:
        super().__init__()
        self._held, self._lock = shared._held, shared._lock  # noqa: SLF001
        self._process = process

    def put(self, name: str, data: Any) -> None:
        self._process.pause()
        super().put(name, data)
        self._process.pause()

    def swap(self, name: str, data: Any, expected: str | None) -> str:
        self._process.pause()
        return super().swap(name, data, expected)

    def get(self, name: str) -> Any:
        self._process.pause()
        return super().get(name)

    def size(self, name: str) -> int:
        self._process.pause()
        return super().size(name)

    def delete(self, *names: str) -> None:
        for name in names:
            self._process.pause()
            super().delete(name)


class PassingClock(ManualClock):
    """A clock that moves on when somebody waits for it, and nobody else is there."""

    __slots__ = ()

    def wait(self, event: threading.Event, due: float | None) -> bool:
        return self._pass(event.is_set, due)

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        return self._pass(predicate, due)

    def _pass(self, holds: Callable[[], bool], due: float | None) -> bool:
        while not holds() and (due is None or self.monotonic() < due):
            self.advance(1 if due is None else max(1, ceil(10 * (due - self.monotonic()))))
        return holds()


class PausingClock(ManualClock):
    """The time of all processes, as one of them sees it: to wait is to let others go on."""

    __slots__ = ("_process", "_shared")

    def __init__(self, shared: ManualClock, process: Process) -> None:
        super().__init__()
        self._shared, self._process = shared, process

    def now_ms(self) -> int:
        return self._shared.now_ms()

    def monotonic(self) -> float:
        return self._shared.monotonic()

    def random_id(self) -> str:
        return self._shared.random_id()

    def wait(self, event: threading.Event, due: float | None) -> bool:
        return self._pass(event.is_set, due)

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        return self._pass(predicate, due)

    def _pass(self, holds: Callable[[], bool], due: float | None) -> bool:
        while not holds() and (due is None or self.monotonic() < due):
            self._process.pause()
            self._shared.advance(1)
        return holds()
