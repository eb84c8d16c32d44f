"""Checking streams on their rows: heads, segments, batches, registry. `millpond verify` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from millpond.errors import Corrupt
from millpond.events.codec import decode
from millpond.events.embedded.rows import NO_DAY, Head, Keys, keys_of, listed_segments
from millpond.events.embedded.work import has_hidden_rows
from millpond.events.index import DaySegment, State, day_faults
from millpond.events.keyspaces import BATCH, DUE, HEAD, SEGMENT, SOURCE
from millpond.events.protocol import HIDDEN_DAY, Work
from millpond.kernel.keys import Prefix
from millpond.kernel.space import ReadTransaction, Space
from millpond.kernel.verify import Report, attempt, checked, problem

__all__ = ("check_streams",)

_REMEDY = "restore the pond from a backup"


def check_streams(space: Space) -> Report:
    """Check every stream of a space: each batch is read, each day has the events that the index says."""
    with space.read() as tx:
        report = Report()
        for key, row in tx.scan(HEAD.range()):
            report += attempt("stream", key.hex(), lambda key=key, row=row: _check(tx, key, row), _REMEDY)  # type: ignore[misc]
        report += attempt("registry", "events/due", lambda: _check_registry(tx), _REMEDY)
        for keyspace in (SEGMENT, BATCH, SOURCE):
            for orphan in _orphans(tx, keyspace):
                report += orphan
    return report


def _check(tx: ReadTransaction, key: bytes, row: bytes) -> Iterator[Report]:
    head = Head.decode(row)
    keys = keys_of(head.stream)
    if keys.head != key:
        raise Corrupt("the head belongs to another stream", kind="events_damaged", stream=head.stream)
    segments = list(listed_segments(tx, keys))
    if head.open is not None:
        segments.append(DaySegment(State.OPEN, (head.open,), head.open_stored))
    yield checked("stream")
    # A deletion that was interrupted at its very end has no rows left, and is ended by the next maintenance.
    hidden = head.expire_day == HIDDEN_DAY or has_hidden_rows(tx, keys, head, segments)
    oldest = HIDDEN_DAY if hidden else _oldest(segments)
    for fault in (*_segment_faults(head, segments, oldest), *_event_faults(tx, keys, head, segments)):
        yield problem("stream", head.stream, fault, _REMEDY, counted=False)
    for work, day in zip(Work, (head.compress_day, head.expire_day, head.forget_day), strict=True):
        if day != NO_DAY and tx.get(DUE.pack(work.value, day, *keys.parts)) is None:
            yield problem("stream", head.stream, f"the registry lacks it under {work.value}", _REMEDY, counted=False)


def _oldest(segments: list[DaySegment]) -> int:
    return segments[0].days[0].day if segments else NO_DAY


def _segment_faults(head: Head, segments: list[DaySegment], oldest: int) -> Iterator[str]:
    days = [day for segment in segments for day in segment.days]
    if any(a.day >= b.day or a.last_id >= b.first_id for a, b in pairwise(days)):
        yield "its days do not grow"
    # The newest events of all may have been deleted, and the head knows their ids still.
    if days and (days[-1].last_id > head.last_id or days[-1].day > head.last_day):
        yield "its newest day is not the one that its head names"
    raw = [segment.days[0].day for segment in segments if segment.state in (State.CLOSED, State.OPEN)]
    if (raw[0] if raw else NO_DAY) != head.compress_day or oldest != head.expire_day:
        yield "it stands in the registry under other days"


def _event_faults(tx: ReadTransaction, keys: Keys, head: Head, segments: list[DaySegment]) -> Iterator[str]:
    days = [day for segment in segments if segment.state is not State.EXPIRED for day in segment.days]
    rows = tx.scan(keys.batch_range(head.dropped_id + 1))
    return day_faults(days, head.dropped_id, (event for _, row in rows for event in decode(row, head.dropped_id)))


def _check_registry(tx: ReadTransaction) -> Iterator[Report]:
    for key in tx.keys(DUE.range()):
        work, day, *parts = DUE.unpack(key)
        row = tx.get(HEAD.pack(*parts))
        head = None if row is None else Head.decode(row)
        listed = {} if head is None else dict(
            zip([work.value for work in Work], (head.compress_day, head.expire_day, head.forget_day), strict=True)
        )  # fmt: skip
        if listed.get(str(work)) != day:
            yield problem("registry", key.hex(), "no stream has such work", _REMEDY)
        else:
            yield checked("registry")


def _orphans(tx: ReadTransaction, keyspace: Prefix) -> Iterable[Report]:
    """Rows whose stream has no head: one look for each stream."""
    keys = keyspace.range()
    while (key := next(tx.keys(keys), None)) is not None:
        queue, job_set, *_ = keyspace.unpack(key)
        if tx.get(HEAD.pack(queue, job_set)) is None:
            yield problem("stream", key.hex(), "its rows have no head", _REMEDY)
        stop = keyspace[queue, job_set].range().stop
        assert stop is not None and stop > key
        keys = keys._replace(start=stop)
