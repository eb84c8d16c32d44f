"""A part that is being received: the stream of a part is put in order in the part's file as it comes.

    head, touched, data   ->   data, touched, manifest, tail

Each byte is written once, at its place, and summed while it is written. A part that comes whole in one piece is one
write; of another the tail says how many bytes have come, and is written anew behind each piece.

Invariants:
* no byte is written before the head was understood and admitted;
* bytes come in order, so their number says which have come;
* nothing is written beyond the sizes that the head declares;
* `seal` succeeds only for a part that has the checksums of its manifest, and whose bytes are durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import xxhash

from millpond.errors import Corrupt, Invalid
from millpond.maps.parts.part import PartManifest
from millpond.maps.parts.stream import Head, parse_head, read_head
from millpond.maps.parts.tail import DATA, TOUCHED, Tail, damaged
from millpond.stores.files import disk_errors, sum_of
from millpond.stores.growing_file import Bytes, write_all
from millpond.stores.sync_threads import sync_all

__all__ = ("PartialPart",)


class PartialPart:
    """The file of one part, as many bytes of it as have come. One thread at a time may use it."""

    def __init__(self, file: Path, admit: Callable[[Head], None] | None = None) -> None:
        """Nothing is written until the head has come; `admit` raises when the part is not wanted."""
        self.file = file
        self.head: Head | None = None
        self._admit = admit
        self._begun = bytearray()
        self.size = 0
        """The number of bytes of the stream that have come."""
        self._handle = -1
        self._sums: tuple[xxhash.xxh3_128, xxhash.xxh3_128] | None = xxhash.xxh3_128(), xxhash.xxh3_128()

    @classmethod
    def left(cls, file: Path) -> PartialPart:
        """The part that an earlier process received some of; without a head when that is of no use."""
        begun = cls(file)
        with suppress(Corrupt):
            begun.head, begun.size = read_head(file, whole=False)
            begun._sums = None
        return begun

    def resume(self, total: int) -> bool:
        """Continue a stream of so many bytes; False when what has come is no beginning of one.

        Raises: `Corrupt` when the file is not as it was; `FileNotFoundError`.
        """
        head = self.head
        assert head is not None, "without a head nothing is kept"
        if head.total != total:
            return False
        self._open(os.O_RDWR)
        if os.fstat(self._handle).st_size != self._tail(head, self.size).size:
            raise damaged(self.file, DATA, reason="it was being received, and has another size now")
        if self._sums is None:
            start, keys = head.manifest.data_bytes, min(self.size, head.data_start) - head.size
            rows = max(0, self.size - head.data_start)
            self._sums = sum_of(self._handle, start, start + keys), sum_of(self._handle, 0, rows)
        return True

    def write(self, chunks: Sequence[Bytes]) -> None:
        """Take the next bytes of the stream.

        Raises: `Corrupt` or `Invalid` when they are no part; what `admit` raises; `Unavailable` when the disk is full.
        """
        rest = chunks if self.head is not None else self._take_head(chunks)
        if self.head is not None:
            self._put(self.head, *self._divided(rest, self.head))

    def _take_head(self, chunks: Sequence[Bytes]) -> Sequence[Bytes]:
        """Take bytes until the head is whole; those that come after it."""
        for number, chunk in enumerate(chunks):
            before = len(self._begun)
            # Mostly the first piece has all of it, and much more, which is not copied.
            head = None if before else parse_head(chunk, self.file.name)
            if head is None:
                self._begun += chunk
                self.size = len(self._begun)
                head = parse_head(self._begun, self.file.name)
            if head is not None:
                if self._admit is not None:
                    self._admit(head)
                with disk_errors(self.file):
                    self.file.parent.mkdir(parents=True, exist_ok=True)
                self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                self.head, self._begun, self.size = head, bytearray(), head.size
                return [memoryview(chunk)[head.size - before :], *chunks[number + 1 :]]
        return ()

    def _open(self, flags: int) -> None:
        with disk_errors(self.file):
            self._handle = os.open(self.file, flags | os.O_CLOEXEC, 0o644)

    def _divided(self, chunks: Sequence[Bytes], head: Head) -> tuple[list[Bytes], list[Bytes]]:
        """The bytes of keys, and those of rows.

        Raises: `Invalid` when there are more than the head declares.
        """
        touched: list[Bytes] = []
        data: list[Bytes] = []
        missing = max(0, head.data_start - self.size)
        for chunk in chunks:
            view = memoryview(chunk)
            touched += [view[:missing]] if missing else []
            data += [view[missing:]] if len(view) > missing else []
            missing = max(0, missing - len(view))
        if self.size + _size(touched) + _size(data) > head.total:
            raise Invalid(
                "more bytes came than the part has", kind="upload_length", part=head.manifest.id, length=head.total,
                hint="send the bytes of the part's stream, and nothing after them",
            )  # fmt: skip
        return touched, data

    def _tail(self, head: Head, size: int) -> Tail:
        return Tail(head.manifest.data_bytes, head.touched_bytes, len(head.text), head.total - size)

    def _put(self, head: Head, touched: Sequence[Bytes], data: Sequence[Bytes]) -> None:
        assert self._sums is not None, "it is open"
        came, size = self.size, self.size + _size(touched) + _size(data)
        tail = self._tail(head, size)
        with disk_errors(self.file):
            if came == head.size and size == head.total:
                write_all(self._handle, [*data, *touched, head.text, tail.pack()], 0)
            else:
                write_all(self._handle, touched, tail.data_bytes + came - head.size)
                write_all(self._handle, data, max(0, came - head.data_start))
                # Last, and so it never counts bytes that are not there.
                write_all(self._handle, [head.text, tail.pack()], tail.manifest_start)
        for summed, chunks in zip(self._sums, (touched, data), strict=True):
            for chunk in chunks:
                summed.update(chunk)
        self.size = size

    def seal(self, accept: Callable[[PartManifest, Path], None] = lambda _manifest, _file: None) -> PartManifest:
        """Check the part and make it durable under the name it has now; only its name is left to be synced.

        `accept` validates what the part holds: meanwhile, the disk is at work.

        Raises: as `check` and `accept`.
        """
        manifest = self.check()
        with disk_errors(self.file):
            sync_all([partial(os.fsync, self._handle), partial(accept, manifest, self.file)])
        self.close()
        return manifest

    def check(self) -> PartManifest:
        """Compare the part with its checksums; nothing is durable yet.

        Raises: `Corrupt`, kind `upload_damaged`, when bytes changed on their way.
        """
        head = self.head
        if head is None or self.size < head.total:
            raise Corrupt("the part ends early", kind="part_stream", file=self.file.name, bytes=self.size)
        assert self._sums is not None, "it is open"
        checksums = head.manifest.touched_checksum, head.manifest.data_checksum
        for piece, summed, stated in zip((TOUCHED, DATA), self._sums, checksums, strict=True):
            if summed.hexdigest() != stated:
                raise Corrupt(
                    "the part was damaged on its way", kind="upload_damaged", part=head.manifest.id, piece=piece,
                    found=summed.hexdigest(), wanted=stated, hint="send it again",
                )  # fmt: skip
        return head.manifest

    def close(self) -> None:
        """Close the file; what came stays, for `resume`. To close twice is harmless."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def remove(self) -> None:
        """Give the disk back."""
        self.close()
        self.file.unlink(missing_ok=True)


def _size(chunks: Sequence[Bytes]) -> int:
    return sum(len(chunk) for chunk in chunks)
