"""Backfills: each partition has one run, so many are open at a time, and a backfill that is cut off goes on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.workflows.backfill import Backfill, newest_run, partitions, run_name


class FewRuns:
    """Runs that end after some looks at them, as a table says."""

    def __init__(self, ends: Mapping[str, tuple[int, str]]) -> None:
        self.ends, self.looks, self.begun = ends, dict[str, int](), list[str]()

    def status(self, run: str) -> str:
        if run not in self.looks:
            return ""
        self.looks[run] += 1
        looks, status = self.ends.get(run, (1, "COMPLETED"))
        return status if self.looks[run] > looks else "RUNNING"

    def begin(self, run: str, parameters: Mapping[str, str]) -> None:
        if run in self.looks:
            assert self.looks[run] <= self.ends.get(run, (1, ""))[0], "one that is open is carried on"
            return
        self.looks[run] = 0
        self.begun.append(parameters["day"])

    def open(self) -> int:
        return sum(looks <= self.ends.get(run, (1, ""))[0] for run, looks in self.looks.items())


DAYS = partitions("2026-01-01", "2026-01-12", "day")
IDS = [run_name("nightly", {"day": day, "most": "1"}) for day in DAYS]


@given(
    ends=st.fixed_dictionaries({
        run: st.tuples(st.integers(0, 4), st.sampled_from(["COMPLETED", "COMPLETED", "ERROR", "EXCEPTION"]))
        for run in IDS
    }),
    parallel=st.integers(1, 5), cuts=st.lists(st.integers(0, 6), max_size=4),
)  # fmt: skip
def test_a_backfill_that_is_cut_off_begins_each_run_once(
    ends: dict[str, tuple[int, str]], parallel: int, cuts: list[int]
) -> None:
    runs = FewRuns(ends)

    def begun(*, begins_failed: bool = False) -> Backfill:
        return Backfill(runs, "nightly", "day", DAYS, {"most": "1"}, parallel, begins_failed=begins_failed)

    for cut in cuts:
        own = begun()
        for _ in range(cut):
            own.advance()
            assert len(own.going) <= parallel and runs.open() <= parallel + 1
    own = begun()
    while own.advance():
        assert len(own.going) <= parallel
    assert runs.begun == DAYS and own.left() == []
    bad = [day for day, run in zip(DAYS, IDS, strict=True) if ends[run][1] != "COMPLETED"]
    assert sorted(own.failed) == bad and sorted([*own.done, *own.failed]) == DAYS
    again = begun()
    assert not again.advance() or not any(again.advance() for _ in DAYS)
    assert runs.begun == DAYS and again.failed == own.failed
    other = begun(begins_failed=True)
    while other.advance():
        pass
    assert runs.begun == [*DAYS, *bad] and not other.failed and len(other.done) == len(DAYS)
    assert all(run.endswith("-2") is (day in bad) for day, run in other.done.items())


@given(start=st.dates(date(2000, 1, 1), date(2030, 1, 1)), days=st.integers(0, 800))
def test_partitions_are_those_of_the_calendar(start: date, days: int) -> None:
    stop = start + timedelta(days=days)
    whole = [start + timedelta(days=number) for number in range(days + 1)]
    assert partitions(str(start), str(stop), "day") == [str(day) for day in whole]
    assert partitions(str(start), str(stop), "week") == [str(day) for day in whole[::7]]
    if start.day == 1:
        assert partitions(str(start), str(stop), "month") == [str(day) for day in whole if day.day == 1]


@given(ends=st.lists(st.sampled_from(["COMPLETED", "ERROR"]), max_size=4))
def test_a_partition_is_what_its_last_run_is(ends: list[str]) -> None:
    runs = FewRuns({IDS[0] if not tries else f"{IDS[0]}-{tries + 1}": (0, end) for tries, end in enumerate(ends)})
    for tries in range(len(ends)):
        run = newest_run(IDS[0], runs.status)[2]
        assert run == (f"{IDS[0]}-{tries + 1}" if tries else IDS[0])
        runs.begin(run, {"day": DAYS[0]})
    own = Backfill(runs, "nightly", "day", DAYS[:1], {"most": "1"})
    while own.advance():
        pass
    assert bool(own.failed) is (ends[-1:] == ["ERROR"]) and len(runs.begun) == max(1, len(ends))


def test_a_run_that_is_deleted_begins_again() -> None:
    runs = FewRuns({})
    own = Backfill(runs, "nightly", "day", DAYS[:2], {"most": "1"}, 2)
    own.advance()
    del runs.looks[IDS[0]]
    assert sum(own.advance() for _ in range(9)) < 9
    assert runs.begun == [*DAYS[:2], DAYS[0]] and own.left() == []


@given(ends=st.lists(st.sampled_from(["COMPLETED", "ERROR", "HALTED"]), min_size=12, max_size=12))
def test_runs_that_are_stopped_hold_up_no_others(ends: list[str]) -> None:
    runs = FewRuns({run: (1, end) for run, end in zip(IDS, ends, strict=True)})
    own = Backfill(runs, "nightly", "day", DAYS, {"most": "1"}, 1)
    assert sum(own.advance() for _ in range(99)) < 99
    of = dict(zip(DAYS, ends, strict=True))
    for status, runs_of in (("COMPLETED", own.done), ("ERROR", own.failed), ("HALTED", own.stopped)):
        assert list(runs_of) == [day for day in DAYS if of[day] == status]
    assert own.left() == list(own.stopped) and runs.begun == DAYS


def test_hours_are_times() -> None:
    assert partitions("2026-01-01T22:00", "2026-01-02T00:30", "hour") == [
        "2026-01-01T22:00:00", "2026-01-01T23:00:00", "2026-01-02T00:00:00",
    ]  # fmt: skip
    assert partitions("9999-12-30", "9999-12-31", "day") == ["9999-12-30", "9999-12-31"]


@pytest.mark.parametrize(
    ("first", "last", "every", "words"),
    [
        ("2026-01-01", "2025-12-31", "day", "comes after the last"),
        ("1900-01-01", "2026-01-01", "day", "limit=10000"),
        ("yesterday", "2026-01-01", "day", "not a time"),
        ("2026-01-02", "2026-03-01", "month", "first day"),
        ("2026-01-01", "2026-03-01", "year", "no such step"),
        ("2026-01-01T00:00Z", "2026-01-01T05:00", "hour", "names an offset"),
    ],
)
def test_a_backfill_without_sense_is_refused(first: str, last: str, every: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        partitions(first, last, every)
