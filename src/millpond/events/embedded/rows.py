"""The rows of a stream: their keys, its head, its series of segments.

The head is packed, for every append reads and writes it: see `docs/format/events.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from millpond.errors import Corrupt
from millpond.events.days import format_day
from millpond.events.index import Day, DaySegment, State
from millpond.events.keyspaces import BATCH, HEAD, SEGMENT, SOURCE
from millpond.events.names import StreamName, job_set_part, queue_part
from millpond.json_forms import JsonForm
from millpond.kernel.keys import KeyRange, Prefix
from millpond.kernel.series import Listed, Segment, Series
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = (
    "NO_DAY", "Head", "Keys", "Stored", "adopt_segment", "keys_of", "listed_segments", "pack_position",
    "parse_position", "to_listed", "to_segment",
)  # fmt: skip

NO_DAY = -1
_VERSION = 1
_HEAD = struct.Struct("<BBqqqiiiiqqqqH")
_POSITION_BYTES, _DAY_BYTES = 16, 4


@dataclass(frozen=True, slots=True)
class Stored:
    """The words of a stream about a segment of its series."""

    state: State
    days: tuple[Day, ...]
    stored_bytes: int


_STORED = JsonForm(Stored)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one stream."""

    stream: StreamName
    parts: tuple[str | bytes, str | bytes]
    head: bytes
    batches: Prefix
    sources: Prefix
    series: Series[Stored]

    def batch_range(self, first_id: int, last_id: int | None = None) -> KeyRange:
        """The rows whose last id is `first_id` or greater, up to `last_id`."""
        return self.batches.range((first_id,), None if last_id is None else (last_id + 1,))


@lru_cache(maxsize=4096)
def keys_of(stream: StreamName) -> Keys:
    """The keys of a stream."""
    parts = queue_part(stream.queue), job_set_part(stream.job_set)
    series = Series(SEGMENT[parts], None, _STORED)
    return Keys(stream, parts, HEAD.pack(*parts), BATCH[parts], SOURCE[parts], series)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a stream. Days are `NO_DAY` where there is none.

    `compress_day` and `expire_day`: the oldest day that is not compressed, and the oldest of all; `forget_day`: the
    day of the last append, once there are no events. They are the days under which the registry lists the stream.
    """

    stream: StreamName
    last_id: int = 0
    last_day: int = NO_DAY
    dropped_id: int = 0
    open: Day | None = None
    open_stored: int = 0
    compress_day: int = NO_DAY
    expire_day: int = NO_DAY
    forget_day: int = NO_DAY

    def encode(self) -> bytes:
        """The row."""
        open_ = self.open
        day = (0, 0, 0, 0) if open_ is None else (open_.first_id, open_.last_id, open_.count, open_.bytes)
        queue = self.stream.queue.encode()
        packed = _HEAD.pack(
            _VERSION, open_ is not None, self.last_id, self.dropped_id, self.open_stored, self.last_day,
            self.compress_day, self.expire_day, self.forget_day, *day, len(queue),
        )  # fmt: skip
        return packed + queue + self.stream.job_set.encode()

    @staticmethod
    def decode(row: bytes) -> Head:
        """The head in a row.

        Raises:
            Corrupt: it is not what `encode` wrote.
        """
        try:
            version, is_open, last_id, dropped_id, stored, last_day, compress, expire, forget, *day, length = (
                _HEAD.unpack_from(row)
            )
            names = row[_HEAD.size :]
            stream = StreamName(names[:length].decode(), names[length:].decode())
        except (struct.error, UnicodeDecodeError) as error:
            raise _damaged(row) from error
        if version != _VERSION or is_open > 1 or not 0 <= dropped_id <= last_id or length > len(names):
            raise _damaged(row)
        if is_open and not (0 < day[0] <= day[1] == last_id and 0 < day[2] <= day[1] - day[0] + 1):
            raise _damaged(row)
        open_day = Day(last_day, *day) if is_open else None
        return Head(stream, last_id, last_day, dropped_id, open_day, stored, compress, expire, forget)

    @staticmethod
    def read(tx: ReadTransaction, keys: Keys) -> Head | None:
        """The head of a stream; None when there is no such stream.

        Raises:
            Corrupt: the row is damaged, or of another stream.
        """
        row = tx.get(keys.head)
        if row is None:
            return None
        head = Head.decode(row)
        if head.stream != keys.stream:
            raise _damaged(row)
        return head


def pack_position(position: int, day: int) -> bytes:
    """The row of a source: the position up to which it is stored, and the day of the last of these events."""
    return position.to_bytes(_POSITION_BYTES, "big") + day.to_bytes(_DAY_BYTES, "big")


def parse_position(row: bytes) -> tuple[int, int]:
    """The position and the day in the row of a source; `NO_DAY` in one that was written before days were noted.

    Raises:
        Corrupt: it is not what `pack_position` wrote.
    """
    if len(row) not in (_POSITION_BYTES, _POSITION_BYTES + _DAY_BYTES):
        raise Corrupt("the position of a source cannot be read", kind="events_damaged", begin=row[:16].hex())
    day = row[_POSITION_BYTES:]
    return int.from_bytes(row[:_POSITION_BYTES], "big"), int.from_bytes(day, "big") if day else NO_DAY


def to_segment(about: Stored) -> DaySegment:
    """The segment of the words in a series."""
    return DaySegment(about.state, about.days, about.stored_bytes)


def to_listed(segment: DaySegment) -> Listed[Stored]:
    """The entry of a series for a segment: it stands at its last day."""
    last = segment.days[-1].day
    kernel_segment = Segment(format_day(last), last, segment.count)
    return Listed(kernel_segment, Stored(segment.state, segment.days, segment.stored_bytes))


def listed_segments(tx: ReadTransaction, keys: Keys) -> Iterator[DaySegment]:
    """The segments of a stream that are open no more, oldest first.

    Raises:
        Corrupt: a row is damaged.
    """
    for listed in keys.series.listed(tx):
        yield to_segment(listed.about)


def adopt_segment(tx: Transaction, keys: Keys, segment: DaySegment) -> None:
    """List a segment as the newest of the series."""
    listed = to_listed(segment)
    keys.series.adopt(tx, listed.segment, listed.about)


def _damaged(row: bytes) -> Corrupt:
    return Corrupt(
        "the head of a stream of events cannot be read", kind="events_damaged", begin=row[:16].hex(),
        hint="restore the pond from a backup",
    )  # fmt: skip
