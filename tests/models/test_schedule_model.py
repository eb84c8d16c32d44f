"""Due times beside brute force: a loop over every second for recurring work."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.kernel.schedule import Recurring, Schedule

pytestmark = pytest.mark.usefixtures("processor")


@given(
    start=st.floats(0, 1e6), interval=st.floats(0.001, 1e5), gaps=st.lists(st.floats(0, 1e5), min_size=1, max_size=20)
)
def test_the_next_time_is_after_now_and_at_most_an_interval_away(
    start: float, interval: float, gaps: list[float]
) -> None:
    schedule = Schedule[str]()
    now = start
    schedule.add("tick", start=start, interval=interval, now=now)
    for gap in gaps:
        due = schedule.due("tick")
        assert due is not None
        assert now < due <= now + interval * 1.001 + 1e-6
        now += gap
        assert schedule.begin(now) == (["tick"] if due <= now else [])
        if due <= now:
            schedule.end("tick")


@dataclass
class Turn:
    """A name as the model sees it."""

    start: int
    interval: int
    paused: bool = False
    due: bool = False
    requested: bool = False
    running: bool = False


class Schedules(RuleBasedStateMachine):
    """Whole seconds, one by one: a time of the grid that comes makes a name due, unless it is paused."""

    @initialize(grids=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=4))
    def begin_with(self, grids: list[tuple[int, int]]) -> None:
        self.now = 5
        self.schedule = Schedule[int]()
        self.turns = [Turn(self.now + lag, interval) for lag, interval in grids]
        for name, turn in enumerate(self.turns):
            self.schedule.add(name, start=turn.start, interval=turn.interval, now=self.now)

    @rule(seconds=st.integers(0, 40))
    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            for turn in self.turns:
                past = self.now - turn.start
                turn.due |= bool(turn.interval and not turn.paused and past > 0 and past % turn.interval == 0)

    @rule()
    def run_what_is_due(self) -> None:
        due = {name for name, turn in enumerate(self.turns) if turn.due and not turn.running}
        requested = {name for name, turn in enumerate(self.turns) if turn.requested and not turn.running}
        times = {name: self.schedule.due(name) or 0.0 for name in range(len(self.turns))}
        begun = self.schedule.begin(self.now)
        assert len(begun) == len(set(begun))
        assert set(begun) == due | requested
        assert set(begun[: len(due)]) == due, "what is due comes first"
        assert [times[name] for name in begun[: len(due)]] == sorted(times[name] for name in due)
        for name, turn in enumerate(self.turns):
            turn.due = False
            if name in begun:
                turn.running, turn.requested = True, False

    @rule(name=st.integers(0, 3))
    def end(self, name: int) -> None:
        turn = self.turns[name % len(self.turns)]
        if turn.running:
            turn.running = False
            assert self.schedule.end(name % len(self.turns)) == turn.requested

    @rule(name=st.integers(0, 3))
    def request(self, name: int) -> None:
        turn = self.turns[name % len(self.turns)]
        assert self.schedule.request(name % len(self.turns)) != turn.requested
        turn.requested = True

    @rule(name=st.integers(0, 3), paused=st.booleans())
    def pause(self, name: int, paused: bool) -> None:
        turn = self.turns[name % len(self.turns)]
        self.schedule.set_paused(name % len(self.turns), paused, self.now)
        turn.paused = paused
        turn.due &= not paused

    @invariant()
    def the_next_due_time_is_known(self) -> None:
        if not hasattr(self, "turns"):
            return
        for name, turn in enumerate(self.turns):
            assert (self.schedule.due(name) is not None) == bool(turn.interval and not turn.paused)
        dues = [due for name in range(len(self.turns)) if (due := self.schedule.due(name)) is not None]
        assert self.schedule.next_due() == min(dues, default=None)


TestSchedules = Schedules.TestCase


def test_what_recurs_is_due_at_once_then_on_its_grid_and_a_clock_that_went_back_holds_nothing_up() -> None:
    own = Recurring(7, 10)
    assert [now for now in range(100, 140) if own.begin(now)] == [100, 107, 117, 127, 137]
    assert own.begin(200) and not own.begin(206) and own.begin(215), "what is late comes once, and the grid stays"
    assert not own.begin(50) and own.begin(57)
