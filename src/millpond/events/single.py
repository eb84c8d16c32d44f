"""Rows of one event: little besides the event, for most appends bring one; drawn in `docs/format/events.md`.

Invariants:
* `unpack_single(pack_single(event))` is the same event;
* damage anywhere but in the version is found; a damaged version is that of other rows, which find it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec
import xxhash

from millpond.events.event import NO_HEADERS, Event

if TYPE_CHECKING:
    from millpond.events.event import NewEvent

__all__ = ("SINGLE", "pack_single", "unpack_single")

SINGLE = 2
"""The version of these rows."""
_HEAD = struct.Struct("<BBI")
_EVENT = struct.Struct("<qB")
_LENGTH = struct.Struct("<I")
_HAS_HEADERS = 1
_HEADERS = msgspec.json.Decoder(dict[str, str])


def pack_single(event: NewEvent) -> bytes:
    """The row of an event that was checked."""
    time_ms, payload, kind, headers = event
    kind_bytes = kind.encode()
    flags, body = 0, _EVENT.pack(time_ms, len(kind_bytes)) + kind_bytes
    if headers:
        text = msgspec.json.encode(dict(headers))
        flags, body = _HAS_HEADERS, body + _LENGTH.pack(len(text)) + text
    body += payload
    return _HEAD.pack(SINGLE, flags, _checksum(flags, body)) + body


def unpack_single(row: bytes, number: int) -> Event:
    """The event of a row, whose id is stored elsewhere.

    Raises:
        ValueError, struct.error, msgspec.MsgspecError: it is damaged.
    """
    version, flags, checksum = _HEAD.unpack_from(row)
    body = row[_HEAD.size :]
    if version != SINGLE or flags > _HAS_HEADERS or checksum != _checksum(flags, body):
        raise ValueError("the checksum differs")
    time_ms, length = _EVENT.unpack_from(body)
    at = _EVENT.size + length
    kind = body[_EVENT.size : at].decode()
    if not flags & _HAS_HEADERS:
        return Event(number, time_ms, body[at:], kind, NO_HEADERS)
    (length,) = _LENGTH.unpack_from(body, at)
    at += _LENGTH.size
    headers = _HEADERS.decode(body[at : at + length])
    return Event(number, time_ms, body[at + length :], kind, headers)


def _checksum(flags: int, body: bytes) -> int:
    """The flags are the seed, so that they are covered too."""
    return xxhash.xxh3_64_intdigest(body, flags) & 0xFFFFFFFF
