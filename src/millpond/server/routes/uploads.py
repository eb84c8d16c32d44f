"""Parts: sending them to a node, and entering what was sent as one load.

    POST /v1/parts/{id}/upload     the head of a part: is the part here, is it wanted, how much of it has come
    PUT  /v1/parts/{id}/upload     its stream, from an offset on; a small part needs this one request alone
    POST /v1/loads                 parts that were sent, as one load
    PUT  /v1/loads/{id}            the streams of all parts of a small load: sent and entered in one request

A part is written to the disk in large pieces: while one piece is written and summed in a thread, the next comes in. The
event loop itself only collects what the socket gives. A small part, or a small load with its parts, takes one turn of
one thread, because each hand-over between threads costs more than writing it. A writer that falls silent for
`read_timeout` is taken for gone: what it sent is kept, and whoever sends the part next goes on after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from millpond.errors import Invalid, NotFound, Unavailable
from millpond.json_forms import plain, to_json
from millpond.maps.parts.stream import MEDIA_TYPE, split_streams
from millpond.nodes.node import Node
from millpond.nodes.uploads.receiver import TURN_SECONDS, Receiver
from millpond.nodes.uploads.session import UploadOffer, UploadSession, UploadState
from millpond.server.access import RequestCaller, caller_in, note_change, share_in
from millpond.server.limits import GuardedRoute, PlainRoute
from millpond.server.memory import room_of
from millpond.server.parameters import described, described_json, header_name, read, read_json
from millpond.server.threads import in_thread
from millpond.server.transfers import can_be_continued
from millpond.server.wire import RequestError, reporting_damage

if TYPE_CHECKING:
    from millpond.maps.loads.load import LoadResult
    from millpond.nodes.tokens import Caller

__all__ = ("Discarded", "Entered", "Upload", "routes")

SMALL_BYTES = 4 << 20
"""The largest part that is collected in memory; larger ones are written while they come."""
PIECE_BYTES_MAX, PIECE_BYTES_MIN = 1 << 20, 1 << 18
"""So many bytes are collected before a thread is given them: fewer keep threads busy with little, more need memory."""
PIECES_BYTES = 64 << 20
"""All pieces that are being collected together: where many send at once, each is given less."""

Params = ParamSpec("Params")
T = TypeVar("T")


class _HeadHeaders(msgspec.Struct, rename=header_name):
    """The headers with the head of a part."""

    upload_map: Annotated[str, Meta(description="the map the part is for")]
    upload_checksum: Annotated[str, Meta(description="xxh3_128 of manifest.json, hexadecimal")]
    upload_length: Annotated[int, Meta(ge=1, description="bytes of the whole")]


class _PartHeaders(msgspec.Struct, rename=header_name):
    """The headers with the stream of a part, or the rest of it."""

    upload_map: Annotated[str, Meta(description="the map the part is for")]
    upload_checksum: Annotated[str, Meta(description="xxh3_128 of manifest.json, hexadecimal")]
    upload_offset: Annotated[int, Meta(ge=0, description="the bytes sent begin there")] = 0
    upload_length: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="bytes of the whole; by default those that are sent")
    ] = None


class _NewLoad(msgspec.Struct, forbid_unknown_fields=True):
    """Parts that were uploaded, to be entered as one load, or not at all."""

    load_id: Annotated[str, Meta(description="drawn by the writer: asked twice, a load is entered once")]
    parts: Annotated[list[str], Meta(min_length=1, description="ids, in the order in which they are to be merged")]
    source: str = ""
    rejected: Annotated[int, Meta(ge=0, description="rows that were left out")] = 0
    stream: Annotated[tuple[str, int] | None, Meta(description="query and epoch of a stream: entered once")] = None
    epoch: Annotated[int, Meta(ge=0, description="of the list of nodes that the writer has, and waits for")] = 0


class _LoadQuery(msgspec.Struct):
    """The query with the streams of a load."""

    source: str = ""
    rejected: Annotated[int, Meta(ge=0, description="rows that were left out")] = 0
    stream: Annotated[str | None, Meta(description="the query of a stream, each epoch of which is entered once")] = None
    stream_epoch: Annotated[int, Meta(ge=0)] = 0
    epoch: Annotated[int, Meta(ge=0, description="of the list of nodes that the writer has, and waits for")] = 0


def _described(name: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    """A route whose path names one thing, and that takes a stream."""
    path = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    stream = {"schema": {"type": "string", "format": "binary"}}
    return {
        "parameters": [path, *parameters], "requestBody": {"required": True, "content": {MEDIA_TYPE: stream}}
    }  # fmt: skip


class Upload(BaseModel):
    """The state of a part on this node."""

    state: str = Field(description="absent, partial, here, or known: entered before", examples=["partial"])
    offset: int = Field(description="bytes of the stream that came: go on from there")


class Discarded(BaseModel):
    """True if an upload was deleted."""

    discarded: bool


class Entered(BaseModel):
    """The result of a load."""

    load: str
    position: int = Field(description="of its entry in the log")
    rows: int
    rejected: int
    parts: int = Field(description="parts that were new")
    duplicate_parts: int
    maps: dict[str, int] = Field(description="rows of each map")
    seconds: float
    synchronised: bool = Field(description="whether its rows can be read already")
    quarantined: list[dict[str, Any]]
    chain: str = Field(description="the hash of the log up to that position; empty when it is not retained")


def routes(node: Node) -> APIRouter:
    """The routes of one node."""
    router = APIRouter(route_class=GuardedRoute, prefix="/v1", tags=["loads"])
    plain_ones = APIRouter(route_class=PlainRoute, prefix="/v1", tags=["loads"])
    _add_sending(plain_ones, node)
    _add_loading(plain_ones, node)
    router.routes += plain_ones.routes

    @router.get("/parts/{part_id}/upload", summary="Whether a part is here", response_model=Upload)
    async def state(request: Request, part_id: str, caller: RequestCaller) -> dict[str, Any]:
        found = await in_thread(request, node.receiver.state_between, part_id)
        name = await _in_thread(node.receiver.map_of_upload, part_id)
        # For the writers of other maps, a part is absent.
        return plain(found if name is None or caller.may("write", name) else UploadState("absent"))

    @router.delete("/parts/{part_id}/upload", summary="Forget an upload", response_model=Discarded)
    def discard(part_id: str, caller: RequestCaller) -> dict[str, bool]:
        # Without a map, as after a restart: only with the right to write everything. Others wait for its expiry.
        may = caller.may("write", node.receiver.map_of_upload(part_id))
        return {"discarded": may and node.receiver.discard(part_id)}

    return router


def _entered(node: Node, result: LoadResult) -> dict[str, Any]:
    """The answer to a load; whether its files were empty is known to its writer alone."""
    found = {name: value for name, value in plain(result).items() if name != "empty"}
    return found | {"chain": node.load_commit.chain_at(result.position)}


def _add_sending(router: APIRouter, node: Node) -> None:
    pieces = _Pieces()

    @router.post(
        "/parts/{part_id}/upload", summary="Begin to send a part", response_model=Upload,
        openapi_extra=_described("part_id", *described(_HeadHeaders, "header")),
    )  # fmt: skip
    async def open_upload(request: Request) -> Response:
        """The body is the head of the part's stream; `offset` in the answer is where to continue with `PUT`.

        Whatever the node has against the part, it says now: a map it does not know, a size, a disk without room.
        """
        _need_not_drained(node)
        headers = read(_HeadHeaders, request.headers, "header")
        offer = UploadOffer(
            request.path_params["part_id"], headers.upload_map, headers.upload_length, headers.upload_checksum, None
        )
        async with _knowing_maps(node):
            return _answer(await in_thread(request, _open, node.receiver, offer, await request.body()))

    @router.put(
        "/parts/{part_id}/upload", summary="Send a part", response_model=Upload,
        openapi_extra=_described("part_id", *described(_PartHeaders, "header")),
    )  # fmt: skip
    async def upload(request: Request) -> Response:
        """The body is the part's stream, from `Upload-Offset` on; after a lost connection, it is continued there.

        Answers when the part is on the disk and was checked. 409 `upload_offset` names the offset wanted; 422 is for
        damaged bytes, 413 for too many, 507 for a full disk.
        """
        can_be_continued(request)
        _need_not_drained(node)
        headers, sent = read(_PartHeaders, request.headers, "header"), _content_length(request)
        offset = headers.upload_offset
        length = headers.upload_length if headers.upload_length is not None else offset + (sent or 0)
        if sent is not None and offset + sent > length:
            raise Invalid("more bytes are announced than the part has", kind="upload_length", length=length)
        offer = UploadOffer(request.path_params["part_id"], headers.upload_map, length, headers.upload_checksum, offset)
        async with _knowing_maps(node):
            with pieces.of_one() as piece_bytes:
                return _answer(await _receive(request, node.receiver, offer, sent, piece_bytes))


def _add_loading(router: APIRouter, node: Node) -> None:
    order = {"required": True, "content": {"application/json": {"schema": described_json(_NewLoad)}}}

    @router.post(
        "/loads", summary="Enter uploaded parts as one load", response_model=Entered,
        openapi_extra={"requestBody": order},
    )  # fmt: skip
    async def load(request: Request) -> Response:
        """Acknowledged, it is durable, and is merged in its turn; other nodes take it from the log. Primary only."""
        wanted = read_json(_NewLoad, await request.body())
        return _loaded(request, await _in_thread(_enter, node, wanted, caller_in(request)))

    @router.put(
        "/loads/{load_id}", summary="Send the parts of a small load, and enter it", response_model=Entered,
        openapi_extra=_described("load_id", *described(_LoadQuery, "query")),
    )  # fmt: skip
    async def bring(request: Request) -> Response:
        """The body is the streams of its parts, one after another, in the order in which they are to be merged.

        For a pond of one node: with more, the parts must be on the others before. Asked twice, it is entered once.
        """
        _need_not_drained(node)
        load, query = request.path_params["load_id"], read(_LoadQuery, request.query_params, "query")
        body = await request.body()
        request.app.state.metrics.upload_bytes.inc(len(body))
        return _loaded(request, await _in_thread(_bring, node, load, query, body, caller_in(request)))


def _enter(node: Node, wanted: _NewLoad, caller: Caller) -> dict[str, Any]:
    with node.appending(wanted.epoch):
        result = node.load_commit.enter(
            wanted.load_id, wanted.parts, source=wanted.source, rejected=wanted.rejected, stream=wanted.stream,
            may=partial(caller.may, "write"),
        )  # fmt: skip
    return _entered(node, result)


def _bring(node: Node, load: str, query: _LoadQuery, body: bytes, caller: Caller) -> dict[str, Any]:
    stream = None if query.stream is None else (query.stream, query.stream_epoch)
    with reporting_damage(), node.appending(query.epoch):
        result = node.load_commit.bring(
            load, split_streams(memoryview(body)), source=query.source, rejected=query.rejected, stream=stream,
            caller=caller,
        )  # fmt: skip
    return _entered(node, result)


def _loaded(request: Request, result: dict[str, Any]) -> Response:
    note_change(request, load=result["load"], position=result["position"], rows=result["maps"])
    return _answer(result)


def _need_not_drained(node: Node) -> None:
    if node.drain.active:
        raise node.drain.refusal()


def _answer(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")


@asynccontextmanager
async def _knowing_maps(node: Node) -> AsyncIterator[None]:
    """Let nothing say that a map is missing unless this node can know.

    Raises: as `Node.need_ready`.
    """
    try:
        yield
    except NotFound:
        # Only the primary decides that; one that lost its disk must not say it.
        await _in_thread(node.need_ready)
        raise


def _content_length(request: Request) -> int | None:
    text = request.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


async def _in_thread(act: Callable[Params, T], *args: Params.args, **options: Params.kwargs) -> T:
    return await anyio.to_thread.run_sync(lambda: act(*args, **options))


class _Pieces:
    """The bytes that each sender may buffer; used by the event loop alone."""

    def __init__(self) -> None:
        self._senders = 0

    @contextmanager
    def of_one(self) -> Iterator[Callable[[], int]]:
        """Count one more; gives what tells how many bytes its pieces have now."""
        self._senders += 1
        try:
            # While one piece is written, another comes in.
            yield lambda: min(max(PIECES_BYTES // (2 * self._senders), PIECE_BYTES_MIN), PIECE_BYTES_MAX)
        finally:
            self._senders -= 1


def _open(receiver: Receiver, offer: UploadOffer, head: bytes) -> UploadState:
    """Begin an upload with the head of a stream, or find how far an earlier writer came."""
    session = receiver.begin(offer)
    if session is None:
        return receiver.state(offer.part)
    with reporting_damage(), session:
        if session.offset == 0:
            session.write([head])
        return UploadState("partial", session.offset)


def _take(receiver: Receiver, offer: UploadOffer, chunks: list[bytes], patience: float) -> UploadState:
    with reporting_damage():
        return receiver.take(offer, chunks, patience)


async def _receive(
    request: Request, receiver: Receiver, offer: UploadOffer, sent: int | None, piece_bytes: Callable[[], int]
) -> UploadState:
    """Take the body; `sent`: how many bytes are announced.

    Raises: `RequestError` when what came is damaged; else as `UploadSession`.
    """
    heard = _heard(request, request.app.state.node.settings.read_timeout / 1000)
    if offer.offset == 0 and sent == offer.length and _fits(request, sent):
        return await _receive_small(request, receiver, offer, [chunk async for chunk in heard])
    return await _receive_long(request, receiver, offer, _pieces(heard, piece_bytes))


def _fits(request: Request, length: int) -> bool:
    """True when a body is collected in memory; it has room there then."""
    room = room_of(request)
    room.name = share_in(request)
    if length > SMALL_BYTES:
        return False
    try:
        room.need(length)
    except Unavailable:
        return False
    return True


async def _receive_small(request: Request, receiver: Receiver, offer: UploadOffer, chunks: list[bytes]) -> UploadState:
    request.app.state.metrics.upload_bytes.inc(offer.length)
    try:
        return await _in_thread(_take, receiver, offer, chunks, 0.0)
    except Unavailable as error:
        if error.kind != "upload_busy":
            raise
    # Somebody else sends the part: threads that wait are not those that work.
    return await in_thread(request, _take, receiver, offer, chunks, TURN_SECONDS)


async def _receive_long(
    request: Request, receiver: Receiver, offer: UploadOffer, pieces: AsyncIterator[list[bytes]]
) -> UploadState:
    """Take a body of several pieces.

    The turn is taken before bytes are waited for: a writer whose connection was lost, and who asks how far it came, is
    answered when those bytes are written.
    """
    session = await in_thread(request, receiver.begin, offer)
    if session is None:
        return await _in_thread(receiver.state, offer.part)
    began = session.offset
    try:
        with reporting_damage():
            await _pour(pieces, session)
            state: UploadState = await _in_thread(session.finish)
    except BaseException as error:
        cause = error.error if isinstance(error, RequestError) else error
        with anyio.CancelScope(shield=True):
            await _in_thread(session.leave, cause)
        raise
    finally:
        request.app.state.metrics.upload_bytes.inc(session.offset - began)
    session.leave()
    return state


async def _heard(request: Request, silence: float) -> AsyncIterator[bytes]:
    """The body as the socket gives it.

    Raises: `ClientDisconnect` when the writer is gone, or has said nothing for so many seconds.
    """
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout(silence):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ClientDisconnect from None
        yield chunk


async def _pieces(chunks: AsyncIterator[bytes], piece_bytes: Callable[[], int]) -> AsyncIterator[list[bytes]]:
    """The body in larger pieces."""
    piece: list[bytes] = []
    size = 0
    try:
        async for chunk in chunks:
            piece.append(chunk)
            size += len(chunk)
            if size >= piece_bytes():
                yield piece
                piece, size = [], 0
    except ClientDisconnect:
        if size:
            yield piece  # who comes back goes on after it
        raise
    if size:
        yield piece


async def _pour(pieces: AsyncIterator[list[bytes]], session: UploadSession) -> None:
    """Write each piece while the next is collected."""
    writing: asyncio.Task[None] | None = None
    try:
        async for piece in pieces:
            if writing is not None:
                await writing
            writing = asyncio.create_task(_in_thread(session.write, piece))
        if writing is not None:
            await writing
    finally:
        if writing is not None and not writing.done():
            # The file is closed next: nobody may be writing to it then.
            with anyio.CancelScope(shield=True):
                await asyncio.wait([writing])
