"""Leases between machines whose clocks are days apart: a live holder keeps its own, a dead one holds nobody up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict
from millpond.kernel.sightings import ROWS_MAX, Sightings
from millpond.nodes.backups.lease import LEASE_SECONDS, leased
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.versions.repositories import Repositories
from millpond.versions.staging.publishing import (
    COLLECTING_MS_MAX,
    DELETING,
    Collected,
    begin_collecting,
    check_published,
    collections,
    end_collecting,
    publish,
    renew_collecting,
)
from millpond.versions.staging.turns import Turns

DAYS = 2 * 86_400_000
SKEWS = pytest.mark.parametrize("skew", [DAYS, -DAYS, 0])


def test_a_row_is_over_when_it_has_been_the_same_for_its_length() -> None:
    clock = ManualClock()
    sightings = Sightings(clock)
    assert not sightings.is_over(b"k", b"1", 1000)
    clock.now += DAYS
    assert not sightings.is_over(b"k", b"1", 1000)
    clock.advance(999)
    assert not sightings.is_over(b"k", b"1", 1000)
    clock.advance(1)
    assert sightings.is_over(b"k", b"1", 1000) and not sightings.is_over(b"other", b"1", 1000)
    assert not sightings.is_over(b"k", b"2", 1000), "it was renewed"
    for number in range(ROWS_MAX):
        sightings.is_over(b"%d" % number, b"", 1)
    clock.advance(1000)
    assert not sightings.is_over(b"k", b"2", 1000), "forgotten, and so seen first"


class Machines:
    """Two machines with one repository in a shared space: time passes for both, their times of day differ."""

    def __init__(self, skew: int) -> None:
        self.clocks = ManualClock(1_700_000_000_000), ManualClock(1_700_000_000_000 + skew)
        objects = MemoryObjects()
        site = Repositories(MemorySpace(), self.clocks[0], lambda _: objects).create("shared").site
        self.collector = site
        self.builder = replace(site, clock=self.clocks[1], turns=Turns(site.space, self.clocks[1]))

    def advance(self, ms: int) -> None:
        for clock in self.clocks:
            clock.advance(ms)

    def publishes(self, count: int) -> bool:
        try:
            with self.builder.space.read() as tx:
                check_published(self.builder, tx, count)
        except Collected:
            return False
        return True


@SKEWS
def test_nothing_is_published_while_a_live_collection_of_another_machine_deletes(skew: int) -> None:
    machines = Machines(skew)
    lease = begin_collecting(machines.collector)
    for _ in range(10):  # it renews its lease in time
        assert collections(machines.builder) == DELETING
        assert not machines.publishes(1)
        with pytest.raises(Conflict):
            begin_collecting(machines.builder)
        machines.advance(COLLECTING_MS_MAX - 1)
        renewed = renew_collecting(machines.collector, lease)
        assert renewed is not None
        lease = renewed
    end_collecting(machines.collector, lease)
    assert collections(machines.builder) == 1 and machines.publishes(1)


@SKEWS
def test_a_collection_that_died_holds_another_machine_for_a_minute(skew: int) -> None:
    machines = Machines(skew)
    lease = begin_collecting(machines.collector)
    assert collections(machines.builder) == DELETING
    machines.advance(COLLECTING_MS_MAX)
    assert collections(machines.builder) == 1 and machines.publishes(1)
    assert renew_collecting(machines.collector, lease) is None, "it knows so itself"
    written: list[int] = []
    publish(machines.builder, (), 1, lambda _: written.append(1))
    assert written == [1]
    later = replace(machines.builder, turns=Turns(machines.builder.space, machines.clocks[1]))
    assert collections(later) == 1, "the next process need not wait once more"


@pytest.mark.parametrize("jump", [DAYS, -DAYS])
def test_a_collection_whose_own_clock_jumps_goes_on_for_its_time_and_no_longer(jump: int) -> None:
    machines = Machines(0)
    lease = begin_collecting(machines.collector)
    assert collections(machines.builder) == DELETING
    machines.clocks[0].now += jump
    renewed = renew_collecting(machines.collector, lease)
    assert renewed is not None and collections(machines.builder) == DELETING
    machines.clocks[0].now -= jump
    machines.advance(COLLECTING_MS_MAX)
    assert renew_collecting(machines.collector, renewed) is None


# -- backups ------------------------------------------------------------------------------------------


def test_a_dead_backup_of_a_clock_that_was_ahead_holds_nobody_for_days() -> None:
    place, clock = MemoryObjects(), ManualClock(DAYS)
    dead = leased(place, ManualClock(2 * DAYS))
    dead.__enter__()
    with leased(place, clock) as lease:
        lease.extend()
    dying = leased(place, clock)
    dying.__enter__()
    with pytest.raises(Conflict), leased(place, clock):
        pass
    clock.advance(LEASE_SECONDS * 1000)
    with leased(place, clock):
        pass


@pytest.mark.parametrize("jump", [DAYS, -DAYS])
def test_a_backup_extends_its_lease_in_time_whatever_its_clock_says(jump: int) -> None:
    place, clock = MemoryObjects(), ManualClock(2 * DAYS)
    with leased(place, clock) as lease:
        clock.now += jump
        clock.advance(LEASE_SECONDS * 1000 - 1)
        lease.extend()
        clock.advance(1_000)
        with pytest.raises(Conflict, match="at work"), leased(place, clock):
            pass
