"""The kit for tests of those who use Millpond: a pond of a test, its clock and its faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond import Unavailable, Uncertain
from millpond.pond import Pond
from millpond.stores.memory import MemorySpace
from millpond.testing import FaultySpace, ManualClock, faults_of, temporary_pond
from millpond.testing.ponds import BEGINNING_MS

pytest_plugins = ["millpond.testing.fixtures"]

DAY = 86_400_000


def load(pond: Pond, value: int) -> None:
    if not pond.maps():
        pond.create_map("m", kind="state", value="long")
    pond.map("m").load([{"key": "a", "value": value}])


def test_a_temporary_pond_is_gone_afterwards_and_its_clock_stands_still() -> None:
    with temporary_pond() as pond:
        load(pond, 1)
        folder = pond.folder
        assert folder.is_dir()
        assert pond.map("m").get("a") == 1
        assert pond.clock.now_ms() == BEGINNING_MS
    assert not folder.parent.exists()


def test_a_pond_is_gone_also_when_the_test_fails() -> None:
    folder = Path()
    with pytest.raises(ZeroDivisionError), temporary_pond() as pond:
        folder = pond.folder
        raise ZeroDivisionError
    assert not folder.parent.exists()


def test_a_test_may_bring_its_clock() -> None:
    clock = ManualClock(now=DAY)
    with temporary_pond(clock=clock) as pond:
        load(pond, 1)
        clock.advance(DAY)
        assert pond.clock.now_ms() == 2 * DAY


STORES = pytest.mark.parametrize("store", ["layers", "shard"])


@STORES
@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("committed", "silent", "kind"),
    [
        (True, False, ""), (False, False, "load_not_entered"),
        (True, True, "load_uncertain"), (False, True, "load_uncertain"),
    ],
)  # fmt: skip
def test_a_load_whose_answer_was_lost_is_done_once(
    store: str, committed: bool, silent: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_MAPS_STORE", store)
    with temporary_pond() as pond:
        load(pond, 1)
        faults = faults_of(pond).losing_results(committed=committed, silent=silent)
        if kind:
            with faults, pytest.raises(Unavailable) as caught:
                load(pond, 2)
            assert caught.value.kind == kind
            assert isinstance(caught.value, Uncertain) == silent
        else:
            with faults:
                load(pond, 2)
        pond.merge()
        assert pond.map("m").get("a") == 1 + committed
        load(pond, 2)
        assert pond.map("m").get("a") == 2
        assert [entry.kind for entry in pond.log.entries(0)] == ["create", "load", "load"]
        assert pond.verify(full=True).ok


@STORES
@pytest.mark.usefixtures("process")
def test_folds_and_tidying_whose_answers_were_lost_do_not_fail_the_load(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_MAPS_STORE", store)
    monkeypatch.setattr("millpond.maps.loads.retention.TRIM_EVERY", 1)
    with temporary_pond() as pond:
        load(pond, 0)
        with faults_of(pond).losing_results(committed=True):
            for value in range(1, 12):
                load(pond, value)
        assert pond.map("m").get("a") == 11
        assert pond.verify(full=True).ok


def test_a_full_disk_and_a_silent_space_pass() -> None:
    with temporary_pond() as pond:
        load(pond, 1)
        for fault in (faults_of(pond).full, faults_of(pond).unreachable):
            with fault(), pytest.raises(Unavailable):
                load(pond, 2)
            assert pond.map("m").get("a") == 1
        load(pond, 2)
        assert pond.map("m").get("a") == 2


def test_nothing_is_read_or_written_while_a_space_is_unreachable() -> None:
    space = FaultySpace(MemorySpace())
    with space.unreachable():
        with pytest.raises(Unavailable):
            space.read()
        with pytest.raises(Unavailable):
            space.write(lambda tx: tx.put(b"a", b"1"))
    with space.read() as tx:
        assert tx.get(b"a") is None


def test_slow_writes_take_time_of_the_clock() -> None:
    clock, space = ManualClock(), FaultySpace(MemorySpace())
    with space.slow(clock, 700):
        space.write(lambda tx: tx.put(b"a", b"1"))
        space.write(lambda tx: tx.put(b"a", b"2"))
    space.write(lambda tx: tx.put(b"a", b"3"))
    assert clock.now_ms() == 1400


def test_the_fixtures_share_a_clock(millpond_pond: Pond, millpond_clock: ManualClock) -> None:
    assert millpond_pond.clock is millpond_clock
    assert millpond_clock.now_ms() == BEGINNING_MS
