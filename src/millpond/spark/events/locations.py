"""The streams at a place, as tasks open them: of a pond in a folder, in Redis, or of a pond on nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from millpond.client.operations import ask_primary
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.events.ages import OFF
from millpond.events.event import Appended, EventBatch, Page
from millpond.events.events import Events
from millpond.events.filters import ALL, EventFilter
from millpond.events.ids import parse_id
from millpond.events.index import StreamIndex
from millpond.events.location import open_redis
from millpond.events.names import StreamName
from millpond.events.protocol import PAGE_BYTES, StreamStore
from millpond.spark.locations import Location, Rights, SparkFolder, SparkNodes
from millpond.spark.options import pond_option

if TYPE_CHECKING:
    from millpond.client.events import RemoteEvents, RemoteWatch
    from millpond.client.transport import Nodes
    from millpond.events.volumes import Append

__all__ = (
    "EventsLocation",
    "NodesEvents",
    "PondEvents",
    "RedisEvents",
    "Streams",
    "events_location",
    "read_matching",
    "store_location",
)


class Streams(Protocol):
    """The part of a `StreamStore` that reading needs; nodes have it too."""

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = PAGE_BYTES) -> Page: ...
    def index(self, stream: StreamName) -> StreamIndex | None: ...
    def streams(self, queue: str | None = None, after: StreamName | None = None, *, limit: int) -> list[StreamName]: ...


class EventsLocation(Protocol):
    """The location of streams, as it travels to executors."""

    def open(self) -> AbstractContextManager[Streams]:
        """Open the streams.

        Raises: `Invalid` when there is no pond in the folder; `Unavailable` when no server answers.
        """

    def appending(self) -> AbstractContextManager[Append]:
        """Open the streams for appends, as `Events.append_batches`.

        Raises: as `open`.
        """


@dataclass(frozen=True, slots=True)
class PondEvents:
    """The streams of a pond in a folder, wherever the pond says they are."""

    location: SparkFolder

    @contextmanager
    def open(self) -> Iterator[StreamStore]:
        with self.location.open() as pond:
            yield pond.events.store

    @contextmanager
    def appending(self) -> Iterator[Append]:
        """Open the pond."""
        with self.location.open() as pond:
            yield pond.events.append_batches


@dataclass(frozen=True, slots=True)
class RedisEvents:
    """Streams in Redis, without a pond: executors need no folder. The password may stand in their environment."""

    url: str = field(repr=False)

    @contextmanager
    def open(self) -> Iterator[StreamStore]:
        """Connect to Redis."""
        store = open_redis(self.url, SystemClock())
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def appending(self) -> Iterator[Append]:
        """Connect to Redis, where the ages of queues and job sets are known, and no pond's own."""
        with self.open() as store:
            events = Events(store, SystemClock())
            events.append_batches.retention_ms = lambda: OFF
            yield events.append_batches


@dataclass(frozen=True, slots=True)
class NodesEvents:
    """The streams of a pond on nodes."""

    location: SparkNodes

    @contextmanager
    def open(self) -> Iterator[_NodeStreams]:
        """Connect to the nodes."""
        from millpond.client.events import RemoteEvents

        nodes = self.location.nodes()
        streams = _NodeStreams(nodes, RemoteEvents(nodes, SystemClock()))
        try:
            yield streams
        finally:
            streams.close()
            nodes.close()

    @contextmanager
    def appending(self) -> Iterator[Append]:
        """Connect to the nodes."""
        with self.open() as streams:
            yield streams.append


class _NodeStreams:
    """Streams on nodes. Pages of one stream come over one connection, while they are read one after another."""

    def __init__(self, nodes: Nodes, events: RemoteEvents) -> None:
        self._nodes, self._events = nodes, events
        self._watch: RemoteWatch | None = None

    def append(self, batches: Sequence[EventBatch]) -> list[Appended]:
        return [
            self._events.append(*batch.stream, batch.events, source=batch.source, positions=batch.positions)
            for batch in batches
        ]

    def read(
        self, stream: StreamName, after: int = 0, *, bytes_max: int = PAGE_BYTES, matching: EventFilter = ALL
    ) -> Page:
        from millpond.client.events import RemoteWatch

        del bytes_max  # a node decides how much it sends at a time
        watch = self._watch
        goes_on = watch is not None and not watch.caught_up and parse_id(watch.after) == after
        if watch is None or not goes_on or (watch.stream, watch.matching) != (stream, matching):
            self.close()
            watch = self._watch = RemoteWatch(self._nodes, stream, after, matching, follow=False)
        events = watch.next_batch(None)
        return Page(events, parse_id(watch.after), more=not watch.caught_up, gap=watch.gap)

    def index(self, stream: StreamName) -> StreamIndex | None:
        return self._events.index(*stream)

    def streams(self, queue: str | None = None, after: StreamName | None = None, *, limit: int) -> list[StreamName]:
        """As `StreamStore.streams`, of those that the token may watch: a page of the node may have none of them."""
        query: dict[str, object] = {"limit": limit} | ({} if queue is None else {"queue": queue})
        location = None if after is None else after._asdict()
        while True:
            from_there = {} if location is None else {f"after_{name}": text for name, text in location.items()}
            page = ask_primary(self._nodes, "GET", "/v1/events/streams", query=query | from_there).json()
            location = page["next"]
            if page["streams"] or location is None:
                return [StreamName(row["queue"], row["job_set"]) for row in page["streams"]]

    def close(self) -> None:
        """End the connection of the stream that was read."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def read_matching(store: Streams, stream: StreamName, after: int, matching: EventFilter) -> Page:
    """A page as `StreamStore.read`, without the events that do not match: a node does not send them."""
    if isinstance(store, _NodeStreams):
        return store.read(stream, after, matching=matching)
    page = store.read(stream, after)
    return replace(page, events=matching.select(page.events))


def events_location(options: Mapping[str, str], default: Location | None, rights: Rights) -> EventsLocation:
    """The place that options name: a folder, URLs of nodes, or the URL of a Redis; else the session's.

    Raises: `Invalid` when nobody names one.
    """
    named = options.get("pond") or options.get("path") or ""
    if _is_redis(named):
        return RedisEvents(named)
    location = pond_option(options, default, rights)
    return PondEvents(location) if isinstance(location, SparkFolder) else NodesEvents(_nodes(location))


def store_location(location: Location | str) -> PondEvents | RedisEvents:
    """The place of a store that jobs of maintenance work on.

    Raises: `Invalid` for nodes, which do it themselves.
    """
    if isinstance(location, str):
        return RedisEvents(location)
    if not isinstance(location, SparkFolder):
        raise Invalid(
            "a pond on nodes compresses and drops days itself", kind="events_remote", pond=location.where,
            hint="name the pond's folder, or the Redis that has its streams",
        )  # fmt: skip
    return PondEvents(location)


def _is_redis(named: str) -> bool:
    return named.startswith(("redis://", "rediss://"))


def _nodes(location: Location) -> SparkNodes:
    assert isinstance(location, SparkNodes), "a location is a folder or nodes"
    return location
