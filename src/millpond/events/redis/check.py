"""Checking the keys of streams in Redis: what no read through the protocol would miss.

    every key of the place ─▶ a head: is it listed, and in the registry under its days?
                           └▶ another one of a stream: is there a head?

Invariants:
* a page of keys is held at a time, however many streams there are;
* streams may be appended to and dropped meanwhile: a head counts when it was the same before and after its registry.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.errors import Corrupt
from millpond.events.index import forget_day
from millpond.events.protocol import Work
from millpond.events.redis.keys import PondKeys, due_member
from millpond.events.redis.rows import NO_DAY, Head
from millpond.events.redis.servers import Call, Servers
from millpond.kernel.verify import Report, checked, problem

__all__ = ("check_keys",)

_REMEDY = "restore the streams from a copy of their server"
_ROWS = frozenset((b"index", b"raw", b"sources", b"batches"))
_HEAD_CALLS, _ROW_CALLS = 6, 3


def check_keys(servers: Servers, pond_keys: PondKeys) -> Report:
    """Check every key of a place."""
    report = Report()
    for page in servers.scan(pond_keys.pattern):
        named = [(key, *key.split(b":")[2:4]) for key in page]
        heads = [parts[2] for parts in named if parts[1] == b"head"]
        rows = [(parts[0], parts[2]) for parts in named if parts[1] in _ROWS]
        report += _check_heads(servers, pond_keys, heads) + _check_rows(servers, pond_keys, rows)
    return report


def _check_heads(servers: Servers, pond_keys: PondKeys, names: Sequence[bytes]) -> Report:
    """Compare heads with the registry and the list of streams."""
    calls: list[Call] = []
    days_of = [_work_days(row) for row in _heads(servers, pond_keys, names)]
    for name, days in zip(names, days_of, strict=True):
        shard = pond_keys.shard_of(name)
        get = Call(shard, (b"GET", pond_keys.head(name)))
        listed = [
            Call(shard, (b"ZSCORE", pond_keys.due(work, shard), due_member(max(day, 0), name)))
            for work, day in zip(Work, days, strict=True)
        ]
        calls += [get, *listed, Call(shard, (b"ZSCORE", pond_keys.names(shard), name)), get]
    replies = servers.run(calls, repeat=True)
    report = Report()
    for at, (name, days) in enumerate(zip(names, days_of, strict=True)):
        before, *scores, listed_name, after = replies[at * _HEAD_CALLS : (at + 1) * _HEAD_CALLS]
        if before is None or before != after or _work_days(before) != days:
            continue
        for work, day, score in zip(Work, days, scores, strict=True):
            if day != NO_DAY and score is None:
                fault = f"the registry lacks it under {work.value}"
                report += problem("stream", name.decode("ascii", "replace"), fault, _REMEDY, counted=False)
        if listed_name is None:
            fault = "the list of streams lacks it"
            report += problem("stream", name.decode("ascii", "replace"), fault, _REMEDY)
    return report


def _heads(servers: Servers, pond_keys: PondKeys, names: Sequence[bytes]) -> list[bytes | None]:
    return servers.run([Call(pond_keys.shard_of(name), (b"GET", pond_keys.head(name))) for name in names], repeat=True)


def _work_days(row: bytes | None) -> tuple[int, int, int]:
    """The days for which a stream is in the registry; none where its head is damaged, which reading it finds."""
    try:
        head = None if row is None else Head.decode(row)
    except Corrupt:
        head = None
    if head is None:
        return NO_DAY, NO_DAY, NO_DAY
    empty = head.expire_day == NO_DAY and head.last_day != NO_DAY
    return head.compress_day, head.expire_day, forget_day(head.last_id, head.last_day) if empty else NO_DAY


def _check_rows(servers: Servers, pond_keys: PondKeys, rows: Sequence[tuple[bytes, bytes]]) -> Report:
    """Find keys of streams that have no head; they are there while their head is looked for twice."""
    calls: list[Call] = []
    for key, name in rows:
        shard = pond_keys.shard_of(name)
        has_head = Call(shard, (b"EXISTS", pond_keys.head(name)))
        calls += [has_head, Call(shard, (b"EXISTS", key)), has_head]
    replies = servers.run(calls, repeat=True)
    report = checked("key", len(rows))
    for at, (key, _) in enumerate(rows):
        if replies[at * _ROW_CALLS : (at + 1) * _ROW_CALLS] == [0, 1, 0]:
            report += problem("stream", key.decode("ascii", "replace"), "its rows have no head", _REMEDY)
    return report
