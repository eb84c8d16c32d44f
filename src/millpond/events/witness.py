"""A witness of the time of day, for work that cannot be undone: a clock that jumped far is not believed at once.

    look ─ at most 36 hours behind the latest one, or ahead of it and the time that passed ─▶ believed
    look ─ further away ─▶ doubted ─ a day later, still so ─▶ believed

A machine that starts with a clock far ahead would drop what is to be kept for days yet, and one whose clock is far
behind would take the days of the present for days of the future, pull them back, and drop them when its clock is right.
Nobody can tell such a clock from a machine that was off, or right again at last. So the work rests for a day: long
enough for people, or for NTP, to set the clock right.

Invariants:
* the time of the last look is a row: a restart changes nothing;
* within a process a doubt ends by monotonic time, so a second jump does not end it;
* a clock that comes back to what was believed is believed at once; one that jumps to the other side is doubted anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.clock import Clock
from millpond.events.days import day_of
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.space import ReadTransaction, Space, Transaction

__all__ = ("BELIEVED_MS", "JUMP_MS_MAX", "NOTED_MS", "ClockWitness", "Doubt", "believed_ms", "first_day")

JUMP_MS_MAX = 36 * 3_600_000
"""A clock may be away from the latest time that was believed by so much, and ahead by the time that passed since.

What is used every day is no jump."""
NOTED_MS = 3_600_000
"""Looks within so long are one write."""
BELIEVED_MS = 86_400_000
"""The time after which a clock that jumped further is believed all the same."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The latest time that was believed, and of the first one that is doubted since; 0: none is."""

    at_ms: int
    doubted_ms: int = 0


_FORM = JsonForm(_Seen)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A clock that is not believed: how far it jumped, less than 0 when back, and how long it must stand yet."""

    jump_ms: int
    left_ms: int

    def __str__(self) -> str:
        jump, left = (f"{abs(ms) / 3_600_000:.1f} hours" for ms in (self.jump_ms, self.left_ms))
        side = "ahead of" if self.jump_ms > 0 else "behind"
        return f"the clock is {jump} {side} what was expected, and is believed in {left}"


def believed_ms(tx: ReadTransaction, key: bytes) -> int:
    """The latest time that was believed, as the row of a witness says; 0 when there is none."""
    seen = _seen(tx, key)
    return 0 if seen is None else seen.at_ms


def first_day(now_ms: int, believed: int) -> int:
    """The day before which no stream begins: that of the time that was believed, while the clock is far behind it.

    >>> first_day(0, 100 * BELIEVED_MS), first_day(99 * BELIEVED_MS, 100 * BELIEVED_MS)
    (100, 0)
    """
    return day_of(believed) if now_ms < believed - JUMP_MS_MAX else 0


def _seen(tx: ReadTransaction, key: bytes) -> _Seen | None:
    row = tx.get(key)
    try:
        return None if row is None else _FORM.decode(row)
    except FormError:
        return None


class ClockWitness:
    """The witness of a place: a row of its space. `now_ms` is the time of day that is judged."""

    def __init__(self, space: Space, key: bytes, now_ms: Callable[[], int], clock: Clock) -> None:
        self._space, self._key, self._now_ms, self._clock = space, key, now_ms, clock
        self._looked: float | None = None
        self._doubted: float | None = None

    def look(self) -> Doubt | None:
        """Look at the clock; None when it is believed.

        Raises: what `now_ms` raises, and the space.
        """
        now, passed = self._now_ms(), self._clock.monotonic()
        elapsed_ms = 0 if self._looked is None else round(1000 * (passed - self._looked))
        seen, doubt = self._space.write(lambda tx: self._judged(tx, now, elapsed_ms, passed))
        if self._looked is None or seen.at_ms == now:
            self._looked = passed
        if not seen.doubted_ms:
            self._doubted = None
        elif seen.doubted_ms == now:
            self._doubted = passed
        return doubt

    def _judged(self, tx: Transaction, now: int, elapsed_ms: int, passed: float) -> tuple[_Seen, Doubt | None]:
        seen = _seen(tx, self._key)
        if seen is None or -JUMP_MS_MAX <= now - seen.at_ms <= elapsed_ms + JUMP_MS_MAX:
            if seen is not None and not seen.doubted_ms and now - seen.at_ms < NOTED_MS:
                return seen, None
            return self._put(tx, _Seen(now if seen is None else max(now, seen.at_ms))), None
        same_side = (seen.doubted_ms > seen.at_ms) == (now > seen.at_ms)
        begun = seen.doubted_ms if same_side and 0 < seen.doubted_ms <= now else now
        stood_ms = now - begun if self._doubted is None else round(1000 * (passed - self._doubted))
        if begun != now and stood_ms >= BELIEVED_MS:
            return self._put(tx, _Seen(now)), None
        left_ms = BELIEVED_MS - (stood_ms if begun != now else 0)
        jump_ms = now - seen.at_ms - (elapsed_ms if now > seen.at_ms else 0)
        return self._put(tx, _Seen(seen.at_ms, begun)), Doubt(jump_ms, left_ms)

    def _put(self, tx: Transaction, seen: _Seen) -> _Seen:
        tx.put(self._key, _FORM.encode(seen))
        return seen
