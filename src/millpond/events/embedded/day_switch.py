"""Switching segments to a compressed one: row by row, each step one atomic write that a fence protects.

A closed day never changes, so a run of its rows is replaced by one row of the same events at any time, and by the rest
of the last of them; a reader meets the one or the others, in the same order. So nothing is built beside the stream,
nothing is left over by a crash, and a day of any size is switched in bounded memory. The last step lists the day as
compressed.

Invariants:
* a step happens only while the series lists the segments as they were seen, and the rows hold as many events as the
  batch, between the same ids; so of two compressors one is fenced, or puts the same events in place of the same;
* until the last step the segments are listed as closed: whoever finds them does it all anew, which is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from millpond.errors import Fenced, Invalid
from millpond.events.codec import Continuity, Header, decode, encode, read_header
from millpond.events.embedded.registry import put_head
from millpond.events.embedded.rows import NO_DAY, Head, Keys, keys_of, to_listed, to_segment
from millpond.events.index import DaySegment, State
from millpond.events.names import StreamName
from millpond.events.protocol import Switch
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step

__all__ = ("check_listed", "moved", "replace_rows", "switch_segments", "switch_together")


def switch_segments(
    space: Space, stream: StreamName, seen: Sequence[DaySegment], batches: Callable[[int], Iterable[bytes]]
) -> DaySegment:
    """As `StreamStore.switch`."""
    if not seen or any(segment.state not in (State.CLOSED, State.COMPRESSED) for segment in seen):
        raise Invalid("only closed and compressed days are switched", kind="event_switch", segments=len(seen))
    keys = keys_of(stream)
    days = tuple(day for segment in seen for day in segment.days)
    check = Continuity(days)
    stored, pending = 0, None
    try:
        for data in batches(seen[0].first_id - 1):
            if pending is not None:
                space.write(partial(_replace_rows, keys=keys, seen=seen, data=pending))
                step("events.batch_switched")
            check.add(read_header(data))
            stored, pending = stored + len(data), data
        check.end()
    except Invalid:
        # Days that were dropped meanwhile do not read as they were listed.
        with space.read() as tx:
            check_listed(tx, keys, seen)
        raise
    assert pending is not None
    output = DaySegment(State.COMPRESSED, days, stored)
    space.write(partial(_finish, keys=keys, seen=seen, data=pending, output=output))
    step("events.segment_switched")
    return output


def switch_together(space: Space, switches: Sequence[Switch]) -> list[DaySegment | None]:
    """As `BatchedStore.switch_many`."""
    for switch in switches:
        check = Continuity([day for segment in switch.seen for day in segment.days])
        check.add(read_header(switch.batch))
        check.end()

    def change(tx: Transaction) -> list[DaySegment | None]:
        return [_switched(tx, switch) for switch in switches]

    outputs = space.write(change)
    step("events.segment_switched")
    return outputs


def _switched(tx: Transaction, switch: Switch) -> DaySegment | None:
    """The segment that is put in place of others; None when these are not what was seen: nothing is changed then."""
    days = tuple(day for segment in switch.seen for day in segment.days)
    output = DaySegment(State.COMPRESSED, days, len(switch.batch))
    try:
        _finish(tx, keys_of(switch.stream), switch.seen, switch.batch, output)
    except Fenced:
        return None
    return output


def _replace_rows(tx: Transaction, keys: Keys, seen: Sequence[DaySegment], data: bytes) -> None:
    check_listed(tx, keys, seen)
    replace_rows(tx, keys, data)


def replace_rows(tx: Transaction, keys: Keys, data: bytes) -> int:
    """Put a batch in the place of the rows that hold the same events; the bytes that they had.

    Raises: `Fenced` when there are no such rows.
    """
    header = read_header(data)
    rows = _rows_until(tx, keys, header)
    rest = decode(rows[-1][1], header.last_id) if rows else []
    if (
        not rows
        or read_header(rows[0][1]).first_id != header.first_id
        or sum(read_header(row).events for _, row in rows) != header.events + len(rest)
    ):
        raise moved(keys)
    for key, _ in rows:
        tx.delete(key)
    step("events.rows_deleted")
    tx.put(keys.batches.pack(header.last_id), data)
    if rest:
        # The batch ends within a row: what is left of the row stays, under the key that it had.
        tx.put(rows[-1][0], encode(rest))
    return sum(len(row) for _, row in rows)


def _rows_until(tx: ReadTransaction, keys: Keys, header: Header) -> list[tuple[bytes, bytes]]:
    """The rows with events from the first id of a batch to its last."""
    rows: list[tuple[bytes, bytes]] = []
    for key, row in tx.scan(keys.batch_range(header.first_id)):
        if read_header(row).first_id > header.last_id:
            break
        rows.append((key, row))
    return rows


def _finish(tx: Transaction, keys: Keys, seen: Sequence[DaySegment], data: bytes, output: DaySegment) -> None:
    _replace_rows(tx, keys, seen, data)
    listed = to_listed(output)
    keys.series.substitute(tx, [to_listed(segment) for segment in seen], listed.segment, listed.about)
    head = Head.read(tx, keys)
    assert head is not None, "a stream with segments has a head"
    put_head(tx, keys, head, replace(head, compress_day=_next_raw_day(tx, keys, head)))


def check_listed(tx: ReadTransaction, keys: Keys, seen: Sequence[DaySegment]) -> None:
    """Insist on segments as they were seen.

    Raises: `Fenced`.
    """
    start, stop = seen[0].days[-1].day, seen[-1].days[-1].day + 1
    segments = [to_segment(listed.about) for listed in keys.series.between(tx, start, stop)]
    if segments != list(seen):
        raise moved(keys)


def moved(keys: Keys) -> Fenced:
    """The error for days that somebody else changed."""
    return Fenced(
        "the days are no longer what they were", kind="segments_moved", stream=keys.stream,
        hint="drop what was made of them, and begin anew",
    )  # fmt: skip


def _next_raw_day(tx: ReadTransaction, keys: Keys, head: Head) -> int:
    """The oldest day that is not compressed."""
    for listed in keys.series.listed(tx):
        if listed.about.state is State.CLOSED:
            return listed.about.days[0].day
    return NO_DAY if head.open is None else head.open.day
