"""Rows of one event: little besides the event, for most appends bring one; drawn in `docs/format/events.md`.

A row may be deflated with another one as its dictionary: the events of a job set are much alike.

Invariants:
* `unpack_single(pack_single(event, reference), …, reference)` is the same event;
* damage anywhere is found, also of the reference, or that it is another one.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
import xxhash

from millpond.events.event import EVENT_BYTES_MAX, NO_HEADERS, Event, NewEvent

__all__ = ("REFERENCE_BYTES_MAX", "SINGLE", "is_deflated", "is_reference", "pack_single", "unpack_single")

SINGLE = 2
"""The version of these rows."""
REFERENCE_BYTES_MAX = 4096
"""A reference has no more bytes, nor what is deflated with it: together they fill the window."""
PLAIN_BYTES_MAX = EVENT_BYTES_MAX + (1 << 20)
_HEAD = struct.Struct("<BBI")
_EVENT = struct.Struct("<qB")
_LENGTH = struct.Struct("<I")
_HAS_HEADERS, _DEFLATED = 1, 2
_WINDOW_BITS = -13  # without a header, and a checksum of its own
_LEVEL, _MEMORY = 3, 4  # more of either makes it slower, and hardly smaller
_HEADERS = msgspec.json.Decoder(dict[str, str])


def pack_single(event: NewEvent, reference: bytes = b"") -> bytes:
    """The row of an event that was checked; deflated with another row, where that makes it smaller."""
    time_ms, payload, kind, headers = event
    kind_bytes = kind.encode()
    flags, body = 0, _EVENT.pack(time_ms, len(kind_bytes)) + kind_bytes
    if headers:
        text = msgspec.json.encode(dict(headers))
        flags, body = _HAS_HEADERS, body + _LENGTH.pack(len(text)) + text
    body += payload
    seed = flags
    if reference and len(body) <= REFERENCE_BYTES_MAX:
        deflating = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY, zdict=reference[_HEAD.size :])
        deflated = deflating.compress(body) + deflating.flush()
        if len(deflated) < len(body):
            flags, body = flags | _DEFLATED, deflated
            seed = _seed(flags, reference)
    return _HEAD.pack(SINGLE, flags, _checksum(body, seed)) + body


def is_reference(row: bytes) -> bool:
    """True when other rows may be deflated with a row."""
    return row[0] == SINGLE and not is_deflated(row) and len(row) <= REFERENCE_BYTES_MAX


def is_deflated(row: bytes) -> bool:
    """True when a row of one event is read together with its reference."""
    return row[1] >= _DEFLATED


def unpack_single(row: bytes, number: int, reference: bytes = b"") -> Event:
    """The event of a row, whose id is stored elsewhere. The reference is needed where it was deflated with one.

    Raises:
        ValueError, struct.error, zlib.error, msgspec.MsgspecError: it is damaged.
    """
    version, flags, checksum = _HEAD.unpack_from(row)
    body = row[_HEAD.size :]
    seed = _seed(flags, reference) if flags & _DEFLATED else flags
    if version != SINGLE or flags > _HAS_HEADERS | _DEFLATED or checksum != _checksum(body, seed):
        raise ValueError("the checksum differs")
    if flags & _DEFLATED:
        body = zlib.decompressobj(_WINDOW_BITS, zdict=reference[_HEAD.size :]).decompress(body, PLAIN_BYTES_MAX)
    time_ms, length = _EVENT.unpack_from(body)
    at = _EVENT.size + length
    kind = body[_EVENT.size : at].decode()
    if not flags & _HAS_HEADERS:
        return Event(number, time_ms, body[at:], kind, NO_HEADERS)
    (length,) = _LENGTH.unpack_from(body, at)
    at += _LENGTH.size
    headers = _HEADERS.decode(body[at : at + length])
    return Event(number, time_ms, body[at + length :], kind, headers)


def _seed(flags: int, reference: bytes) -> int:
    """The flags, and the checksum of the reference: so both are covered by that of the row."""
    return flags | _HEAD.unpack_from(reference)[-1] << 8


def _checksum(body: bytes, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(body, seed) & 0xFFFFFFFF
