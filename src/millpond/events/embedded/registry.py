"""The registry: for each kind of work, the streams that have some, by the day it is about.

A stream has at most one row for a kind of work, however many days it has: the oldest day. The head remembers which,
and both are written together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from millpond.events.embedded.rows import NO_DAY, Head, Keys
from millpond.events.keyspaces import DUE, HEAD
from millpond.events.names import StreamName, job_set_part, queue_part
from millpond.events.protocol import Due, Work
from millpond.kernel.keys import Part
from millpond.kernel.page import behind
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("due_streams", "list_streams", "put_head")


def put_head(tx: Transaction, keys: Keys, before: Head | None, head: Head) -> None:
    """Write a head, and what it says about work."""
    earlier = (NO_DAY, NO_DAY, NO_DAY) if before is None else _days(before)
    for work, old, new in zip(Work, earlier, _days(head), strict=True):
        if old == new:
            continue
        if old != NO_DAY:
            tx.delete(DUE.pack(work.value, old, *keys.parts))
        if new != NO_DAY:
            tx.put(DUE.pack(work.value, new, *keys.parts), b"")
    tx.put(keys.head, head.encode())


def _days(head: Head) -> tuple[int, int, int]:
    return head.compress_day, head.expire_day, head.forget_day


def due_streams(tx: ReadTransaction, work: Work, day: int, after: Due | None, limit: int) -> list[Due]:
    """As `StreamStore.due`."""
    keys = DUE[work.value].range((0,), (day + 1,))
    if after is not None:
        keys = behind(keys, DUE.pack(work.value, after.day, *_parts(after.stream)))
    due: list[Due] = []
    for key in islice(tx.keys(keys), limit):
        _, due_day, *parts = DUE.unpack(key)
        assert isinstance(due_day, int)
        due.append(Due(due_day, _name_of(tx, parts)))
    return due


def list_streams(tx: ReadTransaction, queue: str | None, after: StreamName | None, limit: int) -> list[StreamName]:
    """As `StreamStore.streams`."""
    keys = HEAD.range() if queue is None else HEAD[queue_part(queue)].range()
    if after is not None:
        keys = behind(keys, HEAD.pack(*_parts(after)))
    return [_name_of(tx, HEAD.unpack(key)) for key in islice(tx.keys(keys), limit)]


def _parts(stream: StreamName) -> tuple[str | bytes, str | bytes]:
    return queue_part(stream.queue), job_set_part(stream.job_set)


def _name_of(tx: ReadTransaction, parts: Sequence[Part]) -> StreamName:
    """The names behind the parts of a key: themselves, or what the head says where one is hashed."""
    queue, job_set = parts
    if isinstance(queue, str) and isinstance(job_set, str):
        return StreamName(queue, job_set)
    row = tx.get(HEAD.pack(queue, job_set))
    assert row is not None, "who is listed has a head"
    return Head.decode(row).stream
