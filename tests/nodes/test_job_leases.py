"""Leases of jobs: one node at a time has the turn, and that of a dead one is free after half a minute."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.clock import ManualClock
from millpond.nodes.jobs.job_leases import LEASE_SECONDS, SURE_SECONDS, JobLeases
from millpond.stores.memory import MemorySpace

GOING = threading.Event()


def nodes(count: int = 2) -> tuple[ManualClock, list[JobLeases]]:
    clock, space = ManualClock(0), MemorySpace()
    return clock, [JobLeases(space, clock) for _ in range(count)]


def test_one_node_at_a_time_has_the_turn() -> None:
    _, (one, other) = nodes()
    with one("compact/m", GOING) as turn, one("compact/n", GOING) as elsewhere:
        assert turn is not None
        assert elsewhere is not None
        with other("compact/m", GOING) as none, one("compact/m", GOING) as again:
            assert (none, again) == (None, None)
    with other("compact/m", GOING) as after:
        assert after is not None


def test_the_turn_of_a_dead_node_is_free_after_half_a_minute_and_its_job_is_named() -> None:
    clock, (one, other) = nodes()
    entered = one("garbage", GOING)
    entered.__enter__()
    assert other.dead() == set()
    clock.advance(1000 * (LEASE_SECONDS - 1))
    assert other.dead() == set()
    clock.advance(1001)
    assert other.dead() == {"garbage"}
    assert other.dead() == set(), "it is told once"
    with other("garbage", GOING) as turn:
        assert turn is not None


def test_a_node_whose_machine_slept_learns_at_once_that_another_has_its_turn() -> None:
    space, asleep, awake = MemorySpace(), ManualClock(0), ManualClock(0, ids=1 << 32)
    one, other = JobLeases(space, asleep), JobLeases(space, awake)
    entered = one("garbage", GOING)
    turn = entered.__enter__()
    assert turn is not None
    assert other.dead() == set()
    awake.advance(round(1000 * LEASE_SECONDS))
    assert other.dead() == {"garbage"}
    asleep.now += round(1000 * LEASE_SECONDS)
    one.renew()
    assert turn.is_set()


def test_a_node_that_lives_keeps_its_turn_and_one_that_lost_sight_of_the_bucket_ends() -> None:
    clock, (one, other) = nodes()
    entered = one("garbage", GOING)
    turn = entered.__enter__()
    assert turn is not None
    for _ in range(20):
        clock.advance(9_000)
        one.renew()
        assert other.dead() == set()
    assert not turn.is_set()
    clock.advance(1000 * SURE_SECONDS)
    assert turn.is_set(), "another may take it for dead by now"
    clock, (one, other) = nodes()
    with one("garbage", GOING) as lost:
        other.dead()
        clock.advance(1000 * LEASE_SECONDS)
        assert other.dead() == {"garbage"}
        with other("garbage", GOING) as taken:
            one.renew()
            assert lost is not None
            assert lost.is_set()
            assert taken is not None
            assert not taken.is_set()


def test_the_turn_ends_with_the_work_of_its_node() -> None:
    _, (one, _other) = nodes()
    stopping = threading.Event()
    with one("garbage", stopping) as turn:
        assert turn is not None
        assert not turn.is_set()
        stopping.set()
        assert turn.is_set()


class Leases(RuleBasedStateMachine):
    """Three nodes that begin, end, stand still and die; those that see the bucket look after it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.nodes = nodes(3)
        self.turns: dict[int, tuple[AbstractContextManager[threading.Event | None], threading.Event]] = {}
        self.away: set[int] = set()

    @rule(node=st.integers(0, 2))
    def begin(self, node: int) -> None:
        if node in self.turns or node in self.away:
            return
        entered = self.nodes[node]("garbage", GOING)
        turn = entered.__enter__()
        if turn is None:
            entered.__exit__(None, None, None)
        else:
            self.turns[node] = entered, turn

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.turns)))
        if node not in self.away:
            self.turns.pop(node)[0].__exit__(None, None, None)

    @rule(node=st.integers(0, 2))
    def lose_or_find_the_bucket(self, node: int) -> None:
        self.away ^= {node}

    @rule(looks=st.integers(1, 8))
    def wait(self, looks: int) -> None:
        for _ in range(looks):
            self.clock.advance(5000)
            for number, node in enumerate(self.nodes):
                if number not in self.away:
                    node.renew()
                    node.dead()

    @invariant()
    def one_at_most_sees_the_bucket_and_goes_on(self) -> None:
        going = [
            node for node, (_, turn) in self.turns.items() if node not in self.away and not turn.is_set()
        ]  # fmt: skip
        assert len(going) <= 1


TestLeases = Leases.TestCase
