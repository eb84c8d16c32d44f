"""Parts: sending them to a node, and entering what was sent as one load.

    POST /v1/parts/{id}/upload     the head of a part: is the part here, is it wanted, how much of it has come
    PUT  /v1/parts/{id}/upload     its stream, from an offset on; a small part needs this one request alone
    POST /v1/loads                 parts that were sent, as one load
    PUT  /v1/loads/{id}            the streams of all parts of a small load: sent and entered in one request

A part is written to the disk in large pieces: while one piece is written and summed in a thread, the next comes in. The
event loop itself only collects what the socket gives. A small part, or a small load with its parts, takes one turn of
one thread, because each hand-over between threads costs more than writing it. A writer that falls silent for
`client.read_timeout` is taken for gone: what it sent is kept, and whoever sends the part next goes on after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, ParamSpec, TypeVar

import anyio.to_thread
import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request

from millpond.errors import Invalid, NotFound, Unavailable
from millpond.json_forms import plain
from millpond.maps.loads.load import LoadResult
from millpond.maps.parts.stream import HEAD_BYTES_MAX, MEDIA_TYPE, split_streams
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.nodes.uploads.branch_parts import OnBranch
from millpond.nodes.uploads.receiver import TURN_SECONDS, Receiver
from millpond.nodes.uploads.session import UploadOffer, UploadSession, UploadState
from millpond.server.access import note_change, share_in
from millpond.server.dispatch import Routes
from millpond.server.map_refs import Branch, Commits, branch_of
from millpond.server.memory import room_of
from millpond.server.parameters import IN_HEADER
from millpond.server.routes.table import JSON_BYTES_MAX, WHOLE_LOAD_BYTES_MAX, On, write
from millpond.server.thread_limits import in_thread
from millpond.server.transfers import can_be_continued
from millpond.server.wire import RequestBody, reporting_damage

__all__ = ("Discarded", "Entered", "NewLoad", "Upload", "routes")

SMALL_BYTES = 4 << 20
"""The largest part that is collected in memory; larger ones are written while they come."""
PIECE_BYTES_MAX, PIECE_BYTES_MIN = 1 << 20, 1 << 18
"""So many bytes are collected before a thread is given them: fewer keep threads busy with little, more need memory."""
PIECES_BYTES = 64 << 20
"""All pieces that are being collected together: where many send at once, each is given less."""

Params = ParamSpec("Params")
T = TypeVar("T")

UploadMap = Annotated[str, IN_HEADER, Meta(description="the map the part is for")]
UploadChecksum = Annotated[str, IN_HEADER, Meta(description="xxh3_128 of the part's manifest, hexadecimal")]
Rejected = Annotated[int, Meta(ge=0, description="rows that were left out")]
Again = Annotated[bool, Meta(description="on a branch, also what is the newest already comes on top")]
Drawn = Annotated[bool, Meta(description="the id is drawn for this load: on a branch, what is the newest is not again")]
Epoch = Annotated[int, Meta(ge=0, description="of the list of nodes that the writer has, and waits for")]
_HEAD = write(On.HEADER_MAP, HEAD_BYTES_MAX, hint="the body is the head of a part's stream")
_WHOLE = write(
    On.BODY_MAPS, WHOLE_LOAD_BYTES_MAX, hint="upload the parts one by one, then enter them", audited=True
)  # fmt: skip
_STREAM: dict[str, Any] = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


class Upload(msgspec.Struct):
    """The state of a part on this node."""

    state: Annotated[str, Meta(description="absent, partial, here, or known: entered before", examples=["partial"])]
    offset: Annotated[int, Meta(description="bytes of the stream that came: go on from there")]


class Discarded(msgspec.Struct):
    """True if an upload was deleted."""

    discarded: bool


class NewLoad(RequestBody):
    """Parts that were uploaded, to be entered as one load, or not at all."""

    load_id: Annotated[str, Meta(description="drawn by the writer: asked twice, a load is entered once")]
    parts: Annotated[list[str], Meta(description="ids, in the order in which they are to be merged; none to void")]
    source: str = ""
    rejected: Rejected = 0
    stream: Annotated[tuple[str, int] | None, Meta(description="query and epoch of a stream: entered once")] = None
    epoch: Epoch = 0
    void: Annotated[bool, Meta(description="take the id without parts: no load is entered under it any more")] = False

    def __post_init__(self) -> None:
        if self.void and (self.parts or self.stream is not None):
            raise ValueError("what is void has neither parts nor a stream")
        if not self.void and not self.parts:
            raise ValueError("a load has parts")


class Entered(msgspec.Struct):
    """The result of a load."""

    load: str
    position: Annotated[int, Meta(description="of its entry in the log")]
    rows: int
    rejected: int
    parts: Annotated[int, Meta(description="parts that were new")]
    duplicate_parts: int
    maps: Annotated[dict[str, int], Meta(description="rows of each map")]
    seconds: float
    synchronised: Annotated[bool, Meta(description="whether its rows can be read already")]
    quarantined: list[dict[str, Any]]
    chain: Annotated[str, Meta(description="the hash of the log up to that position; empty when it is not retained")]
    commit: Annotated[str, Meta(description="that of a load on a branch")] = ""


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1", tag="loads")
    _add_sending(router, node)
    _add_loading(router, node)

    @router.get("/parts/{part_id}/upload", write(On.OWN_PART), summary="Whether a part is here", answer=Upload)
    async def state(request: Request, part_id: str, caller: Caller) -> UploadState:
        upload: UploadState = await in_thread(request, node.receiver.state_between, part_id)
        name = await _in_thread(node.receiver.map_of_upload, part_id)
        # For the writers of other maps, a part is absent.
        return upload if name is None or caller.may("write", name) else UploadState("absent")

    @router.delete(
        "/parts/{part_id}/upload", write(On.OWN_PART, audited=True), summary="Forget an upload", answer=Discarded
    )  # fmt: skip
    def discard(part_id: str, caller: Caller) -> dict[str, bool]:
        # Without a map, as after a restart: only with the right to write everything. Others wait for its expiry.
        may = caller.may("write", node.receiver.map_of_upload(part_id))
        return {"discarded": may and node.receiver.discard(part_id)}

    return router


def _add_sending(router: Routes, node: Node) -> None:
    pieces = _Pieces()

    @router.post("/parts/{part_id}/upload", _HEAD, summary="Begin to send a part", answer=Upload, body=_STREAM)
    async def open_upload(
        request: Request,
        part_id: str,
        upload_map: UploadMap,
        upload_checksum: UploadChecksum,
        upload_length: Annotated[int, IN_HEADER, Meta(ge=1, description="bytes of the whole")],
        branch: Branch = None,
    ) -> UploadState:
        """The body is the head of the part's stream; `offset` in the answer is where to continue with `PUT`.

        Whatever the node has against the part, it says now: a map it does not know, a size, a disk without room.
        """
        _need_not_drained(node)
        offer = UploadOffer(part_id, upload_map, upload_length, upload_checksum, None, branch)
        await _need_branch(request, branch)
        async with _knowing_maps(node):
            return await in_thread(request, _open, node.receiver, offer, await request.body())

    @router.put(
        "/parts/{part_id}/upload", write(On.HEADER_MAP, None), summary="Send a part", answer=Upload, body=_STREAM
    )  # fmt: skip
    async def upload(
        request: Request,
        part_id: str,
        upload_map: UploadMap,
        upload_checksum: UploadChecksum,
        upload_offset: Annotated[int, IN_HEADER, Meta(ge=0, description="the bytes sent begin there")] = 0,
        upload_length: Annotated[
            Annotated[int, Meta(ge=1)] | None,
            IN_HEADER,
            Meta(description="bytes of the whole; by default those that are sent"),
        ] = None,
        branch: Branch = None,
    ) -> UploadState:
        """The body is the part's stream, from `Upload-Offset` on; after a lost connection, it is continued there.

        Answers when the part is on the disk and was checked. 409 `upload_offset` names the offset wanted; 422 is for
        damaged bytes, 413 for too many, 507 for a full disk.
        """
        can_be_continued(request)
        _need_not_drained(node)
        sent = _content_length(request)
        length = upload_length if upload_length is not None else upload_offset + (sent or 0)
        if sent is not None and upload_offset + sent > length:
            raise Invalid("more bytes are announced than the part has", kind="upload_length", length=length)
        offer = UploadOffer(part_id, upload_map, length, upload_checksum, upload_offset, branch)
        await _need_branch(request, branch)
        async with _knowing_maps(node):
            with pieces.of_one() as piece_bytes:
                return await _receive(request, node.receiver, offer, sent, piece_bytes)


def _add_loading(router: Routes, node: Node) -> None:
    @router.post(
        "/loads", write(On.BODY_MAPS, JSON_BYTES_MAX, audited=True),
        summary="Enter uploaded parts as one load", answer=Entered,
    )  # fmt: skip
    async def load(
        request: Request, new_load: NewLoad, caller: Caller, branch: Branch = None, commit: Commits = True,
        again: Again = False, drawn: Drawn = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Acknowledged, it is durable, and is merged in its turn; other nodes take it from the log. Primary only."""
        on = partial(_on, request, branch, {"commit": commit, "again": again, "drawn": drawn})
        return _noted(request, await _in_thread(_enter, node, new_load, caller, on))

    @router.put(
        "/loads/{load_id}", _WHOLE, summary="Send the parts of a small load, and enter it", answer=Entered, body=_STREAM
    )
    async def bring(
        request: Request,
        load_id: str,
        caller: Caller,
        source: str = "",
        rejected: Rejected = 0,
        stream: Annotated[
            str | None, Meta(description="the query of a stream, each epoch of which is entered once")
        ] = None,
        stream_epoch: Annotated[int, Meta(ge=0)] = 0,
        epoch: Epoch = 0,
        branch: Branch = None,
        commit: Commits = True,
        again: Again = False,
        drawn: Drawn = False,
    ) -> dict[str, Any]:
        """The body is the streams of its parts, one after another, in the order in which they are to be merged.

        For a pond of one node: with more, the parts must be on the others before. Asked twice, it is entered once.
        """
        _need_not_drained(node)
        body = await request.body()
        request.app.state.metrics.upload_bytes.inc(len(body))
        order = {"source": source, "rejected": rejected, "stream": None if stream is None else (stream, stream_epoch)}
        on = partial(_on, request, branch, {"commit": commit, "again": again, "drawn": drawn})
        return _noted(request, await _in_thread(_bring, node, load_id, epoch, order, body, caller, on))


def _on(request: Request, branch: str | None, options: Mapping[str, bool]) -> OnBranch | None:
    return None if branch is None else OnBranch(branch_of(request, branch), **options)


async def _need_branch(request: Request, branch: str | None) -> None:
    """Insist that the sender may load on a branch, before its parts are taken."""
    if branch is not None:
        await _in_thread(branch_of, request, branch)


def _enter(node: Node, new_load: NewLoad, caller: Caller, on: Callable[[], OnBranch | None]) -> dict[str, Any]:
    with node.appending(new_load.epoch):
        result = node.load_commit.enter(
            new_load.load_id, new_load.parts, source=new_load.source, rejected=new_load.rejected,
            stream=new_load.stream, void=new_load.void, may=partial(caller.may, "write"), on=on(),
        )  # fmt: skip
    return _entered(node, result)


def _bring(
    node: Node, load: str, epoch: int, order: dict[str, Any], body: bytes, caller: Caller,
    on: Callable[[], OnBranch | None],
) -> dict[str, Any]:  # fmt: skip
    with reporting_damage(), node.appending(epoch):
        result = node.load_commit.bring(load, split_streams(memoryview(body)), caller=caller, on=on(), **order)
    return _entered(node, result)


def _entered(node: Node, result: LoadResult) -> dict[str, Any]:
    """The answer to a load; whether its files were empty is known to its writer alone."""
    values = {name: value for name, value in plain(result).items() if name != "empty"}
    return values | {"chain": node.load_commit.chain_at(result.position)}


def _noted(request: Request, result: dict[str, Any]) -> dict[str, Any]:
    note_change(request, load=result["load"], position=result["position"], rows=result["maps"])
    return result


def _need_not_drained(node: Node) -> None:
    if node.drain.active:
        raise node.drain.refusal()


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


async def _receive(
    request: Request, receiver: Receiver, offer: UploadOffer, sent: int | None, piece_bytes: Callable[[], int]
) -> UploadState:
    """Take the body; `sent`: how many bytes are announced.

    Raises: `Corrupt` when what came is damaged; else as `UploadSession`.
    """
    heard = _heard(request, request.app.state.node.settings.client.read_timeout / 1000)
    if offer.offset != 0 or sent != offer.length or not _fits(request, sent):
        return await _receive_long(request, receiver, offer, _pieces(heard, piece_bytes))
    chunks = [chunk async for chunk in heard]
    request.app.state.metrics.upload_bytes.inc(offer.length)

    def take(patience: float) -> UploadState:
        with reporting_damage():
            return receiver.take(offer, chunks, patience)

    try:
        return await _in_thread(take, 0.0)
    except Unavailable as error:
        if error.kind != "upload_busy":
            raise
    # Somebody else sends the part: threads that wait are not those that work.
    return await in_thread(request, take, TURN_SECONDS)


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
    cause: BaseException | None = None
    try:
        with reporting_damage():
            await _pour(pieces, session)
            return await _in_thread(session.finish)
    except BaseException as error:
        cause = error
        raise
    finally:
        request.app.state.metrics.upload_bytes.inc(session.offset - began)
        with anyio.CancelScope(shield=True):
            await _in_thread(session.leave, cause)


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
