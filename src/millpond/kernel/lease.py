"""A lease: the right of one holder at a time, among processes and machines whose clocks disagree.

    free ─ take: term + 1 ─▶ held ─ renew: beat + 1 ─▶ held ─ give back ─▶ free
                               │
                               └─ its row stood still for the time of the lease ─▶ another one takes it: term + 1

The row is changed by compare-and-swap. It holds no end: a time of day that one machine wrote would be compared with
that of another one, and a clock that is ahead by a lease would break it. Instead each process watches the row, and
measures by its own monotonic clock how long it has stood still. So a process that has just begun waits for one lease
before it takes over from a holder that died; a holder that ends gives back, and then nobody waits.

Invariants:
* a lease that is held is taken by no one who has not seen its row unchanged for the whole time of the lease;
* whoever takes over changes the row, so the next renewal of a holder that was only slow fails: a fence;
* `term` grows with each holder, as long as the row is not deleted; `beat` with each renewal: no two states are equal;
* `at_ms` only refuses: a lease that looks young is left alone, and one that does not is watched all the same;
* who acts outside of the space first renews what is not young by both clocks of its machine (`hold`): the monotonic one
  stands still while a machine sleeps, and that of the day may be set back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

from millpond.clock import Clock
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.cache import Cache
from millpond.kernel.signal import Signal, last_change_of
from millpond.kernel.space import ReadTransaction, Space, Transaction

__all__ = ("LEASE", "Lease", "LeaseRow", "LeaseWatch")

WATCHED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Lease:
    """The state of a lease. `holder` is empty when it is free; `at_ms`: when it was renewed, by the holder's clock."""

    holder: str = ""
    term: int = 0
    beat: int = 0
    at_ms: int = 0

    def taken(self, holder: str, clock: Clock) -> Lease:
        """The state when a new holder has it."""
        return Lease(holder, self.term + 1, 0, clock.now_ms())

    def renewed(self, clock: Clock) -> Lease:
        """The state after its holder has said that it lives."""
        return replace(self, beat=self.beat + 1, at_ms=clock.now_ms())

    def given_back(self) -> Lease:
        """The state when it is free; the term stays."""
        # If the term began at 1 again, a holder that was only slow could take a later lease of its name for its own.
        return Lease(term=self.term)

    def is_of(self, other: Lease) -> bool:
        """True while the holder of `other` has it, in the same term."""
        return bool(self.holder) and (self.holder, self.term) == (other.holder, other.term)


LEASE = JsonForm(Lease)


class LeaseWatch:
    """The rows that this process watches, and since when each stands as it does. Threads may share it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._rows: Cache[Hashable, tuple[Lease, float]] = Cache(WATCHED_MAX)
        self._put: Cache[Hashable, tuple[Lease, float]] = Cache(WATCHED_MAX)

    def left(self, key: Hashable, lease: Lease, seconds: float) -> float:
        """The seconds for which a row, just read, must stand yet until its holder counts as dead; 0 for a free one."""
        if not lease.holder:
            return 0.0
        now, seen = self.clock.monotonic(), self._rows.get(key)
        if seen is None or seen[0] != lease:
            # It moved, or is new here: its holder lived before this look. A row that left the cache is watched from the
            # beginning, which waits longer and breaks nothing.
            self._rows.put(key, (lease, now))
            return seconds
        return max(0.0, seen[1] + seconds - now)

    def note(self, key: Hashable, lease: Lease) -> None:
        """Note a state that this process is about to put. Its age counts from here: the answer may come late."""
        self._put.put(key, (lease, self.clock.monotonic()))

    def is_young(self, key: Hashable, lease: Lease, seconds: float) -> bool:
        """True for a state that this process put less than so long ago, by both of its clocks."""
        put = self._put.get(key)
        if put is None or put[0] != lease or not 0 <= self.clock.now_ms() - lease.at_ms < 1000 * seconds:
            return False
        return self.clock.monotonic() - put[1] < seconds

    def wait_free(
        self, key: Hashable, read: Callable[[], Lease], seconds: float, changes: Callable[[], int | None]
    ) -> Lease | None:
        """The lease when it may be taken, after `seconds` at most; None as soon as its holder shows that it lives.

        `changes`: see `Signal`.
        """
        first = read()
        # Two clocks are compared here, so a young time may refuse, and no time may permit. One ahead of ours refuses
        # nothing: else a holder that died, whose clock ran ahead, would hold on until ours is there.
        if 0 <= self.clock.now_ms() - first.at_ms < 1000 * seconds and first.holder:
            return None
        lease = Signal(self.clock, changes).wait_for(
            read, None, lambda lease: lease != first or not self.left(key, lease, seconds)
        )
        return lease if lease == first or not lease.holder else None


class LeaseRow:
    """A lease in a space; `seconds` is its time, the same for all who take it."""

    def __init__(self, key: bytes, seconds: float, watch: LeaseWatch) -> None:
        self.key, self._seconds, self._watch = key, seconds, watch

    def read(self, tx: ReadTransaction) -> Lease:
        """The state of the lease; a row that cannot be read is free."""
        return self.state(tx.get(self.key))

    @staticmethod
    def state(row: bytes | None) -> Lease:
        """The state that a row says; one that cannot be read is free."""
        try:
            return Lease() if row is None else LEASE.decode(row)
        except FormError:
            return Lease()

    def over(self, lease: Lease) -> bool:
        """True for a lease, just read, that is free, or whose holder counts as dead."""
        return not self._watch.left(self.key, lease, self._seconds)

    def wait_free(self, space: Space) -> Lease | None:
        """See `LeaseWatch.wait_free`; not within a transaction."""

        def read() -> Lease:
            with space.read() as tx:
                return self.read(tx)

        return self._watch.wait_free(self.key, read, self._seconds, last_change_of(space))

    def take(self, tx: Transaction, holder: str) -> Lease | None:
        """Have the lease, or go on having it; None while another one has it."""
        lease = self.read(tx)
        if lease.holder == holder:
            return self._put(tx, lease.renewed(self._watch.clock))
        return self._put(tx, lease.taken(holder, self._watch.clock)) if self.over(lease) else None

    def renew(self, tx: Transaction, held: Lease) -> Lease | None:
        """Go on having the lease; None when another one took it, or ended it."""
        lease = self.read(tx)
        return self._put(tx, lease.renewed(self._watch.clock)) if lease.is_of(held) else None

    def is_young(self, held: Lease, seconds: float) -> bool:
        """True when this process put the state less than so long ago."""
        return self._watch.is_young(self.key, held, seconds)

    def hold(self, space: Space, held: Lease, seconds: float) -> Lease | None:
        """Go on having the lease, renewed if it is older than that; None when another one took it, or ended it."""
        lease: Lease | None = held
        # One renewal may not do: its answer may come when the lease is old again, or another's.
        while lease is not None and not self.is_young(lease, seconds):
            lease = space.write(partial(self.renew, held=lease))
        return lease

    def give_back(self, tx: Transaction, held: Lease) -> None:
        """End the lease, if it is still that of its holder."""
        if self.read(tx).is_of(held):
            self._put(tx, held.given_back())

    def end_dead(self, tx: Transaction) -> Lease:
        """The state of the lease, which is free from now on if its holder counts as dead."""
        lease = self.read(tx)
        return self._put(tx, lease.given_back()) if lease.holder and self.over(lease) else lease

    def _put(self, tx: Transaction, lease: Lease) -> Lease:
        self._watch.note(self.key, lease)
        tx.put(self.key, LEASE.encode(lease))
        return lease
