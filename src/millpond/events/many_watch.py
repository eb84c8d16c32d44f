"""Watches of several streams at once, as one reader.

Invariants:
* the events of each stream come as its own watch gives them: in order, each once, from its place on;
* those that come together are in the order of their ids, which follow the clock of the append; across batches only the
  order within each stream is certain;
* a batch that fails half-way, or is cancelled, comes again whole: no event is taken that was not delivered;
* no stream keeps others from being read: they take turns, and a batch ends when it has `BATCH_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self

from millpond.argument_types import need_type
from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.events.codec import size_of
from millpond.events.event import Event
from millpond.events.filters import ALL, EventFilter
from millpond.events.ids import parse_id
from millpond.events.names import StreamName
from millpond.events.waiting import WaitingBatches
from millpond.events.watchers import EVENT_BYTES, InThread, Position, Watch, Watchers

__all__ = ("BATCH_BYTES", "STREAMS_MAX", "ManyWatch", "StreamEvent", "Streams", "positions_of")

BATCH_BYTES = 256 * 1024
STREAMS_MAX = 1_000
"""Streams that are watched as one."""

Streams = Mapping[tuple[str, str], str] | Iterable[tuple[str, str]]
"""Pairs of queue and job set; in a mapping each with the id after which its events begin."""


class StreamEvent(NamedTuple):
    """An event, and the stream that it belongs to."""

    stream: StreamName
    event: Event


def _id_of(_stream: StreamName, after: str) -> int:
    return parse_id(after)


def positions_of(streams: Streams, position_of: Callable[[StreamName, str], int] = _id_of) -> dict[StreamName, int]:
    """Streams and the places at which to begin, which are ids unless `position_of` knows more.

    >>> places_of([("etl", "nightly")])
    {StreamName(queue='etl', job_set='nightly'): 0}

    Raises:
        Invalid: a name or an id is not understood, or there are none or too many.
    """
    need_type("streams", streams, Iterable)
    pairs = streams.items() if isinstance(streams, Mapping) else ((stream, "") for stream in streams)
    positions = {(name := _name_of(stream)): position_of(name, after) for stream, after in pairs}
    if not 0 < len(positions) <= STREAMS_MAX:
        raise Invalid(
            "so many streams are not watched as one", kind="event_watch", streams=len(positions),
            streams_max=STREAMS_MAX, hint="name one stream at least; for more of them, begin several watches",
        )  # fmt: skip
    return positions


def _name_of(stream: Any) -> StreamName:
    if not isinstance(stream, tuple | list) or len(stream) != len(StreamName._fields):
        raise Invalid("a stream is a queue and a job set", kind="stream_name", stream=shown(stream),
                      hint="such as ('etl', 'nightly')")  # fmt: skip
    return StreamName(*stream).check()


class ManyWatch(WaitingBatches[StreamEvent]):
    """A reader of several streams that waits for more: iterate over it, with `for` or `async for`; close it after use.

    Used by one thread, or one task, at a time.
    """

    def __init__(
        self, watchers: Watchers, positions: Mapping[StreamName, int], matching: EventFilter = ALL, *,
        follow: bool = True, in_thread: InThread = asyncio.to_thread,
    ) -> None:  # fmt: skip
        super().__init__(watchers)
        with ExitStack() as begun:
            self._watches = {
                stream: begun.enter_context(watchers.watch(stream, after, matching, follow=follow, in_thread=in_thread))
                for stream, after in positions.items()
            }
            self._open = begun.pop_all()
        self._turns: deque[Watch] = deque(self._watches.values())

    @property
    def after(self) -> dict[StreamName, str]:
        """The ids from which another watch goes on."""
        return {stream: watch.after for stream, watch in self._watches.items()}

    @property
    def caught_up(self) -> bool:
        """True once everything that was there was read, of all streams."""
        return all(watch.caught_up for watch in self._turns)

    @property
    def gaps(self) -> frozenset[StreamName]:
        """The streams of which events were missed, because they had expired, or were deleted."""
        return frozenset(stream for stream, count in self.gap_counts.items() if count)

    @property
    def gap_counts(self) -> dict[StreamName, int]:
        """The number of gaps in each stream."""
        return {stream: watch.gaps for stream, watch in self._watches.items()}

    @property
    def state(self) -> tuple[bool, object]:
        return self.caught_up, self.gap_counts

    def poll(self) -> list[StreamEvent]:
        with self._batch() as batch:
            for watch in self._round():
                if batch.add(watch, watch.number, watch.poll()):
                    break
        return batch.in_order()

    async def poll_async(self) -> list[StreamEvent]:
        """As `WaitingBatches.poll_async`."""
        with self._batch() as batch:
            for watch in self._round():
                number = watch.number
                if batch.add(watch, number, await watch.poll_async()):
                    break
        return batch.in_order()

    def _batch(self) -> _Batch:
        return _Batch(min(BATCH_BYTES, len(self._turns) * self._watchers.share))

    def _round(self) -> Iterator[Watch]:
        """Each watch once, the one first whose turn it is; those that are taken come last the next time."""
        for _ in range(len(self._turns)):
            watch = self._turns[0]
            self._turns.rotate(-1)
            yield watch

    def positions(self) -> list[Position] | None:
        positions = [position for watch in self._turns for position in watch.positions() or ()]
        return positions if len(positions) == len(self._turns) else None

    def close(self) -> None:
        """End the watch; closing twice is harmless."""
        self._open.close()


class _Batch:
    """The events that watches give in one round: all are delivered, or all come again when the round fails."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: list[StreamEvent] = []
        self._marks: list[tuple[Watch, int]] = []
        self._size = 0

    def add(self, watch: Watch, number: int, events: list[Event]) -> bool:
        """Add the events that a watch gave from a place on; true when the batch is full."""
        if events:
            self._marks.append((watch, number))
            self._entries.extend(StreamEvent(watch.stream, event) for event in events)
            self._size += sum(map(size_of, events)) + EVENT_BYTES * len(events)
        return self._size >= self._bytes_max

    def in_order(self) -> list[StreamEvent]:
        """The events in the order of their ids."""
        self._entries.sort(key=lambda entry: entry.event.number)
        return self._entries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch, number in self._marks if kind is not None else ():
            watch.go_back(number)
