"""A part that is being received: the stream of a part is taken apart into its files as it comes.

    <folder>/manifest.json     written when the head of the stream has come whole
    <folder>/touched.arrow     the bytes that have come so far, and
    <folder>/data.mdb          when the first file is whole, those of this one

Each file is written once, at its place, and summed while it is written: nothing is read again, but by a process that
continues what an earlier one left.

Invariants:
* no byte of the files is written before the head was understood and admitted;
* bytes come in order, so the sizes of the files say how many bytes of the stream have come;
* nothing is written beyond the sizes that the head declares;
* `seal` succeeds only for a part whose files have the checksums of its manifest, and whose bytes and names are durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import xxhash

from millpond.errors import Corrupt, Invalid
from millpond.maps.parts.part import MANIFEST, PartManifest
from millpond.maps.parts.stream import Head, head_of, parse_head
from millpond.stores.files import disk_errors, remove_tree, sync
from millpond.stores.sync_threads import sync_all

__all__ = ("PartialPart",)

_VECTORS_MAX = 1000  # of one write: systems take 1,024
_READ_BYTES = 1 << 20

_Bytes: TypeAlias = bytes | memoryview


class _File:
    """One file that grows. Its sum is unknown after a restart, until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.summed: xxhash.xxh3_128 | None = xxhash.xxh3_128()
        self.handle = -1

    def open(self) -> None:
        """Open the file, or make it."""
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def resume(self) -> None:
        """Open the file again, and sum what an earlier process left of it.

        Raises: `Corrupt` when it has fewer bytes than it had.
        """
        self.open()
        if os.fstat(self.handle).st_size < self.size:
            raise Corrupt(
                "a file that was being received is shorter now", kind="part_damaged", file=self.path.name,
                folder=self.path.parent,
            )  # fmt: skip
        os.ftruncate(self.handle, self.size)
        if self.summed is None:
            self.summed = xxhash.xxh3_128()
            for start in range(0, self.size, _READ_BYTES):
                self.summed.update(os.pread(self.handle, min(_READ_BYTES, self.size - start), start))

    def append(self, chunks: Sequence[_Bytes]) -> None:
        """Write the next bytes. What is written partly before an error is not counted."""
        assert self.summed is not None, "it is open"
        size = _write_all(self.handle, chunks, self.size)
        for chunk in chunks:
            self.summed.update(chunk)
        self.size += size

    def close(self) -> None:
        """Close the file; what came stays."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1


class PartialPart:
    """The files of one part, as many bytes of it as have come. One thread at a time may use it."""

    def __init__(self, folder: Path, admit: Callable[[Head], None] | None = None) -> None:
        """Nothing is written until the head has come; `admit` raises when the part is not wanted."""
        self.folder = folder
        self.head: Head | None = None
        self._admit = admit
        self._begun = bytearray()
        self._touched, self._data = _File(folder / "touched.arrow"), _File(folder / "data.mdb")
        self._manifest = -1

    @classmethod
    def left(cls, folder: Path) -> PartialPart | None:
        """The part that an earlier process received some of; None when that is of no use."""
        begun = cls(folder)
        try:
            text = (folder / MANIFEST).read_bytes()
            for file in (begun._touched, begun._data):
                file.size, file.summed = file.path.stat().st_size, None
            begun.head = head_of(text, begun._touched.size, folder)
        except (OSError, Corrupt):
            return None
        return begun

    @property
    def size(self) -> int:
        """The number of bytes of the stream that have come."""
        if self.head is None:
            return len(self._begun)
        return self.head.size + self._touched.size + self._data.size

    def resume(self, total: int) -> bool:
        """Continue a stream of so many bytes; False when what has come is no beginning of one.

        Raises: `Corrupt` when files are not as they were.
        """
        assert self.head is not None, "without a head nothing is kept"
        text, data_bytes = self.head.text, self.head.manifest.data_bytes
        # The size of `touched.arrow` is in no file: it is what the whole leaves for it.
        self.head = head_of(text, total - data_bytes - self.head.size, self.folder)
        whole = self._touched.size == self.head.touched_bytes
        if self._touched.size > self.head.touched_bytes or self._data.size > (data_bytes if whole else 0):
            return False
        self._touched.resume()
        self._data.resume()
        return True

    def write(self, chunks: Sequence[bytes | memoryview]) -> None:
        """Take the next bytes of the stream.

        Raises: `Corrupt` or `Invalid` when they are no part; what `admit` raises; `Unavailable` when the disk is full.
        """
        with disk_errors(self.folder):
            rest = chunks if self.head is not None else self._take_head(chunks)
            if self.head is None:
                return
            for file, pieces in self._divided(rest, self.head):
                if pieces:
                    file.append(pieces)

    def _take_head(self, chunks: Sequence[bytes | memoryview]) -> Sequence[_Bytes]:
        """Take bytes until the head is whole; those that come after it."""
        for number, chunk in enumerate(chunks):
            before = len(self._begun)
            self._begun += chunk
            head = parse_head(self._begun, self.folder.name)
            if head is not None:
                if self._admit is not None:
                    self._admit(head)
                self._create(head)
                return [memoryview(chunk)[head.size - before :], *chunks[number + 1 :]]
        return ()

    def _create(self, head: Head) -> None:
        self.folder.mkdir(parents=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._manifest = os.open(self.folder / MANIFEST, flags, 0o644)
        _write_all(self._manifest, [head.text], 0)
        self._touched.open()
        self._data.open()
        self.head, self._begun = head, bytearray()

    def _divided(self, chunks: Sequence[_Bytes], head: Head) -> list[tuple[_File, list[_Bytes]]]:
        """The bytes for each file.

        Raises: `Invalid` when there are more than the head declares.
        """
        touched: list[_Bytes] = []
        data: list[_Bytes] = []
        missing = head.touched_bytes - self._touched.size
        for chunk in chunks:
            if missing == 0:
                data.append(chunk)
            elif len(chunk) <= missing:
                touched.append(chunk)
                missing -= len(chunk)
            else:
                view = memoryview(chunk)
                touched.append(view[:missing])
                data.append(view[missing:])
                missing = 0
        if self._data.size + sum(len(chunk) for chunk in data) > head.manifest.data_bytes:
            raise Invalid(
                "more bytes came than the part has", kind="upload_length", part=head.manifest.id, length=head.total,
                hint="send the bytes of the part's three files, and nothing after them",
            )  # fmt: skip
        return [(self._touched, touched), (self._data, data)]

    def seal(self, accept: Callable[[PartManifest, Path], None] = lambda _manifest, _folder: None) -> PartManifest:
        """Check the part and make it durable under the name it has now; only its own name is left to be synced.

        `accept` validates what the part holds: meanwhile, the disk is at work.

        Raises: as `check` and `accept`.
        """
        manifest = self.check()
        # The largest first: while it is written, the others are on their way.
        handles = [file.handle for file in (self._data, self._touched)] + [self._manifest] * (self._manifest >= 0)
        syncs: list[Callable[[], object]] = [partial(os.fsync, handle) for handle in handles]
        if self._manifest < 0:
            syncs.append(partial(sync, self.folder / MANIFEST))
        with disk_errors(self.folder):
            sync_all([*syncs, partial(sync, self.folder), partial(accept, manifest, self.folder)])
        self.close()
        return manifest

    def check(self) -> PartManifest:
        """Compare the part with its checksums; nothing is durable yet.

        Raises: `Corrupt`, kind `upload_damaged`, when bytes changed on their way.
        """
        head = self.head
        if head is None or self.size < head.total:
            raise Corrupt("the part ends early", kind="part_stream", folder=self.folder.name, bytes=self.size)
        for file, wanted in (
            (self._touched, head.manifest.touched_checksum), (self._data, head.manifest.data_checksum),
        ):  # fmt: skip
            assert file.summed is not None, "it is open"
            found = file.summed.hexdigest()
            if found != wanted:
                raise Corrupt(
                    "the part was damaged on its way", kind="upload_damaged", part=head.manifest.id,
                    file=file.path.name, found=found, wanted=wanted, hint="send it again",
                )  # fmt: skip
        return head.manifest

    def close(self) -> None:
        """Close the files; what came stays, for `resume`. To close twice is harmless."""
        self._touched.close()
        self._data.close()
        if self._manifest >= 0:
            os.close(self._manifest)
        self._manifest = -1

    def remove(self) -> None:
        """Give the disk back."""
        self.close()
        remove_tree(self.folder)


def _write_all(handle: int, chunks: Sequence[_Bytes], offset: int) -> int:
    """Write as they lie in memory, and count; the system may take less at once than it is given."""
    total = 0
    for first in range(0, len(chunks), _VECTORS_MAX):
        some = chunks[first : first + _VECTORS_MAX]
        size = sum(len(chunk) for chunk in some)
        written = os.pwritev(handle, some, offset + total) if size else 0
        rest = memoryview(b"".join(some))[written:] if written < size else memoryview(b"")
        while rest:
            count = os.pwrite(handle, rest, offset + total + size - len(rest))
            rest = rest[count:]
        total += size
    return total
