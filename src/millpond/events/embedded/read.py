"""Reading a stream: its rows in the order of ids, whether they are compressed or not."""

from __future__ import annotations

from dataclasses import replace

from millpond.events.codec import decode, read_header
from millpond.events.embedded.rows import Head, keys_of, listed_segments
from millpond.events.event import Event, Page
from millpond.events.ids import restart_position
from millpond.events.index import DaySegment, State, StreamIndex
from millpond.events.names import StreamName
from millpond.kernel.space import ReadTransaction

__all__ = ("read_index", "read_page")


def read_page(tx: ReadTransaction, stream: StreamName, after: int, bytes_max: int) -> Page:
    """As `StreamStore.read`."""
    keys = keys_of(stream)
    head = Head.read(tx, keys)
    if head is None or head.last_id == after:
        return Page([], after)
    if head.last_id < after:
        return replace(read_page(tx, stream, restart_position(after, head.last_id), bytes_max), gap=True)
    # Rows up to here may still be there: they are dropped in several writes.
    start = max(after, head.dropped_id)
    events: list[Event] = []
    room, more, rows = bytes_max, False, tx.scan(keys.batch_range(start + 1))
    for _, row in rows:
        header = read_header(row)
        events += decode(row, start, bytes_max=None if header.plain_bytes <= room else room, least=0 if events else 1)
        room -= header.plain_bytes
        if room <= 0:
            more = events[-1].number < header.last_id or next(rows, None) is not None
            break
    # The newest events may have been deleted: a reader that found no others is behind them.
    last = events[-1].number if events else head.last_id
    return Page(events, last, more, 0 < after < head.dropped_id)


def read_index(tx: ReadTransaction, stream: StreamName) -> StreamIndex | None:
    """As `StreamStore.index`."""
    keys = keys_of(stream)
    head = Head.read(tx, keys)
    if head is None:
        return None
    segments = list(listed_segments(tx, keys))
    if head.open is not None:
        segments.append(DaySegment(State.OPEN, (head.open,), head.open_stored))
    return StreamIndex(stream, tuple(segments), head.last_id, head.last_day, head.dropped_id)
