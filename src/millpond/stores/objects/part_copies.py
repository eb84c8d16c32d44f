"""Copies of parts of objects that lie in a bucket: many of them in a file, so that a thousand cost few files.

    blocks/<id>   record │ record │ record …        a segment: appended to by one process, read by all of the machine
    record        64 bytes: magic, size and XXH3-128 of the part, those of its copy, XXH3-64 of these 56 bytes │
                  the copy, filled up to 64

A part is known by its checksum and its size. Its copy may have the form in which this machine reads it (`Part.form`).
What is in a segment is learnt by walking its records, once: a process looks again, at what came, before it fetches.

Invariants:
* A part is compared with its checksum when it comes, and its copy with its own each time it is taken. A segment that
  has another one goes whole.
* Records are appended together; the first 64 bytes of the first are written last: who dies in the middle leaves none.
* No segment stays open or mapped beyond those who use a part of it: one that is removed gives back its disk.
* What the disk has no room for is fetched, and not kept.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import xxhash

from millpond.errors import Unavailable
from millpond.stores.files import disk_errors
from millpond.stores.objects.at_once import UNPACKING
from millpond.stores.objects.copies import CopiesOf
from millpond.stores.objects.protocol import Objects

__all__ = ("Part", "PartCopies", "PartsRead", "sound_parts")

SEGMENT_BYTES = 64 << 20
"""A segment that has as many is not appended to; nor one with `SEGMENT_SHARE` of the bound of all copies, for
segments go whole.
"""
SEGMENT_SHARE = 16
LOOKED_AT_MAX = 8
"""Segments of others that are looked at again, those that grew last; a request takes longer than to look at them."""

_FOLDER = "blocks"
_MAGIC = b"MPpart02"
_RECORD = struct.Struct("<8sQ16sQ16s")
_SEAL = struct.Struct("<Q")
_ALIGNED = 64
_PIECES_MAX = 1024
"""Linux takes no more in one call."""

PartsRead: TypeAlias = list[bytes | pa.Buffer | None]
"""The bytes of parts; None for those that are not sound, and those that are not wanted."""
_Key: TypeAlias = tuple[bytes, int]
"""The XXH3-128 of a part, and its bytes."""


class _Extent(NamedTuple):
    """A copy in a segment."""

    segment: str
    offset: int
    size: int
    checksum: bytes


class Part(NamedTuple):
    """The bytes `[start, stop)` of an object, and their XXH3-128.

    `form` gives them that of a copy. One that is not `is_answer` is fetched with others that are, and not given.
    """

    start: int
    stop: int
    checksum: bytes
    form: Callable[[pa.Buffer], pa.Buffer] | None = None
    is_answer: bool = True

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.stop - self.start

    @property
    def key(self) -> _Key:
        """The name of its copies."""
        return self.checksum, self.size

    def sound(self, data: bytes | memoryview | pa.Buffer) -> bool:
        """True for the bytes that it had when it was written."""
        return _checksum(data) == self.checksum


def _checksum(data: bytes | memoryview | pa.Buffer) -> bytes:
    return xxhash.xxh3_128_digest(memoryview(data))


def sound_parts(objects: Objects, name: str, parts: Sequence[Part]) -> PartsRead:
    """The bytes of parts of an object, by one request; None for those that are not sound.

    Raises: `NotFound`, `Denied`, `Unavailable`.
    """
    begin, stop = parts[0].start, parts[-1].stop
    data = pa.py_buffer(objects.get_range(name, begin, stop))
    pieces = (data[part.start - begin : part.stop - begin] for part in parts)  # nothing is copied
    return [piece if part.sound(piece) else None for part, piece in zip(parts, pieces, strict=True)]


class PartCopies:
    """The copies of parts of the objects of one place. Threads may share it."""

    def __init__(self, bucket: Objects, copies: CopiesOf, root: Path) -> None:
        self._bucket, self._copies, self._folder = bucket, copies, root / _FOLDER
        self._lock = threading.Lock()
        self._extents: dict[_Key, _Extent] = {}
        self._walked: dict[str, int] = {}
        """Of each segment the bytes whose records are known; the one that grew last stands last."""
        self._listed = 0
        self._own, self._process, self._end = "", 0, 0

    def fetch(self, name: str, parts: Sequence[Part]) -> Callable[[], PartsRead]:
        """As `fetch_parts`. What is fetched and sound becomes copies, in whose form it is given.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """
        if any(part.key not in self._extents for part in parts if part.is_answer):
            with self._lock:
                self._look()
        held = self._held(parts)
        missing = [number for number, data in enumerate(held) if data is None and parts[number].is_answer]
        if not missing:
            return lambda: held
        span = slice(missing[0], missing[-1] + 1)
        return partial(self._copied, parts, held, span, sound_parts(self._bucket, name, parts[span]))

    def _copied(self, parts: Sequence[Part], held: PartsRead, span: slice, fetched: PartsRead) -> PartsRead:
        self._keep([
            (part, pa.py_buffer(data)) for part, there, data in zip(parts[span], held[span], fetched, strict=True)
            if data is not None and there is None and (part.is_answer or part.key not in self._extents)
        ])  # fmt: skip
        # Mapped, they take no memory that the system cannot have back. Without room there is what was fetched.
        mapped = self._held(parts[span])
        held[span] = [there or copy or data for there, copy, data in zip(held[span], mapped, fetched, strict=True)]
        return [data if part.is_answer else None for part, data in zip(parts, held, strict=True)]

    def _held(self, parts: Sequence[Part]) -> PartsRead:
        """The copies of parts, mapped; None where there is none."""
        data: PartsRead = [None] * len(parts)
        extents = {number: extent for number, part in enumerate(parts)
                  if part.is_answer and (extent := self._extents.get(part.key)) is not None}  # fmt: skip
        for segment in {extent.segment for extent in extents.values()}:
            those = {number: extent for number, extent in extents.items() if extent.segment == segment}
            for number, copy in zip(those, self._mapped(segment, list(those.values())), strict=True):
                data[number] = copy
        return data

    def _mapped(self, segment: str, extents: Sequence[_Extent]) -> PartsRead:
        """Copies in a segment; None for one that is damaged, whose segment goes, and of one that has gone, as any may
        at any time.
        """
        file = f"{self._folder}/{segment}"
        try:
            with pa.memory_map(file) as mapped:
                copies = [_read_at(mapped, extent) for extent in extents]
        except (OSError, pa.ArrowInvalid):
            self._forget(segment)
            return [None] * len(extents)
        self._copies.use(file)
        if any(copy is None for copy in copies):
            Path(file).unlink(missing_ok=True)
            self._forget(segment)
        return copies

    def _forget(self, segment: str) -> None:
        with self._lock:
            self._drop((segment,))

    # -- what others append ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Learn of the records that came since, in segments that are new and in those that grew last."""
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - for each request
        except FileNotFoundError:
            return
        looked_at = list(self._walked)[-LOOKED_AT_MAX:]
        if changed != self._listed:
            self._listed, there = changed, set(os.listdir(self._folder))  # noqa: PTH208
            looked_at += there - self._walked.keys()
            self._drop(self._walked.keys() - there)
        for segment in looked_at:
            with suppress(OSError):  # it has gone, or is another user's
                self._walk(segment)

    def _walk(self, segment: str) -> None:
        file, begin = f"{self._folder}/{segment}", self._walked.get(segment, 0)
        if begin and os.stat(file).st_size <= begin:  # noqa: PTH116
            return
        end = begin
        with open(file, "rb", buffering=0) as stream:  # noqa: PTH123
            for key, extent in _records(stream.fileno(), begin, segment):
                self._extents.setdefault(key, extent)
                end = extent.offset + _filled_up(extent.size)
        if end > begin:
            self._walked.pop(segment, None)  # what grew goes behind the others
        self._walked[segment] = end

    def _drop(self, segments: Collection[str]) -> None:
        if segments:
            self._walked = {name: end for name, end in self._walked.items() if name not in segments}
            self._extents = {key: extent for key, extent in self._extents.items() if extent.segment not in segments}

    # -- what this process appends --------------------------------------------------------------------

    def _keep(self, fetched: Sequence[tuple[Part, pa.Buffer]]) -> None:
        """Have copies, if the disk has room. They need not survive a crash of the machine: then all is fetched again.

        Those of one request are written together: to open a segment takes longer than to write a small one.
        """
        with UNPACKING:
            data = [part.form(data) if part.is_answer and part.form is not None else data for part, data in fetched]
        together, size = list[_Copied](), 0
        for (part, _), copy in zip(fetched, [memoryview(copied) for copied in data], strict=True):
            record = _Copied(part.key, copy, _checksum(copy), _ALIGNED + _filled_up(copy.nbytes))
            if together and size + record.size > self._segment_max:
                self._append(together, size)
                together, size = [], 0
            together.append(record)
            size += record.size
        if together:
            self._append(together, size)

    def _append(self, copies: Sequence[_Copied], size: int) -> None:
        with suppress(Unavailable), disk_errors(self._folder):
            if not self._copies.make_room(size):
                return
            with self._lock:
                handle, begin = self._segment(size)
                first, *others = chain.from_iterable(copy.pieces for copy in copies)
                try:
                    _write_whole(handle, others, begin + len(first))
                    _write_whole(handle, [first], begin)
                except OSError:
                    os.ftruncate(handle, begin)  # a disk that is full has it back
                    raise
                finally:
                    os.close(handle)
                for copy in copies:
                    self._extents[copy.key] = _Extent(self._own, begin + _ALIGNED, copy.data.nbytes, copy.checksum)
                    begin += copy.size
                self._walked[self._own] = self._end = begin

    @property
    def _segment_max(self) -> int:
        return min(SEGMENT_BYTES, self._copies.bytes_max // SEGMENT_SHARE)

    def _segment(self, size: int) -> tuple[int, int]:
        """A segment of this process with room for a record, opened, and where the record begins."""
        if self._process == os.getpid() and self._end + size <= self._segment_max:
            with suppress(FileNotFoundError):
                return os.open(f"{self._folder}/{self._own}", os.O_WRONLY), self._end
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            self._own, self._process, self._end = self._copies.clock.random_id(), os.getpid(), 0
            with suppress(FileExistsError):
                return os.open(self._folder / self._own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), 0


class _Copied(NamedTuple):
    """A copy that is to be appended; `size` is that of its record."""

    key: _Key
    data: memoryview
    checksum: bytes
    size: int

    @property
    def pieces(self) -> tuple[memoryview, memoryview, memoryview]:
        """The header of its record, the copy, and what fills that up."""
        record = _RECORD.pack(_MAGIC, self.key[1], self.key[0], self.data.nbytes, self.checksum)
        header = (record + _SEAL.pack(xxhash.xxh3_64_intdigest(record))).ljust(_ALIGNED, b"\0")
        fill = bytes(self.size - _ALIGNED - self.data.nbytes)
        return memoryview(header), self.data.cast("B"), memoryview(fill)


def _read_at(mapped: pa.MemoryMappedFile, extent: _Extent) -> pa.Buffer | None:
    """A copy that is sound; of what is asked for, and no more, the system reads ahead."""
    mapped.seek(extent.offset)
    copy = mapped.read_buffer(extent.size)
    return copy if _checksum(copy) == extent.checksum else None


def _records(handle: int, begin: int, segment: str) -> Iterator[tuple[_Key, _Extent]]:
    """The records of a segment from a place on: the key of each part, and its copy."""
    while True:
        header = os.pread(handle, _ALIGNED, begin)
        record = header[: _RECORD.size]
        if len(header) < _ALIGNED or header[_RECORD.size :][: _SEAL.size] != _SEAL.pack(
            xxhash.xxh3_64_intdigest(record)
        ):
            return
        magic, part_size, part_checksum, size, checksum = _RECORD.unpack(record)
        if magic != _MAGIC:
            return  # another version's
        begin += _ALIGNED
        yield (part_checksum, part_size), _Extent(segment, begin, size, checksum)
        begin += _filled_up(size)


def _filled_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _write_whole(handle: int, pieces: Sequence[memoryview], begin: int) -> None:
    """Write pieces one behind the other."""
    queue = deque(piece for piece in pieces if piece.nbytes)
    while queue:
        count = os.pwritev(handle, list(islice(queue, _PIECES_MAX)), begin)
        begin += count
        while queue and count >= queue[0].nbytes:
            count -= queue.popleft().nbytes
        if count:
            queue[0] = queue[0][count:]
