"""Folding an open day: its small rows, which every process holds in memory, become the body of one large row.

Whoever appends so much that the events of the day, with what each costs, pass another multiple of `FOLD_BYTES` folds
all small rows that are there. A process that dies before leaves them to the next.

Invariants:
* readers meet the same events before and after, with their ids;
* small rows of a day, that nobody is folding, hold about `FOLD_BYTES` at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby

from millpond.events.codec import BATCH_PLAIN_BYTES, EVENT_BYTES, Codec, decode, encode, read_header
from millpond.events.embedded.day_switch import replace_rows
from millpond.events.embedded.large_rows import LargeRows, object_of
from millpond.events.embedded.registry import put_head
from millpond.events.embedded.rows import Head, Keys, keys_of
from millpond.events.names import StreamName
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step

__all__ = ("fold_open", "fold_number")

FOLD_BYTES = 256 << 10


def fold_number(head: Head | None) -> tuple[int, int]:
    """A number that changes when the open day of a stream is to be folded; the day comes first."""
    if head is None or head.open is None:
        return -1, 0
    return head.open.day, (head.open.bytes + EVENT_BYTES * head.open.count) // FOLD_BYTES


def fold_open(space: LargeRows, stream: StreamName) -> None:
    """Fold the small rows of the open day of a stream.

    Raises: as `Space.write`; `Fenced` when events were dropped meanwhile.
    """
    keys = keys_of(stream)
    for rows in list(_small_runs(space, keys)):
        events = [event for row in rows for event in decode(row)]
        space.write(partial(_fold, keys=keys, data=encode(events, Codec.ZSTD)))
        step("events.folded")


def _small_runs(space: LargeRows, keys: Keys) -> Iterator[list[bytes]]:
    """Neighbouring rows that hold their batches, as many as one batch holds."""
    with space.rows.read() as tx:
        head = Head.read(tx, keys)
        if head is None or head.open is None:
            return
        rows = [row for _, row in tx.scan(keys.batch_range(head.open.first_id))]
    for is_small, neighbours in groupby(rows, lambda row: object_of(row) is None):
        run: list[bytes] = []
        size = 0
        for row in neighbours if is_small else ():
            size += read_header(row).plain_bytes
            if run and size > BATCH_PLAIN_BYTES:
                yield run
                run, size = [], read_header(row).plain_bytes
            run.append(row)
        if len(run) > 1:
            yield run


def _fold(tx: Transaction, keys: Keys, data: bytes) -> None:
    head = Head.read(tx, keys)
    if head is None or head.open is None or read_header(data).first_id < head.open.first_id:
        return  # the day was closed meanwhile
    before = replace_rows(tx, keys, data)
    put_head(tx, keys, head, replace(head, open_stored=head.open_stored - before + len(data)))
