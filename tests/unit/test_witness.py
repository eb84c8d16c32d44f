"""The witness of the clock: after a far jump work rests for a day, whatever restarts, and after nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.events.witness import BELIEVED_MS, JUMP_MS_MAX, ClockWitness
from millpond.stores.memory import MemorySpace

HOUR, DAY = 3_600_000, 86_400_000
START = 20_000 * DAY


class Place:
    """A space whose witness may be of a new process each time."""

    def __init__(self) -> None:
        self.space, self.clock = MemorySpace(), ManualClock(START)
        self.restart()

    def restart(self) -> None:
        self.witness = ClockWitness(self.space, b"clock", self.clock.now_ms, self.clock)

    def believes(self) -> bool:
        return self.witness.look() is None


@pytest.fixture
def place() -> Place:
    made = Place()
    assert made.believes()
    return made


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("jump", "side"), [(4 * DAY, "ahead of"), (-4 * DAY, "behind")])
def test_a_clock_days_away_is_doubted_for_a_day_and_believed_then(
    place: Place, jump: int, side: str, restarted: bool
) -> None:
    place.clock.now += jump
    assert (
        str(place.witness.look()) == f"the clock is 96.0 hours {side} what was expected, and is believed in 24.0 hours"
    )
    for _ in range(24):
        assert not place.believes()
        place.clock.advance(HOUR)
        if restarted:
            place.restart()
    assert place.believes()


def test_a_clock_that_comes_back_is_believed_at_once(place: Place) -> None:
    for jump in (2 * DAY, -2 * DAY, -2 * DAY, 2 * DAY):
        place.clock.now += jump
        assert place.believes() == (place.clock.now == START)
    place.clock.passed_ms += DAY
    place.restart()
    place.clock.now += 2 * DAY
    assert not place.believes(), "the doubt of before is forgotten"


def test_time_that_passes_is_no_jump_and_a_process_that_was_away_for_a_day_neither(place: Place) -> None:
    for ms in (30 * DAY, 1, 400 * DAY, HOUR):
        place.clock.advance(ms)
        assert place.believes()
    place.clock.advance(DAY - HOUR)
    place.restart()
    assert place.believes()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_jumps_to_the_other_side_is_doubted_anew(place: Place, restarted: bool) -> None:
    place.clock.now -= 400 * DAY
    for _ in range(23):
        assert not place.believes()
        place.clock.advance(HOUR)
    if restarted:
        place.restart()
    place.clock.now += 800 * DAY
    for _ in range(24):
        assert not place.believes()
        place.clock.advance(HOUR)
    assert place.believes()


def test_a_second_jump_does_not_end_a_doubt(place: Place) -> None:
    for _ in range(3):
        place.clock.now += 2 * DAY
        assert not place.believes()


def test_a_folder_that_is_used_once_a_week_is_maintained_every_second_time(place: Place) -> None:
    found = []
    for _ in range(6):
        place.clock.advance(7 * DAY)
        place.restart()
        found.append(place.believes())
    assert found == [False, True] * 3


@given(st.lists(st.tuples(st.integers(-3 * DAY, 3 * DAY), st.integers(0, 40 * HOUR), st.booleans()), max_size=20))
def test_what_is_believed_is_close_to_what_was_or_has_stood_for_a_day(steps: list[tuple[int, int, bool]]) -> None:
    place = Place()
    assert place.believes()
    latest, latest_at, doubt = START, 0, None
    for jump, passed, restarted in steps:
        place.clock.now += jump
        place.clock.advance(passed)
        if restarted:
            place.restart()
        now, elapsed = place.clock.now, place.clock.passed_ms
        ahead = now > latest
        if place.believes():
            near = -JUMP_MS_MAX <= now - latest <= (elapsed - latest_at) + JUMP_MS_MAX
            stood = doubt is not None and doubt[2] == ahead and max(elapsed - doubt[1], now - doubt[0]) >= DAY
            assert near or stood, "never at once"
            if ahead or not near:
                latest, latest_at = now, elapsed
            doubt = None
        elif doubt is None or now < doubt[0] or doubt[2] != ahead:
            doubt = now, elapsed, ahead


def test_a_damaged_row_is_one_that_is_not_there(place: Place) -> None:
    place.space.write(lambda tx: tx.put(b"clock", b"damaged"))
    place.clock.now += 2 * DAY
    assert place.believes()
    assert BELIEVED_MS == DAY
