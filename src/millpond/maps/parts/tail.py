"""The tail of a part's file: it says where in the file everything lies, and how much of it is still to come.

    0                 data        LMDB's pages: it opens the file where it lies, and reads nothing behind the last one
    data_bytes        touched     an Arrow file with the keys, see `touched.py`
    + touched_bytes   manifest    the JSON of `part.py`
    + manifest_bytes  tail        `MPFILE` and the number of this format in 2 bytes; then numbers of 8 bytes, little-
                                  endian: the three sizes, the bytes of data and touched that are missing, and the
                                  xxh3_64 of the 40 bytes before

Invariants:
* a file that does not end with a tail, of just the file's size, is no part: nothing else of it is read;
* a part is whole when no byte is missing; a tail names as missing all that was not written before it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from millpond.errors import Corrupt

__all__ = ("DATA", "FILE_FORMAT", "MANIFEST", "TOUCHED", "Tail", "damaged", "parse_tail", "read_tail", "unknown_format")

FILE_FORMAT = 4
"""The file of a part. Up to 3 a part was a folder: see `former.py`."""
DATA, TOUCHED, MANIFEST = "data", "touched", "manifest"
_TAIL = struct.Struct("<6sH4QQ")
_MAGIC = b"MPFILE"
_SUM_BYTES = 8
_READ_BYTES = 8 << 10
"""Mostly the manifest is read with the tail."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The sizes of what the file of a part has, and the bytes of data and touched that are still to come."""

    data_bytes: int
    touched_bytes: int
    manifest_bytes: int
    missing: int = 0

    @property
    def manifest_start(self) -> int:
        """The offset of the manifest."""
        return self.data_bytes + self.touched_bytes

    @property
    def size(self) -> int:
        """The size of the whole file."""
        return self.manifest_start + self.manifest_bytes + _TAIL.size

    def pack(self) -> bytes:
        """The bytes of the tail."""
        sizes = self.data_bytes, self.touched_bytes, self.manifest_bytes, self.missing
        packed = _TAIL.pack(_MAGIC, FILE_FORMAT, *sizes, 0)[:-_SUM_BYTES]
        return packed + _sum(packed)


def read_tail(file: Path, *, whole: bool = True) -> tuple[Tail, bytes]:
    """The tail of a part's file, and the text of its manifest; of a part that is not `whole`, too, if wanted.

    Raises: `Corrupt` when the file is missing or damaged, or of another format.
    """
    try:
        with file.open("rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            begin = max(0, size - _READ_BYTES)
            end = os.pread(source.fileno(), _READ_BYTES, begin)
            tail = parse_tail(end, size, file)
            if tail.manifest_start < begin:
                begin, end = tail.manifest_start, os.pread(source.fileno(), tail.manifest_bytes, tail.manifest_start)
    except OSError as error:
        raise Corrupt(
            "the part's file cannot be read", kind="part_file_missing", file=file, reason=error.strerror
        ) from error
    if whole and tail.missing:
        raise damaged(file, "tail", reason=f"{tail.missing} bytes have not come")
    return tail, end[tail.manifest_start - begin :][: tail.manifest_bytes]


def parse_tail(end: bytes | memoryview, size: int, file: Path) -> Tail:
    """The tail with which a file of some size ends.

    Raises: `Corrupt`, kind `part_damaged` or `part_format`.
    """
    packed = bytes(end[-_TAIL.size :])
    if len(packed) == _TAIL.size and packed[-_SUM_BYTES:] == _sum(packed[:-_SUM_BYTES]):
        magic, number, *sizes, _ = _TAIL.unpack(packed)
        if magic == _MAGIC and number != FILE_FORMAT:
            raise unknown_format(file, number, FILE_FORMAT)
        if magic == _MAGIC and Tail(*sizes).size == size:
            return Tail(*sizes)
    raise damaged(file, "tail", reason="it is not the end of a part")


def _sum(packed: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(packed).to_bytes(_SUM_BYTES, "little")


def damaged(file: Path | str, piece: str, **values: Any) -> Corrupt:
    """The error of a part with a damaged piece. A reason that is stored leaves the file out: it moves."""
    return Corrupt("the part is damaged", kind="part_damaged", piece=piece, file=file, **values)


def unknown_format(file: Path | str, stored: object, present: int) -> Corrupt:
    """The error of a part that another version wrote."""
    return Corrupt(
        "the part has a format this version does not know", kind="part_format", file=file, found=stored, known=present,
        hint="write it anew with this version, or load it with the version that wrote it",
    )  # fmt: skip
