"""Leases of jobs: of the nodes on one bucket, one at a time does a job, or a job on a map.

A node that dies leaves its lease. The others watch the rows of all leases: one that stood still for `LEASE_SECONDS` is
ended, and each of them is due to do that job.

Invariants:
* two nodes that see the bucket never do the same at once; one that lost sight of it is told to end before its lease is
  over, one whose machine slept soon after. What it does meanwhile is harmless: each act is put in place by a
  compare-and-swap of the space.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from millpond.clock import Clock
from millpond.kernel.lease import Lease, LeaseRow, LeaseWatch
from millpond.kernel.space import Space
from millpond.kernel.steps import step
from millpond.maps.model.keyspaces import JOB

__all__ = ("LEASE_SECONDS", "JobLeases")

LEASE_SECONDS = 30.0
"""A node that says nothing for so long counts as dead."""
RENEW_SECONDS, SURE_SECONDS = 8.0, 20.0
"""A lease is renewed after so long; one that could not be for longer is taken for lost."""


class _Held(threading.Event):
    """A lease that this node has; set when its job must end: it is lost, or may be, or the node ends."""

    def __init__(self, row: LeaseRow, lease: Lease, ending: threading.Event, clock: Clock, at: float) -> None:
        super().__init__()
        self.row, self.lease, self.renewed_at = row, lease, at
        self._ending, self._clock = ending, clock

    def is_set(self) -> bool:
        late = self._clock.monotonic() - self.renewed_at >= SURE_SECONDS
        return late or super().is_set() or self._ending.is_set()


class JobLeases:
    """The leases of one node. `renew` and `dead` are called every second or so."""

    def __init__(self, space: Space, clock: Clock) -> None:
        self._space, self._clock = space, clock
        self._watch, self._lock = LeaseWatch(clock), threading.Lock()
        self._held: dict[str, _Held] = {}

    def _row(self, job: str) -> LeaseRow:
        return LeaseRow(JOB.pack(job), LEASE_SECONDS, self._watch)

    @contextmanager
    def __call__(self, job: str, ending: threading.Event) -> Iterator[threading.Event | None]:
        """See `Turns` of `maps/loads/merger.py`.

        Raises: as `Space.write`.
        """
        hold = self._take(job, ending)
        if hold is None:
            yield None
            return
        try:
            step("job.leased")
            yield hold
        finally:
            with self._lock:
                self._held.pop(job, None)
            self._space.write(lambda tx: hold.row.give_back(tx, hold.lease))

    def _take(self, job: str, ending: threading.Event) -> _Held | None:
        row, at = self._row(job), self._clock.monotonic()
        with self._lock:
            if job in self._held:
                return None  # another thread of this node is at it
        with self._space.read() as tx:
            free = row.over(row.read(tx))
        holder = self._clock.random_id()
        lease = self._space.write(lambda tx: row.take(tx, holder)) if free else None
        if lease is None:
            return None
        hold = _Held(row, lease, ending, self._clock, at)
        with self._lock:
            self._held[job] = hold
        return hold

    def renew(self) -> None:
        """Say that this node lives, for all that it has.

        Raises: as `Space.write`.
        """
        now = self._clock.monotonic()
        with self._lock:
            due = [hold for hold in self._held.values() if not hold.row.is_young(hold.lease, RENEW_SECONDS)]
        for hold in due:
            renewed = self._space.write(partial(hold.row.renew, held=hold.lease))
            if renewed is None:
                hold.set()
            else:
                hold.lease, hold.renewed_at = renewed, now

    def dead(self) -> set[str]:
        """The jobs whose nodes died; their leases are free now.

        Raises: as `Space.write`.
        """
        with self._space.read() as tx:
            rows = [(str(JOB.unpack(key)[0]), LeaseRow.state(row)) for key, row in tx.scan(JOB.range())]
        over = [job for job, lease in rows if lease.holder and self._is_over(job, lease)]
        for job in over:
            self._space.write(self._row(job).end_dead)
        return {job.partition("/")[0] for job in over}

    def _is_over(self, job: str, lease: Lease) -> bool:
        with self._lock:
            own = job in self._held
        return not own and self._row(job).over(lease)
