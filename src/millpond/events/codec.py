"""Batches of events as bytes; drawn in `docs/format/events.md`.

A batch stands for consecutive events of one stream. Its header tells their number and their first and last id, so that
a reader skips a batch without unpacking it. The body holds columns: what is alike stands together, and compresses well.

Invariants:
* `decode(encode(events))` are the same events, whatever the codec;
* damage anywhere, in the header or the body, is found: `Corrupt`;
* a batch has at most `BATCH_PLAIN_BYTES` before compression, or one event.

A row of one event is a batch too, in a form of its own: see `millpond.events.single`.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from millpond.errors import Corrupt, Invalid
from millpond.events.event import EVENT_BYTES_MAX, NO_HEADERS, Event, NewEvent, have_headers
from millpond.events.index import Day
from millpond.events.single import SINGLE, unpack_single

__all__ = (
    "BATCH_PLAIN_BYTES", "EVENT_BYTES", "ROW_BYTES", "Codec", "Continuity", "Header", "cuts", "decode", "encode",
    "header_bytes", "other_events", "pack", "read_header", "size_of", "sizes_of",
)  # fmt: skip

BATCH_PLAIN_BYTES = 512 * 1024
EVENT_BYTES = 64
"""The bytes of the columns of an event, and of its share of a row, beside its payload and headers."""
ROW_BYTES = 64 * 1024
"""Events that are appended together share a row up to so many bytes: a page of a reader is cut between rows."""
VERSION = 1
ZSTD_LEVEL = 3
PLAIN_BYTES_MAX = 2 * EVENT_BYTES_MAX + (1 << 20)
"""No batch is larger: a header that says so is damaged, and its memory is not asked for."""

_HEAD = struct.Struct("<BBHIIqqQ")
_HAS_HEADERS = 1
_NEXT = struct.pack("<q", 1)
_FEW = 64
"""Fewer numbers are faster packed without NumPy."""


class Codec(IntEnum):
    """The form of a body."""

    NONE = 0
    ZSTD = 1


class Header(NamedTuple):
    """The beginning of a batch. `plain_bytes` are those of the body before compression."""

    codec: Codec
    flags: int
    events: int
    plain_bytes: int
    first_id: int
    last_id: int


def size_of(event: Event | NewEvent) -> int:
    """The bytes of a payload and its headers, as an index counts them."""
    size = len(event.payload)
    for name, text in event.headers.items():
        size += len(name.encode()) + len(text.encode())
    return size


def sizes_of(payloads: Sequence[bytes], headers: Sequence[Mapping[str, str]]) -> list[int]:
    """The bytes of each event, as an index counts them."""
    sizes = list(map(len, payloads))
    if have_headers(headers):
        sizes = [
            size + sum(len(name.encode()) + len(text.encode()) for name, text in some.items())
            for size, some in zip(sizes, headers, strict=True)
        ]  # fmt: skip
    return sizes


def cuts(sizes: Sequence[int], row_bytes: int = ROW_BYTES) -> Iterator[tuple[int, int]]:
    """The beginnings and ends of rows: whole events, up to `row_bytes`, at least one."""
    totals = list(accumulate(sizes))
    start = before = 0
    while start < len(sizes):
        stop = max(bisect_right(totals, before + row_bytes, start), start + 1)
        yield start, stop
        start, before = stop, totals[stop - 1]


class Continuity:
    """Batches that hold all events of some days, as far as their headers tell."""

    def __init__(self, days: Sequence[Day]) -> None:
        self._first_id, self._last_id = days[0].first_id, days[-1].last_id
        self._left, self._after = sum(day.count for day in days), 0

    def add(self, header: Header) -> None:
        """Take the next batch.

        Raises:
            Invalid: it does not follow the one before.
        """
        if (header.first_id != self._first_id) if self._after == 0 else (header.first_id <= self._after):
            raise other_events()
        self._after = header.last_id
        self._left -= header.events

    def end(self) -> None:
        """Check that nothing is missing.

        Raises:
            Invalid: the last event is another one, or some between are missing.
        """
        if self._after != self._last_id or self._left != 0:
            raise other_events()


def other_events() -> Invalid:
    """The error for batches of other events than those of the days that they are to replace."""
    return Invalid("the batches do not hold the events of the days", kind="event_switch", hint="read the days again")


def encode(events: Sequence[Event], codec: Codec = Codec.NONE) -> bytes:
    """The bytes of consecutive events."""
    ids, times, payloads, kinds, headers = zip(*events, strict=True)
    return pack(ids, times, payloads, kinds, headers, codec)


def pack(
    ids: Sequence[int], times: Sequence[int], payloads: Sequence[bytes], kinds: Sequence[str],
    headers: Sequence[Mapping[str, str]], codec: Codec = Codec.NONE,
) -> bytes:  # fmt: skip
    """The bytes of consecutive events that come as columns."""
    count = len(ids)
    assert 0 < count == len(times) == len(payloads) == len(kinds) == len(headers)
    flags = _HAS_HEADERS if have_headers(headers) else 0
    pieces = [
        _differences(ids)[8:],
        _differences(times),
        struct.pack(f"<{count}I", *map(len, payloads)),
        _packed_kinds(kinds),
    ]
    if flags & _HAS_HEADERS:
        texts = [msgspec.json.encode(dict(some)) if some else b"" for some in headers]
        pieces += [struct.pack(f"<{count}I", *map(len, texts)), *texts]
    body = b"".join((*pieces, *payloads))
    packed_body = _ZSTD.compress(body, asbytes=True) if codec is Codec.ZSTD else body
    if len(packed_body) >= len(body):
        codec, packed_body = Codec.NONE, body
    head = (VERSION, codec, flags, count, len(body), ids[0], ids[-1])
    return _HEAD.pack(*head, _checksum(head, packed_body)) + packed_body


def _differences(numbers: Sequence[int]) -> bytes:
    """The first number, then the difference of each to the one before."""
    if isinstance(numbers, range):
        return struct.pack("<q", numbers[0]) + _NEXT * (len(numbers) - 1)
    if len(numbers) < _FEW:
        return struct.pack(f"<{len(numbers)}q", numbers[0], *[b - a for a, b in pairwise(numbers)])
    column = np.array(numbers, dtype="<i8")
    column[1:] -= column[:-1].copy()
    return column.tobytes()


def _packed_kinds(kinds: Sequence[str]) -> bytes:
    """The different kinds, then for each event the number of its kind; that of a single kind is left out."""
    positions = {kind: position for position, kind in enumerate(dict.fromkeys(kinds))}
    texts = [kind.encode() for kind in positions]
    table = [struct.pack("<I", len(texts)), *(struct.pack("<B", len(text)) + text for text in texts)]
    return b"".join(table) + (
        struct.pack(f"<{len(kinds)}I", *map(positions.__getitem__, kinds)) if len(texts) > 1 else b""
    )


def read_header(data: bytes) -> Header:
    """The header of a batch, without a look at its body.

    Raises:
        Corrupt: there is none.
        Invalid: another version wrote it.
    """
    if data[:1] == bytes((SINGLE,)):
        return Header(Codec.NONE, 0, 1, len(data), 1, 1)
    if len(data) < _HEAD.size:
        raise _damaged("it is too short", data)
    version, codec, flags, count, plain_bytes, first_id, last_id, _ = _HEAD.unpack_from(data)
    if version != VERSION:
        raise Invalid(
            f"a batch of events has format {version}, and this version of Millpond reads {VERSION} and {SINGLE}",
            kind="events_format", hint="read it with the version of Millpond that wrote it",
        )  # fmt: skip
    if codec > max(Codec) or not count or plain_bytes > PLAIN_BYTES_MAX or not 0 < first_id <= last_id:
        raise _damaged("its header is not understood", data)
    return Header(Codec(codec), flags, count, plain_bytes, first_id, last_id)


def header_bytes(data: bytes) -> int:
    """The bytes of a batch before its body."""
    return 0 if data[0] == SINGLE else _HEAD.size


def decode(
    data: bytes, after: int = 0, base: int = 0, *, bytes_max: int | None = None, least: int = 1, reference: bytes = b""
) -> list[Event]:
    """The events of a batch whose ids are greater than `after`: all; or up to so many bytes of payloads, but `least`.

    `base` is added to the ids in the batch: a backend that assigns ids after the batch was made stores them elsewhere.
    `reference`: the row with which one of a single event was deflated.

    Raises:
        Corrupt: the bytes are not what `encode` wrote.
        Invalid: another version wrote it.
    """
    header = read_header(data)
    if base + header.last_id <= after:
        return []
    if data[0] == SINGLE:
        return [_single(data, base + header.first_id, reference)]
    head = (VERSION, header.codec, header.flags, header.events, header.plain_bytes, header.first_id, header.last_id)
    stored = memoryview(data)[_HEAD.size :]
    if _HEAD.unpack_from(data)[-1] != _checksum(head, stored):
        raise _damaged("its checksum differs", data)
    try:
        return _unpacked(header, _plain(header, stored), after, base, bytes_max, least)
    except (struct.error, ValueError, IndexError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise _damaged("its columns are not understood", data) from error


def _single(data: bytes, number: int, reference: bytes) -> Event:
    try:
        return unpack_single(data, number, reference)
    except (struct.error, ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise _damaged("it does not hold one event", data) from error


def _plain(header: Header, stored: memoryview) -> bytes:
    if header.codec is Codec.NONE:
        plain = bytes(stored)
    else:
        plain = _ZSTD.decompress(stored, decompressed_size=header.plain_bytes, asbytes=True)
    if len(plain) != header.plain_bytes:
        raise ValueError(f"{len(plain)} bytes")
    return plain


def _unpacked(header: Header, plain: bytes, after: int, base: int, bytes_max: int | None, least: int) -> list[Event]:
    count, at = header.events, 0
    ids = np.empty(count, dtype="i8")
    ids[0] = base + header.first_id
    ids[1:] = np.frombuffer(plain, "<i8", count - 1, at)
    np.cumsum(ids, out=ids)
    at += 8 * (count - 1)
    times = np.cumsum(np.frombuffer(plain, "<i8", count, at))
    at += 8 * count
    lengths = np.frombuffer(plain, "<u4", count, at)
    kinds, at = _unpacked_kinds(count, plain, at + 4 * count)
    headers: Sequence[Mapping[str, str]] | None = None
    if header.flags & _HAS_HEADERS:
        headers, at = _unpacked_headers(count, plain, at)
    stops = at + np.cumsum(lengths, dtype="i8")
    if stops[-1] != len(plain) or ids[-1] != base + header.last_id:
        raise ValueError("lengths or ids differ")
    start = int(np.searchsorted(ids, after, "right"))
    begin = int(stops[start] - lengths[start])
    stop = count if bytes_max is None else max(int(np.searchsorted(stops, begin + bytes_max, "right")), start + least)
    ends = stops[start:stop].tolist()
    payloads = [plain[first:last] for first, last in zip([begin, *ends], ends, strict=False)]
    return list(
        map(
            _MAKE,
            zip(
                ids[start:stop].tolist(), times[start:stop].tolist(), payloads, kinds[start:stop],
                repeat(NO_HEADERS, stop - start) if headers is None else headers[start:stop], strict=True,
            ),
        )
    )  # fmt: skip


def _unpacked_kinds(count: int, plain: bytes, at: int) -> tuple[list[str], int]:
    (different,) = struct.unpack_from("<I", plain, at)
    if not 0 < different <= count:
        raise ValueError("no kinds")
    at += 4
    kinds: list[str] = []
    for _ in range(different):
        stop = at + 1 + plain[at]
        kinds.append(plain[at + 1 : stop].decode())
        at = stop
    if different == 1:
        return kinds * count, at
    numbers = struct.unpack_from(f"<{count}I", plain, at)
    return [kinds[number] for number in numbers], at + 4 * count


def _unpacked_headers(count: int, plain: bytes, at: int) -> tuple[list[Mapping[str, str]], int]:
    lengths = struct.unpack_from(f"<{count}I", plain, at)
    stops = list(accumulate(lengths, initial=at + 4 * count))
    texts = [plain[start:stop] for start, stop in pairwise(stops)]
    return [_HEADERS.decode(text) if text else NO_HEADERS for text in texts], stops[-1]


def _checksum(head: tuple[Any, ...], stored: bytes | memoryview) -> int:
    hashed = xxhash.xxh3_64(_HEAD.pack(*head, 0))
    hashed.update(stored)
    return hashed.intdigest()


def _damaged(reason: str, data: bytes) -> Corrupt:
    return Corrupt(
        f"a batch of events is damaged: {reason}", kind="events_damaged", bytes=len(data), begin=data[:16].hex(),
        hint="restore the pond from a backup",
    )  # fmt: skip


_ZSTD = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
_MAKE = partial(tuple.__new__, Event)
"""An event of a tuple: its own constructor checks nothing, and is called by the million."""
_HEADERS = msgspec.json.Decoder(dict[str, str])
