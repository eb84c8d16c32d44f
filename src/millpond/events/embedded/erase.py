"""Erasing the events of a job from a compressed segment: rows that have some are written anew, in one write.

They are looked for before it, in a read; the fence makes sure that they are the same. A reader finds all events of the
job in these days, or none.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.events.codec import Codec, decode, encode
from millpond.events.embedded.day_switch import check_listed, moved
from millpond.events.embedded.registry import put_head
from millpond.events.embedded.rows import Head, Keys, keys_of, to_listed
from millpond.events.embedded.work import with_work
from millpond.events.erasure import Remains, is_erased
from millpond.events.index import DaySegment
from millpond.events.names import StreamName
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step

__all__ = ("erase_events",)


def erase_events(space: Space, stream: StreamName, seen: DaySegment, job_id: str, last_id: int) -> int:
    """As `StreamStore.erase`."""
    keys, remains = keys_of(stream), Remains(seen, job_id, last_id)
    changed: list[bytes] = []
    with space.read() as tx:
        check_listed(tx, keys, [seen])
        for key, row in tx.scan(keys.batch_range(seen.first_id, seen.last_id)):
            before = remains.erased
            remains.rest(decode(row))
            if remains.erased > before:
                changed.append(key)
    if changed:
        space.write(lambda tx: _erase(tx, keys, remains, changed))
        step("events.job_erased")
    return remains.erased


def _erase(tx: Transaction, keys: Keys, remains: Remains, changed: Sequence[bytes]) -> None:
    check_listed(tx, keys, [remains.segment])
    stored = remains.segment.stored_bytes
    for key in changed:
        row = tx.get(key)
        if row is None:
            raise moved(keys)
        left = [event for event in decode(row) if not is_erased(event, remains.job_id, remains.last_id)]
        tx.delete(key)
        stored -= len(row)
        if left:
            data = encode(left, Codec.ZSTD)
            tx.put(keys.batches.pack(left[-1].number), data)
            stored += len(data)
    step("events.rows_erased")
    keys.series.remove(tx, to_listed(remains.segment).segment)
    if remains.days:
        listed = to_listed(DaySegment(remains.segment.state, remains.days, max(stored, 0)))
        keys.series.put_back(tx, listed.segment, listed.about)
    head = Head.read(tx, keys)
    assert head is not None, "a stream with segments has a head"
    put_head(tx, keys, head, with_work(tx, keys, head))
