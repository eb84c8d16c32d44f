"""The days of a stream that work is about: those under which the registry lists it, and those of a clock far ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millpond.events.days import pulled_back
from millpond.events.embedded.registry import put_head
from millpond.events.embedded.rows import NO_DAY, Head, Keys, keys_of, listed_segments, to_listed
from millpond.events.index import DaySegment, State, forget_day
from millpond.events.names import StreamName
from millpond.events.protocol import HIDDEN_DAY
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("has_hidden_rows", "pull_back", "with_work")


def with_work(tx: ReadTransaction, keys: Keys, head: Head) -> Head:
    """The head with the days under which the registry lists a stream whose oldest days are gone."""
    segments = list(listed_segments(tx, keys))
    open_days = [] if head.open is None else [head.open.day]
    raw = [segment.days[0].day for segment in segments if segment.state is State.CLOSED] + open_days
    oldest = [segment.days[0].day for segment in segments] + open_days
    expire_day = HIDDEN_DAY if has_hidden_rows(tx, keys, head, segments) else oldest[0] if oldest else NO_DAY
    return replace(
        head, compress_day=raw[0] if raw else NO_DAY, expire_day=expire_day,
        forget_day=NO_DAY if expire_day != NO_DAY else forget_day(head.last_id, head.last_day),
    )  # fmt: skip


def has_hidden_rows(tx: ReadTransaction, keys: Keys, head: Head, segments: Sequence[DaySegment]) -> bool:
    """True when a deletion was interrupted: rows are there that no reader sees, and no segment lists."""
    listed = bool(segments) and segments[0].state is State.EXPIRED
    return not listed and next(iter(tx.keys(keys.batch_range(0, head.dropped_id))), None) is not None


def pull_back(tx: Transaction, stream: StreamName, latest: int) -> bool:
    """As `StreamStore.pull_back`."""
    keys = keys_of(stream)
    before = Head.read(tx, keys)
    if before is None or before.last_day <= latest:
        return False
    segments = list(listed_segments(tx, keys))
    closed = [segment for segment in segments if segment.state is State.CLOSED]
    others = [segment.days[-1].day for segment in segments if segment.state is not State.CLOSED]
    opened = [] if before.open is None else [before.open.day]
    floor = others[-1] if others else NO_DAY
    days = pulled_back([segment.days[0].day for segment in closed] + opened, latest, floor)
    for segment in closed:
        keys.series.remove(tx, to_listed(segment).segment)
    for segment, day in zip(closed, days, strict=False):
        listed = to_listed(replace(segment, days=(replace(segment.days[0], day=day),)))
        keys.series.put_back(tx, listed.segment, listed.about)
    last = max(days[-1] if days else latest, floor)
    head = replace(before, last_day=last, open=before.open and replace(before.open, day=last))
    put_head(tx, keys, before, with_work(tx, keys, head))
    return head.last_day < before.last_day
