"""Streams of events on nodes: the primary holds them; reads and watches go on where a lost connection ended them."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.argument_types import need_type
from millpond.client.body import Body
from millpond.client.operations import ask_primary, perform
from millpond.errors import Invalid, MillpondError, NotFound, Unavailable
from millpond.events.age_settings import AgeSettings
from millpond.events.ages import AgeRule, age_of
from millpond.events.appender import LINGER, Appender
from millpond.events.batches import Batches
from millpond.events.codec import cuts, sizes_of
from millpond.events.event import Appended, Event, EventBatch, NewEvent
from millpond.events.export import Exporting
from millpond.events.filters import ALL, EventFilter, Filters, filter_of
from millpond.events.ids import format_id, parse_id
from millpond.events.index_ndjson import parse_index
from millpond.events.many_watch import StreamEvent, Streams, positions_of
from millpond.events.names import StreamName
from millpond.events.ndjson import event_of_line, lines_of_batch
from millpond.events.operations import EventsOperations
from millpond.events.starts import start_position
from millpond.kernel.listed import Listed
from millpond.kernel.page import pages
from millpond.times.durations import parse_duration

if TYPE_CHECKING:
    from millpond.client.body import Body
    from millpond.client.transport import Nodes
    from millpond.clock import Clock
    from millpond.events.index import StreamIndex
    from millpond.kernel.operations import Operation

__all__ = ("RemoteAges", "RemoteEvents", "RemoteManyWatch", "RemoteWatch")

T = TypeVar("T")


class _WatchedLines(Batches[T]):
    """A reader of streams on a node: iterate over its events; close it after use.

    After a lost connection the response is begun anew. Invariant: a line is given once and whole. The rest of a line
    that was cut off is dropped with its response.
    """

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


_PATH = "/v1/events"
_REQUEST_BYTES = 2 << 20
"""Events of an appender are sent together up to so many bytes: as lines of JSON they may have six times as many."""


class RemoteEvents(Exporting, EventsOperations):
    """The streams of a pond on nodes, as `millpond.events.events.Events` has them in a folder."""

    def __init__(self, nodes: Nodes, clock: Clock) -> None:
        self._nodes, self._clock = nodes, clock
        self.settings: AgeSettings = RemoteAges(nodes)

    def __repr__(self) -> str:
        return f"RemoteEvents({', '.join(self._nodes.urls)!r})"

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        ages = {"after": parse_duration(arguments["after"])} if "after" in arguments else {}
        return perform(self._nodes, operation, {}, {**arguments, **ages})

    def append(
        self, queue: str, job_set: str, events: Iterable[NewEvent | bytes], *, source: str = "",
        positions: Sequence[int] = (),
    ) -> Appended:  # fmt: skip
        """As `Events.append`. Without a source it is not tried again when the answer is lost."""
        need_type("events", events, Iterable)
        now_ms = self._clock.now_ms()
        new = [NewEvent(now_ms, event) if isinstance(event, bytes) else event for event in events]
        return self._append(EventBatch(StreamName(queue, job_set), new, source, positions).check())

    def appender(self, linger: str | int = LINGER) -> Appender:
        """As `Events.appender`. An event whose answer is lost is not sent again."""
        return Appender(self._append_all, self._clock, parse_duration(linger))

    def _append_all(self, batches: Sequence[EventBatch]) -> None:
        """Append events of an appender, in requests that a node takes: one that is refused keeps no other back."""
        refused: MillpondError | None = None
        for batch in batches:
            columns = batch.columns()
            for start, stop in cuts(sizes_of(columns.payloads, columns.headers), _REQUEST_BYTES):
                try:
                    self._append(EventBatch(batch.stream, batch.events[start:stop]))
                except Unavailable:
                    raise
                except MillpondError as error:
                    refused = refused or error
        if refused is not None:
            raise refused

    def _append(self, batch: EventBatch) -> Appended:
        query, again = {**batch.stream._asdict(), "source": batch.source}, bool(batch.source)
        done = ask_primary(self._nodes, "POST", _PATH, query=query, body=lines_of_batch(batch), repeatable=again).json()
        return Appended(
            done["count"], done["repeated"], parse_id(done["first_id"]), parse_id(done["last_id"]),
            done.get("past_retention", 0),
        )  # fmt: skip

    def read(self, queue: str, job_set: str, after: str = "", *, filters: Filters | None = None) -> Iterator[Event]:
        """As `Events.read`. The node filters."""
        stream, matching = StreamName(queue, job_set).check(), filter_of(filters)
        with RemoteWatch(self._nodes, stream, self._position(stream, after), matching, follow=False) as watch:
            while not watch.caught_up:
                yield from watch.next_batch(None)

    def watch(self, queue: str, job_set: str, after: str = "", *, filters: Filters | None = None) -> RemoteWatch:
        """As `Events.watch`. The node filters."""
        stream, matching = StreamName(queue, job_set).check(), filter_of(filters)
        return RemoteWatch(self._nodes, stream, self._position(stream, after), matching)

    def _position(self, stream: StreamName, after: str) -> int:
        return start_position(after, lambda: self.index(*stream))

    def watch_many(self, streams: Streams, *, filters: Filters | None = None) -> RemoteManyWatch:
        """As `Events.watch_many`. The node filters."""
        matching = filter_of(filters)
        return RemoteManyWatch(self._nodes, positions_of(streams, self._position), matching)

    def index(self, queue: str, job_set: str) -> StreamIndex | None:
        """As `Events.index`."""
        query = StreamName(queue, job_set).check()._asdict()
        try:
            response = ask_primary(self._nodes, "GET", f"{_PATH}/index", query=query)
        except NotFound as error:
            if error.kind == "stream_not_found":
                return None
            raise
        return parse_index(response.json())

    def indexes(self, queue: str | None = None) -> Iterator[StreamIndex]:
        """As `Events.indexes`, of the streams that the token may watch."""
        return (parse_index(stream["index"]) for stream in self._listed(queue, indexes=True))

    def streams(self, queue: str | None = None) -> Iterator[StreamName]:
        """As `Events.streams`: those that the token may watch."""
        streams = (StreamName(stream["queue"], stream["job_set"]) for stream in self._listed(queue, indexes=False))
        return Listed("streams of events" if queue is None else f"streams of {queue}", streams)

    def _listed(self, queue: str | None, *, indexes: bool) -> Iterator[dict[str, Any]]:
        begin: dict[str, Any] = {"indexes": str(indexes).lower()} | ({} if queue is None else {"queue": queue})

        def page(position: dict[str, str]) -> dict[str, Any]:
            query = begin | {f"after_{name}": text for name, text in position.items()}
            streams: dict[str, Any] = ask_primary(self._nodes, "GET", f"{_PATH}/streams", query=query).json()
            return streams

        return (stream for page_ in pages(page, {}, itemgetter("next")) for stream in page_["streams"])


class RemoteWatch(_WatchedLines[Event]):
    """A reader of a stream on a node."""

    def __init__(
        self, nodes: Nodes, stream: StreamName, after: int, matching: EventFilter = ALL, *, follow: bool = True
    ) -> None:
        super().__init__(follow=follow)
        self._nodes, self.stream, self._position, self.matching = nodes, stream, after, matching
        self.gap = False

    def _begin(self) -> Body:
        query = self.stream._asdict() | {"after": self.after, "follow": str(self._follow).lower()}
        query |= self.matching.query
        return self._nodes.on_primary(lambda node: node.stream("GET", _PATH, query=query), repeatable=True)

    @property
    def after(self) -> str:
        """The id from which another watch goes on."""
        return format_id(self._position)

    def _passed(self, number: int, event: Event) -> Event:
        self._position = event.number
        return event

    def _note(self, number: int, sent: str | None, *, gap: bool) -> None:
        self._position = self._position if sent is None else parse_id(sent)
        self.gap = self.gap or gap


class RemoteAges(AgeSettings):
    """The rules of a pond on nodes, as `events.age_settings.StoredAges` has them in a folder."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def rules(self, queue: str | None = None) -> list[AgeRule]:
        """As `AgeSettings.rules`: those that the token may see."""
        query = {} if queue is None else {"queue": queue}
        rules = ask_primary(self._nodes, "GET", f"{_PATH}/settings", query=query).json()
        try:
            return [
                AgeRule(rule["queue"], rule["job_set"], age_of(rule["compress_after"]), age_of(rule["retention"]))
                for rule in rules["rules"]
            ]
        except (KeyError, TypeError) as error:
            raise Invalid("these are no rules about the ages of events", kind="event_ages") from error

    def _put(self, rule: AgeRule) -> None:
        self._change("PUT", json=rule.shown())

    def _drop(self, queue: str, job_set: str | None) -> None:
        self._change("DELETE", query={"queue": queue} | ({} if job_set is None else {"job_set": job_set}))

    def _change(self, method: str, **about: Any) -> None:
        again = method == "PUT"  # what was removed is not there to be removed again
        ask_primary(self._nodes, method, f"{_PATH}/settings", repeatable=again, **about)


class RemoteManyWatch(_WatchedLines[StreamEvent]):
    """A reader of several streams on a node, as `ManyWatch`."""

    def __init__(self, nodes: Nodes, positions: Mapping[StreamName, int], matching: EventFilter = ALL) -> None:
        super().__init__(follow=True)
        self._nodes, self._positions, self._matching = nodes, dict(positions), matching
        self._streams = list(positions)
        self.gaps: frozenset[StreamName] = frozenset()

    def _begin(self) -> Body:
        streams = [stream._asdict() | {"after": format_id(position)} for stream, position in self._positions.items()]
        filters = {"filters": self._matching.query} if self._matching != ALL else {}  # nodes before them know none
        request = {"streams": streams, "follow": True, **filters}
        return self._nodes.on_primary(
            lambda node: node.stream("POST", "/v1/events/watch", json=request), repeatable=True
        )  # fmt: skip

    @property
    def after(self) -> dict[StreamName, str]:
        """The ids from which another watch goes on."""
        return {stream: format_id(position) for stream, position in self._positions.items()}

    def _passed(self, number: int, event: Event) -> StreamEvent:
        stream = self._streams[number]
        self._positions[stream] = event.number
        return StreamEvent(stream, event)

    def _note(self, number: int, sent: Sequence[str] | None, *, gap: bool) -> None:
        self._positions |= zip(self._streams, map(parse_id, sent or ()), strict=False)
        if gap:
            self.gaps |= {self._streams[number]}
