"""Publishing: rows that name an index are written only while its files are safe from a collection of garbage.

Files are named by content, so whoever builds an index may find a range in its place and not write it: one that no row
names, and that a collection is about to delete. So collections are counted, and each deletes in a short phase:

    builder      reads the count ─ builds ─ swap: is the count the same, and no collection deleting? ─ published
    collection   …finds garbage… ─ count + 1, deleting ─ looks again, deletes ─ over

Invariants:
* Nothing is published while a collection deletes, nor after one that deleted during any part of the build: then the
  builder looks whether its files are there, and begins to look when no collection deletes.
* The row of the count is a lease (`kernel/lease.py`): its term is the count, and it is held while a collection deletes.
  A builder that waits for one that died ends its lease. One that lives looks at it before each file, or each request
  to a bucket, renews it in time, and deletes nothing more when another one ended it; it ends no lease but its own.
* A builder or a reader at work on a state that nobody names any more may find its files gone: that is no damage. The
  builder builds again, the reader reads the state that is there now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from millpond.errors import Conflict, NotFound, Unavailable
from millpond.kernel.lease import Lease, LeaseRow
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.ranges import index_name, range_name
from millpond.versions.keyspaces import COLLECTION
from millpond.versions.repository_context import RepositoryContext

__all__ = (
    "COLLECTING_SECONDS",
    "Collected",
    "begin_collecting",
    "check_published",
    "check_there",
    "collections",
    "end_collecting",
    "publish",
    "renew_collecting",
    "guard_published",
    "retry_if_collected",
    "wait_collected",
)

COLLECTING_SECONDS = 60.0
RENEW_SECONDS = 10.0
"""A lease that was renewed less long ago is only looked at: a look is cheap, and there is one for each file."""
WAIT_SECONDS = COLLECTING_SECONDS + 20.0
"""Longer than a collection that died has time for."""
TRIES_MAX = 4_000
DELETING = -1
"""The number of a collection that is not over: what is built meanwhile is published after another look."""
MISSING_KINDS = ("range_not_found", "index_not_found")
"""Kinds of errors for files of states that are missing."""

T = TypeVar("T")


class Collected(Unavailable):
    """A collection deleted meanwhile; it stays between a publication and its builder."""

    kind = "ranges_collected"


def _row(context: RepositoryContext) -> LeaseRow:
    return LeaseRow(COLLECTION.pack(context.uid), COLLECTING_SECONDS, context.head_locks.watch)


def _lease(context: RepositoryContext) -> Lease:
    with context.space.read() as tx:
        return _row(context).read(tx)


def collections(context: RepositoryContext) -> int:
    """The number of collections so far, to be read before building; `DELETING` while one deletes.

    The lease of one that died is ended here: it deletes nothing more, should it only have been slow.
    """
    lease, row = _lease(context), _row(context)
    if lease.holder and row.over(lease):
        lease = context.space.write(row.end_dead)
    return DELETING if lease.holder else lease.term


def check_published(context: RepositoryContext, tx: ReadTransaction, count: int) -> None:
    """Refuse to publish what was built since the collections numbered `count`.

    Raises: `Collected`.
    """
    lease = _row(context).read(tx)
    if lease.holder or lease.term != count:
        raise Collected("garbage was collected meanwhile", hint="try again")


def publish(
    context: RepositoryContext, indexes: Iterable[str], count: int, change: Callable[[Transaction], object]
) -> object:
    """Make the write that names indexes which were built since `count`.

    Raises: `Collected` when a collection deleted a file of theirs: build again; what the write raises.
    """
    names = tuple(indexes)

    def act(tx: Transaction) -> object:
        check_published(context, tx, count)
        return change(tx)

    while True:
        try:
            return context.space.write(act)
        except Collected:
            count = wait_collected(context)
            retry_if_collected(context, count, lambda: check_there(context, names))


def wait_collected(context: RepositoryContext) -> int:
    """Wait until no collection deletes; the number of collections so far.

    Raises: `Collected` after a long wait.
    """
    due = context.clock.monotonic() + WAIT_SECONDS
    count = context.head_locks.changes.wait_for(lambda: collections(context), due, lambda count: count != DELETING)
    if count == DELETING:
        raise Collected("garbage is being collected for too long", hint="try again")
    return count


def check_there(context: RepositoryContext, indexes: Sequence[str]) -> None:
    """Refuse indexes whose files were collected.

    Raises: `Collected`.
    """
    for id_ in indexes:
        _check_file(context, index_name(id_))
        for entry in context.index(id_).entries:
            _check_file(context, range_name(entry.id))


def _check_file(context: RepositoryContext, name: str) -> None:
    if not context.ranges.exists(name):
        raise Collected("a range was collected before it was published", object=name, hint="try again")


def retry_if_collected(context: RepositoryContext, count: int, build: Callable[[], T]) -> T:
    """The outcome of `build`, which reads states that were there at collection `count`.

    Raises: `Collected` when files of theirs were collected meanwhile: build again; what it raises.
    """
    try:
        return build()
    except NotFound as error:
        if error.kind in MISSING_KINDS and (count == DELETING or collections(context) != count):
            raise Collected("a range was collected while it was read", hint="try again") from error
        raise


def guard_published(read: Callable[[], T]) -> T:
    """The outcome of `read`, which reads again when a file of its state is gone: another state took its place.

    Raises: what it raises, when the same file is missing twice.
    """
    missing: object = None
    for _ in range(TRIES_MAX):
        try:
            return read()
        except NotFound as error:
            if error.kind not in MISSING_KINDS or error.values.get("object") == missing:
                raise
            missing = error.values.get("object")
    raise Collected("garbage is being collected for too long", hint="try again")


def begin_collecting(context: RepositoryContext) -> Lease:
    """Begin to delete; the lease to do so. A collection that seems to have died is watched before, for its lease.

    Raises: `Conflict` when another collection deletes.
    """
    row, holder = _row(context), context.clock.random_id()
    free = row.wait_free(context.space)
    lease = None if free is None else context.space.write(lambda tx: row.take(tx, holder))
    if lease is None:
        raise Conflict("garbage is being collected", kind="collection_running", hint="wait until it is over")
    return lease


def renew_collecting(context: RepositoryContext, lease: Lease) -> Lease | None:
    """Go on deleting; None when another one ended the lease: others may have published."""
    row = _row(context)
    if row.is_young(lease, RENEW_SECONDS):
        return lease if _lease(context).is_of(lease) else None
    return row.hold(context.space, lease, RENEW_SECONDS)


def end_collecting(context: RepositoryContext, lease: Lease) -> None:
    """Let others publish again, unless another collection has begun to delete since."""
    context.space.write(lambda tx: _row(context).give_back(tx, lease))
