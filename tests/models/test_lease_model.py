"""Leases of a space, against a model: processes whose clocks jump by days, of which some die, sleep or are slow."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from millpond.clock import ManualClock
from millpond.kernel.lease import Lease, LeaseRow, LeaseWatch
from millpond.stores.memory import MemorySpace
from tests.rings.sampling import examples

SECONDS = 10.0
DAY_MS = 86_400_000
KEY = b"lease"


class Process:
    """A process: a clock of its own, and what it believes to hold."""

    def __init__(self, name: int) -> None:
        self.clock = ManualClock(now=name * 2 * DAY_MS, ids=name << 32)
        self.row = LeaseRow(KEY, SECONDS, LeaseWatch(self.clock))
        self.held: Lease | None = None


class Leases(RuleBasedStateMachine):
    """The model knows the true time: when the holder showed last that it lives."""

    processes = Bundle("processes")

    @initialize()
    def begin(self) -> None:
        self.space = MemorySpace()
        self.all: list[Process] = []
        self.holder: Process | None = None
        self.now = self.shown = 0.0
        self.terms: list[int] = []

    @rule(target=processes)
    def start(self) -> Process:
        self.all.append(Process(len(self.all)))
        return self.all[-1]

    # Eighths of a second are sums without rounding: else a lease of 10 s ends after 9.999999999999998 s by one clock.
    @rule(ms=st.integers(1, 120).map(lambda eighths: 125 * eighths))
    def time_passes(self, ms: int) -> None:
        self.now += ms / 1000
        for process in self.all:
            process.clock.advance(ms)

    @rule(process=processes, ms=st.integers(1, 120).map(lambda eighths: 125 * eighths))
    def machine_sleeps(self, process: Process, ms: int) -> None:
        self.now += ms / 1000
        process.clock.now += ms
        for other in self.all:
            if other is not process:
                other.clock.advance(ms)

    @rule(process=processes, days=st.integers(-2, 2))
    def clock_jumps(self, process: Process, days: int) -> None:
        process.clock.now = max(0, process.clock.now + days * DAY_MS)

    @rule(process=processes)
    def take(self, process: Process) -> None:
        lease = self.space.write(lambda tx: process.row.take(tx, process.clock.random_id()))
        if lease is None:
            assert self.holder is not None, "a free lease is taken at once"
            return
        assert self.holder is None or self.now - self.shown >= SECONDS, "a holder that may live keeps it"
        self.terms.append(lease.term)
        self.holder, self.shown, process.held = process, self.now, lease

    @rule(process=processes)
    def renew(self, process: Process) -> None:
        held = process.held
        if held is None:
            return
        renewed = self.space.write(lambda tx: process.row.renew(tx, held))
        assert (renewed is not None) == (self.holder is process and held.term == self.terms[-1]), "a fence"
        process.held = renewed
        if renewed is not None:
            assert renewed != held
            self.shown = self.now

    @rule(process=processes)
    def keep(self, process: Process) -> None:
        held = process.held
        if held is None:
            return
        process.held = process.row.hold(self.space, held, SECONDS / 3)
        if process.held is None:
            assert self.holder is not process or held.term != self.terms[-1]
        elif process.held != held:
            self.shown = self.now
        if process.held is not None and self.now - self.shown < SECONDS:
            assert self.holder is process, "nobody else could take it"
        assert process.held is None or self.now - self.shown < SECONDS / 3, "it lasts for a while"

    @rule(process=processes)
    def give_back(self, process: Process) -> None:
        held, process.held = process.held, None
        if held is not None:
            self.space.write(lambda tx: process.row.give_back(tx, held))
            if self.holder is process and held.term == self.terms[-1]:
                self.holder = None

    @rule(process=processes)
    def end_dead(self, process: Process) -> None:
        lease = self.space.write(process.row.end_dead)
        if self.holder is not None and not lease.holder:
            assert self.now - self.shown >= SECONDS
            self.holder = None

    @rule(process=processes)
    def a_dead_holder_is_waited_for_no_longer_than_its_lease(self, process: Process) -> None:
        with self.space.read() as tx:
            lease = process.row.read(tx)
        process.row.over(lease)
        self.time_passes(round(1000 * SECONDS))
        assert process.row.over(lease)

    @invariant()
    def terms_grow(self) -> None:
        terms = getattr(self, "terms", [])
        assert terms == sorted(set(terms))


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=examples(15, 60), stateful_step_count=40, deadline=None)
