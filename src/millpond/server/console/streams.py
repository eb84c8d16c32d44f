"""Pages of streams of events: the queues and job sets, the events of each, and those that come, as they come.

A live stream is Server-Sent Events: each `event` is a row of the table, written by the same template as the page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link, rendered
from millpond.errors import MillpondError
from millpond.events.event import Event
from millpond.events.filters import Filters, filter_of
from millpond.events.ids import format_id
from millpond.events.index import StreamIndex
from millpond.events.index_ndjson import shown_index
from millpond.events.jobs.active import ActiveJobs
from millpond.events.names import StreamName
from millpond.events.selection import no_such_stream
from millpond.events.watchers import Watch
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.console.actions import actions_of
from millpond.server.console.pages import HEADERS, PAGE_ROWS, answered, pages
from millpond.server.dispatch import Routes
from millpond.server.memory import room_of
from millpond.server.routes.events import Watched, entered, position_after, reading_of
from millpond.server.routes.table import EVENTS_BYTES, On, read
from millpond.server.stream_rights import readable_streams

__all__ = ("routes",)

_ALIVE_SECONDS = 15.0
_PAYLOAD_MAX = 4_000
EVENTS_COUNTED = 20_000
"""The events that are read for the counts of jobs on one page; where there are more, the page that follows goes on."""


def routes(node: Node) -> Routes:
    """The routes of streams."""
    router = pages("/console/events")
    jobs = cache(lambda: ActiveJobs(node.events.store))

    @router.get("", read(On.ANY_STREAM), summary="Streams of events")
    def list_streams(
        request: Request, caller: Caller, queue: str = "", after_queue: str = "", after_job_set: str = ""
    ) -> Response:
        """A page of the streams that the caller may read, of one queue or of all."""
        store = node.events.store
        after = StreamName(after_queue, after_job_set).check() if after_queue else None
        page, last = readable_streams(store, caller, queue or None, after, PAGE_ROWS)
        indexes = map(store.index, page)
        streams = _with_jobs([_summary(index) for index in indexes if index is not None], jobs, EVENTS_COUNTED)
        more = None
        if last is not None:
            more = link("/console/events", queue=queue, after_queue=last.queue, after_job_set=last.job_set)
        return answered(request, "streams", {
            "streams": streams, "queue": queue or None, "next": more, "actions": actions_of(caller, On.POND),
        })  # fmt: skip

    @router.get("/stream", read(On.STREAM, memory_bytes=EVENTS_BYTES), summary="A stream of events")
    def show_stream(
        request: Request, queue: str, job_set: str, kind: str = "", job: str = "", after: str | None = None
    ) -> Response:
        """A page of its events, from the newest day on, and its days."""
        stream = StreamName(queue, job_set).check()
        index = node.events.store.index(stream)
        if index is None:
            raise no_such_stream(queue, job_set)
        start = _newest_day(index) if after is None else after
        events = list(islice(node.events.read(queue, job_set, start, filters=_filters(kind, job)), PAGE_ROWS + 1))
        here = {"queue": queue, "job_set": job_set, "kind": kind, "job": job}
        more = None
        if len(events) > PAGE_ROWS:
            more = link("/console/events/stream", **here, after=events[PAGE_ROWS - 1].id)
        values = {
            "queue": queue, "job_set": job_set, "kind": kind or None, "job": job or None, "after": after or "",
            "events": [_shown(event) for event in events[:PAGE_ROWS]], "segments": shown_index(index)["segments"],
            "live": link("/console/events/live", **here), "next": more,
        }  # fmt: skip
        _with_jobs([values], jobs, EVENTS_COUNTED)
        return answered(request, "stream", values)

    @router.get("/live", read(On.STREAM, memory_bytes=EVENTS_BYTES), summary="The events that come")
    async def watch(request: Request, queue: str, job_set: str, kind: str = "", job: str = "") -> Response:
        """Server-Sent Events, from now on, until the reader goes away; one that comes again goes on where it was."""
        stream, matching = StreamName(queue, job_set).check(), filter_of(_filters(kind, job))
        with entered(request, 1) as begun:
            after = request.headers.get("last-event-id") or "newest"
            position = await run_sync(lambda: position_after(node, stream, after))
            watching = node.events.watchers.watch(
                stream, position, matching, follow=True, in_thread=reading_of(request)
            )
            begun.callback(watching.close)
            headers = {**HEADERS, "X-Accel-Buffering": "no"}
            return Watched(_rows(request, watching), begun.pop_all(), "text/event-stream", headers)

    return router


async def _rows(request: Request, watch: Watch) -> AsyncIterator[bytes]:
    """The events that come, each with its id; a comment while none does."""
    with watch:
        room_of(request).keep(0)  # it shares the memory of all watches
        yield b": watching\n\n"
        try:
            while True:
                events = await watch.next_batch_async(_ALIVE_SECONDS)
                yield b"".join(map(_message, events)) or b": alive\n\n"
        except MillpondError:
            return  # the browser comes again, and is told then


def _message(event: Event) -> bytes:
    row = rendered("event", {"event": _shown(event)})
    lines = "".join(f"data: {line}\n" for line in row.splitlines())
    return f"id: {event.id}\nevent: event\n{lines}\n".encode()


def _filters(kind: str, job: str) -> Filters:
    return {name: [value] for name, value in (("kind", kind), ("job", job)) if value}


def _newest_day(index: StreamIndex) -> str:
    """The id before the first event of the newest day."""
    days = index.days()
    return format_id(days[-1][0].first_id - 1) if days else ""


def _summary(index: StreamIndex) -> dict[str, Any]:
    days = index.days()
    shown = shown_index(index)
    return {
        "queue": index.stream.queue, "job_set": index.stream.job_set, "events": index.count, "days": len(days),
        "stored_bytes": index.stored_bytes, "last_day": shown["last_day"],
    }  # fmt: skip


def _with_jobs(
    streams: list[dict[str, Any]], active: Callable[[], ActiveJobs], events_max: int
) -> list[dict[str, Any]]:
    """The same streams with the jobs of each by state: None while there are more events than are read at once."""
    room = events_max
    for stream in streams:
        stream["jobs"] = None
        with suppress(MillpondError):  # too many are active, or it is damaged
            counts, count = active().count(StreamName(stream["queue"], stream["job_set"]), max(0, room))
            room -= count
            stream["jobs"] = None if counts is None else dict(sorted(counts.items()))
    return streams


def _shown(event: Event) -> dict[str, Any]:
    payload = event.payload[:_PAYLOAD_MAX].decode(errors="replace")
    return {
        "id": event.id, "time_ms": event.time_ms, "kind": event.kind, "headers": dict(event.headers),
        "payload": payload,
    }  # fmt: skip
