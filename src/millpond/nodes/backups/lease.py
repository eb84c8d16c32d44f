"""The right to change a place for backups: one creation or clean-up at a time, over all machines.

`current.json` is a lease (`kernel/lease.py`), changed by compare-and-swap of the object. A holder that lives renews it
as it goes on; one that died is watched for the time of the lease before another one takes over. A holder confirms it
before it lists or deletes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from millpond.clock import Clock
from millpond.errors import Conflict, Fenced, NotFound
from millpond.json_forms import FormError
from millpond.kernel.lease import LEASE, Lease, LeaseWatch
from millpond.stores.objects import ObjectStore
from millpond.stores.objects.settled import settled_swap

__all__ = ("LEASE_SECONDS", "BackupLease", "end_lease", "leased")

LEASE_SECONDS = 300
"""The time after which the lease of a process that died is over. 8 MiB must be stored in half of it."""
_BEATS = 30
"""The renewals of a holder within that time: who waits for it sees soon that it lives."""
_NAME = "current.json"


class BackupLease:
    """The lease on a place, held. Call `extend` before each step, and `confirm` before one that others rely on."""

    def __init__(self, store: ObjectStore, clock: Clock, tag: str, lease: Lease) -> None:
        self._store, self._clock, self._tag, self._lease = store, clock, tag, lease
        self._due = clock.monotonic() + LEASE_SECONDS / _BEATS
        self._lock = threading.Lock()  # files go side by side, and each holds it longer

    def extend(self) -> None:
        """Hold the lease longer, once some of its time is over.

        Raises: `Fenced` when another one has taken it.
        """
        with self._lock:
            if self._clock.monotonic() >= self._due:
                self.confirm()

    def confirm(self) -> None:
        """Hold the lease longer from now on.

        Raises: `Fenced` when another one has taken it.
        """
        self._due = self._clock.monotonic() + LEASE_SECONDS / _BEATS
        self._swap(self._lease.renewed(self._clock))

    def end(self) -> None:
        """Give the lease back; nothing when another one has taken it."""
        with suppress(Fenced):
            self._swap(self._lease.given_back())

    def _swap(self, lease: Lease) -> None:
        try:
            self._tag = settled_swap(self._store, _NAME, LEASE.encode(lease), self._tag, self._clock)
        except Conflict as error:
            raise Fenced(
                "another one changes this place for backups now", kind="backup_fenced", place=self._store.where,
                hint="begin again when it is done",
            ) from error  # fmt: skip
        self._lease = lease


@contextmanager
def leased(store: ObjectStore, clock: Clock) -> Iterator[BackupLease]:
    """Hold the lease on a place; a holder that seems to have died is watched before, for `LEASE_SECONDS`.

    Raises: `Conflict`, kind `backup_busy`, when another one holds it.
    """
    tag: str | None = None

    def read() -> Lease:
        nonlocal tag
        try:
            tagged = store.get_tagged(_NAME)
        except NotFound:
            return Lease()
        tag, data = tagged.tag, tagged.data.to_pybytes()
        try:
            return LEASE.decode(data)
        except FormError:  # of an earlier release: only its tag says whether it changes
            return Lease() if b'"until_ms":0' in data else Lease(tag)

    # An object has no number of its changes: it is read once in a while.
    free = LeaseWatch(clock).wait_free(_NAME, read, LEASE_SECONDS, lambda: 0)
    if free is None:
        raise _busy(store)
    lease = free.taken(clock.random_id(), clock)
    try:
        tag = settled_swap(store, _NAME, LEASE.encode(lease), tag, clock)
    except Conflict as error:
        raise _busy(store) from error
    held = BackupLease(store, clock, tag, lease)
    try:
        yield held
    finally:
        held.end()


def end_lease(store: ObjectStore) -> None:
    """End the lease of whoever had it: for one who knows that nobody works in the place, as behind a lock."""
    store.delete(_NAME)


def _busy(store: ObjectStore) -> Conflict:
    return Conflict(
        "a backup or a clean-up is at work in this place", kind="backup_busy", place=store.where,
        hint=f"try again when it is done; if it died, in {LEASE_SECONDS} seconds",
    )  # fmt: skip
