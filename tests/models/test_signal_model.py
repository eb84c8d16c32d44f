"""Signals, against a model: what is rung, what others write, and the time that passes while a thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock, SystemClock
from millpond.kernel.signal import LOOK_SECONDS, READ_SECONDS, STILL_SECONDS, Signal, last_change_of, uncounted
from millpond.stores.memory import MemorySpace

SECONDS = 60.0


@dataclass(frozen=True)
class Act:
    """Something that happens while a thread waits: `what` after `ms` milliseconds."""

    ms: int
    what: str


class Story(ManualClock):
    """A clock on which things happen while somebody waits: each act at its time, in its order."""

    __slots__ = ("acts", "happen")

    def __init__(self, acts: list[Act]) -> None:
        super().__init__()
        self.acts, self.happen = iter(acts), lambda _what: None  # type: tuple[Iterator[Act], Callable[[str], object]]

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        while not predicate() and (due is None or self.monotonic() < due):
            act = next(self.acts, None)
            if act is None:
                assert due is not None, "nobody rings any more"
                self.advance(max(1, round(1000 * (due - self.monotonic()))))
                continue
            self.advance(act.ms)
            self.happen(act.what)
        return predicate()


ACTS = st.lists(
    st.builds(Act, st.integers(1, 30), st.sampled_from(["ring", "change", "note", "change and ring", "nothing"])),
    max_size=30,
)


@given(ACTS, st.sampled_from(["alone", "counted", "uncounted"]), st.integers(1, 10), st.integers(1, 1000))
def test_a_wait_ends_soon_after_what_it_waits_for(acts: list[Act], others: str, wanted: int, due_ms: int) -> None:
    """`ring` and `change and ring` are of this process; `change` is of another, and moves the number; `note` is of
    another too, and moves no number: as the time by which a lease ends.
    """
    clock = Story(acts)
    value, number, came_at, counted = 0, 0, None, True  # type: tuple[int, int, float | None, bool]
    count = {"alone": None, "counted": lambda: number, "uncounted": uncounted}[others]
    signal = Signal(clock, count)

    def happen(what: str) -> None:
        nonlocal value, number, came_at, counted
        if "change" in what or what == "note":
            value += 1
            number += "change" in what
            if value == wanted:
                came_at, counted = clock.monotonic(), "change" in what
        if "ring" in what:
            signal.ring()

    clock.happen = happen
    due = due_ms / 1000
    seen = signal.wait_for(lambda: value, due, lambda found: found >= wanted)
    ended = clock.monotonic()
    assert seen >= wanted or ended >= due, "it ends for one reason or the other"
    if came_at is None or others == "alone":
        return
    late = {"counted": LOOK_SECONDS if counted else STILL_SECONDS, "uncounted": READ_SECONDS}[others]
    assert ended <= max(came_at, min(due, came_at + late)) + 0.1, "found in time"


@given(ACTS)
def test_who_is_alone_looks_once_after_each_ring(acts: list[Act]) -> None:
    clock, looks = Story(acts), 0
    signal = Signal(clock)
    clock.happen = lambda what: signal.ring() if "ring" in what else None

    def look() -> bool:
        nonlocal looks
        looks += 1
        return False

    assert not signal.wait_for(look, 10.0)
    assert looks == 1 + sum("ring" in act.what for act in acts) + 1, "at first, after each ring, and at the end"


def test_no_ring_is_lost_between_threads() -> None:
    signal, done = Signal(SystemClock()), [0, 0]

    def answer(own: int) -> None:
        for number in range(1, 300):
            done[own] = number
            signal.ring()
            assert signal.wait_for(lambda: done[1 - own], SystemClock().monotonic() + SECONDS, number.__le__) >= number

    threads = [threading.Thread(target=answer, args=(own,)) for own in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert done == [299, 299]


def test_listeners_hear_each_ring_and_a_space_without_numbers_is_read() -> None:
    signal, heard = Signal(ManualClock(), last_change_of(MemorySpace())), list[int]()
    signal.listeners.append(lambda: heard.append(1))
    signal.ring()
    signal.ring()
    assert len(heard) == 2
    assert last_change_of(MemorySpace())() is None
