"""Streams of events.

| route | answers |
|---|---|
| `POST /v1/events?queue&job_set&source` | appends events, one JSON object a line |
| `GET /v1/events?queue&job_set&after&follow` | the events after an id, one JSON object a line; and those to come |
| `GET /v1/events/days?queue&job_set` | the days of a stream |
| `GET /v1/events/streams?queue&after_queue&after_job_set&limit` | the streams that the caller may watch |

A reader that follows gets `{"caught_up": id}` once it has read what was there, `{"alive": id}` while nothing comes, and
`{"gap": id}` when events before the next one have expired. Whoever is cut off goes on after the last id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Send

from millpond.errors import MillpondError, NotFound
from millpond.events.days import format_day
from millpond.events.ids import format_id
from millpond.events.lines import batch_of_lines, line_of_event
from millpond.events.names import StreamName
from millpond.json_forms import to_json
from millpond.server.access import RequestCaller, note_change
from millpond.server.limits import GuardedRoute
from millpond.server.stream_rights import may_stream
from millpond.server.threads import in_thread
from millpond.server.wire import shown_to

if TYPE_CHECKING:
    from millpond.events.event import Appended
    from millpond.events.index import StreamIndex
    from millpond.events.watchers import Watch
    from millpond.nodes.node import Node

__all__ = ("AppendedResponse", "DayResponse", "DaysResponse", "StreamResponse", "StreamsResponse", "routes")

NDJSON = "application/x-ndjson"
ALIVE_SECONDS = 15.0
STREAMS_MAX = 1_000
_LINES: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}}}
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {NDJSON: {"schema": {"type": "string"}}}}}

Queue = Annotated[str, Query(description="the queue")]
JobSet = Annotated[str, Query(description="the job set")]


class AppendedResponse(BaseModel):
    """The outcome of an append."""

    count: int = Field(description="events that are new")
    repeated: int = Field(description="events that were stored before")
    first_id: str = Field(description="of the new events; empty when there is none")
    last_id: str = Field(description="the last id of the stream")


class DayResponse(BaseModel):
    """A day of a stream."""

    day: str
    state: str = Field(description="open, closed, compressed or expired")
    first_id: str
    last_id: str
    count: int
    bytes: int = Field(description="payloads and headers, before compression")


class DaysResponse(BaseModel):
    """The days of a stream, oldest first."""

    last_id: str
    days: list[DayResponse]


class StreamResponse(BaseModel):
    """A stream."""

    queue: str
    job_set: str


class StreamsResponse(BaseModel):
    """Streams; the next page begins after `next`, which is null at the end."""

    streams: list[StreamResponse]
    next: StreamResponse | None


def routes(node: Node) -> APIRouter:
    """The routes of events."""
    router = APIRouter(route_class=GuardedRoute, prefix="/v1/events", tags=["events"])
    _add_append(router, node)
    _add_read(router, node)
    _add_lists(router, node)
    return router


def _add_append(router: APIRouter, node: Node) -> None:
    def append(stream: StreamName, source: str, body: bytes) -> Appended:
        batch = batch_of_lines(stream, body.splitlines(), source, node.clock.now_ms())
        return node.pond.events.store.append([batch])[0]

    @router.post("", summary="Append events", response_model=AppendedResponse, openapi_extra=_BODY)
    async def append_events(request: Request, queue: Queue, job_set: JobSet, source: str = "") -> dict[str, Any]:
        """Append events, all or none. With `source`, each line has its `position`, and what comes again is left out."""
        done = await in_thread(request, append, StreamName(queue, job_set), source, await request.body())
        note_change(request, queue=queue, job_set=job_set, events=done.count)
        return {
            "count": done.count, "repeated": done.repeated, "first_id": format_id(done.first_id) if done.count else "",
            "last_id": format_id(done.last_id),
        }  # fmt: skip


def _add_read(router: APIRouter, node: Node) -> None:
    @router.get("", summary="Read events, and follow", responses=_LINES, response_class=Response)
    async def read_events(
        request: Request, queue: Queue, job_set: JobSet, after: Annotated[str, Query(description="an id")] = "",
        follow: bool = False,
    ) -> Response:  # fmt: skip
        """The events after an id; all of them by default. With `follow` the answer ends when the reader goes away."""
        watch = node.pond.events.watch(queue, job_set, after)
        return _Lines(_lines(request, watch, follow=follow), media_type=NDJSON)


async def _lines(request: Request, watch: Watch, *, follow: bool) -> AsyncIterator[bytes]:
    """Lines for a reader, each page when the one before was taken."""
    gap = caught_up = False
    with watch:
        try:
            while follow or not watch.caught_up:
                events = await watch.next_batch_async(ALIVE_SECONDS)
                if watch.gap and not gap:
                    gap = True
                    yield to_json({"gap": watch.after}) + b"\n"
                if events:
                    yield b"".join(map(line_of_event, events))
                elif follow:
                    yield to_json({"alive" if caught_up else "caught_up": watch.after}) + b"\n"
                    caught_up = True
        except MillpondError as error:
            shown = shown_to(request, error)
            yield to_json({"error": {"kind": shown.kind, "message": str(shown), "after": watch.after}}) + b"\n"


class _Lines(StreamingResponse):
    """Lines whose watch is closed when the reader has gone away."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]  # it is a generator


def _add_lists(router: APIRouter, node: Node) -> None:
    @router.get("/days", summary="The days of a stream", response_model=DaysResponse)
    def list_days(queue: Queue, job_set: JobSet) -> dict[str, Any]:
        index = node.pond.events.index(queue, job_set)
        if index is None:
            raise NotFound("there is no such stream", kind="stream_not_found", queue=queue, job_set=job_set)
        return _days(index)

    @router.get("/streams", summary="Streams that the caller may watch", response_model=StreamsResponse)
    def list_streams(
        caller: RequestCaller, queue: str | None = None, after_queue: str | None = None, after_job_set: str = "",
        limit: int = Query(100, ge=1, le=STREAMS_MAX),
    ) -> dict[str, Any]:  # fmt: skip
        after = None if after_queue is None else StreamName(after_queue, after_job_set).check()
        page = node.pond.events.store.streams(queue, after, limit=limit)
        last = page[-1]._asdict() if len(page) == limit else None
        return {
            "streams": [stream._asdict() for stream in page if may_stream(caller, "read", stream)], "next": last,
        }  # fmt: skip


def _days(index: StreamIndex) -> dict[str, Any]:
    return {
        "last_id": format_id(index.last_id),
        "days": [
            {
                "day": format_day(day.day), "state": state.value, "first_id": format_id(day.first_id),
                "last_id": format_id(day.last_id), "count": day.count, "bytes": day.bytes,
            }
            for day, state in index.days()
        ],
    }  # fmt: skip
