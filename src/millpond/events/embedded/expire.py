"""Dropping days: first their events are hidden, then their rows go, then the days leave the index. A deletion hides all
days of a stream in one write, and takes them from the index; its rows go as those of old days do.

Each write drops a bounded number of rows. A segment whose rows are not all gone is listed as expired: after a crash
the next call goes on there, for the registry lists the stream until the segment has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millpond.events.codec import Codec, decode, encode
from millpond.events.days import day_of, latest_due_day
from millpond.events.embedded.append import close_open_day
from millpond.events.embedded.registry import put_head
from millpond.events.embedded.rows import (
    NO_DAY,
    Head,
    Keys,
    keys_of,
    listed_segments,
    pack_position,
    parse_position,
    to_listed,
)
from millpond.events.embedded.work import with_work
from millpond.events.ids import first_id
from millpond.events.index import DaySegment, State
from millpond.events.names import StreamName
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step

__all__ = ("delete_days", "expire_days", "expire_together")

ROWS_PER_WRITE = 1_000


def expire_days(space: Space, stream: StreamName, day: int, now_ms: int, forget_ms: int) -> int:
    """As `StreamStore.expire`."""
    keys, count = keys_of(stream), 0
    while True:
        outcome = space.write(lambda tx: _expire_some(tx, keys, day, latest_due_day(now_ms, forget_ms), ROWS_PER_WRITE))
        count += outcome.count
        if outcome.done:
            return count
        step("events.rows_dropped")


def expire_together(space: Space, streams: Sequence[StreamName], day: int, now_ms: int, forget_ms: int) -> int:
    """As `BatchedStore.expire_many`: those that have few rows share a write."""

    def change(tx: Transaction) -> tuple[int, list[StreamName]]:
        count, rows_left = 0, ROWS_PER_WRITE
        rest: list[StreamName] = []
        for stream in streams:
            if rows_left <= 0:
                rest.append(stream)
                continue
            outcome = _expire_some(tx, keys_of(stream), day, latest_due_day(now_ms, forget_ms), rows_left)
            count, rows_left = count + outcome.count, outcome.rows_left
            if not outcome.done:
                rest.append(stream)
        return count, rest

    count, rest = space.write(change)
    step("events.rows_dropped")
    return count + sum(expire_days(space, stream, day, now_ms, forget_ms) for stream in rest)


def delete_days(space: Space, stream: StreamName, now_ms: int, forget_ms: int) -> int:
    """As `StreamStore.delete`."""
    count = space.write(lambda tx: _hide(tx, keys_of(stream), now_ms))
    step("events.stream_hidden")
    expire_days(space, stream, NO_DAY, now_ms, forget_ms)
    return count


def _hide(tx: Transaction, keys: Keys, now_ms: int) -> int:
    before = Head.read(tx, keys)
    segments = [segment for segment in listed_segments(tx, keys) if segment.state is not State.EXPIRED]
    if before is None or (not segments and before.open is None):
        return 0
    keys.series.clear(tx)
    hidden = first_id(before.last_id, now_ms, 1)
    # No day is left, so today's events find today free.
    last_day = max(min(before.last_day, day_of(now_ms) - 1), 0)
    put_head(tx, keys, before, with_work(tx, keys, Head(before.stream, hidden, last_day, hidden)))
    return sum(segment.count for segment in segments) + (before.open.count if before.open is not None else 0)


@dataclass(frozen=True, slots=True)
class _Outcome:
    count: int
    rows_left: int

    @property
    def done(self) -> bool:
        return self.rows_left > 0


def _expire_some(tx: Transaction, keys: Keys, day: int, forget_day: int, rows_left: int) -> _Outcome:
    before = Head.read(tx, keys)
    if before is None:
        return _Outcome(0, rows_left)
    head, count = before, 0
    rows_left -= tx.delete_range(keys.batch_range(0, head.dropped_id), rows_left)
    if rows_left <= 0:
        return _Outcome(0, 0)
    if head.open is not None and head.open.day <= day:
        head = close_open_day(tx, keys, head)
    while rows_left > 0 and (segment := next(listed_segments(tx, keys), None)) and segment.days[0].day <= day:
        if segment.days[-1].day > day:
            dropped_id = next(later for later in reversed(segment.days) if later.day <= day).last_id
            head, count = replace(head, dropped_id=dropped_id), count + _trim(tx, keys, segment, day)
            break
        if segment.state is not State.EXPIRED:
            head, count = replace(head, dropped_id=segment.last_id), count + segment.count
        dropped = tx.delete_range(keys.batch_range(segment.first_id, segment.last_id), rows_left)
        rows_left -= dropped
        step("events.rows_expired")
        if rows_left > 0:
            keys.series.retire(tx, [segment.days[-1].day])
        elif segment.state is not State.EXPIRED:
            _substitute(tx, keys, segment, replace(segment, state=State.EXPIRED))
    rows_left -= _drop_positions(tx, keys, head.last_day, min(day, forget_day), rows_left)
    head = with_work(tx, keys, head)
    if head.forget_day != NO_DAY and head.forget_day <= forget_day:
        _forget(tx, keys, before)
    elif head != before:
        put_head(tx, keys, before, head)
    return _Outcome(count, rows_left)


def _drop_positions(tx: Transaction, keys: Keys, last_day: int, day: int, limit: int) -> int:
    """Drop the positions of sources whose last events were of that day or before; how many, up to a limit."""
    dropped = 0
    for key, row in list(tx.scan(keys.sources.range())):
        position, last = parse_position(row)
        if last == NO_DAY:
            tx.put(key, pack_position(position, last_day))
        elif last <= day and dropped < limit:
            dropped += tx.delete(key)
    return dropped


def _trim(tx: Transaction, keys: Keys, segment: DaySegment, day: int) -> int:
    """Rewrite a segment of small days without those that are due; the number of events dropped."""
    days = tuple(later for later in segment.days if later.day > day)
    rows = keys.batch_range(segment.first_id, segment.last_id)
    events = [event for _, row in tx.scan(rows) for event in decode(row, days[0].first_id - 1)]
    tx.delete_range(rows)
    row = encode(events, Codec.ZSTD)
    tx.put(keys.batches.pack(segment.last_id), row)
    trimmed = DaySegment(segment.state, days, len(row))
    _substitute(tx, keys, segment, trimmed)
    return segment.count - trimmed.count


def _substitute(tx: Transaction, keys: Keys, segment: DaySegment, output: DaySegment) -> None:
    listed = to_listed(output)
    keys.series.substitute(tx, [to_listed(segment)], listed.segment, listed.about)


def _forget(tx: Transaction, keys: Keys, before: Head) -> None:
    """Remove what is left of a stream without events: its source positions and its head."""
    put_head(tx, keys, before, replace(before, compress_day=NO_DAY, expire_day=NO_DAY, forget_day=NO_DAY))
    tx.delete_range(keys.sources.range())
    tx.delete(keys.head)
