"""The right to change a place for backups: one creation or clean-up at a time, over all machines.

`current.json` says who is at work and until when. It is changed by compare-and-swap. A process that died holds it until
its time is over; one that lives extends it as it goes on, whatever its time of day does meanwhile.

Clocks of machines differ. A holder whose clock is behind may lose the lease early, and a lease that ends later than
twice its length, by a clock that was ahead, counts as over. So a holder confirms it before it lists or deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Fenced, NotFound
from millpond.json_forms import JsonForm

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.stores.objects import ObjectStore

__all__ = ("LEASE_SECONDS", "PlaceLease", "leased")

LEASE_SECONDS = 300
"""The time after which the lease of a process that died is over. 8 MiB must be stored in half of it."""
_NAME = "current.json"


@dataclass(frozen=True, slots=True)
class _Holder:
    """The holder of a lease, and the end of it."""

    owner: str
    until_ms: int


_HOLDER = JsonForm(_Holder)


class PlaceLease:
    """The lease on a place, held. Call `extend` before each step, and `confirm` before one that others rely on."""

    def __init__(self, place: ObjectStore, clock: Clock, tag: str, owner: str) -> None:
        self._place, self._clock, self._tag, self._owner = place, clock, tag, owner
        self._due = clock.monotonic() + LEASE_SECONDS / 2

    def extend(self) -> None:
        """Hold the lease longer, once half of its time is over.

        Raises: `Fenced` when another one has taken it.
        """
        if self._clock.monotonic() >= self._due:
            self.confirm()

    def confirm(self) -> None:
        """Hold the lease longer from now on.

        Raises: `Fenced` when another one has taken it.
        """
        self._due = self._clock.monotonic() + LEASE_SECONDS / 2
        self._swap(self._clock.now_ms() + LEASE_SECONDS * 1000)

    def end(self) -> None:
        """Give the lease back; nothing when another one has taken it."""
        with suppress(Fenced):
            self._swap(0)

    def _swap(self, until: int) -> None:
        try:
            self._tag = self._place.swap(_NAME, _bytes(self._owner, until), self._tag)
        except Conflict as error:
            raise Fenced(
                "another one changes this place for backups now", kind="backup_fenced", place=self._place.where,
                hint="begin again when it is done",
            ) from error  # fmt: skip


@contextmanager
def leased(place: ObjectStore, clock: Clock) -> Iterator[PlaceLease]:
    """Hold the lease on a place.

    Raises: `Conflict`, kind `backup_busy`, when another one holds it.
    """
    expected: str | None = None
    with suppress(NotFound):
        tagged = place.get_tagged(_NAME)
        expected = tagged.tag
        until = _HOLDER.decode(tagged.data.to_pybytes()).until_ms
        if 0 < (left_ms := until - clock.now_ms()) <= LEASE_SECONDS * 2000:
            raise _busy(place, left_ms // 1000 + 1)
    owner = clock.random_id()
    try:
        tag = place.swap(_NAME, _bytes(owner, clock.now_ms() + LEASE_SECONDS * 1000), expected)
    except Conflict as error:
        raise _busy(place, LEASE_SECONDS) from error
    lease = PlaceLease(place, clock, tag, owner)
    try:
        yield lease
    finally:
        lease.end()


def _bytes(owner: str, until_ms: int) -> bytes:
    return _HOLDER.encode(_Holder(owner, until_ms))


def _busy(place: ObjectStore, seconds: int) -> Conflict:
    return Conflict(
        "a backup or a clean-up is at work in this place", kind="backup_busy", place=place.where,
        hint=f"try again when it is done; if it died, in {seconds} seconds",
    )  # fmt: skip
