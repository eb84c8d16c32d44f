"""`api.Event`: the events of a job set, from any id on, up to now or for ever.

A client of Millpond sends the metadata `millpond-watch: all`, and gets events of every kind as they are stored, and
markers: when it has everything that was stored, when there was nothing for a while, when events have expired.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from anyio.to_thread import run_sync
from google.protobuf.empty_pb2 import Empty

from millpond.error_values import shown
from millpond.errors import NotFound
from millpond.events.ids import format_id
from millpond.events.index import State, StreamIndex
from millpond.events.names import StreamName
from millpond.events.starts import start_position
from millpond.nodes.tokens import Caller
from millpond.server.access import share_of
from millpond.server.armada.means import Means
from millpond.server.armada.messages import marker, plain_message, stored_message
from millpond.server.armada.watching import GRPC, Encode, Slice
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.routes.table import On, Work
from millpond.server.rpc.dispatch import Call, Row, method
from millpond.server.stream_rights import need_stream

__all__ = (
    "EVENT_ROWS",
    "WATCH_ALL",
    "WATCH_KEY",
    "Forms",
    "JobSetQuery",
    "JobSetStart",
    "find_start",
    "messages",
    "serving",
)

WATCH_KEY, WATCH_ALL = "millpond-watch", "all"


@dataclass(frozen=True, slots=True)
class JobSetQuery:
    """A question for the events of a stream, `watch` for ever, an error where there is none.

    `after` is an id, or as `starts.start_position` takes it: Armada's `from_message_id` and `from_id` are texts.
    """

    stream: StreamName
    after: str = ""
    watch: bool = False
    error_if_missing: bool = False


@dataclass(frozen=True, slots=True)
class JobSetStart:
    """A place in a stream to read from, and the last id that it had when the question came."""

    stream: StreamName
    after: int
    last_id: int
    mark: int
    """The same for readers between which nothing was deleted."""
    share: str | None
    """The name under which its reader shares limits with others."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of what a watcher is sent: of events, and of markers where its client understands them."""

    encode: Encode
    marker: Callable[[str, pb.Marker], bytes] | None = None


_PLAIN, _ALL = Forms(plain_message), Forms(stored_message, marker)


async def find_start(means: Means, caller: Caller, query: JobSetQuery) -> JobSetStart:
    """The place that a question is about.

    Raises:
        Denied: the caller may not watch it.
        NotFound: the queue is not there, or the job set has no events and the query wants an error then.
        Invalid: a name or the id is not understood.
    """
    stream = query.stream.check()
    need_stream(caller, "read", stream)
    after, index = await run_sync(_start, means, stream, query)
    return JobSetStart(stream, after, 0 if index is None else index.last_id, _mark_of(index), share_of(caller))


def _mark_of(index: StreamIndex | None) -> int:
    """A number that is another one after a deletion, and when days end or expire."""
    days = () if index is None else index.days()
    ended = [(day.first_id, day.last_id, day.count) for day, state in days if state is not State.OPEN]
    return hash((index and index.dropped_id, tuple(ended)))


def _start(means: Means, stream: StreamName, query: JobSetQuery) -> tuple[int, StreamIndex | None]:
    """The place to begin at, and the index of a stream, which was looked for where it must be."""
    index = means.events.store.index(stream)
    after = start_position(query.after, lambda: index)
    if index is None:
        means.need_queue(stream.queue)
    if query.error_if_missing and (index is None or not index.count):
        raise NotFound(
            "there is no such job set", kind="job_set_not_found", queue=shown(stream.queue),
            job_set=shown(stream.job_set), hint="it begins with its first event; without errorIfMissing it may come",
        )  # fmt: skip
    return after, index


async def messages(
    means: Means, start: JobSetStart, forms: Forms, *, watch: bool, protocol: str = GRPC
) -> AsyncGenerator[list[bytes], None]:
    """The messages of a stream from a place on, in groups, each to be sent before the next is taken.

    Raises:
        Unavailable: there are too many watchers, or the node is stopping.
    """
    with means.watching.entered(start.share, protocol):
        async with aclosing(_live(means, start, forms) if watch else _stored(means, start, forms)) as sent:
            async for group in sent:
                yield group


async def _stored(means: Means, start: JobSetStart, forms: Forms) -> AsyncGenerator[list[bytes], None]:
    after = start.after
    while after < start.last_id:
        piece = await means.watching.read(start.stream, after, start.last_id, start.mark, start.share)
        if piece.gap and forms.marker is not None:
            yield [forms.marker(format_id(after), pb.Marker.GAP)]
        yield piece.encoded(forms.encode)
        if not piece.events:
            return
        after = piece.after


async def _live(means: Means, start: JobSetStart, forms: Forms) -> AsyncGenerator[list[bytes], None]:
    after = start.after
    watching = means.watching.slices(start.stream, after, start.last_id, start.mark, start.share)
    async with aclosing(watching) as slices:
        async for piece in slices:
            if forms.marker is not None:
                yield [forms.marker(format_id(after), which) for which in _markers(piece)]
            if piece is not None:
                yield piece.encoded(forms.encode)
                after = piece.after


def _markers(piece: Slice | None) -> list[pb.Marker]:
    """The markers that come before the events of a slice."""
    if piece is None:
        return [pb.Marker.ALIVE]
    gap = [pb.Marker.GAP] if piece.gap else []
    return gap if piece.events else [*gap, pb.Marker.CAUGHT_UP]


def _get_job_set_events(call: Call[Means], request: pb.JobSetRequest) -> AsyncGenerator[list[bytes], None]:
    stream = StreamName(request.queue, request.id)
    return _groups(call, JobSetQuery(stream, request.from_message_id, request.watch, request.errorIfMissing))


def _watch(call: Call[Means], request: pb.WatchRequest) -> AsyncGenerator[list[bytes], None]:
    stream = StreamName(request.queue, request.job_set_id)
    return _groups(call, JobSetQuery(stream, request.from_id, watch=True, error_if_missing=True))


async def _groups(call: Call[Means], query: JobSetQuery) -> AsyncGenerator[list[bytes], None]:
    start = await find_start(call.service, call.caller, query)
    forms = _ALL if call.metadata.get(WATCH_KEY) == WATCH_ALL else _PLAIN
    async with aclosing(messages(call.service, start, forms, watch=query.watch)) as groups:
        async for group in groups:
            yield group


def serving(_call: Call[Means], _request: Empty) -> pb.HealthCheckResponse:
    """The health of a service: it answers, so it serves."""
    return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVING)


_WATCH: Final = method("read", On.STREAM, Work.WATCH)
EVENT_ROWS: Final[dict[str, Row[Means, Any]]] = {
    "GetJobSetEvents": Row(pb.JobSetRequest, _get_job_set_events, _WATCH),
    "Watch": Row(pb.WatchRequest, _watch, _WATCH),
    "Health": Row(Empty, serving, method(None, On.TOKEN)),
}
"""The methods of `api.Event`."""
