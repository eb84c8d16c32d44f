"""Appending to a stream: ids, days and the source position are decided in the transaction that stores the events."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from millpond.events.codec import cuts, pack, sizes_of
from millpond.events.days import DAY_MAX, day_of, runs_of
from millpond.events.embedded.registry import put_head
from millpond.events.embedded.rows import NO_DAY, Head, Keys, adopt_segment, keys_of, pack_position, parse_position
from millpond.events.event import Appended, Columns, EventBatch
from millpond.events.ids import first_id
from millpond.events.index import Day, DaySegment, State
from millpond.events.keyspaces import CLOCK
from millpond.events.protocol import StreamRules
from millpond.events.witness import believed_ms, first_day
from millpond.kernel.scans import put_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step

__all__ = ("append_events", "close_open_day")


def append_events(tx: Transaction, batch: EventBatch, now_ms: int, rules: StreamRules) -> Appended:
    """Append a checked batch to its stream, in the caller's transaction."""
    keys = keys_of(batch.stream)
    before = Head.read(tx, keys)
    head = before or Head(batch.stream)
    if batch.expected_id not in (None, head.last_id):
        return Appended(0, 0, 0, head.last_id)
    stored_before = _stored_before(tx, keys, batch)
    count = len(batch.events) - stored_before
    if not count:
        return Appended(0, stored_before, 0, head.last_id)
    first = first_id(head.last_id, now_ms, count)
    columns = batch.columns(stored_before)
    floor = _floor_day(head, now_ms) if before else first_day(now_ms, believed_ms(tx, CLOCK.pack()))
    for run in runs_of(columns.times, floor, now_ms + rules.ahead_ms):
        if head.open is None or run.day > head.open.day:
            head = _begun(close_open_day(tx, keys, head), run.day)
        part = columns if count == run.stop - run.start else columns.part(run.start, run.stop)
        head = _put_events(tx, keys, head, part, first + run.start, rules.row_bytes)
    step("events.rows_put")
    if batch.source:
        last = max(head.last_day, day_of(now_ms))  # history is delivered long after the days of its events
        tx.put(keys.sources.pack(batch.source), pack_position(batch.positions[-1], last))
    put_head(tx, keys, before, head)
    return Appended(count, stored_before, first, head.last_id)


def close_open_day(tx: Transaction, keys: Keys, head: Head) -> Head:
    """The head without its open day, which is listed as closed; the caller writes it."""
    if head.open is not None:
        adopt_segment(tx, keys, DaySegment(State.CLOSED, (head.open,), head.open_stored))
    return replace(head, open=None, open_stored=0)


def _begun(head: Head, day: int) -> Head:
    """The head with a new last day; the registry lists a stream from its oldest day on."""
    return replace(
        head, last_day=day, forget_day=NO_DAY,
        compress_day=day if head.compress_day == NO_DAY else head.compress_day,
        expire_day=day if head.expire_day == NO_DAY else head.expire_day,
    )  # fmt: skip


def _stored_before(tx: ReadTransaction, keys: Keys, batch: EventBatch) -> int:
    """The number of events at the begin of a batch that were stored with an earlier one."""
    row = tx.get(keys.sources.pack(batch.source)) if batch.source else None
    if row is None:
        return 0
    return bisect_right(batch.positions, parse_position(row)[0])


def _floor_day(head: Head, now_ms: int) -> int:
    """The day before which no event goes: the open day; a new one, where the last day is closed."""
    if head.open is not None:
        return head.open.day
    return min(max(head.last_day + 1, day_of(now_ms)), DAY_MAX)


def _put_events(
    tx: Transaction, keys: Keys, head: Head, columns: Columns, first: int, row_bytes: int
) -> Head:  # fmt: skip
    """Put the rows of events that belong to the last day, and come as columns; the head with them."""
    times, payloads, kinds, headers = columns
    sizes = sizes_of(payloads, headers)
    rows: list[tuple[bytes, bytes]] = []
    for start, stop in cuts(sizes, row_bytes):
        ids = range(first + start, first + stop)
        row = pack(ids, times[start:stop], payloads[start:stop], kinds[start:stop], headers[start:stop])
        rows.append((keys.batches.pack(ids[-1]), row))
    put_rows(tx, rows)
    count, size = len(sizes), sum(sizes)
    last = first + count - 1
    open_day = Day(head.last_day, first, last, count, size) if head.open is None else head.open.grown(last, count, size)
    return replace(head, open=open_day, open_stored=head.open_stored + sum(len(row) for _, row in rows), last_id=last)
