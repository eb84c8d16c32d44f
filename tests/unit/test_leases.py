"""Leases of all parts, on two machines whose clocks differ and jump by days: each is right, none blocks for long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict
from millpond.json_forms import JsonForm
from millpond.kernel.lease import Lease, LeaseRow, LeaseWatch
from millpond.kernel.space import Transaction
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import FolderObjects
from millpond.versions.collect import collect
from millpond.versions.commits import Message
from millpond.versions.imports.jobs import ALIVE_SECONDS, ImportRecord, ImportState
from millpond.versions.imports.locations import PrefixLocation
from millpond.versions.keyspaces import IMPORT, TURN
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.staging.branch_head import Built, Moving, move_head
from millpond.versions.staging.head_lock import LEASE_SECONDS, HeadLock
from millpond.versions.staging.publishing import (
    COLLECTING_SECONDS,
    DELETING,
    begin_collecting,
    collections,
    end_collecting,
    renew_collecting,
)
from tests.harness.interleaving.stores import PassingClock
from tests.version_sites import TINY

T = TypeVar("T")
NOW = 1_700_000_000_000
DAYS = 2 * 86_400_000
JUMPS = pytest.mark.parametrize("jump", [-DAYS, -60_000, 0, 60_000, DAYS])


class Machines:
    """Two machines on one space, the clock of the second off by `jump`; `restarted`: a process that has just begun."""

    def __init__(self, folder: Path, jump: int) -> None:
        self.space, self.jump, self.objects = MemorySpace(), jump, FolderObjects(folder)
        self.clocks: list[ManualClock] = []
        self.one = self.restarted(0)
        self.one.create("leases")
        self.other = self.restarted(jump)

    def restarted(self, jump: int) -> Repositories:
        now = self.clocks[0].now if self.clocks else NOW
        clock = PassingClock(now + jump, ids=len(self.clocks) << 32)
        self.clocks.append(clock)
        return Repositories(self.space, clock, lambda where: self.objects, boundaries=TINY)

    def repositories(self) -> tuple[Repository, Repository]:
        return self.one.get("leases"), self.other.get("leases")

    def pass_time(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(round(1000 * seconds))


@pytest.fixture
def machines(tmp_path: Path) -> Callable[[int], Machines]:
    return lambda jump: Machines(tmp_path, jump)


def test_a_process_that_waits_sees_a_holder_that_lives() -> None:
    clock = PassingClock(NOW)
    leases = iter(Lease("holder", 1, beat) for beat in (0, 0, 0, 1))
    assert LeaseWatch(clock).wait_free("key", lambda: next(leases), 60.0, lambda: 0) is None
    assert clock.monotonic() < 4


class LateSpace(MemorySpace):
    """A space whose next answers come late, by some seconds each."""

    def __init__(self, clock: ManualClock, *seconds: float) -> None:
        super().__init__()
        self.clock, self.late = clock, list(seconds)

    def write(self, change: Callable[[Transaction], T]) -> T:
        answer = super().write(change)
        self.clock.advance(round(1000 * self.late.pop(0)) if self.late else 0)
        return answer


def held_by(space: MemorySpace, clock: ManualClock) -> tuple[LeaseRow, Lease]:
    row = LeaseRow(b"lease", 30.0, LeaseWatch(clock))
    held = space.write(lambda tx: row.take(tx, "holder"))
    assert held is not None
    return row, held


@pytest.mark.parametrize(
    ("passed_ms", "day_ms"),
    [(10_000, 10_000), (0, 40_000), (40_000, 0), (40_000, 9_000), (5_000, -1)],
    ids=["old", "asleep", "set back", "set back a little", "before it began"],
)
def test_a_holder_renews_what_one_of_its_clocks_says_is_old(passed_ms: int, day_ms: int) -> None:
    clock, space = ManualClock(NOW), MemorySpace()
    row, held = held_by(space, clock)
    clock.advance(9_999)
    assert row.hold(space, held, 10.0) is held
    space = MemorySpace()
    row, held = held_by(space, clock)
    clock.advance(passed_ms)
    clock.now = held.at_ms + day_ms
    renewed = row.hold(space, held, 10.0)
    assert renewed is not None and renewed.beat == held.beat + 1
    assert row.hold(space, renewed, 10.0) is renewed


def test_a_renewal_whose_answer_comes_late_is_made_again() -> None:
    clock = ManualClock(NOW)
    space = LateSpace(clock, 40, 20, 3)
    row, held = held_by(space, clock)
    assert space.late == [20, 3]
    renewed = row.hold(space, held, 10.0)
    assert renewed is not None and (renewed.beat, space.late) == (2, [])

    def other_takes(lease: Lease) -> None:
        other = LeaseRow(b"lease", 30.0, LeaseWatch(clock))
        assert not other.over(lease)
        clock.advance(30_000)
        assert space.write(lambda tx: other.take(tx, "other")) is not None

    other_takes(renewed)
    assert row.hold(space, renewed, 10.0) is None


@JUMPS
def test_the_turn_of_another_machine_holds(machines: Callable[[int], Machines], jump: int) -> None:
    both = machines(jump)
    context = both.repositories()[0].context
    entered: list[float] = []

    def waits(turn: HeadLock) -> None:
        begun = both.clocks[1].monotonic()
        both.other.get("leases").context.head_locks.write(turn, lambda tx: None)
        entered.append(both.clocks[1].monotonic() - begun)

    with context.head_locks.hold(context.uid, "main") as mine:
        context.head_locks.write(mine, lambda tx: None)
        with both.other.get("leases").context.head_locks.hold(context.uid, "main") as theirs:
            waits(theirs)  # the first one is silent from now on
            assert entered[0] >= LEASE_SECONDS
    with context.space.read() as tx:
        assert tx.get(TURN[context.uid].pack("main")) is None, "given back"
    with both.other.get("leases").context.head_locks.hold(context.uid, "main") as theirs:
        waits(theirs)
    assert entered[1] == 0


@JUMPS
def test_a_collection_of_another_machine_holds(machines: Callable[[int], Machines], jump: int) -> None:
    both = machines(jump)
    mine, theirs = (repository.context for repository in both.repositories())
    lease = begin_collecting(mine)
    for _ in range(4):
        assert collections(theirs) == DELETING
        both.pass_time(COLLECTING_SECONDS - 1)
        assert collections(theirs) == DELETING
        renewed = renew_collecting(mine, lease)
        assert renewed is not None, "it lives"
        lease = renewed
    both.clocks[1].now += DAYS
    assert collections(theirs) == DELETING, "a jump is no time"
    both.pass_time(COLLECTING_SECONDS)
    assert collections(theirs) == 1, "it has been silent for a lease"
    assert renew_collecting(mine, lease) is None
    end_collecting(mine, lease)
    end_collecting(theirs, begin_collecting(theirs))
    assert collections(mine) == 2


@JUMPS
def test_a_new_process_watches_a_collection_that_died(machines: Callable[[int], Machines], jump: int) -> None:
    both = machines(jump)
    begin_collecting(both.repositories()[0].context)
    both.pass_time(2 * COLLECTING_SECONDS)  # nobody watched
    fresh = both.restarted(jump)
    context, clock = fresh.get("leases").context, both.clocks[-1]
    clock.now += round(2000 * COLLECTING_SECONDS)
    if 0 <= clock.now_ms() - NOW < 1000 * COLLECTING_SECONDS:
        with pytest.raises(Conflict):  # it looks young
            begin_collecting(context)
        clock.advance(round(1000 * COLLECTING_SECONDS))
    begun = clock.monotonic()
    assert begin_collecting(context).term == 2
    assert COLLECTING_SECONDS <= clock.monotonic() - begun < COLLECTING_SECONDS + 2


def test_a_head_is_not_built_again_and_again_while_a_collection_deletes(
    machines: Callable[[int], Machines],
) -> None:
    mine, theirs = (repository.context for repository in machines(0).repositories())
    begin_collecting(mine)  # and dies: for a lease nothing is published
    built: list[Moving] = []

    def build(moving: Moving) -> Built:
        built.append(moving)
        return Built(moving.head)

    move_head(theirs, "main", None, build)
    assert len(built) == 2, "before its end was seen, and after"


@JUMPS
def test_an_import_of_another_machine_is_alive_while_its_row_moves(
    machines: Callable[[int], Machines], tmp_path: Path, jump: int
) -> None:
    both = machines(jump)
    mine, theirs = both.repositories()
    source = tmp_path / "files"
    source.mkdir()
    (source / "a").write_bytes(b"a")
    id_ = both.one.imports.start(mine.context, "main", [PrefixLocation(f"local://{source}/", "x")], Message())
    both.one.close()
    assert both.other.imports.get(theirs.context, "main", id_).state is not ImportState.RUNNING, "a clean end"


@JUMPS
def test_an_import_that_died_is_watched_for_a_lease(machines: Callable[[int], Machines], jump: int) -> None:
    both = machines(jump)
    mine, theirs = both.repositories()
    record = ImportRecord("import", "main", ImportState.RUNNING, both.clocks[0].now_ms())

    def show() -> None:
        nonlocal record
        record = replace(record, beat=record.beat + 1, updated_ms=both.clocks[0].now_ms())
        key, row = IMPORT[mine.context.uid].pack("import"), JsonForm(ImportRecord).encode(record)
        mine.context.space.write(lambda tx: tx.put(key, row))

    def state() -> ImportState:
        return both.other.imports.get(theirs.context, "main", "import").state

    for _ in range(3):
        show()
        assert state() is ImportState.RUNNING
        both.pass_time(ALIVE_SECONDS - 1)
        assert state() is ImportState.RUNNING
    show()
    assert state() is ImportState.RUNNING
    both.clocks[1].now += DAYS
    assert state() is ImportState.RUNNING
    both.pass_time(ALIVE_SECONDS)
    assert state() is ImportState.FAILED
    show()
    both.pass_time(2 * ALIVE_SECONDS)
    fresh = both.restarted(jump)
    begun = both.clocks[-1].monotonic()
    both.clocks[-1].now += round(3000 * ALIVE_SECONDS)
    repository = fresh.get("leases")
    collect(repository.context)
    assert fresh.imports.get(repository.context, "main", "import").state is ImportState.FAILED
    assert both.clocks[-1].monotonic() - begun < ALIVE_SECONDS + 2
