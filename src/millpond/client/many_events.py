"""A watch of several streams on a node, over one connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millpond.client.watched_lines import WatchedLines
from millpond.events.batches import Batches
from millpond.events.filters import ALL, EventFilter
from millpond.events.ids import format_id, parse_id
from millpond.events.many_watch import StreamEvent
from millpond.events.ndjson import event_of_stream_line

if TYPE_CHECKING:
    from millpond.client.body import Body
    from millpond.client.transport import Nodes
    from millpond.events.names import StreamName

__all__ = ("RemoteManyWatch",)


class RemoteManyWatch(Batches[StreamEvent]):
    """A reader of several streams on a node, as `ManyWatch`: iterate over its events; close it after use."""

    def __init__(self, nodes: Nodes, places: Mapping[StreamName, int], matching: EventFilter = ALL) -> None:
        self._nodes, self._places, self._matching = nodes, dict(places), matching
        self._streams = list(places)
        self._lines = WatchedLines(self._begin, follow=True)
        self.gaps: frozenset[StreamName] = frozenset()

    def _begin(self) -> Body:
        streams = [stream._asdict() | {"after": format_id(place)} for stream, place in self._places.items()]
        filters = {"filters": self._matching.query} if self._matching != ALL else {}  # nodes before them know none
        request = {"streams": streams, "follow": True, **filters}
        return self._nodes.on_primary(
            lambda node: node.stream("POST", "/v1/events/watch", json=request), repeatable=True
        )  # fmt: skip

    @property
    def after(self) -> dict[StreamName, str]:
        """The ids from which another watch goes on."""
        return {stream: format_id(place) for stream, place in self._places.items()}

    @property
    def caught_up(self) -> bool:
        """True once everything that was there was read, of all streams."""
        return self._lines.caught_up

    def next_batch(self, due: float | None) -> list[StreamEvent]:
        """The next events; none when the node says that all was read, or that nothing came for a while.

        `due` is not looked at: a node says soon after new events that there are no more for now.

        Raises:
            Unavailable: the node cannot be reached. Denied: the token may not watch one of the streams.
        """
        del due
        events: list[StreamEvent] = []
        for line in self._lines.take():
            number, event, rest = event_of_stream_line(line)
            if event is not None:
                stream = self._streams[number]
                events.append(StreamEvent(stream, event))
                self._places[stream] = event.number
            elif "error" in rest and events:
                self._lines.take_again(line)
            else:
                places = self._lines.note(rest)
                self._places |= zip(self._streams, map(parse_id, places or ()), strict=False)
                if "gap" in rest:
                    self.gaps |= {self._streams[number]}
        return events

    def close(self) -> None:
        """End the watch; closing twice is harmless."""
        self._lines.close()
