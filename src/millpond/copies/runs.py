"""The runs of workflows of a whole pond, in a copy: runs, definitions, queues of tasks, timers and what waits.

| from | | to a folder | to a bucket |
|---|---|---|---|
| a folder | rows of its space | the same rows | a checkpoint of both partitions |
| a bucket | its log, applied: the rows of both partitions | their rows | a checkpoint of each |

The copy goes on with the runs when it is served: a task that a worker of the source has ends there, or by its timeout
here. Who serves both has its effects twice.

Invariants:
* ids stay, and positions go on behind those of the source: no place in a queue, and no id, is given twice;
* runs of a bucket are of a moment before that of the rows: what a run says that it loaded is in the maps;
* objects go before the row that says that a bucket has runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from millpond.errors import Conflict, Unavailable
from millpond.kernel.keys import decode, encode
from millpond.kernel.keyspace import REGISTRY
from millpond.kernel.lease import LEASE, Lease
from millpond.kernel.log import Head, Log, head_row
from millpond.kernel.steps import step
from millpond.workflows.keyspaces import (
    COMMANDS,
    CURSOR,
    DEFINITION,
    FAILED,
    INITIALIZED,
    OUTBOX,
    OWNER,
    RECEIVED,
    SENDING,
)

if TYPE_CHECKING:
    from millpond.copies.files import Sent
    from millpond.kernel.space import ReadTransaction, Transaction
    from millpond.pond import Pond

__all__ = ("RUN_ROWS", "CopiedRuns", "runs_of_moment")

Row = tuple[bytes, bytes]

RUN_ROWS = tuple(keyspace for keyspace in REGISTRY.of() if keyspace.part == "workflows")
"""The rows that workflows have, in the order of their keys."""
_LOG: Log[bytes] = Log(COMMANDS, bytes, bytes)
_OF_A_LOG = (OUTBOX, OWNER, CURSOR, RECEIVED, SENDING)
"""The rows of partitions that have a log beside their space."""
_OF_RUNS = (17, 19, 1010)
"""The kinds of definitions that lie where runs do: schedules, correlated events, and node runs that wait for those."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a partition in the order of their keys, and the position of its log that they are of."""

    number: int
    position: int
    rows: Callable[[], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class CopiedRuns:
    """The runs of one moment; `parts` are those that a bucket has."""

    parts: tuple[_Part, ...]
    folder_rows: Callable[[], Iterator[Row]]

    def bring(self, target: Pond, sent: Sent) -> None:
        """Put the objects that a bucket has of runs.

        Raises: `Conflict`, kind `copy_target_changed`; `Denied`, `Unavailable`.
        """
        beside = target.location.beside("workflows")
        if beside is None:
            return
        from millpond.workflows.partitions.bucket import BucketRuns

        runs = BucketRuns.below(beside.objects, target.clock)
        try:
            for part in self.parts:
                if not runs.log.begin_at(part.number, part.position):
                    raise Conflict("runs of the target went on since it was copied", kind="copy_target_changed",
                                   pond=target.location.address, hint="copy to another place")  # fmt: skip
                sent.add(1, runs.checkpoints.replace(part.number, part.position, part.rows()))
                step("copy.runs_sent")
        finally:
            runs.log.close()

    def enter(self, tx: Transaction, target: Pond) -> None:
        """Put the rows of runs into the space of the target."""
        if target.location.beside("workflows") is not None:
            if tx.get(OWNER.packed) is None:
                tx.put(OWNER.packed, LEASE.encode(Lease()))
            return
        for keyspace in RUN_ROWS:
            tx.delete_range(keyspace.range())
        for key, value in self.folder_rows():
            tx.put(key, value)


@contextmanager
def runs_of_moment(source: Pond) -> Iterator[Callable[[ReadTransaction], CopiedRuns | None]]:
    """The runs of a pond as they are now, while the block lasts, for a transaction of its rows that begins in it; None
    for one without.

    Raises: `ExtraMissing`; as `stores_now`; `Unavailable`, kind `copy_busy`.
    """
    beside = source.location.beside("workflows")
    if beside is None:
        yield _of_rows
        return
    with source.space.read() as tx:
        there = tx.get(OWNER.packed) is not None
    if not there:
        yield lambda _: None
        return
    from millpond.workflows.partitions.bucket import stores_now

    with stores_now(beside.objects, source.clock) as stores:
        opened = [store.space for store in stores]
        with opened[0].read() as metadata, opened[1].read() as runs:
            copied = _of_partitions(metadata, runs)
            source.space.follow()  # type: ignore[attr-defined]  # what these runs loaded is in the rows that come
            yield lambda _: copied


def _of_rows(tx: ReadTransaction) -> CopiedRuns | None:
    """The runs among the rows of a folder."""
    if tx.get(INITIALIZED.packed) is None:
        return None
    head = _LOG.head(tx)
    position = max(head.position, 1)
    place = encode((position, head.stamp_ms, head.stamp_ms))

    def metadata() -> Iterator[Row]:
        for keyspace in RUN_ROWS:
            if keyspace is CURSOR:
                yield CURSOR.packed, place
            elif keyspace in (DEFINITION, INITIALIZED):
                yield from (row for row in tx.scan(keyspace.range()) if keyspace is INITIALIZED or _is_metadata(row[0]))

    def runs() -> Iterator[Row]:
        for keyspace in RUN_ROWS:
            if keyspace is CURSOR:
                yield CURSOR.packed, place
            elif keyspace is not COMMANDS:
                yield from tx.scan(keyspace.range())

    return CopiedRuns((_Part(0, position, metadata), _Part(1, position, runs)), partial(_all_rows, tx))


def _of_partitions(metadata: ReadTransaction, runs: ReadTransaction) -> CopiedRuns:
    """The runs of a bucket, whose partitions are these."""
    from millpond.workflows.partitions.followed import read_cursor

    places = read_cursor(metadata), read_cursor(runs)

    def folder_rows() -> Iterator[Row]:
        for sender, number, receiver in ((metadata, 1, runs), (runs, 0, metadata)):
            if _number(sender, SENDING.pack(number)) > _number(receiver, RECEIVED.pack(1 - number)):
                raise Unavailable(
                    "a command is on its way from one partition of runs to the other", kind="copy_busy",
                    hint="copy again in a moment, while a node serves the pond",
                )  # fmt: skip
        yield from metadata.scan(FAILED.range())
        for keyspace in RUN_ROWS:
            if keyspace not in _OF_A_LOG:
                yield from runs.scan(keyspace.range())
        yield from (row for row in metadata.scan(DEFINITION.range()) if _is_metadata(row[0]))
        position, ms = max(place.position for place in places), max(place.ms for place in places)
        # Nobody knows the chain up to there, and nobody checks against it: the log has no entry yet. It needs its
        # length, or the head would count as damaged.
        yield head_row(COMMANDS, Head(position, "0" * 32, ms))

    parts = tuple(
        _Part(number, place.position, partial(_all_rows, tx))
        for number, (place, tx) in enumerate(zip(places, (metadata, runs), strict=True))
    )
    return CopiedRuns(parts, folder_rows)


def _all_rows(tx: ReadTransaction) -> Iterator[Row]:
    for keyspace in RUN_ROWS:
        yield from tx.scan(keyspace.range())


def _is_metadata(key: bytes) -> bool:
    return DEFINITION.unpack(key)[1] not in _OF_RUNS


def _number(tx: ReadTransaction, key: bytes) -> int:
    row = tx.get(key)
    return 0 if row is None else cast("tuple[int]", decode(row))[0]
