"""The lease on a place for backups: one at a time changes it, whatever the clocks of machines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict, Fenced
from millpond.events.days import DAY_MS
from millpond.nodes.backups.create import create_backup
from millpond.nodes.backups.layout import list_backups
from millpond.nodes.backups.lease import LEASE_SECONDS, leased
from tests.harness.interleaving.stores import PassingClock
from tests.harness.lossy_objects import LossyObjects
from tests.nodes.holder_clock import HolderLives
from tests.nodes.test_backups import Place, fill, folder_pond

pytestmark = pytest.mark.sample(2, of="file")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_one_at_a_time_changes_a_place(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        with leased(place.objects, place.clock) as lease:
            with pytest.raises(Conflict, match="at work"):
                place.create(source)
            place.clock.advance(LEASE_SECONDS * 1000)
            place.create(source)
            with pytest.raises(Fenced):
                lease.extend()


@pytest.mark.parametrize("jump", [0, -2 * DAY_MS, 2 * DAY_MS])
def test_a_backup_whose_lease_was_taken_by_another_machine_is_not_listed(
    tmp_path: Path, place: Place, jump: int
) -> None:
    watched: list[float] = []

    def taken(_: int) -> None:
        other = PassingClock(place.clock.now_ms() + LEASE_SECONDS * 1000 + jump)
        with leased(place.objects, other):
            watched.append(other.monotonic())

    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        with pytest.raises(Fenced):
            create_backup(source, place.objects, place.scratch(), place.clock, advance=taken)
    assert watched[0] >= LEASE_SECONDS, "it watched the row for the time of a lease"
    assert list_backups(place.objects) == []


@pytest.mark.parametrize("jump", [-2 * DAY_MS, -LEASE_SECONDS * 1000, 0, LEASE_SECONDS * 1000, 2 * DAY_MS])
def test_a_holder_that_lives_keeps_its_lease_whatever_the_clocks_say(place: Place, jump: int) -> None:
    with leased(place.objects, place.clock) as lease:
        place.clock.now += jump
        place.clock.advance(LEASE_SECONDS * 1000 - 1)
        lease.extend()
        other = HolderLives(place.clock.now_ms() - jump, lease)
        with pytest.raises(Conflict, match="at work"), leased(place.objects, other):
            pass
        assert other.monotonic() < LEASE_SECONDS
        lease.confirm()


@pytest.mark.parametrize("jump", [-2 * DAY_MS, 2 * DAY_MS])
def test_a_dead_holder_of_another_time_blocks_nobody_for_longer_than_its_lease(place: Place, jump: int) -> None:
    dead = leased(place.objects, ManualClock(place.clock.now_ms() + jump))
    dead.__enter__()
    begun = place.clock.monotonic()
    with leased(place.objects, place.clock) as lease:
        lease.confirm()
    assert LEASE_SECONDS <= place.clock.monotonic() - begun < LEASE_SECONDS + 1
    with leased(place.objects, place.clock):
        pass
    assert place.clock.monotonic() - begun < LEASE_SECONDS + 1, "who gave it back is not waited for"


@pytest.mark.parametrize("outcomes", [(True,), (False,), (False, True), (True, False)], ids=str)
def test_an_answer_that_was_lost_is_not_taken_for_another_holder(place: Place, outcomes: tuple[bool, ...]) -> None:
    objects = LossyObjects()
    objects.outcomes = outcomes
    with leased(objects, place.clock) as lease:
        objects.outcomes = outcomes
        lease.confirm()
        lease.confirm()
        objects.outcomes = outcomes
    begun = place.clock.monotonic()
    with leased(objects, place.clock) as lease:
        assert place.clock.monotonic() - begun < LEASE_SECONDS, "it was given back"
        objects.put("current.json", b"{}")
        objects.outcomes = (False,)
        with pytest.raises(Fenced):
            lease.confirm()


def test_the_lease_of_an_earlier_release_is_read(place: Place) -> None:
    for until in (0, 1):
        place.objects.put("current.json", b'{"owner":"a","until_ms":%d}' % until)
        begun = place.clock.monotonic()
        with leased(place.objects, place.clock):
            assert (place.clock.monotonic() - begun >= LEASE_SECONDS) == bool(until)
