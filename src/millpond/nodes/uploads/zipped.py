"""A part that comes as a zip, from a program that knows no other form: taken whole, in one request.

    <folder>.zip      its bytes as they come
    <folder>          unpacked and checked

A zip is not continued after a lost connection: whoever needs that sends the stream of the part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from millpond.errors import Corrupt
from millpond.kernel.steps import step
from millpond.maps.parts.bundle import unpack_bundle
from millpond.maps.parts.part import PartManifest
from millpond.stores.files import disk_errors, remove_tree

__all__ = ("ZippedPart",)


class ZippedPart:
    """The bytes of one zip. One thread at a time may use it."""

    def __init__(self, folder: Path, checksum: str, bytes_max: int, check_room: Callable[[int], None]) -> None:
        """`checksum` is of the whole zip; `bytes_max` limits what it unpacks to."""
        self.folder = folder
        self.size = 0
        self._file = folder.with_suffix(".zip")
        self._checksum, self._bytes_max, self._check_room = checksum, bytes_max, check_room
        self._summed = xxhash.xxh3_128()
        with disk_errors(folder):
            self._sink = self._file.open("wb", buffering=0)

    def write(self, chunks: Sequence[bytes | memoryview]) -> None:
        """Take the next bytes.

        Raises: `Unavailable` when the disk is full.
        """
        with disk_errors(self.folder):
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(self._sink.fileno(), rest) :]
                self._summed.update(chunk)
                self.size += len(chunk)

    def check(self) -> PartManifest:
        """As `seal`: what is unpacked is synced in any case."""
        return self.seal()

    def seal(self) -> PartManifest:
        """Unpack the part and check it; only its own name is left to be synced.

        Raises: `Corrupt`, kind `upload_damaged`, when bytes changed on their way; as `unpack_bundle`.
        """
        found = self._summed.hexdigest()
        if found != self._checksum:
            raise Corrupt(
                "the bundle was damaged on its way", kind="upload_damaged", file=self._file.name, found=found,
                wanted=self._checksum, hint="send it again",
            )  # fmt: skip
        self._sink.close()
        manifest = unpack_bundle(self._file, self.folder, self._bytes_max, check_room=self._check_room)
        step("receive.unpacked")
        self._file.unlink()
        return manifest

    def close(self) -> None:
        """Close the file. To close twice is harmless."""
        self._sink.close()

    def remove(self) -> None:
        """Give the disk back."""
        self.close()
        self._file.unlink(missing_ok=True)
        remove_tree(self.folder)
