"""Questions to a map, answered by this node from all that has been applied to it.

| route | answers |
|---|---|
| `GET /v1/maps/{m}/get` | one value, typed |
| `POST /v1/maps/{m}/get` | the same, for keys too long for a URL |
| `POST /v1/maps/{m}/lookup` | an Arrow stream of keys (and times) becomes one of values |
| `POST /v1/maps/{m}/scan` | rows as an Arrow stream, read as fast as they are taken |
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qsl

import pyarrow as pa
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from millpond.arrays.arrow_sizes import declared_sizes
from millpond.arrays.arrow_streams import stream_of
from millpond.client.lookup import ARROW_STREAM
from millpond.errors import Invalid
from millpond.json_forms import to_json
from millpond.kernel.space import WouldBlock
from millpond.maps.map import Map
from millpond.nodes.fast_get import FastGet
from millpond.nodes.lookup_service import LookupService, arrow_stream, expanded_columns, lookup_bytes, read_arrow_stream
from millpond.nodes.node import Node
from millpond.server.dispatch import Routes, is_at_once
from millpond.server.incarnation_guard import incarnation_of
from millpond.server.limits import parameter_unknown
from millpond.server.map_refs import Branch, Ref, map_of
from millpond.server.memory import room_of
from millpond.server.routes.table import JSON_BYTES_MAX, LOOKUP_BYTES_MAX, ORDER_BYTES_MAX, SCAN_BYTES, On, Work, read
from millpond.server.thread_limits import in_large_thread
from millpond.server.wire import RequestBody

__all__ = ("LongKey", "Scan", "routes")

_GET = read(On.MAP, when_ready=True, at_readers=True)
_POST = replace(_GET, body_bytes_max=ORDER_BYTES_MAX)
_LOOKUP = replace(
    _GET, work=Work.LARGE, body_bytes_max=LOOKUP_BYTES_MAX, hint="ask in several requests, or read a snapshot"
)
_SCAN = replace(_GET, work=Work.LARGE, body_bytes_max=JSON_BYTES_MAX, memory_bytes=SCAN_BYTES)
_DONE = object()
_PLAIN = re.compile(rb"key=([A-Za-z0-9._:/-]*)(?:&at=([A-Za-z0-9.:-]+))?")
"""A query in which no letter stands for another one: most are, and are read in a tenth of the time."""
_PARAMETERS = frozenset(("key", "key_hex", "at", "known_at", "branch", "ref"))
_ARROW: dict[int | str, dict[str, Any]] = {200: {"content": {ARROW_STREAM: {}}}}
_BODY: dict[str, Any] = {ARROW_STREAM: {"schema": {"type": "string"}}}
_QUERY: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}
    for name, description in (
        ("key", "text; a number, for ranged maps"),
        ("key_hex", "instead, the bytes of a key that is no text"),
        ("at", "UTC milliseconds, or ISO 8601 with a zone; now by default"),
        ("known_at", "likewise: as a layered map was known then"),
        ("branch", "as it is on this branch of the repository `pond`"),
        ("ref", "as it was at this ref: a commit, a tag, `main~1`, a time"),
    )
)


class LongKey(RequestBody):
    """The parameters of `GET`, for keys too long for a URL."""

    key: Annotated[str | None, Meta(description="text; a number, for ranged maps")] = None
    key_hex: Annotated[str | None, Meta(description="instead, the bytes of a key that is no text")] = None
    at: Annotated[str | None, Meta(description="UTC milliseconds, or ISO 8601 with a zone; now by default")] = None
    known_at: Annotated[str | None, Meta(description="likewise: as a layered map was known then")] = None


class Scan(RequestBody):
    """The rows of a scan, and their columns: all by default."""

    where: Annotated[str | list[tuple[str, str, Any]] | None, Meta(examples=["key = 'JFK' and temp > 80"])] = None
    columns: list[str] | None = None
    known_at: Annotated[str | int | None, Meta(description="as a layered map was known then")] = None
    resolution: Annotated[str | None, Meta(description="wider buckets of an aggregate", examples=["1 day"])] = None


def routes(node: Node) -> Routes:
    """The routes of questions."""
    router = Routes(prefix="/v1/maps/{name}", tag="questions")
    _add_one_key(router, node)
    _add_many(router, node.lookups)
    return router


def _add_one_key(router: Routes, node: Node) -> None:
    answers = node.lookups
    cached = FastGet(node.pond, node.clock)

    @router.get("/get", _GET, parameters=_QUERY, summary="The value of a key", at_once=True)
    def get(request: Request, name: str) -> Response:
        """The value of a key, with its type; `found` tells a null value from none."""
        question = _question(request.scope["query_string"])
        if is_at_once(request):
            if question.known_at is not None or question.branch is not None or question.ref is not None:
                raise WouldBlock("only what maps are now is cached")
            incarnation = incarnation_of(request.scope["headers"])
            return _json(cached.get(name, question.key, question.at, incarnation=incarnation))
        pond_map = map_of(request, name, question.branch, question.ref)
        return _json(answers.get(pond_map, question.key, question.at, question.known_at))

    @router.post("/get", _POST, summary="The value of a key that is too long for a URL")
    def get_long(request: Request, name: str, question: LongKey, branch: Branch = None, ref: Ref = None) -> Response:
        """As GET."""
        key = _key_of(question.key, question.key_hex)
        return _json(answers.get(map_of(request, name, branch, ref), key, question.at, question.known_at))


def _add_many(router: Routes, answers: LookupService) -> None:
    @router.post("/lookup", _LOOKUP, summary="Values of many keys", body=_BODY, responses=_ARROW)
    async def lookup(
        request: Request, name: str,
        at: Annotated[str | None, Meta(description="one instant for all keys; a column `at` has one for each")] = None,
        known_at: Annotated[str | None, Meta(description="likewise: as a layered map was known then")] = None,
        resolution: Annotated[str | None, Meta(description="wider buckets of an aggregate")] = None,
        window: Annotated[str | None, Meta(description="those in so long a time before", examples=["7 days"])] = None,
        branch: Branch = None, ref: Ref = None,
    ) -> Response:  # fmt: skip
        """Columns `key` and, if each has its time, `at`; back comes the column `value`, as long, null where none is. Of
        an aggregate, `since` and `until` combine the buckets that begin between them.
        """
        body = bytearray()  # grows in place: joining pieces would hold them twice
        async for piece in request.stream():
            body += piece
        room = room_of(request)
        bytes_max = room.budget.bytes_max
        needed = lookup_bytes(len(body), await in_large_thread(request, declared_sizes, body), bytes_max)
        room.need(needed)
        table = await in_large_thread(request, read_arrow_stream, body)
        if expanded := await in_large_thread(request, expanded_columns, table):
            room.need(needed + expanded)

        def look() -> memoryview:
            pond_map = map_of(request, name, branch, ref)
            values = answers.lookup(
                pond_map, table, at, bytes_max // 2, known_at=known_at, resolution=resolution, window=window
            )  # fmt: skip
            return stream_of(pa.record_batch([values], names=["value"]))

        answer = await in_large_thread(request, look)
        room.need(room.held + 2 * len(answer))  # the values, and their stream
        return Response(answer, media_type=ARROW_STREAM)

    @router.post("/scan", _SCAN, summary="Rows that a condition takes", responses=_ARROW)
    async def scan(request: Request, name: str, question: Scan, branch: Branch = None, ref: Ref = None) -> Response:
        """Rows that a condition takes, as they are read."""
        # What is wrong with the question shows before the first batch, while it can still be said.
        rows, first = await in_large_thread(
            request, lambda: _begun(answers, map_of(request, name, branch, ref), question)
        )  # fmt: skip
        return _Rows(_rows(request, first, rows), media_type=ARROW_STREAM)


class _Question(NamedTuple):
    """The key that a query asks for, the time, and the time at which it was known; on a branch, or at a ref."""

    key: str | bytes
    at: str | None = None
    known_at: str | None = None
    branch: str | None = None
    ref: str | None = None


def _question(query_string: bytes) -> _Question:
    """The question of a query.

    Raises: `Invalid` when there is none, or one that is not understood or not known.
    """
    if plain := _PLAIN.fullmatch(query_string):
        key, at = plain.groups()
        return _Question(key.decode(), None if at is None else at.decode())
    return _parsed(query_string)


def _parsed(query_string: bytes) -> _Question:
    """The same, of any query."""
    try:
        query = dict(parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise Invalid(
            "the query is no UTF-8", kind="query_encoding",
            hint="escape text as UTF-8, such as key=%C3%A9; say key_hex=… for bytes that are no text",
        ) from None  # fmt: skip
    except ValueError as error:
        raise Invalid("the query is not understood", kind="query_encoding", reason=str(error)) from None
    for name in query.keys() - _PARAMETERS:
        raise parameter_unknown(name, _PARAMETERS)
    key = _key_of(query.pop("key", None), query.pop("key_hex", None))
    return _Question(key, **query)


def _key_of(key: str | None, key_hex: str | None) -> str | bytes:
    """The key, given in one way or the other.

    Raises: `Invalid` when it is not.
    """
    if key is not None:
        return key
    try:
        if key_hex is not None:
            return bytes.fromhex(key_hex)
    except ValueError:
        pass
    raise Invalid("no key is asked for", kind="key_missing", hint="say key=…, or key_hex=… for bytes that are no text")


def _json(answer: dict[str, Any]) -> Response:
    return Response(to_json(answer), media_type="application/json")


def _begun(lookups: LookupService, pond_map: Map, question: Scan) -> tuple[Iterator[bytes], bytes]:
    rows = lookups.scan(pond_map, question.where, question.columns, question.known_at, question.resolution)
    stream = arrow_stream(rows)
    return stream, next(stream)


async def _rows(request: Request, first: bytes, rows: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Batches, each read in a thread when the one before was taken; the read ends with the request."""
    try:
        yield first
        while (chunk := await in_large_thread(request, partial(next, rows, _DONE))) is not _DONE:
            assert isinstance(chunk, bytes)
            yield chunk
    except ClientDisconnect:
        return  # nobody is there to see that the rest is missing
    finally:
        rows.close()  # type: ignore[attr-defined]  # it is a generator


class _Rows(StreamingResponse):
    """A stream that lets go of what it reads when nobody takes it any more."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]  # it is a generator
