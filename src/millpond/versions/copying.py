"""The lease of a copy that brings objects of repositories: no collection deletes some of them before their rows come.

They have the names, and so the ages, that they have in the source. So copies are counted, and seen while they last:

    copy         takes the lease ─ lists what is there ─ brings the rest ─ rows, in a write in which it still has it
    collection   reads the term ─ marks what is needed ─ before it deletes some: is it the same, and nobody there?

A copy takes the lease from another one: that one then begins to look anew, and a killed one is gone on with at once.
"""

from __future__ import annotations

from millpond.clock import Clock
from millpond.errors import Conflict
from millpond.kernel.lease import LEASE, Lease, LeaseRow, LeaseWatch
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.versions.keyspaces import COPYING

__all__ = ("COPYING_SECONDS", "begin_copying", "check_undisturbed", "end_copying", "free_term", "is_copying")

COPYING_SECONDS = 60.0


def begin_copying(tx: Transaction, holder: str, clock: Clock) -> None:
    """Have the lease, or go on having it."""
    lease = _state(tx)
    tx.put(COPYING.packed, LEASE.encode(lease.renewed(clock) if lease.holder == holder else lease.taken(holder, clock)))


def is_copying(tx: ReadTransaction, holder: str) -> bool:
    """True while a holder has the lease."""
    return _state(tx).holder == holder


def end_copying(tx: Transaction, holder: str) -> None:
    """Give the lease back, unless another copy took it."""
    if is_copying(tx, holder):
        tx.put(COPYING.packed, LEASE.encode(_state(tx).given_back()))


def free_term(space: Space, clock: Clock) -> int:
    """The number of copies so far, when none brings objects; one that seems to have died is watched before.

    Raises: `Conflict`, kind `copy_running`.
    """
    row = LeaseRow(COPYING.packed, COPYING_SECONDS, LeaseWatch(clock))
    lease = row.wait_free(space)
    if lease is not None and lease.holder:
        lease = space.write(row.end_dead)
    if lease is None or lease.holder:
        raise _running()
    return lease.term


def check_undisturbed(space: Space, term: int) -> None:
    """Refuse to go on when a copy has begun since the one of that number.

    Raises: `Conflict`, kind `copy_running`.
    """
    with space.read() as tx:
        lease = _state(tx)
    if lease.holder or lease.term != term:
        raise _running()


def _state(tx: ReadTransaction) -> Lease:
    return LeaseRow.state(tx.get(COPYING.packed))


def _running() -> Conflict:
    return Conflict("a copy brings objects", kind="copy_running", hint="collect when it is over")
