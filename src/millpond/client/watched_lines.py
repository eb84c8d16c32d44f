"""The lines that a node sends to a watch; after a lost connection the response is begun anew.

Invariant: a line is given once and whole. The rest of a line that was cut off is dropped with its response.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any, TypeVar

from millpond.client.body import Body
from millpond.errors import Unavailable
from millpond.events.batches import Batches
from millpond.events.event import Event
from millpond.events.ndjson import event_of_line

__all__ = ("WatchedLines",)

T = TypeVar("T")


class WatchedLines(Batches[T]):
    """A reader of streams on a node: iterate over its events; close it after use."""

    def __init__(self, *, follow: bool) -> None:
        self._follow = follow
        self._body: Body | None = None
        self._rest = b""
        self._again: deque[bytes] = deque()
        self.caught_up = False
        """True once everything that was there was read, of all streams: what comes now is new."""

    @abstractmethod
    def _begin(self) -> Body:
        """Request a response that goes on where the lines that were taken end."""

    @abstractmethod
    def _passed(self, number: int, event: Event) -> T:
        """The event of a stream, by its number in the request, as it is given on; its place is noted."""

    @abstractmethod
    def _note(self, number: int, sent: Any, *, gap: bool) -> None:
        """Note up to where all was `sent`, if the node says so: an id, or one for each stream; and a `gap` in one.

        It does not say so with a gap, which comes before the events that were read with it.
        """

    def next_batch(self, due: float | None) -> list[T]:
        """The next events; none when the node says that all was read, or that nothing came for a while.

        `due` is not looked at: a node says soon after new events that there are no more for now.

        Raises:
            Unavailable: the node cannot be reached, or ended the watch. Denied: the token may not watch a stream.
        """
        del due
        events: list[T] = []
        for line in self._take():
            number, event, rest = event_of_line(line)
            if event is not None:
                events.append(self._passed(number, event))
            elif "error" not in rest:
                self.caught_up = self.caught_up or "caught_up" in rest
                self._note(number, rest.get("caught_up", rest.get("alive")), gap="gap" in rest)
            elif events:
                self._again.append(line)  # taken again, alone: what came before it is delivered first
            else:
                raise Unavailable("the node ended the watch", kind="watch_ended", reason=rest["error"].get("message"))
        return events

    def _take(self) -> list[bytes]:
        """The next lines; none at the end of a response that does not follow."""
        lines, self._again = self._again, deque()
        while not lines:
            if self._body is None:
                self._body = self._begin()
            try:
                data = self._body.read_some()
            except Unavailable:
                self.close()  # the next one begins after the last event
                continue
            if not data:
                self.close()
                if self._follow:
                    continue
                self.caught_up = True
                break
            *whole, self._rest = (self._rest + data).split(b"\n")
            lines.extend(whole)
        return list(lines)

    def close(self) -> None:
        body, self._body, self._rest = self._body, None, b""
        if body is not None:
            body.close()
