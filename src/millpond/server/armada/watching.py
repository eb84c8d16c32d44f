"""Watchers over the network: what each is sent, in slices that all share.

    store ─▶ reads, one for all who want the same ─▶ slices, held for a while ─▶ watcher ─▶ its client
    `events/watchers.py`, which follows all streams with one thread ─▶ slices ─▶ the watchers at the end of a stream

A watcher takes a slice, sends it, and takes the next one after its last id. So a slow client slows nobody, and holds
one slice; and an event becomes a message once, for all watchers.

Invariants:
* a watcher gets exactly the events after its id, in order, each once: slices are what the store has, and never change;
* a read that is shared may have begun earlier; its answer that there is nothing does not count against a known id;
* at most `watchers_max` watchers, shared between tokens as `server/shares.py` says; at most `READS_MAX` reads of
  history at once, by turns of tokens; slices of at most `HELD_BYTES_MAX` are held, besides those that are being sent;
* when the watching is closed, or the store fails, each watcher gets the error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from millpond.errors import Closed, MillpondError, Unavailable
from millpond.events.event import Event
from millpond.events.ids import parse_id
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore
from millpond.events.watchers import EVENT_BYTES, FETCH_BYTES, InThread, Watch, Watchers
from millpond.kernel.cache import Cache
from millpond.server.shares import Shares
from millpond.server.thread_limits import FairThreads

__all__ = ("ALIVE_SECONDS", "GRPC", "HELD_BYTES_MAX", "HTTP", "READS_MAX", "SLICE_BYTES", "Encode", "Slice", "Watching")

GRPC, HTTP = "grpc", "http"
ALIVE_SECONDS = 10.0
"""A watcher to whom nothing is sent for so long hears of it, if its client understands that."""
SLICE_BYTES = 64 << 10
READ_BYTES = FETCH_BYTES
HELD_BYTES_MAX = 32 << 20
READS_MAX = 4

Encode: TypeAlias = "Callable[[StreamName, Event], bytes | None]"


@dataclass(eq=False, slots=True)
class Slice:
    """Consecutive events of a stream, up to `SLICE_BYTES` or one; `after` is the place behind them.

    `gap`: events before these have expired.
    """

    stream: StreamName
    events: list[Event]
    after: int
    gap: bool = False
    size: int = 0
    _encoded: dict[Encode, list[bytes]] = field(default_factory=dict)

    def encoded(self, encode: Encode) -> list[bytes]:
        """The messages of its events, made once for all watchers; those that are None are left out."""
        made = self._encoded.get(encode)
        if made is None:
            messages = (encode(self.stream, event) for event in self.events)
            made = self._encoded[encode] = [message for message in messages if message is not None]
        return made


class Watching:
    """The watchers of a node, over those of its streams. Used by its event loop alone."""

    def __init__(self, store: StreamStore, watchers: Watchers, watchers_max: int) -> None:
        self._store, self._watchers = store, watchers
        self._shares = Shares(watchers_max)
        self.counts: Counter[str] = Counter()
        """The streams that are watched, by protocol: one for each watcher of a stream."""
        self._slices: Cache[tuple[StreamName, int, int], Slice] = Cache(HELD_BYTES_MAX, lambda held: held.size)
        self._reading: dict[tuple[StreamName, int, int], asyncio.Task[Slice]] = {}
        self._threads = FairThreads(READS_MAX)
        self._closed: MillpondError | None = None

    def reading_of(self, name: str | None) -> InThread:
        """The threads that read history, for a watcher with the token of this name: they take turns.

        A page that is read is sent on before the next turn, so few pages wait for the event loop, or hold it.
        """
        return partial(self._threads.run, name)

    def check_room(self, name: str | None) -> None:
        """Insist that one more watcher may enter, before anything is answered.

        Raises: as `entered`.
        """
        with self.entered(name, HTTP):
            pass

    @contextmanager
    def entered(self, name: str | None, protocol: str = GRPC, streams: int = 1) -> Iterator[None]:
        """Count a watcher of so many streams, with the token of this name; who follows none takes no place.

        Raises:
            Unavailable: there are as many as there may be, or the node is stopping.
        """
        if self._closed is not None:
            raise self._closed
        with self._shares.holding(name, streams) as has_room:
            if streams and not has_room:
                raise Unavailable(
                    "the node has as many watchers as it may", kind="watchers_full", watchers_max=self._shares.total,
                    hint="watch again in a moment, or through another node",
                )  # fmt: skip
            self.counts[protocol] += streams
            try:
                yield
            finally:
                self.counts[protocol] -= streams

    def close(self) -> None:
        """Let all watchers go, now and later."""
        self._closed = Unavailable("the node is stopping", kind="node_stopping", hint="watch again from the last id")
        self._watchers.close()

    async def slices(
        self, stream: StreamName, after: int, seen: int = 0, mark: int = 0, share: str | None = None
    ) -> AsyncGenerator[Slice | None, None]:
        """The events after an id, for ever; None when there was nothing for `ALIVE_SECONDS`.

        `known` is the last id that the stream is known to have. Readers share slices with those that have the same
        `mark`, which is another one after a deletion. `share` is the name by which they take turns.

        A slice without events says that everything stored was sent; it comes once.

        Raises:
            Unavailable: the node is stopping, or the storage is out of reach.
            Corrupt: what is stored is damaged.
        """
        while (piece := await self.read(stream, after, seen, mark, share)).events:
            yield piece
            after = piece.after
        yield piece
        try:
            with self._watchers.watch(stream, piece.after, in_thread=self.reading_of(share)) as watch:
                async with aclosing(self._live(watch, stream, piece.after, mark, share)) as live:
                    async for coming in live:
                        yield coming
        except Closed as error:
            raise self._closed or error from error

    async def _live(
        self, watch: Watch, stream: StreamName, after: int, mark: int, share: str | None
    ) -> AsyncGenerator[Slice | None, None]:
        while True:
            caught_up, gaps, before = watch.caught_up, watch.gaps, parse_id(watch.after)
            # What was sent may be ahead of the watch: a slice that another reader left can be longer than its batch.
            events = await watch.next_batch_async(ALIVE_SECONDS)
            self._hold((stream, mark), before, _cut(stream, events, gap=watch.gaps > gaps))
            position = parse_id(watch.after)
            if position == before and caught_up:
                yield None
            # Only the place is held while a slice is sent: a client that is slow holds no more than that.
            while after < position:
                piece = await self.read(stream, after, position, mark, share)
                after = max(piece.after, after)
                if not piece.events and not piece.gap:
                    break
                yield piece

    async def read(
        self, stream: StreamName, after: int, seen: int = 0, mark: int = 0, share: str | None = None
    ) -> Slice:
        """The slice after an id; one without events at the end of the stream, which is not before the `known` id.

        Raises: as `StreamStore.read`; `Unavailable` when the node is stopping.
        """
        piece = await self._shared(stream, after, mark, share)
        if not piece.events and piece.after < seen:
            # The read may have begun before these events were there; the next one began after it.
            piece = await self._shared(stream, after, mark, share)
        return piece

    async def _shared(self, stream: StreamName, after: int, mark: int, share: str | None) -> Slice:
        if self._closed is not None:
            raise self._closed
        key = (stream, mark, after)
        piece = self._slices.get(key)
        if piece is not None:
            return piece
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._read(stream, after, mark, share))
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(reading)

    async def _read(self, stream: StreamName, after: int, mark: int, share: str | None) -> Slice:
        page = await self._threads.run(share, lambda: self._store.read(stream, after, bytes_max=READ_BYTES))
        slices = _cut(stream, page.events, gap=page.gap)
        self._hold((stream, mark), after, slices)
        return slices[0] if slices else Slice(stream, [], page.after, page.gap)

    def _hold(self, of: tuple[StreamName, int], after: int, slices: list[Slice]) -> None:
        for piece in slices:
            if (*of, after) not in self._slices:
                self._slices.put((*of, after), piece)
            after = piece.after


def _cut(stream: StreamName, events: Sequence[Event], *, gap: bool) -> list[Slice]:
    slices: list[Slice] = []
    cut: list[Event] = []
    size = 0
    for event in events:
        if cut and size + len(event.payload) > SLICE_BYTES:
            slices.append(Slice(stream, cut, cut[-1].number, size=size))
            cut, size = [], 0
        cut.append(event)
        size += len(event.payload) + EVENT_BYTES
    if cut:
        slices.append(Slice(stream, cut, cut[-1].number, size=size))
        slices[0].gap = gap
    return slices
