"""Watchers: any number of readers that go on when events are appended, with one reader of the store for all.

    store ─ follow, read ─▶ one thread ─▶ ring of each stream ─▶ watchers, each with a place of its own

A watcher pulls. While it is behind the ring, it reads the store itself; when it has caught up, it takes from the ring
what the thread reads once for all. So a watcher that does not read costs nothing, and loses nothing.

Invariants:
* a watcher gets what `StreamStore.read` would give it, from its place on, each event once;
* one thread, and one read of the store for each stream with news, whatever the number of watchers;
* the rings together hold at most `RINGS_BYTES`, and a page more for each stream; a stream without watchers has none;
* a watch gives at most its share of `HELD_BYTES` at a time, or one event: its reader holds no more if it is stalled.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import TypeAlias

from millpond.clock import Clock
from millpond.errors import Closed, MillpondError, Unavailable
from millpond.events.codec import size_of
from millpond.events.event import Event, Page
from millpond.events.filters import ALL, EventFilter
from millpond.events.ids import format_id
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore
from millpond.events.waiting import WaitingBatches
from millpond.kernel.worker import WorkerThread

__all__ = ("EVENT_BYTES", "FETCH_BYTES", "WATCHERS_MAX", "InThread", "Watch", "Watchers")

WATCHERS_MAX = 10_000
RINGS_BYTES = 64 * 1024 * 1024
RING_BYTES_MAX = 1024 * 1024
PAGE_BYTES = 256 * 1024
FETCH_BYTES = 512 * 1024
"""A watcher that is behind reads so much at a time: about a compressed batch, so that its first event comes soon."""
HELD_BYTES = 256 * 1024 * 1024
"""The bytes that the readers of all watches of a process hold together; each has an equal part of them."""
SHARE_BYTES_MAX = 8 * 1024 * 1024
"""More than a page: of few watches, none is cut."""
EVENT_BYTES = 200
"""The memory of an event besides its payload and headers, about."""
InThread: TypeAlias = "Callable[[Callable[[], Page]], Awaitable[Page]]"
"""Reads a page in a thread, for a watch in an event loop."""
_RETRY_SECONDS = 1.0
_NUMBER = attrgetter("number")


@dataclass(slots=True)
class _Pages:
    """Events that the thread read together, and the place before them."""

    before: int
    events: list[Event]
    bytes: int


@dataclass(slots=True, eq=False)
class _Tail:
    """The end of a stream that is watched: up to where it was read, and what was read last."""

    stream: StreamName
    after: int
    watchers: int = 0
    pages: deque[_Pages] = field(default_factory=deque)
    bytes: int = 0
    news: dict[asyncio.Event, asyncio.AbstractEventLoop] = field(default_factory=dict)
    ended: bool = False
    """True once the stream lost its end: its watchers read the store, and find where they go on."""

    def events_after(self, position: int) -> list[Event] | None:
        """The events of the ring after a place; None when the ring begins later, or ends there."""
        if position >= self.after or not self.pages or position < self.pages[0].before:
            return None
        events: list[Event] = []
        for page in self.pages:
            if page.events[-1].number > position:
                events += page.events[bisect_right(page.events, position, key=_NUMBER) :]
        return events


Position = tuple[_Tail, int]
"""The end of a stream, and the id up to which a watch has read."""


class Watchers:
    """The watchers of a store in this process. The thread runs while somebody watches."""

    def __init__(self, store: StreamStore, clock: Clock, watchers_max: int = WATCHERS_MAX) -> None:
        self._store, self._clock, self.watchers_max = store, clock, watchers_max
        self._tails: dict[StreamName, _Tail] = {}
        self._changed = threading.Condition()
        self._joined = self._closed = False
        self._worker = WorkerThread("events for watchers", self._follow, clock, retry_seconds=_RETRY_SECONDS)
        self._fault: MillpondError | None = None
        self._count = 0

    @property
    def count(self) -> int:
        """The number of open watches that follow."""
        return self._count

    @property
    def share(self) -> int:
        """The bytes that one watch may give at a time."""
        return min(HELD_BYTES // max(self._count, 1), SHARE_BYTES_MAX)

    def watch(
        self, stream: StreamName, after: int, matching: EventFilter = ALL, *, follow: bool = True,
        in_thread: InThread = asyncio.to_thread,
    ) -> Watch:  # fmt: skip
        """A watch of a stream from behind an id, of the events that match; one that ends at the newest does not follow.

        Raises:
            Unavailable: kind `watchers_full`: as many are open as may.
        """
        with self._changed:
            if self._closed:
                raise _closed()
            if follow and self._count >= self.watchers_max:
                raise Unavailable(
                    "as many watchers are connected as may", kind="watchers_full", watchers_max=self.watchers_max,
                    hint="close one, or watch through another node",
                )  # fmt: skip
            self._count += follow
        return Watch(self, self._store, stream, after, matching, follow=follow, in_thread=in_thread)

    def close(self) -> None:
        """End all watches: they raise `Closed`."""
        with self._changed:
            self._closed = True
            self._worker.interrupt()
            self._tell(list(self._tails.values()))
        self._store.wake()
        self._worker.stop()

    # -- used by watches ------------------------------------------------------------------------------

    def join(self, stream: StreamName, after: int) -> _Tail:
        """The tail of a stream for a watcher that has caught up with it at `after`."""
        with self._changed:
            tail = self._tails.get(stream)
            if tail is None:
                tail = self._tails[stream] = _Tail(stream, after)
            tail.watchers += 1
            self._joined = True
            if not self._closed:
                self._worker.start()
        self._store.wake()
        return tail

    def leave(self, tail: _Tail | None, *, follow: bool) -> None:
        """Give back a watch, and its part in a tail."""
        with self._changed:
            self._count -= follow
            if tail is not None:
                tail.watchers -= 1
                if not tail.watchers and not tail.ended:
                    del self._tails[tail.stream]
                    self._joined = True

    def take(self, tail: _Tail, position: int) -> list[Event] | None:
        """The events of the ring after a place, as `_Tail.events_after`.

        Raises:
            Closed: watching has ended. Whatever ended the thread.
        """
        with self._changed:
            self._check()
            return tail.events_after(position)

    def is_due(self, due: float | None) -> bool:
        """True when a monotonic time has come."""
        return due is not None and self._clock.monotonic() >= due

    def wait(self, positions: Sequence[Position], due: float | None) -> None:
        """Wait until one of these tails is behind its place, at most until a monotonic time."""
        with self._changed:
            self._clock.wait_for(self._changed, lambda: self._news(positions), due)

    async def wait_async(self, positions: Sequence[Position], seconds: float | None) -> None:
        """As `wait`, for an event loop; for so many seconds at most."""
        news, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._changed:
            if self._news(positions):
                return
            for tail, _ in positions:
                tail.news[news] = loop
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), seconds)
        finally:
            with self._changed:
                for tail, _ in positions:
                    tail.news.pop(news, None)

    def _news(self, positions: Sequence[Position]) -> bool:
        return self._ended() or any(tail.ended or tail.after > position for tail, position in positions)

    def _ended(self) -> bool:
        return self._closed or self._fault is not None

    def _check(self) -> None:
        if self._closed:
            raise _closed()
        if self._fault is not None:
            raise self._fault

    # -- the thread -----------------------------------------------------------------------------------

    def _follow(self) -> float | None:
        """Follow the streams until others are watched; all watchers hear of an error of the store."""
        with self._changed:
            self._joined = False
            cursors = {tail.stream: tail.after for tail in self._tails.values()}
        try:
            for stream in self._store.follow(cursors, None, lambda: self._joined or self._closed):
                self._read(stream, cursors[stream])
        except Closed:
            return None
        except MillpondError as error:
            with self._changed:
                self._fault = error
                self._tell(list(self._tails.values()))
            raise
        self._fault = None
        return self._clock.monotonic()

    def _read(self, stream: StreamName, after: int) -> None:
        page = self._store.read(stream, after, bytes_max=PAGE_BYTES)
        pages = _Pages(after, page.events, sum(map(size_of, page.events)))
        with self._changed:
            tail = self._tails.get(stream)
            if tail is None or tail.after != after:
                return
            if page.after < after:
                tail.ended = True
                del self._tails[stream]
                self._tell([tail])
                return
            if page.gap:
                tail.pages.clear()
                tail.bytes = 0
            elif page.events:
                tail.pages.append(pages)
                tail.bytes += pages.bytes
            tail.after = page.after
            room = min(RING_BYTES_MAX, RINGS_BYTES // len(self._tails))
            while tail.bytes > room and len(tail.pages) > 1:
                tail.bytes -= tail.pages.popleft().bytes
            self._tell([tail])

    def _tell(self, tails: list[_Tail]) -> None:
        """Wake the watchers of tails: threads at once, and those of an event loop with one call for all."""
        self._changed.notify_all()
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        for tail in tails:
            for news, loop in tail.news.items():
                loops.setdefault(loop, []).append(news)
            tail.news.clear()
        for loop, events in loops.items():
            with suppress(RuntimeError):  # the loop has ended, and its watchers with it
                loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


def _closed() -> Closed:
    return Closed("the streams are closed", kind="events_closed")


class Watch(WaitingBatches[Event]):
    """A reader that waits for more: iterate over its events, with `for` or `async for`; close it after use.

    Used by one thread, or one task, at a time.
    """

    def __init__(
        self, watchers: Watchers, store: StreamStore, stream: StreamName, after: int, matching: EventFilter, *,
        follow: bool, in_thread: InThread,
    ) -> None:  # fmt: skip
        super().__init__(watchers)
        self._in_thread = in_thread
        self._store, self.stream, self._matching = store, stream, matching
        self._position, self._follow = after, follow
        self._tail: _Tail | None = None
        self._closed = False
        self.gaps = 0
        """The number of gaps: events had expired, were deleted, or the store lost them."""

    @property
    def gap(self) -> bool:
        """True once events were missed."""
        return self.gaps > 0

    @property
    def number(self) -> int:
        """The place of the watch, as a number."""
        return self._position

    @property
    def after(self) -> str:
        """The id from which another watch goes on."""
        return format_id(self._position)

    @property
    def caught_up(self) -> bool:
        """True once everything that was there was read: what comes now is new."""
        return self._tail is not None

    @property
    def state(self) -> tuple[bool, object]:
        return self.caught_up, self.gaps

    def positions(self) -> list[Position] | None:
        """As `WaitingBatches.positions`: the tail that the watch takes from, and its place there."""
        return None if self._tail is None else [(self._tail, self._position)]

    def poll(self) -> list[Event]:
        events = self._taken()
        return events if events is not None else self._accepted(self._fetch()) if self._behind() else []

    async def poll_async(self) -> list[Event]:
        """As `WaitingBatches.poll_async`."""
        events = self._taken()
        if events is not None or not self._behind():
            return events or []
        return self._accepted(await self._in_thread(self._fetch))

    def go_back(self, number: int) -> None:
        """Go back to where the watch was: what it gave since then was not delivered, and comes again."""
        self._position = number

    def _taken(self) -> list[Event] | None:
        """The next events of the ring; None when it has none for this place."""
        if self._closed:
            raise Closed("the watch is closed", kind="watch_closed", hint="begin another where it ended")
        if self._tail is not None and self._tail.ended:
            self._tail = None
        events = None if self._tail is None else self._watchers.take(self._tail, self._position)
        return self._selection(events, events[-1].number) if events else None

    def _behind(self) -> bool:
        return self._tail is None or self._position < self._tail.after

    def _fetch(self) -> Page:
        return self._store.read(self.stream, self._position, bytes_max=min(FETCH_BYTES, self._watchers.share))

    def _accepted(self, page: Page) -> list[Event]:
        """The events of a page. When there are none, the watch takes from the ring from now on."""
        self.gaps += page.gap
        selected = self._selection(page.events, page.after)
        if not page.events and self._tail is None:
            self._tail = self._watchers.join(self.stream, self._position)
        return selected

    def _selection(self, events: list[Event], after: int) -> list[Event]:
        """Those of the next events that match, as many as the share holds; the watch is behind them, or at `after`."""
        selected = self._matching.select(events)
        share = _within(selected, self._watchers.share)
        self._position = after if len(share) == len(selected) else share[-1].number
        return share

    def close(self) -> None:
        """End the watch; closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._watchers.leave(self._tail, follow=self._follow)


def _within(events: list[Event], share: int) -> list[Event]:
    """The first events, up to a share of bytes, or one."""
    if share == SHARE_BYTES_MAX:
        return events
    totals = list(accumulate(size_of(event) + EVENT_BYTES for event in events))
    return events[: max(bisect_right(totals, share), 1)]
