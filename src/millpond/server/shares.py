"""Fairness between tokens: how much of a limit each may hold, and whose turn it is.

    a limit of 16 ─▶ a alone holds 12 ─▶ b comes, and finds 3 of the 4 that a has left ─▶ c finds 1

So whatever one token asks for, another finds room at once. Those of one token wait for each other. A node without
tokens knows one caller, whose name is None, and who may hold everything.

Invariants:
* a name holds at most `SHARE` of what the others leave; what it holds first has no limit but the whole;
* those who wait are served by name in turns, and those of one name in the order in which they came;
* what is too large for the room that is left is waited for, if it is within its name's share: nobody passes it by.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("SHARE", "Shares", "Turns")

SHARE = 3 / 4
"""The part of what the others leave that one token may hold."""


class Shares:
    """The units of a limit, and who holds them. Used by an event loop alone.

    >>> watchers = Shares(8)
    >>> [watchers.take("a") for _ in range(7)], watchers.take("b"), watchers.take("c")
    ([True, True, True, True, True, True, False], True, True)
    """

    def __init__(self, total: int) -> None:
        self.total, self.taken = total, 0
        self._held: Counter[str | None] = Counter()

    def take(self, name: str | None, units: int = 1, *, own: int = 0, total: int | None = None) -> bool:
        """Take so many units, if there are as many and the name may have them.

        `own` are those that the same piece of work holds already; `total` is a limit below that of all.
        """
        total = self.total if total is None else total
        if self.taken + units > total or not self.allows(name, units, own=own, total=total):
            return False
        self.taken += units
        self._held[name] += units
        return True

    def allows(self, name: str | None, units: int = 1, *, own: int = 0, total: int | None = None) -> bool:
        """True when so many more units are within the share of a name."""
        share = self._held[name]
        room = (self.total if total is None else total) - self.taken + share
        return name is None or share == own or share + units <= room * SHARE

    def give(self, name: str | None, units: int = 1) -> None:
        """Give units back."""
        self.taken -= units
        self._held[name] -= units
        assert self.taken >= 0 and self._held[name] >= 0
        if not self._held[name]:
            del self._held[name]

    @contextmanager
    def holding(self, name: str | None, units: int = 1) -> Iterator[bool]:
        """Hold so many units meanwhile; False when there are not as many for the name."""
        taken = self.take(name, units)
        try:
            yield taken
        finally:
            if taken:
                self.give(name, units)


class Turns:
    """Those who wait for units of a limit, or for some of them: `total`. Used by an event loop alone."""

    def __init__(self, shares: Shares, total: int | None = None) -> None:
        self.shares, self.total = shares, shares.total if total is None else total
        self._queues: dict[str | None, deque[tuple[int, asyncio.Future[None]]]] = {}  # the next name first

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def take_now(self, name: str | None, units: int = 1) -> bool:
        """Take so many units, if nobody waits for them."""
        return not self._queues and self.shares.take(name, units, total=self.total)

    async def take(self, name: str | None, units: int = 1) -> None:
        """Take so many units when it is their turn. Cancelled, it has taken none."""
        if self.take_now(name, units):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (units, turn)
        self._queues.setdefault(name, deque()).append(waiter)
        self.serve()
        try:
            await turn
        except BaseException:
            self._leave(name, waiter)
            raise

    def _leave(self, name: str | None, waiter: tuple[int, asyncio.Future[None]]) -> None:
        """Give up a place, or the units that were given in the same moment."""
        units, turn = waiter
        if turn.done() and not turn.cancelled():
            self.give(name, units)
        elif waiter in self._queues.get(name, ()):
            self._queues[name].remove(waiter)
            if not self._queues[name]:
                del self._queues[name]
            self.serve()

    def give(self, name: str | None, units: int = 1) -> None:
        """Give units back, to those who wait."""
        self.shares.give(name, units)
        self.serve()

    def serve(self) -> None:
        """Give what is free to those whose turn it is."""
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        for name in tuple(self._queues):
            waiters = self._queues[name]
            units, turn = waiters[0]
            if not self.shares.allows(name, units, total=self.total):
                continue
            if not turn.cancelled():
                if not self.shares.take(name, units, total=self.total):
                    return False
                turn.set_result(None)
            waiters.popleft()
            del self._queues[name]
            if waiters:
                self._queues[name] = waiters  # behind the others
            return True
        return False
