"""The rows of a stream in Redis, as Python reads them: its head, and the segments of its index.

The scripts write heads, and the segments of closed days; `docs/format/events.md` draws both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from millpond.errors import Corrupt
from millpond.events.index import Day, DaySegment, State, StreamIndex
from millpond.events.names import StreamName

__all__ = ("NO_DAY", "Head", "Listed", "id_bytes", "index_of", "names_in_full", "pack_segment", "parse_segment")

NO_DAY = -1
_HEAD, _EARLIER_HEAD = struct.Struct(">BBqiiiqIqQQQB"), struct.Struct(">BBqqiiiqQQQ")
_HEAD_VERSION, _REFERENCE_BYTES, _POSITION_BYTES = 3, 4, 20
_SEGMENT = struct.Struct(">qBQH")
_DAY = struct.Struct(">iqqQQ")
_STATES = {1: State.CLOSED, 2: State.COMPRESSED}
_NUMBERS = {state: number for number, state in _STATES.items()}


def id_bytes(id_: int) -> bytes:
    """An id as scripts take it."""
    return id_.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a stream; `names` are there when its keys hold a hash of them."""

    last_id: int
    last_day: int
    dropped_id: int
    open: Day | None
    open_stored: int
    compress_day: int
    expire_day: int
    names: StreamName | None

    @staticmethod
    def decode(row: bytes) -> Head:
        """The head in a row.

        Raises:
            Corrupt: no script wrote it.
        """
        try:
            version, is_open = row[0], row[1]
            if version == _HEAD_VERSION:
                (
                    _, _, dropped_id, last_day, compress_day, expire_day, first_id, _, last_id, count, size, stored,
                    source_bytes,
                ) = _HEAD.unpack_from(row)  # fmt: skip
                at = _HEAD.size + source_bytes + _POSITION_BYTES
            else:
                (
                    _, _, last_id, dropped_id, last_day, compress_day, expire_day, first_id, count, size, stored,
                ) = _EARLIER_HEAD.unpack_from(row)  # fmt: skip
                at = _EARLIER_HEAD.size + (0 if version == 1 else _REFERENCE_BYTES)
            names = _parse_names(row[at:])
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise _damaged("head", row) from error
        if not 1 <= version <= _HEAD_VERSION or is_open > 1 or not 0 <= dropped_id <= last_id:
            raise _damaged("head", row)
        if is_open and not (0 < first_id <= last_id and 0 < count <= last_id - first_id + 1):
            raise _damaged("head", row)
        open_day = Day(last_day, first_id, last_id, count, size) if is_open else None
        return Head(last_id, last_day, dropped_id, open_day, stored, compress_day, expire_day, names)


def names_in_full(stream: StreamName) -> bytes:
    """The names of a stream, as its head holds them."""
    queue = stream.queue.encode()
    return struct.pack(">H", len(queue)) + queue + stream.job_set.encode()


def _parse_names(data: bytes) -> StreamName | None:
    if not data:
        return None
    (length,) = struct.unpack_from(">H", data)
    return StreamName(data[2 : 2 + length].decode(), data[2 + length :].decode())


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment with the row of the index that lists it; `batches` are the last ids of its compressed batches.

    A closed segment with batches is partly compressed: raw are only the events behind them.
    """

    segment: DaySegment
    row: bytes
    batches: tuple[int, ...]


def pack_segment(segment: DaySegment, batches: Sequence[int]) -> bytes:
    """The row of a compressed segment."""
    head = _SEGMENT.pack(segment.last_id, _NUMBERS[segment.state], segment.stored_bytes, len(segment.days))
    days = [_DAY.pack(day.day, day.first_id, day.last_id, day.count, day.bytes) for day in segment.days]
    return b"".join((head, *days, struct.pack(f">I{len(batches)}q", len(batches), *batches)))


def parse_segment(row: bytes) -> Listed:
    """The segment of a row.

    Raises:
        Corrupt: the row is damaged.
    """
    try:
        last_id, number, stored, count = _SEGMENT.unpack_from(row)
        at = _SEGMENT.size + count * _DAY.size
        days = tuple(Day(*day) for day in _DAY.iter_unpack(row[_SEGMENT.size : at]))
        batches: tuple[int, ...] = ()
        if len(row) > at:
            (length,) = struct.unpack_from(">I", row, at)
            batches = struct.unpack_from(f">{length}q", row, at + 4)
        segment = DaySegment(_STATES[number], days, stored)
    except (struct.error, KeyError, TypeError, AssertionError) as error:
        raise _damaged("index", row) from error
    if segment.last_id != last_id:
        raise _damaged("index", row)
    return Listed(segment, row, batches)


def index_of(stream: StreamName, head: Head, listed: Sequence[Listed]) -> StreamIndex:
    """The index of a stream."""
    segments = [row.segment for row in listed]
    if head.open is not None:
        segments.append(DaySegment(State.OPEN, (head.open,), head.open_stored))
    return StreamIndex(stream, tuple(segments), head.last_id, head.last_day, head.dropped_id)


def _damaged(part: str, row: bytes) -> Corrupt:
    return Corrupt(
        f"the {part} of a stream of events cannot be read", kind="events_damaged", begin=row[:16].hex(),
        hint="restore the streams from a copy of Redis",
    )  # fmt: skip
