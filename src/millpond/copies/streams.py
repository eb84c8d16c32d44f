"""The streams of events of a whole pond, in a copy.

Of a pond in a bucket the bodies of large batches are objects. They go before the rows that name them: from bucket to
bucket under their names, out of a folder under names of their content, so that a copy that was cut short sends what is
missing. Into a folder they come back into their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice

from millpond.copies.files import Sent
from millpond.events.codec import header_bytes
from millpond.events.embedded.garbage import LEASE_SECONDS
from millpond.events.embedded.large_rows import LargeRows, is_large, naming_row, object_of
from millpond.events.embedded.rows import Head
from millpond.events.keyspaces import (
    BATCH,
    CLIENT,
    CLIENT_DAY,
    COLLECTING,
    DUE,
    HEAD,
    JOB,
    JOB_URI,
    NOTE,
    QUEUE,
    SEGMENT,
    SOURCE,
)
from millpond.events.names import OWN_QUEUE
from millpond.kernel.lease import LeaseRow, LeaseWatch
from millpond.kernel.scans import put_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.maps.layered.secured import wait_free
from millpond.pond import Pond

__all__ = ("Streams", "state_of_streams")

_TAKEN = (BATCH, CLIENT, CLIENT_DAY, DUE, HEAD, JOB, JOB_URI, NOTE, QUEUE, SEGMENT, SOURCE)
_ROWS_AT_ONCE = 64


def state_of_streams(tx: ReadTransaction) -> Iterator[bytes]:
    """The streams of users, and the last id of each: whoever appends changes them, and maintenance does not."""
    for _, row in tx.scan(HEAD.range()):
        head = Head.decode(row)
        if head.stream.queue != OWN_QUEUE:
            yield f"{head.stream} {head.last_id}".encode()


class Streams:
    """The rows of events as a transaction sees them, and the objects that they name."""

    def __init__(self, tx: ReadTransaction, source: Pond) -> None:
        beside = source.location.beside("events")
        self._tx, self._into_folder, self._term = tx, True, 0
        self._objects = None if beside is None else beside.objects
        self._large = None if beside is None else LargeRows(source.space, beside.objects, source.clock)

    def bring(self, target: Pond, sent: Sent) -> None:
        """Bring the objects that the rows will name there, and that are not there.

        Raises: `NotFound` for one that was collected meanwhile; `Unavailable`, `Denied`.
        """
        beside = target.location.beside("events")
        self._into_folder = beside is None
        if beside is None:
            return
        self._term = _free_term(target)  # before it is listed what is there
        held = {named.name for named in beside.objects.list()}
        for _, row in self._tx.scan(BATCH.range()):
            id_ = object_of(row) or _name_of(row)
            if id_ is None:
                continue
            if id_ in held:
                sent.add(0, 0, reused=1)
                continue
            body = row[header_bytes(row) :] if self._objects is None else memoryview(self._objects.get(id_))
            beside.objects.put(id_, body)
            sent.add(1, len(body))
            step("copy.events_sent")

    def are_there(self, tx: ReadTransaction) -> bool:
        """True when nothing of what was brought can go: nobody has begun to collect since."""
        lease = LeaseRow.state(tx.get(COLLECTING.packed))
        return self._into_folder or (not lease.holder and lease.term == self._term)

    def enter(self, tx: Transaction) -> None:
        """Put the rows in place of those of the target."""
        for keyspace in _TAKEN:
            tx.delete_range(keyspace.range())
            rows = self._tx.scan(keyspace.range())
            while block := list(islice(rows, _ROWS_AT_ONCE)):
                put_rows(tx, [(key, self._row(row)) for key, row in block] if keyspace is BATCH else block)

    def _row(self, row: bytes) -> bytes:
        """The row of a batch as the target has it."""
        if self._into_folder:
            return row if self._large is None else self._large.batch_of(row)
        name = None if object_of(row) else _name_of(row)
        return row if name is None else naming_row(bytes.fromhex(name), row)


def _name_of(batch: bytes) -> str | None:
    """The name of a large batch's body, by its content; None for a small one, which stays in its row."""
    return blake2b(batch[header_bytes(batch) :], digest_size=16).hexdigest() if is_large(batch) else None


def _free_term(target: Pond) -> int:
    """The term of who collects the objects there, when none does."""
    row = LeaseRow(COLLECTING.packed, LEASE_SECONDS, LeaseWatch(target.clock))
    return wait_free(target.space, row, target.clock).term
