"""Bytes that are sent as their reader takes them: a slow reader costs a piece, and of many each a small one.

room for a piece, while most of the memory is free ─▶ 1 MiB │ none ─▶ 64 KiB, which every connection may hold
piece read ─▶ sent ─▶ taken by the reader ─▶ the next one is read
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from millpond.server.memory import SMALL_BYTES, room_of
from millpond.server.thread_limits import on_loop
from millpond.server.transfers import can_be_continued
from millpond.versions.objects.uploads import CHUNK_BYTES

__all__ = ("download", "piece_bytes")


def piece_bytes(request: Request) -> int:
    """The bytes that a request for a file may hold of it at a time; asked by its thread."""
    return on_loop(_piece_bytes, request)


async def _piece_bytes(request: Request) -> int:
    return CHUNK_BYTES if room_of(request).hold_spare(CHUNK_BYTES) else SMALL_BYTES


def download(
    request: Request, pieces: Iterator[bytes], status: int, headers: Mapping[str, str], *, first: bytes = b""
) -> StreamingResponse:
    """The answer that sends pieces, behind one that was read before; its reader may go on elsewhere."""
    can_be_continued(request)
    return StreamingResponse(_taken([first], pieces), status, dict(headers))


async def _taken(ahead: list[bytes], pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, each when the one before was taken; none is held here, for the connection holds it."""
    while ahead:
        yield ahead.pop()
    yield b""  # is sent when the reader has taken what came before
    async for piece in iterate_in_threadpool(pieces):
        yield piece
        del piece
        yield b""
