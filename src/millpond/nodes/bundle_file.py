"""A bundle that is being received, on the disk.

    <checksum>.bundle    its bytes, each at its place
    <checksum>.data      those of `data.mdb`, which leave a hole in the other

What lies in a file of its own from the first need not be copied out of the bundle in the end: it is nearly all of it.
Where `data.mdb` begins is told by the first bytes; a bundle of another form than ours lies in the one file alone.

Invariant: bytes come in order, so that those after the hole are there only when the hole is filled. After a crash that
says otherwise, the checksum of the whole does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from millpond.nodes.bundles import CHUNK_BYTES, find_data

__all__ = ("BundleFile", "bytes_come", "data_of")

_VECTORS_MAX = 1000  # of one write: systems take 1,024


def data_of(bundle: Path) -> Path:
    """Where `data.mdb` of a bundle lies, when it lies apart."""
    return bundle.with_suffix(".data")


def bytes_come(bundle: Path) -> int:
    """How many bytes of a bundle have come.

    Raises: `FileNotFoundError`.
    """
    size = bundle.stat().st_size
    try:
        apart = data_of(bundle).stat().st_size
    except FileNotFoundError:
        return size
    with bundle.open("rb") as file:
        start, length = find_data(file.fileno()) or (0, 0)
    return start + apart if apart < length or size <= start else size


class BundleFile:
    """The files of one bundle, open."""

    def __init__(self, bundle: Path, *, anew: bool) -> None:
        """`anew`: throw away what is there."""
        self.path, self._apart = bundle, data_of(bundle)
        self._handle = os.open(bundle, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._data: int | None = None
        self._start = self._stop = 0
        try:
            if anew:
                self._apart.unlink(missing_ok=True)
                os.ftruncate(self._handle, 0)
            self.size = bytes_come(bundle)
            if self._apart.exists():
                self._part(fresh=False)
        except BaseException:
            self.close()
            raise

    def _part(self, *, fresh: bool) -> None:
        """Let `data.mdb` lie apart from now on, if its beginning is known."""
        found = find_data(self._handle)
        if found is None:
            return
        self._start, self._stop = found[0], sum(found)
        self._data = os.open(self._apart, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if fresh:
            came = min(self.size, self._stop)
            _write_all(self._data, [os.pread(self._handle, came - self._start, self._start)], 0)
        if self.size < self._stop:
            os.ftruncate(self._handle, self._start)

    def close(self) -> None:
        """Let go; what came stays."""
        for handle in (self._handle, self._data):
            if handle is not None:
                os.close(handle)
        self._data = None

    @property
    def handle(self) -> int:
        """The file that holds the beginning."""
        return self._handle

    @property
    def apart(self) -> Path | None:
        """Where `data.mdb` lies, None when it lies in the bundle."""
        return self._apart if self._data is not None else None

    def append(self, chunks: Sequence[bytes], size: int) -> None:
        """Write the next bytes; what is written partly before an error is not counted."""
        if self._data is None:
            first = self.size == 0
            _write_all(self._handle, chunks, self.size)
            self.size += size
            if first:
                self._part(fresh=True)
            return
        if self.size + size <= self._stop:
            _write_all(self._data, chunks, self.size - self._start)
        else:
            joined = memoryview(b"".join(chunks))
            inside = max(self._stop - self.size, 0)
            _write_all(self._data, [joined[:inside]], self.size - self._start)
            _write_all(self._handle, [joined[inside:]], self.size + inside)
        self.size += size

    def chunks(self) -> Iterator[bytes]:
        """What came, in order."""
        if self._data is None:
            yield from _read(self._handle, 0, self.size)
            return
        yield from _read(self._handle, 0, self._start)
        yield from _read(self._data, 0, min(self.size, self._stop) - self._start)
        yield from _read(self._handle, self._stop, self.size)


def _read(handle: int, start: int, stop: int) -> Iterator[bytes]:
    while start < stop and (chunk := os.pread(handle, min(CHUNK_BYTES, stop - start), start)):
        yield chunk
        start += len(chunk)


def _write_all(handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> None:
    """Write as they lie in memory; the system may take less at once than it is given."""
    for first in range(0, len(chunks), _VECTORS_MAX):
        some = chunks[first : first + _VECTORS_MAX]
        size = sum(len(chunk) for chunk in some)
        written = os.pwritev(handle, some, offset)
        rest = memoryview(b"".join(some))[written:] if written < size else memoryview(b"")
        while rest:
            count = os.pwrite(handle, rest, offset + size - len(rest))
            rest = rest[count:]
        offset += size
