"""The events of a job set over HTTP, as lines of JSON: what `api.Event` answers over gRPC.

| route | answers |
|---|---|
| `POST /v1/job-set/{queue}/{id}` | the events after `fromMessageId`, one a line; with `watch`, for ever |

With the header `Millpond-Watch: all` come events of every kind, as they are stored, and markers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millpond.errors import MillpondError
from millpond.events.names import StreamName
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.access import while_admitted
from millpond.server.armada.events_api import WATCH_ALL, Forms, JobSetQuery, JobSetStart, find_start, messages
from millpond.server.armada.means import Means
from millpond.server.armada.ndjson import ALL_LINES, LINES, NDJSON, error_line
from millpond.server.armada.watching import HTTP
from millpond.server.dispatch import Routes
from millpond.server.parameters import IN_HEADER
from millpond.server.routes.table import ORDER_BYTES_MAX, On, read
from millpond.server.wire import RequestBody, classify_error, shown_to

__all__ = ("routes",)


class _JobSet(RequestBody):
    """The events to read: after an id, and for ever when they are watched."""

    watch: bool = False
    fromMessageId: Annotated[str, Meta(description="an id of an event, a time, or `newest`; empty: the start")] = ""  # noqa: N815 - the wire's name
    errorIfMissing: Annotated[bool, Meta(description="404 for a job set without events")] = False  # noqa: N815 - the wire's name


def routes(_node: Node) -> Routes:
    """The routes of job sets."""
    router = Routes(prefix="/v1/job-set", tag="events")

    @router.post(
        "/{queue}/{id:path}", read(On.JOB_SET, ORDER_BYTES_MAX), summary="The events of a job set",
        responses={200: {"content": {NDJSON: {}}, "description": "one event a line"}},
    )  # fmt: skip
    async def events(
        request: Request, queue: str, id: str, job_set: _JobSet, caller: Caller,
        millpond_watch: Annotated[str, IN_HEADER, Meta(description="`all`: events as stored, and markers")] = "",
    ) -> Response:  # fmt: skip
        """The events of a job set, as they are stored and as they come."""
        means: Means = request.app.state.job_sets
        query = JobSetQuery(StreamName(queue, id), job_set.fromMessageId, job_set.watch, job_set.errorIfMissing)
        start = await find_start(means, caller, query)
        forms = ALL_LINES if millpond_watch == WATCH_ALL else LINES
        means.watching.check_room(start.share)
        lines = while_admitted(request, _lines(request, means, start, forms, watch=job_set.watch))
        return StreamingResponse(lines, media_type=NDJSON)

    return router


async def _lines(
    request: Request, means: Means, start: JobSetStart, forms: Forms, *, watch: bool
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(messages(means, start, forms, watch=watch, protocol=HTTP)) as batches:
            async for lines in batches:
                if lines:
                    yield b"".join(lines)
    except MillpondError as error:
        yield error_line(shown_to(request, classify_error(error)))
