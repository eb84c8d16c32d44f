"""A bundle that is being received, on the disk.

    <checksum>.bundle      its bytes, each at its place
    <checksum>.data        those of `data.mdb`, and
    <checksum>.touched     those of `touched.arrow`, which leave holes in the first

What lies in a file of its own from the first need not be copied out of the bundle in the end: it is nearly all of it.
Each is summed as it comes, so that nothing is read again to be checked. The offset of a member follows from the bytes
before it; a bundle of another form than ours lies in the one file alone.

Invariant: bytes come in order, so that those after a hole are there only when the hole is filled. After a crash that
says otherwise, the checksum of the whole does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import xxhash

from millpond.maps.parts.bundle import CHUNK_BYTES, Apart, ReadAt, find_members, reading

__all__ = ("SUFFIXES", "BundleFile", "bytes_come")

SUFFIXES: Mapping[str, str] = {"data.mdb": ".data", "touched.arrow": ".touched"}
"""The suffixes of files that lie apart."""
_VECTORS_MAX = 1000  # of one write: systems take 1,024

_Bytes: TypeAlias = bytes | memoryview


def bytes_come(bundle: Path) -> int:
    """The number of received bytes of a bundle.

    Raises: `FileNotFoundError`.
    """
    with bundle.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for name, start, length in find_members(reading(file.fileno())):
            if name in SUFFIXES:
                came = _size(bundle.with_suffix(SUFFIXES[name]))
                if came < length:
                    return start + came
                size = max(size, start + length)
    return size


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


class _Member:
    """The bytes `[start, stop)` of a bundle, in a file of their own."""

    def __init__(self, file: Path, start: int, stop: int, come: int) -> None:
        """`come`: so many of its bytes are there and stay."""
        self.file, self.start, self.stop = file, start, stop
        self.handle = _opened(file)
        os.ftruncate(self.handle, come)
        self.summed = xxhash.xxh3_128()


class BundleFile:
    """The files of one bundle, open. One thread at a time may use it."""

    def __init__(self, bundle: Path, *, anew: bool) -> None:
        """Read and sum what is there, or, `anew`, throw it away."""
        self.path = bundle
        self._members: dict[str, _Member] = {}
        self._summed = xxhash.xxh3_128()
        self._handle: int | None = _opened(bundle)
        try:
            if anew:
                os.ftruncate(self.handle, 0)
            self.size = bytes_come(bundle)
            if os.fstat(self.handle).st_size > self.size:
                os.ftruncate(self.handle, self.size)  # beyond a hole that a crash left
            self._find(reading(self.handle))
            position = 0
            for chunk in self.chunks():
                self._sum(chunk, position)
                position += len(chunk)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; what came stays."""
        if self._handle is not None:
            for handle in (self._handle, *(member.handle for member in self._members.values())):
                os.close(handle)
        self._handle = None

    @property
    def handle(self) -> int:
        """The file that holds the beginning."""
        assert self._handle is not None, "it is open"
        return self._handle

    @property
    def checksum(self) -> str:
        """xxh3_128 of what came, as hexadecimal digits."""
        return self._summed.hexdigest()

    @property
    def apart(self) -> dict[str, Apart]:
        """The members that lie in files of their own; those that came whole have their sums."""
        return {name: Apart(member.file, member.summed.hexdigest()) for name, member in self._members.items()}

    def append(self, chunks: Sequence[bytes], size: int) -> None:
        """Write the next bytes; what is written partly before an error is not counted."""
        within = next((member for member in self._members.values() if member.start <= self.size < member.stop), None)
        if within is not None and self.size + size <= within.stop:
            _write_all(within.handle, chunks, self.size - within.start)
            for chunk in chunks:
                self._summed.update(chunk)
                within.summed.update(chunk)
        else:
            self._append_across(b"".join(chunks))
        self.size += size

    def _append_across(self, fresh: bytes) -> None:
        """Write bytes that do not all belong to one member."""
        self._find(reading(self.handle, fresh, self.size))
        for member, start, stop in self._stretches(self.size, self.size + len(fresh)):
            piece = memoryview(fresh)[start - self.size : stop - self.size]
            if member is None:
                _write_all(self.handle, [piece], start)
            else:
                _write_all(member.handle, [piece], start - member.start)
        self._sum(fresh, self.size)

    def _find(self, read: ReadAt) -> None:
        """Give each member a file of its own whose beginning is known by now."""
        for name, start, length in find_members(read):
            if name in SUFFIXES and name not in self._members:
                come = min(max(self.size - start, 0), length)
                self._members[name] = _Member(self.path.with_suffix(SUFFIXES[name]), start, start + length, come)

    def _sum(self, chunk: bytes, position: int) -> None:
        self._summed.update(chunk)
        for member, start, stop in self._stretches(position, position + len(chunk)):
            if member is not None:
                member.summed.update(memoryview(chunk)[start - position : stop - position])

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[_Member | None, int, int]]:
        """The places of the bytes `[start, stop)`, in order; None is the bundle itself."""
        for member in self._members.values():
            for place, end in ((None, min(member.start, stop)), (member, min(member.stop, stop))):
                if start < end:
                    yield place, start, end
                    start = end
        if start < stop:
            yield None, start, stop

    def chunks(self) -> Iterator[bytes]:
        """The received bytes, in order."""
        for member, start, stop in self._stretches(0, self.size):
            if member is None:
                yield from _read(self.handle, start, stop)
            else:
                yield from _read(member.handle, start - member.start, stop - member.start)


def _opened(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _read(handle: int, start: int, stop: int) -> Iterator[bytes]:
    while start < stop and (chunk := os.pread(handle, min(CHUNK_BYTES, stop - start), start)):
        yield chunk
        start += len(chunk)


def _write_all(handle: int, chunks: Sequence[_Bytes], offset: int) -> None:
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
