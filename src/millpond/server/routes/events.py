"""Streams of events.

| route | answers |
|---|---|
| `POST /v1/events?queue&job_set&source` | appends events, one JSON object a line |
| `GET /v1/events?queue&job_set&after&follow` | the events after an id, one JSON object a line; and those to come |
| `…&kind&job&header.NAME` | those that match |
| `POST /v1/events/watch` | the events of several streams, and those to come, as one |
| `GET /v1/events/index?queue&job_set` | the days of a stream, by the segments that hold them |
| `GET /v1/events/streams?queue&after_queue&after_job_set&limit&indexes` | the streams that the caller may watch |
| `POST /v1/events/compress`, `/v1/events/expire` | compresses or drops old days of all streams now |
| `DELETE /v1/events?queue&job_set&job` | deletes the events of a job set, or of one job of it |

A reader that follows gets `{"caught_up": id}` once it has read what was there, `{"alive": id}` while nothing comes, and
`{"gap": id}` when events before the next one have expired. Whoever is cut off goes on after the last id.
With filters (see `events/filters.py`) a reader gets `alive` also while nothing matches, and without `follow`.
A reader of several streams finds in each line the number of its stream in the request; `caught_up` and `alive` have an
id for each stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import msgspec
from anyio.to_thread import run_sync
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from millpond.errors import Invalid, MillpondError
from millpond.events.event import Appended
from millpond.events.filters import ALL, filter_of, filter_of_pairs, is_filter
from millpond.events.ids import format_id, id_time_ms
from millpond.events.index_ndjson import shown_index
from millpond.events.many_watch import STREAMS_MAX as WATCHED_MAX
from millpond.events.many_watch import ManyWatch, positions_of
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.events.ndjson import batch_of_lines, line_of_event, line_of_stream_event
from millpond.events.selection import no_such_stream
from millpond.events.starts import start_position
from millpond.events.watchers import InThread, Watch
from millpond.json_forms import to_json
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.access import note_change, share_in, while_admitted
from millpond.server.armada.watching import HTTP, Watching
from millpond.server.dispatch import Routes
from millpond.server.memory import room_of
from millpond.server.routes.table import EVENTS_BYTES, JSON_BYTES_MAX, On, read, write
from millpond.server.stream_rights import need_stream, readable_streams
from millpond.server.thread_limits import in_thread
from millpond.server.wire import RequestBody, shown_to

__all__ = (
    "AppendedResponse", "DayResponse", "IndexResponse",
    "PlaceResponse", "SegmentResponse", "StreamResponse", "StreamsResponse", "WatchRequest",
    "Watched", "WatchedStream", "entered", "position_after", "reading_of", "routes",
)  # fmt: skip

NDJSON = "application/x-ndjson"
ALIVE_SECONDS = 15.0
SETTLED_SECONDS = 0.2
"""A reader that follows is told so soon after new events that there are no more for now."""
STREAMS_MAX = 1_000
_LINES: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}}}
_BODY: dict[str, Any] = {NDJSON: {"schema": {"type": "string"}}}

_TEXTS = {"type": "array", "items": {"type": "string"}}
_FILTERS: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "in": "query", "description": description, "schema": _TEXTS}
    for name, description in {
        "kind": "only events of this kind; several are alternatives, as of each filter",
        "job": "only events whose header `job_id` is this",
        "header.NAME": "only events whose header NAME is this",
    }.items()
)

Queue = Annotated[str, Meta(description="the queue")]
JobSet = Annotated[str, Meta(description="the job set")]


class AppendedResponse(msgspec.Struct):
    """The outcome of an append."""

    count: Annotated[int, Meta(description="events that are new")]
    repeated: Annotated[int, Meta(description="events that were stored before")]
    first_id: Annotated[str, Meta(description="of the new events; empty when there is none")]
    last_id: Annotated[str, Meta(description="the last id of the stream")]
    past_retention: Annotated[
        int, Meta(description="new events of days that `events.retention` drops: they go with the next maintenance")
    ]


class DayResponse(msgspec.Struct):
    """A day of a stream."""

    day: str
    first_id: str
    last_id: str
    count: int
    bytes: Annotated[int, Meta(description="payloads and headers, before compression")]


class SegmentResponse(msgspec.Struct):
    """Days that are stored together."""

    state: Annotated[str, Meta(description="open, closed, compressed or expired")]
    stored_bytes: int
    days: list[DayResponse]


class IndexResponse(msgspec.Struct):
    """The segments of a stream, oldest first."""

    queue: str
    job_set: str
    last_id: Annotated[str, Meta(description="of the newest event that was ever appended")]
    last_day: str
    dropped_id: Annotated[str, Meta(description="up to this one all events have expired")]
    segments: list[SegmentResponse]


class StreamResponse(msgspec.Struct):
    """A stream."""

    queue: str
    job_set: str
    index: Annotated[IndexResponse | UnsetType, Meta(description="when it was asked for with `indexes`")] = UNSET


class PlaceResponse(msgspec.Struct):
    """The stream after which a listing goes on."""

    queue: str
    job_set: str


class StreamsResponse(msgspec.Struct):
    """Streams; the next page begins after `next`, which is null at the end."""

    streams: list[StreamResponse]
    next: PlaceResponse | None


class WatchedStream(RequestBody):
    """A stream to watch."""

    queue: str
    job_set: str
    after: Annotated[str, Meta(description="an id, a time, or `newest`")] = ""


class WatchRequest(RequestBody):
    """The streams to watch; lines name them by their place here."""

    streams: Annotated[list[WatchedStream], Meta(min_length=1, max_length=WATCHED_MAX)]
    follow: Annotated[bool, Meta(description="go on when all was read")] = False
    filters: Annotated[dict[str, list[str]], Meta(description="of all: `kind`, `job`, `header.NAME`, with values")] = (
        msgspec.field(default_factory=dict)
    )


def routes(node: Node) -> Routes:
    """The routes of events."""
    router = Routes(prefix="/v1/events", tag="events")
    _add_append(router, node)
    _add_read(router, node)
    _add_lists(router, node)
    return router


def _add_append(router: Routes, node: Node) -> None:
    volume = node.events.volumes.of("http")

    def append(stream: StreamName, source: str, body: bytes) -> Appended:
        batch = batch_of_lines(stream, body.splitlines(), source, node.clock.now_ms())
        done = volume([batch])[0]
        if stream.queue == OWN_QUEUE:
            node.client_jobs.note(stream.job_set, batch.events)
        for event in batch.events if stream.queue == OWN_QUEUE else ():
            if event.kind == "submitted" and "job_id" in event.headers:
                node.pond.reports.leave_to_client(event.headers["job_id"])
        return done

    @router.post(
        "", write(On.STREAM, JSON_BYTES_MAX, audited=True), summary="Append events", answer=AppendedResponse, body=_BODY
    )  # fmt: skip
    async def append_events(request: Request, queue: Queue, job_set: JobSet, source: str = "") -> dict[str, Any]:
        """Append events, all or none. With `source`, each line has its `position`, and what comes again is left out."""
        done = await in_thread(request, append, StreamName(queue, job_set), source, await request.body())
        ahead_ms = id_time_ms(done.last_id) - node.clock.now_ms()
        request.app.state.metrics.events_ahead.set(max(ahead_ms, 0) / 1000)
        note_change(request, queue=queue, job_set=job_set, events=done.count)
        return {
            "count": done.count, "repeated": done.repeated, "first_id": format_id(done.first_id) if done.count else "",
            "last_id": format_id(done.last_id), "past_retention": done.past_retention,
        }  # fmt: skip


def _add_read(router: Routes, node: Node) -> None:
    @router.get(
        "", read(On.STREAM, memory_bytes=EVENTS_BYTES), summary="Read events, and follow", responses=_LINES,
        parameters=_FILTERS,
    )  # fmt: skip
    async def read_events(
        request: Request, queue: Queue, job_set: JobSet,
        after: Annotated[str, Meta(description="an id, a time, or `newest`")] = "", follow: bool = False,
    ) -> Response:  # fmt: skip
        """The events after an id; all of them by default. With `follow` the answer ends when the reader goes away."""
        matching = filter_of_pairs(pair for pair in request.query_params.multi_items() if is_filter(pair[0]))
        stream, watchers = StreamName(queue, job_set).check(), node.events.watchers
        with entered(request, 1 if follow else 0) as begun:
            position = await run_sync(lambda: position_after(node, stream, after))
            watch = watchers.watch(stream, position, matching, follow=follow, in_thread=reading_of(request))
            begun.callback(watch.close)
            return Watched(_lines(request, watch, follow=follow, filtered=matching != ALL), begun.pop_all())

    @router.post(
        "/watch", read(On.ANY_STREAM, JSON_BYTES_MAX, memory_bytes=EVENTS_BYTES),
        summary="Watch several streams", responses=_LINES,
    )  # fmt: skip
    async def watch_events(request: Request, caller: Caller, request_body: WatchRequest) -> Response:
        """The events after the given ids, each with `stream`: the place of its stream in the request."""
        positions = {(stream.queue, stream.job_set): stream.after for stream in request_body.streams}
        if len(positions) < len(request_body.streams):
            raise Invalid("a stream is named twice", kind="event_watch", streams=len(request_body.streams))
        for position in positions:
            need_stream(caller, "read", StreamName(*position))
        matching = filter_of(request_body.filters)
        follow, watchers = request_body.follow, node.events.watchers
        with entered(request, len(positions) if follow else 0) as begun:
            starts = await run_sync(lambda: positions_of(positions, partial(position_after, node)))
            watch = ManyWatch(watchers, starts, matching, follow=follow, in_thread=reading_of(request))
            begun.callback(watch.close)
            lines = _lines_of_many(request, watch, follow=follow, filtered=matching != ALL)
            return Watched(lines, begun.pop_all())


def position_after(node: Node, stream: StreamName, after: str) -> int:
    """The place in a stream that a text names."""
    return start_position(after, lambda: node.events.store.index(stream))


def reading_of(request: Request) -> InThread:
    """The threads in which a watch for this request reads."""
    watching: Watching = request.app.state.watching
    return watching.reading_of(share_in(request))


def entered(request: Request, streams: int) -> ExitStack:
    """A place among the watchers of the node, for one who follows so many streams; to be given back with its watch.

    Raises: as `Watching.entered`.
    """
    watching: Watching = request.app.state.watching
    with ExitStack() as begun:
        begun.enter_context(watching.entered(share_in(request), HTTP, streams))
        return begun.pop_all()


async def _lines(request: Request, watch: Watch, *, follow: bool, filtered: bool) -> AsyncIterator[bytes]:
    """Lines for a reader, each page when the one before was taken; only lines are held meanwhile, and no events."""
    gaps, caught_up, fresh = 0, False, False
    with watch:
        try:
            while follow or not watch.caught_up:
                events = await watch.next_batch_async(_patience(follow=follow, fresh=fresh))
                fresh = caught_up and bool(events)
                lines = b"".join(map(line_of_event, events))
                del events
                if watch.gaps > gaps:
                    gaps = watch.gaps
                    yield to_json({"gap": watch.after}) + b"\n"
                if lines:
                    yield lines
                elif follow and watch.caught_up:
                    yield to_json({"alive" if caught_up else "caught_up": watch.after}) + b"\n"
                    caught_up = True
                    room_of(request).keep(0)  # from here on it shares the memory of all watches
                elif filtered:
                    yield to_json({"alive": watch.after}) + b"\n"
        except MillpondError as error:
            shown = shown_to(request, error)
            yield to_json({"error": {"kind": shown.kind, "message": str(shown), "after": watch.after}}) + b"\n"


def _patience(*, follow: bool, fresh: bool) -> float:
    """The seconds for which a reader gets no line; one that does not follow waits for nothing."""
    return 0.0 if not follow else SETTLED_SECONDS if fresh else ALIVE_SECONDS


async def _lines_of_many(request: Request, watch: ManyWatch, *, follow: bool, filtered: bool) -> AsyncIterator[bytes]:
    """Lines for a reader of several streams, as `_lines`."""
    numbers = {stream: number for number, stream in enumerate(watch.after)}
    gaps = dict.fromkeys(numbers, 0)
    caught_up = fresh = False
    with watch:
        try:
            while follow or not watch.caught_up:
                events = await watch.next_batch_async(_patience(follow=follow, fresh=fresh))
                fresh = caught_up and bool(events)
                lines = b"".join(line_of_stream_event(numbers[stream], event) for stream, event in events)
                del events
                for stream, count in watch.gap_counts.items():
                    if count == gaps[stream]:
                        continue
                    gaps[stream] = count
                    yield to_json({"stream": numbers[stream], "gap": watch.after[stream]}) + b"\n"
                if lines:
                    yield lines
                elif follow and watch.caught_up:
                    yield to_json({"alive" if caught_up else "caught_up": list(watch.after.values())}) + b"\n"
                    caught_up = True
                    room_of(request).keep(0)
                elif filtered:
                    yield to_json({"alive": list(watch.after.values())}) + b"\n"
        except MillpondError as error:
            shown = shown_to(request, error)
            yield to_json({"error": {"kind": shown.kind, "message": str(shown)}}) + b"\n"


class Watched(StreamingResponse):
    """The lines of a watch, and its means: given back when the reader has gone away, also before the first line."""

    def __init__(
        self, lines: AsyncIterator[bytes], begun: ExitStack, media_type: str = NDJSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(lines, headers=headers, media_type=media_type)
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body_iterator = while_admitted(Request(scope), self.body_iterator)  # type: ignore[arg-type]
        with self._begun:  # lines that never began do not close their watch
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]  # it is a generator


def _add_lists(router: Routes, node: Node) -> None:
    @router.get("/index", read(On.STREAM), summary="The days of a stream", answer=IndexResponse)
    def get_index(queue: Queue, job_set: JobSet) -> dict[str, Any]:
        index = node.events.index(queue, job_set)
        if index is None:
            raise no_such_stream(queue, job_set)
        return shown_index(index)

    def shown(stream: StreamName, *, indexes: bool) -> dict[str, Any]:
        index = node.events.store.index(stream) if indexes else None
        return stream._asdict() | ({} if index is None else {"index": shown_index(index)})

    @router.get(
        "/streams", read(On.ANY_STREAM), summary="Streams that the caller may watch", answer=StreamsResponse,
    )  # fmt: skip
    def list_streams(
        caller: Caller, queue: str | None = None, after_queue: str | None = None, after_job_set: str = "",
        limit: Annotated[int, Meta(ge=1, le=STREAMS_MAX)] = 100, indexes: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        after = None if after_queue is None else StreamName(after_queue, after_job_set).check()
        readable, last = readable_streams(node.events.store, caller, queue, after, limit)
        listed = [shown(stream, indexes=indexes) for stream in readable]
        # A stream that was forgotten meanwhile has no index, and is in the list no more.
        return {
            "streams": [entry for entry in listed if "index" in entry or not indexes],
            "next": None if last is None else last._asdict(),
        }
