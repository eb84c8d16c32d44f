"""The front door: the streams of a pond, as their user sees them. Ids are texts here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from millpond.events.event import EventBatch, NewEvent
from millpond.events.ids import parse_id
from millpond.events.names import StreamName

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.event import Appended, Event
    from millpond.events.index import StreamIndex
    from millpond.events.protocol import StreamStore

__all__ = ("Events",)

_PAGE_STREAMS = 1_000


class Events:
    """The streams of a pond. `store` is their backend."""

    def __init__(self, store: StreamStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock

    def append(
        self, queue: str, job_set: str, events: Iterable[NewEvent | bytes], *, source: str = "",
        positions: Sequence[int] = (),
    ) -> Appended:  # fmt: skip
        """Append events to the stream of a queue and a job set: all of them, or none. Bytes are a payload of now.

        With a `source` and the position of each event in it, what was stored before is left out.

        Raises:
            Invalid: a name, an event or a position is not acceptable.
            Uncertain: the events may be stored. With a source, append them again; they are stored once.
        """
        now_ms = self._clock.now_ms()
        new = [NewEvent(now_ms, event) if isinstance(event, bytes) else event for event in events]
        return self.store.append([EventBatch(StreamName(queue, job_set), new, source, positions)])[0]

    def read(self, queue: str, job_set: str, after: str = "") -> Iterator[Event]:
        """The events after an id, up to the newest one when the last page is read.

        Raises:
            Invalid: `after` is no id.
            Corrupt: what is stored is damaged.
        """
        stream, place = StreamName(queue, job_set).check(), parse_id(after)
        more = True
        while more:
            page = self.store.read(stream, place)
            yield from page.events
            place, more = page.after, page.more

    def index(self, queue: str, job_set: str) -> StreamIndex | None:
        """The days of a stream, with their states; None when there is no such stream."""
        return self.store.index(StreamName(queue, job_set).check())

    def streams(self, queue: str | None = None) -> Iterator[StreamName]:
        """The streams of a queue, or all."""
        after: StreamName | None = None
        while page := self.store.streams(queue, after, limit=_PAGE_STREAMS):
            yield from page
            after = page[-1]
