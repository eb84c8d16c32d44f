"""Files that are sent from any byte on, for downloads that go on where they stopped.

The tag names the bytes. Who asks to go on (`Range: bytes=n-`) from bytes of another tag (`If-Range`) is sent all of the
new ones.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path

from starlette.requests import Request
from starlette.responses import StreamingResponse

from millpond.server.transfers import can_be_continued

__all__ = ("CHUNK_BYTES", "file_chunks", "ranged", "tag_wanted")

CHUNK_BYTES = 1 << 20


def tag_wanted(request: Request) -> str | None:
    """The tag of the bytes that somebody wants to have more of."""
    tag = request.headers.get("if-range")
    return tag.strip('"') if tag and request.headers.get("range") else None


def ranged(
    request: Request, *, size: int, tag: str, chunks: Callable[[int, int], Iterator[bytes]],
    headers: Mapping[str, str], media_type: str = "application/octet-stream",
) -> StreamingResponse:  # fmt: skip
    """The bytes that were asked for; `chunks(start, stop)` gives them. A range that cannot be had is not honoured."""
    can_be_continued(request)
    start, stop = _range(request, size, tag)
    fields = {**headers, "ETag": f'"{tag}"', "Accept-Ranges": "bytes", "Content-Length": str(stop - start)}
    whole = (start, stop) == (0, size)
    if not whole:
        fields["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    body = chunks(start, stop) if request.method != "HEAD" else iter(())
    return StreamingResponse(body, status_code=200 if whole else 206, headers=fields, media_type=media_type)


def _range(request: Request, size: int, tag: str) -> tuple[int, int]:
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", "").replace(" ", ""))
    other_tag = tag_wanted(request)
    if not match or (other_tag is not None and other_tag != tag):
        return 0, size
    start = int(match[1])
    stop = min(int(match[2]) + 1, size) if match[2] else size
    return (start, stop) if start < stop else (0, size)


def file_chunks(file: Path) -> Callable[[int, int], Iterator[bytes]]:
    """The bytes of a file. It is opened at once, so that a removal meanwhile does no harm."""
    body = _OpenFile(file.open("rb", buffering=0))
    return body.chunks


class _OpenFile:
    """An open file that is closed when its last byte was read, or when nobody can read on.

    A connection that is lost before the first byte leaves an iterator that nobody starts, so nothing in it runs.
    """

    def __init__(self, source: FileIO) -> None:
        self._source = source
        weakref.finalize(self, source.close)

    def chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from `start` up to, and without, `stop`."""
        with self._source:
            self._source.seek(start)
            size = stop - start
            while size > 0 and (chunk := self._source.read(min(CHUNK_BYTES, size))):
                size -= len(chunk)
                yield chunk
