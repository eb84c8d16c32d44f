"""The bytes of the objects of a space in a bucket, drawn in `docs/format/bucket.md`: frames, rows and batches.

Invariants:
* Every object has a frame: what it is, the number of its format, and last a checksum of all before. A newer format
  keeps the frame, so that it is told from damage.
* The chain of a batch is its checksum, and a batch names the chain of the one before: logs that differ anywhere differ
  in every chain from there on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import xxhash

from millpond.errors import Corrupt, Invalid

__all__ = (
    "CHAIN_BYTES", "NO_CHAIN", "Batch", "Change", "Trimmed", "damaged", "decode_batch", "decode_rows", "encode_rows",
    "framed", "row_bytes", "unframed",
)  # fmt: skip

FORMAT = 1
CHAIN_BYTES = 16
NO_CHAIN = bytes(CHAIN_BYTES)
"""The chain before the first batch."""
Change: TypeAlias = tuple[bytes, bytes | None]
"""A key and its new value; None deletes it."""

_BATCH, _TRIMMED = b"MPba", b"MPtr"
_FRAME = struct.Struct(">4sH")
_HEAD = struct.Struct(">Qq16s16s")
_ROW = struct.Struct(">HI")
_DELETED = 0xFFFFFFFF


def framed(what: bytes, content: bytes) -> bytes:
    """An object: its frame around a content."""
    data = _FRAME.pack(what, FORMAT) + content
    return data + xxhash.xxh3_128_digest(data)


def unframed(what: bytes, data: bytes, name: str, where: str) -> bytes:
    """The content of an object that must be of a kind.

    Raises: `Corrupt`, kind `space_damaged`, naming the object; `Invalid` for a newer format.
    """
    kind, version = _FRAME.unpack_from(data) if len(data) >= _FRAME.size + CHAIN_BYTES else (b"", 0)
    if kind != what or xxhash.xxh3_128_digest(data[:-CHAIN_BYTES]) != data[-CHAIN_BYTES:]:
        raise damaged(name, where)
    if version != FORMAT:
        raise Invalid(
            "an object of the space has a format that this version does not know", kind="space_format", object=name,
            where=where, found=version, known=FORMAT, hint="open it with the version that wrote it, or a newer one",
        )  # fmt: skip
    return data[_FRAME.size : -CHAIN_BYTES]


def damaged(name: str, where: str, reason: str = "its bytes are not those that were written") -> Corrupt:
    """The error for an object of the space that is not as it was written."""
    return Corrupt(
        "an object of the space is damaged", kind="space_damaged", object=name, where=where, reason=reason,
        hint="restore the object from a version or a copy of the bucket",
    )  # fmt: skip


def row_bytes(key: bytes, value: bytes | None) -> int:
    """The bytes that a row takes."""
    return _ROW.size + len(key) + len(value or b"")


def encode_rows(rows: Iterable[Change]) -> bytes:
    """Rows, one after another."""
    pieces: list[bytes] = []
    for key, value in rows:
        pieces += (_ROW.pack(len(key), _DELETED if value is None else len(value)), key, value or b"")
    return b"".join(pieces)


def decode_rows(data: bytes) -> Iterator[Change]:
    """The rows that were encoded, in their order."""
    at = 0
    while at < len(data):
        key_bytes, value_bytes = _ROW.unpack_from(data, at)
        start = at + _ROW.size + key_bytes
        at = start if value_bytes == _DELETED else start + value_bytes
        yield data[start - key_bytes : start], None if value_bytes == _DELETED else data[start:at]


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes of one put: `write_id` says whose it is, `before` is the chain of the batch before."""

    number: int
    time_ms: int
    write_id: bytes
    before: bytes
    changes: tuple[Change, ...] = field(repr=False)

    def encode(self) -> bytes:
        """The object; its last bytes are the chain."""
        head = _HEAD.pack(self.number, self.time_ms, self.write_id, self.before)
        return framed(_BATCH, head + encode_rows(self.changes))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A number whose batch is in every checkpoint by now. Its object stays: the number is never free again."""

    number: int

    def encode(self) -> bytes:
        """The object."""
        return framed(_TRIMMED, self.number.to_bytes(8))


def decode_batch(number: int, data: bytes, name: str, where: str) -> tuple[Batch, bytes] | Trimmed:
    """The batch of a number with its chain, or that it was trimmed.

    Raises: as `unframed`.
    """
    if data[:4] == _TRIMMED:
        unframed(_TRIMMED, data, name, where)
        return Trimmed(number)
    content = unframed(_BATCH, data, name, where)
    stored, time_ms, write_id, before = _HEAD.unpack_from(content)
    if stored != number:
        raise damaged(name, where, f"it is batch {stored}")
    rows = tuple(decode_rows(content[_HEAD.size :]))
    return Batch(number, time_ms, write_id, before, rows), data[-CHAIN_BYTES:]
