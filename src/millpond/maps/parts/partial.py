"""A part that is being received: the stream of a part is taken apart into its files as it comes.

    <folder>/manifest.json     written when the head of the stream has come whole
    <folder>/touched.arrow     the bytes that have come so far, and
    <folder>/data.mdb          when the first file is whole, those of this one

Each file is written once, at its place, and summed while it is written.

Invariants:
* no byte of the files is written before the head was understood and admitted;
* bytes come in order, so the sizes of the files say how many bytes of the stream have come;
* nothing is written beyond the sizes that the head declares;
* `seal` succeeds only for a part whose files have the checksums of its manifest, and whose bytes and names are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from millpond.errors import Corrupt, Invalid
from millpond.maps.parts.part import MANIFEST, PartManifest
from millpond.maps.parts.stream import Head, head_of, parse_head
from millpond.stores.files import disk_errors, remove_tree, sync
from millpond.stores.growing_file import Bytes, GrowingFile
from millpond.stores.sync_threads import sync_all

__all__ = ("PartialPart",)

_FILES = (MANIFEST, "touched.arrow", "data.mdb")
"""In the order of the stream."""


class PartialPart:
    """The files of one part, as many bytes of it as have come. One thread at a time may use it."""

    def __init__(self, folder: Path, admit: Callable[[Head], None] | None = None) -> None:
        """Nothing is written until the head has come; `admit` raises when the part is not wanted."""
        self.folder = folder
        self.head: Head | None = None
        self._admit = admit
        self._begun = bytearray()
        self._manifest, self._touched, self._data = (GrowingFile(folder / name) for name in _FILES)

    @classmethod
    def left(cls, folder: Path) -> PartialPart | None:
        """The part that an earlier process received some of; None when that is of no use."""
        begun = cls(folder)
        try:
            text = (folder / MANIFEST).read_bytes()
            begun._manifest, begun._touched, begun._data = (GrowingFile.left(folder / name) for name in _FILES)
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
        return self._touched.resume(self.head.touched_bytes) and self._data.resume(data_bytes if whole else 0)

    def write(self, chunks: Sequence[Bytes]) -> None:
        """Take the next bytes of the stream.

        Raises: `Corrupt` or `Invalid` when they are no part; what `admit` raises; `Unavailable` when the disk is full.
        """
        rest = chunks if self.head is not None else self._take_head(chunks)
        if self.head is not None:
            touched, data = self._divided(rest, self.head)
            self._touched.write(touched)
            self._data.write(data)

    def _take_head(self, chunks: Sequence[Bytes]) -> Sequence[Bytes]:
        """Take bytes until the head is whole; those that come after it."""
        for number, chunk in enumerate(chunks):
            before = len(self._begun)
            # Mostly the first piece has all of it, and much more, which is not copied.
            head = None if before else parse_head(chunk, self.folder.name)
            if head is None:
                self._begun += chunk
                head = parse_head(self._begun, self.folder.name)
            if head is not None:
                if self._admit is not None:
                    self._admit(head)
                self._create(head)
                return [memoryview(chunk)[head.size - before :], *chunks[number + 1 :]]
        return ()

    def _create(self, head: Head) -> None:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True)
            for file in (self._manifest, self._touched, self._data):
                file.open()
        self._manifest.write([head.text])
        self.head, self._begun = head, bytearray()

    def _divided(self, chunks: Sequence[Bytes], head: Head) -> tuple[list[Bytes], list[Bytes]]:
        """The bytes of `touched.arrow`, and those of `data.mdb`.

        Raises: `Invalid` when there are more than the head declares.
        """
        touched: list[Bytes] = []
        data: list[Bytes] = []
        missing = head.touched_bytes - self._touched.size
        for chunk in chunks:
            view = memoryview(chunk)
            touched += [view[:missing]] if missing else []
            data += [view[missing:]] if len(view) > missing else []
            missing = max(0, missing - len(view))
        if self._data.size + sum(len(chunk) for chunk in data) > head.manifest.data_bytes:
            raise Invalid(
                "more bytes came than the part has", kind="upload_length", part=head.manifest.id, length=head.total,
                hint="send the bytes of the part's three files, and nothing after them",
            )  # fmt: skip
        return touched, data

    def seal(self, accept: Callable[[PartManifest, Path], None] = lambda _manifest, _folder: None) -> PartManifest:
        """Check the part and make it durable under the name it has now; only its own name is left to be synced.

        `accept` validates what the part holds: meanwhile, the disk is at work.

        Raises: as `check` and `accept`.
        """
        manifest = self.check()
        # The largest first: while it is written, the others are on their way.
        syncs = [file.sync for file in (self._data, self._touched, self._manifest)]
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
        for file, stated in (
            (self._touched, head.manifest.touched_checksum), (self._data, head.manifest.data_checksum),
        ):  # fmt: skip
            actual = file.checksum()
            if actual != stated:
                raise Corrupt(
                    "the part was damaged on its way", kind="upload_damaged", part=head.manifest.id,
                    file=file.path.name, found=actual, wanted=stated, hint="send it again",
                )  # fmt: skip
        return head.manifest

    def close(self) -> None:
        """Close the files; what came stays, for `resume`. To close twice is harmless."""
        for file in (self._manifest, self._touched, self._data):
            file.close()

    def remove(self) -> None:
        """Give the disk back."""
        self.close()
        remove_tree(self.folder)
