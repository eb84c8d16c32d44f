"""The owner of the workflows of a pond in a bucket: of the processes on it one, by a lease in its space.

    free, or its row stood still for `LEASE_SECONDS` ─▶ taken ─▶ renewed ─▶ given back

The lease says which process works: it hands out tasks, lets timers fire and answers. It guards no row: whoever lost it
and does not know puts entries behind those of the next owner, and all apply them alike (`logs/bucket.py`).

Invariants:
* a process that begins anew under its address has its lease again at once;
* one that is stopped gives it back; of one that died it is free `LEASE_SECONDS` after another looked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.kernel.lease import Lease, LeaseRow, LeaseWatch
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.kernel.worker import WorkerThread
from millpond.workflows.keyspaces import OWNER

__all__ = ("IN_PROCESS", "LEASE_SECONDS", "BucketOwner")

LEASE_SECONDS = 20.0
RENEW_SECONDS = 6.0
"""Each renewal is a batch of the space; one or two that are lost in a row cost no lease."""
LOOK_SECONDS = 1.0
IN_PROCESS = "pipeline "
"""The beginning of the name of an owner that has no address: it runs a pipeline, and takes no calls."""


class BucketOwner:
    """One process that would own all partitions. `changed` is called when it begins to, or no longer does."""

    def __init__(
        self, space: Space, address: str, clock: Clock, partitions: int, changed: Callable[[], object]
    ) -> None:  # fmt: skip
        self.address, self._space, self._clock, self._changed = address, space, clock, changed
        self._row = LeaseRow(OWNER.pack(), LEASE_SECONDS, LeaseWatch(clock))
        self._all = frozenset(range(partitions))
        self._held: Lease | None = None
        self._holder = ""
        self._looking = WorkerThread("the owner of workflows", self._look, clock, retry_seconds=LOOK_SECONDS)

    def start(self) -> None:
        """Begin to look, and to take the lease when it is free."""
        self._looking.start()

    def stop(self) -> None:
        """Give the lease back: another process has it a moment later."""
        self._looking.stop()
        held, self._held = self._held, None
        if held is not None:
            with suppress(MillpondError):  # the bucket is away: it is free when its time is over
                self._space.write(partial(self._row.give_back, held=held))

    @property
    def own(self) -> frozenset[int]:
        """The partitions that this process owns: all, or none."""
        return frozenset() if self._held is None else self._all

    @property
    def holder(self) -> str:
        """The process that had the lease at the last look."""
        return self.address if self._held is not None else self._holder

    def owner(self, partition: int) -> str | None:
        """The address of the owner, as it was known a moment ago; None while there is none that takes calls."""
        del partition
        return None if self.holder.startswith(IN_PROCESS) else self.holder or None

    def take(self, *, dead: Callable[[str], bool] = lambda _: False) -> bool:
        """Take the lease if it is free, or its holder is `dead`, or counts so; True when this process has it.

        Raises: as `Space.write`.
        """
        with self._space.read() as tx:
            lease = self._row.read(tx)
        self._holder = lease.holder
        gone = lease.holder and dead(lease.holder)
        if not (gone or lease.holder == self.address or self._row.over(lease)):
            return False
        if gone:
            self._space.write(partial(self._row.give_back, held=lease))
        self._held, self._holder = self._space.write(self._taken)
        step("workflows.owner_taken")
        self._changed()
        return self._held is not None

    def _taken(self, tx: Transaction) -> tuple[Lease | None, str]:
        """The lease, if it can be had, and its holder."""
        held = self._row.take(tx, self.address)
        return held, self._row.read(tx).holder

    def wait_free(self) -> bool:
        """Wait until the lease may be taken; False as soon as its holder shows that it lives.

        Raises: as `Space.read`.
        """
        return self._row.wait_free(self._space) is not None

    def _look(self) -> float:
        if self._held is None:
            self.take()
        elif not self._row.is_young(self._held, RENEW_SECONDS):
            self._held = self._space.write(partial(self._row.renew, held=self._held))
            if self._held is None:
                self._changed()
        return self._clock.monotonic() + LOOK_SECONDS
