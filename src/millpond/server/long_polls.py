"""Long polls: requests that wait for a change, and hold no thread meanwhile.

    any thread:   something changed ─▶ ring
    event loop:   look once at each thing that is waited for ─▶ wake the requests that have what they wait for
    one thread:   waits on the node's clock for the time at which the next of them gives up ─▶ ring

Threads ring when they have entered, merged or ended something. Many rings before the event loop comes to look are one.

Invariants:
* a change that is visible before its ring is seen by every request that waits then;
* whatever rings, each thing is looked at once: what a look costs does not grow with the number of requests;
* at most `polls_max` requests wait, shared between tokens as `shares.py` says; one more is answered 503 with
  `Retry-After`;
* all of them together need one thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.requests import Request

from millpond.clock import Clock
from millpond.errors import Unavailable
from millpond.kernel.worker import WorkerThread
from millpond.server.access import share_in
from millpond.server.presence import presence_in
from millpond.server.shares import Shares

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("POLLS_MAX", "LongPolls", "map_reached", "polling", "polls_of", "until")

POLLS_MAX = 4096

Seen = TypeVar("Seen")


@dataclass(eq=False, slots=True)
class _Poll(Generic[Seen]):
    """A request that waits: what it looks at, and until when."""

    look: Callable[[], Seen]
    holds: Callable[[Seen], bool]
    due: float
    turn: asyncio.Future[Seen] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class LongPolls:
    """The requests of one application that wait for a change. Used by its event loop; any thread may `ring`."""

    def __init__(self, clock: Clock, *, polls_max: int = POLLS_MAX) -> None:
        self._clock, self._shares = clock, Shares(polls_max)
        self._polls: set[_Poll[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking, self._ringing = 0, False
        self._rings, self._numbers = 0, itertools.count(1)
        self._alarm, self._due = WorkerThread("the ends of long polls", self._end_due, clock), inf

    @property
    def count(self) -> int:
        """The number of requests that wait."""
        return len(self._polls)

    def open(self) -> None:
        """Belong to the event loop that runs."""
        self._loop = asyncio.get_running_loop()

    def rings(self) -> int:
        """The number of changes so far, for those who look at something in a thread after each."""
        return self._rings

    def ring(self) -> None:
        """Something changed, or time has passed; called by any thread."""
        self._rings = next(self._numbers)
        loop = self._loop
        # Mostly nobody waits, and the event loop has other work. Whoever comes now is counted before he looks.
        if loop is None or self._ringing or not self._looking:
            return
        self._ringing = True
        with suppress(RuntimeError):  # the loop has ended, and everybody who waited with it
            loop.call_soon_threadsafe(self._look)

    async def until(
        self, look: Callable[[], Seen], holds: Callable[[Seen], bool], seconds: float, name: str | None = None
    ) -> Seen:
        """The result of `look` when that `holds`, or so many seconds have passed; `look` must be quick.

        `name` is that of the token that waits.

        Raises: `Unavailable`, kind `long_polls_full`.
        """
        self._looking += 1
        try:
            seen = look()
            return seen if holds(seen) or seconds <= 0 else await self._changed(look, holds, seconds, name)
        finally:
            self._looking -= 1

    async def _changed(
        self, look: Callable[[], Seen], holds: Callable[[Seen], bool], seconds: float, name: str | None
    ) -> Seen:
        with self._shares.holding(name) as has_room:
            if not has_room:
                raise Unavailable(
                    "as many requests wait for a change as may", kind="long_polls_full", polls_max=self._shares.total,
                    hint="send it again in a moment, without wait, or to another node",
                )  # fmt: skip
            poll = _Poll(look, holds, self._clock.monotonic() + seconds)
            self._polls.add(poll)
            if self._loop is not None:
                self._alarm.start()
            self._set(min(poll.due, self._due))
            try:
                return await poll.turn
            finally:
                self._polls.discard(poll)

    def close(self) -> None:
        """End the thread; nobody waits any more."""
        self._loop = None
        self._alarm.stop()

    def _set(self, due: float) -> None:
        if due != self._due:
            self._due = due
            self._alarm.wake()

    def _end_due(self) -> float | None:
        """Ring when the next poll gives up; the time of that."""
        due = self._due
        if due <= self._clock.monotonic():
            self.ring()
            return None  # the look that follows sets the next time
        return None if due == inf else due

    def _look(self) -> None:
        self._ringing = False  # before anything is looked at: who changes something from now on rings again
        now = self._clock.monotonic()
        seen: dict[Callable[[], Any], Any] = {}
        for poll in self._polls:
            if poll.turn.done():
                continue
            try:
                if poll.look not in seen:
                    seen[poll.look] = poll.look()
                if now >= poll.due or poll.holds(seen[poll.look]):
                    poll.turn.set_result(seen[poll.look])
            except Exception as error:
                poll.turn.set_exception(error)
        self._set(min((poll.due for poll in self._polls if not poll.turn.done()), default=inf))


@contextmanager
def polling(node: Node) -> Iterator[LongPolls]:
    """The long polls of a node, in the event loop that runs: they hear what is entered, merged, repaired and ended."""
    polls = LongPolls(node.clock)
    heard = (node.pond.loading.loads.changed, node.follower.waits.changed, node.scheduler.changed, node.repairs.ended)
    for signal in heard:
        signal.listeners.append(polls.ring)
    polls.open()
    try:
        yield polls
    finally:
        for signal in heard:
            signal.listeners.remove(polls.ring)
        polls.close()


def polls_of(request: Request) -> LongPolls:
    """The long polls of the application that answers a request."""
    polls: LongPolls = request.app.state.long_polls
    return polls


async def until(request: Request, look: Callable[[], Seen], holds: Callable[[Seen], bool], seconds: float) -> Seen:
    """As `LongPolls.until`, for a request, as long as its sender is there.

    Raises: as `LongPolls.until`; `ClientDisconnect`.
    """
    wait = polls_of(request).until(look, holds, seconds, share_in(request))
    return await presence_in(request.scope).during(wait)


async def map_reached(request: Request, node: Node, name: str, position: int, seconds: float) -> float:
    """Wait until a map has come to a position, or so many seconds have passed; the seconds that are left.

    Raises: `NotFound` for the map; as `until`.
    """
    log, due = node.pond.log, node.clock.monotonic() + seconds
    await until(request, log.position, lambda last: last[0] >= position or node.stopping, seconds)
    left = due - node.clock.monotonic()
    await until(request, partial(log.applied, name), lambda applied: applied >= position or node.stopping, left)
    return max(due - node.clock.monotonic(), 0.0)
