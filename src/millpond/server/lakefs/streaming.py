"""Bodies of any size, handed to a thread as they come.

    socket ─▶ first pieces ─┬ the whole body, and small ─▶ bytes
                            └ more ─▶ a thread pulls pieces: each is read when the one before was taken

Invariants:
* Memory holds a piece of a body, whatever its size.
* A sender that falls silent for `client.read_timeout`, or is gone, ends the stream with an error: nothing of it is
  stored.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request

from millpond.errors import MillpondError
from millpond.server.thread_limits import on_loop

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ("SMALL_BYTES", "BodyFile", "BodyStream", "read_to_its_end")

SMALL_BYTES = 256 << 10
"""The largest body that is collected before a thread takes it."""


class BodyStream:
    """The body of a request. `start` is called by the event loop, `chunks` by the thread that takes the body."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._silence = request.app.state.node.settings.client.read_timeout / 1000
        self._ahead = b""
        self._ended = False

    async def start(self) -> bytes | None:
        """The whole body, when it is small; None when it is to be streamed."""
        self._ahead = await self._piece()
        return self._ahead if self._ended else None

    async def _piece(self) -> bytes:
        """The bytes that come next, many of them at once; empty at the end."""
        pieces, size = [], 0
        while size < SMALL_BYTES and not self._ended:
            try:
                async with asyncio.timeout(self._silence):
                    message = await self._request.receive()
            except TimeoutError:
                raise ClientDisconnect from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece = message.get("body", b"")
            size += len(piece)
            pieces.append(piece)
            self._ended = not message.get("more_body", False)
        return b"".join(pieces)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, piece by piece.

        Raises: `ClientDisconnect`.
        """
        piece, self._ahead = self._ahead, b""
        while piece or not self._ended:
            if piece:
                yield piece
            piece = on_loop(self._piece) if not self._ended else b""


@contextmanager
def read_to_its_end(chunks: Iterable[bytes]) -> Iterator[None]:
    """Read what an error leaves of a body: a sender that is cut off would not read the answer."""
    try:
        yield
    except MillpondError:
        for _ in chunks:
            pass
        raise


class BodyFile(io.RawIOBase):
    """A stream of bytes as a file, for readers of formats."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer with what comes next; how many bytes there were."""
        while not self._left:
            piece = next(self._chunks, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
