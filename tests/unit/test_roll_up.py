"""Old rows of aggregates in wider buckets: what is combined, what is answered, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millpond
from millpond import Map, Pond
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid, MillpondError
from millpond.kernel.steps import listening
from millpond.maps.maintenance import roll_up
from millpond.maps.model.aggregation import Aggregation, RolledUp, Rule
from millpond.maps.model.rolled_up import rolled_up, shown_ends, shown_from, shown_starts
from millpond.maps.shard.digest import digest_of_view
from millpond.times.buckets import bucket_starts

VALUE = "orders long count, units long sum, low double min, last string latest, users distinct"
ZONE = "Europe/Paris"


def event(at: str, key: str = "a", *, units: int = 1) -> dict[str, Any]:
    return {"key": key, "time": at, "units": units, "low": float(units), "last": at, "users": at}


MARCH = [event(f"2024-03-{day:02}T{hour:02}:30Z") for day in (29, 30, 31) for hour in range(24)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_712_000_000_000)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        yield opened


@pytest.fixture
def sales(pond: Pond, request: pytest.FixtureRequest) -> Map:
    store = getattr(request, "param", "layers")
    made = pond.create_map(
        "sales", kind="aggregate", value=VALUE, resolution="1 hour", time_zone=ZONE, roll_up="day", store=store
    )
    made.load(MARCH)
    return made


def digest(target: Map) -> str:
    with target.shard.view() as view:
        return str(digest_of_view(view))


in_both_stores = pytest.mark.parametrize("sales", ["layers", "shard"], indirect=True)


def shown(target: Map, **query: Any) -> dict[str, int]:
    rows = target.scan(columns=["time", "orders"], **query).read_all().to_pylist()
    return {row["time"].astimezone(UTC).strftime("%d %H"): row["orders"] for row in rows}


def kind_of(error: pytest.ExceptionInfo[MillpondError]) -> str:
    return error.value.kind


@in_both_stores
def test_whole_wide_buckets_before_the_time_become_one_row(sales: Map) -> None:
    report = sales.retain(before="2024-03-31T12:00Z")
    assert report.rows_before - report.rows_after == report.rows_removed == 45
    # The 31st has 23 hours in Paris; the 28th and the 31st there are not over in UTC, or not yet.
    days = {time: orders for time, orders in shown(sales).items() if orders > 1}
    assert days == {"28 23": 23, "29 23": 24}
    assert sum(shown(sales).values()) == 72
    assert sales.get("a", "2024-03-30T12:00Z") == sales.get("a", "2024-03-30T00:00Z")
    assert sales.get("a", "2024-03-30T12:00Z")["last"] == "2024-03-30T22:30Z"
    assert sales.get("a", "2024-03-31T12:00Z")["orders"] == 1
    assert sales.get("a", between=("2024-03-29T12:00Z", "2024-03-31T00:00Z"))["orders"] == 25
    before = sales.scan().read_all()
    assert sales.retain(before="2024-03-31T12:00Z").rows_removed == 0
    assert sales.scan().read_all() == before
    assert sales.retain(before="2024-03-01T00:00Z").rows_removed == 0
    assert sales.scan().read_all() == before


@pytest.mark.usefixtures("process")
def test_late_events_count_in_the_wide_bucket_and_the_past_stays(pond: Pond, sales: Map, clock: ManualClock) -> None:
    then = clock.now_ms()
    clock.advance(60_000)
    sales.retain(before="2024-03-31T22:00Z")
    clock.advance(60_000)
    sales.load([event("2024-03-30T05:00Z", units=7), event("2024-03-29T05:00Z", "b")])
    assert sales.get("a", "2024-03-30T20:00Z")["orders"] == 25
    assert sales.get("b", "2024-03-29T21:00Z")["orders"] == 1
    assert sales.get("a", "2024-03-30T20:00Z", known_at=then)["orders"] == 1
    times = [datetime.fromtimestamp(then / 1000, UTC), datetime.fromtimestamp(then / 1000 + 120, UTC)]
    both = sales.lookup(["a", "a"], "2024-03-30T20:00Z", known_at=times)
    assert both.field("orders").to_pylist() == [1, 25]
    assert len(shown(sales, known_at=then)) == 72
    assert shown(sales, where="key = 'a'") == {"28 23": 23, "29 23": 25, "30 23": 23, "31 22": 1, "31 23": 1}
    sales.compact()
    assert pond.sql("select sum(orders) as n from sales").to_pylist() == [{"n": 74}]
    text = "select sum(orders) as n from sales where time = '2024-03-29T23:00Z'"
    assert pond.sql(text).to_pylist() == [{"n": 25}]
    assert pond.verify().ok


@in_both_stores
def test_questions_at_a_resolution_keep_what_is_wider(pond: Pond, sales: Map) -> None:
    sales.retain(before="2024-03-31T12:00Z")
    assert shown(sales, resolution="6 hours")["29 23"] == 24
    assert sales.get("a", "2024-03-30T20:00Z", resolution="6 hours")["orders"] == 24
    assert sales.get("a", "2024-03-31T00:00Z", resolution="6 hours")["orders"] == 5
    assert sales.get("a", "2024-03-30T20:00Z", resolution="1 week")["orders"] == 70
    pond.alter_map("sales", roll_up="month")
    sales.retain(before="2024-04-01T12:00Z")
    assert shown(sales) == {"29 23": 70, "31 22": 1, "31 23": 1}
    with pytest.raises(Invalid) as refused:
        sales.scan(resolution="1 week").read_all()
    assert kind_of(refused) == "resolution_finer"
    with pytest.raises(Invalid) as refused:
        sales.lookup(["a"], "2024-03-30T20:00Z", resolution="1 week")
    assert kind_of(refused) == "resolution_finer"
    pond.alter_map("sales", roll_up="week")
    with pytest.raises(Invalid, match="do not make up those of the other width"):
        sales.retain(before="2024-03-31T12:00Z")
    pond.alter_map("sales", roll_up="off")
    assert pond.map("sales").definition.roll_up is None
    sales.retain(before="2024-03-15T00:00Z")
    assert sum(shown(sales).values()) == 72, "a bucket stays as long as its last event may be young enough"


def test_merges_and_reverts_count_both_sides(pond: Pond, sales: Map) -> None:
    fix = pond.branch("fix", source="main")
    fix.map("sales").load([event("2024-03-30T05:00Z")])
    sales.retain(before="2024-03-31T12:00Z")
    pond.refs.merge("fix", "main")
    assert shown(sales)["29 23"] == 25
    sales.load([event("2024-03-30T06:00Z")])
    sales.compact()
    pond.refs.revert("main")
    assert shown(sales)["29 23"] == 25
    pond.refs.merge("main", "fix")
    assert shown(fix.map("sales")) == shown(sales)


def test_a_roll_up_is_reverted_as_long_as_layers_tell(pond: Pond, sales: Map) -> None:
    pond.branch("before", source="main")
    sales.retain(before="2024-03-31T12:00Z")
    rolled = next(pond.refs.log("main")).id
    sales.load([event("2024-03-30T05:00Z")])
    pond.refs.revert(rolled)
    assert shown(sales)["30 05"] == 2
    assert len(shown(sales)) == 72
    sales.retain(before="2024-03-31T12:00Z")
    rolled = next(pond.refs.log("main")).id
    sales.load([event("2024-03-30T06:00Z")])
    sales.compact()
    with pytest.raises(Invalid) as refused:
        pond.refs.revert(rolled)
    assert kind_of(refused) == "aggregate_rolled_up"


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_settings_are_checked_and_age_rolls_up(pond: Pond, clock: ManualClock, store: str) -> None:
    made = pond.create_map("m", kind="metric", resolution="hour", retain="7d", roll_up="1 day", store=store)
    assert made.definition.to_dict()["roll_up"] == "1 day"
    now = clock.now_ms()
    made.load([{"key": "a", "time": now - days * 86_400_000, "value": 1.5} for days in range(12)])
    made.retain()
    rows = made.scan().read_all()
    assert rows["count"].to_pylist() == [1] * 12
    hours = [time.hour for time in rows["time"].to_pylist()]
    assert hours.count(0) == 4
    for wrong, kind in (("7 days", "resolution"), ("none", "resolution"), ("1 minute", "resolution_finer")):
        with pytest.raises(Invalid) as refused:
            pond.alter_map("m", roll_up=wrong)
        assert kind_of(refused) == kind
    with pytest.raises(Invalid, match="only aggregates combine rows"):
        pond.create_map("s", kind="temporal_state", roll_up="1 day")
    with pytest.raises(Invalid, match="cannot have such a value"):
        pond.alter_map("m", roll_up=3)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("place", ["layers", "shard", "branch"])
def test_a_map_without_rows_is_rolled_up_for_what_comes_late(pond: Pond, place: str, emptied: bool) -> None:
    store = "shard" if place == "shard" else "layers"
    pond.create_map("m", kind="metric", resolution="hour", roll_up="1 day", store=store)
    opened = pond.branch("fix", source="main") if place == "branch" else pond
    made: Any = opened.map("m")
    late = [{"key": "a", "time": f"2024-03-29T{hour:02}:30Z", "value": 1.5} for hour in (5, 7)]
    if emptied:
        made.load(late)
        made.delete("key = 'a'")
    made.retain(before="2024-03-31T00:00Z")
    made.retain(before="2024-03-31T00:00Z")
    assert made.scan().read_all().num_rows == 0
    made.load([*late, {"key": "a", "time": "2024-03-31T05:30Z", "value": 1.5}], again=True)
    rows = made.scan(columns=["time", "count"]).read_all().to_pylist()
    assert [(row["time"].strftime("%d %H"), row["count"]) for row in rows] == [("29 00", 2), ("31 05", 1)]
    assert made.get("a", "2024-03-29T20:00Z")["count"] == 2
    assert pond.verify().ok
    if place == "branch":
        pond.refs.merge("fix", "main")
        assert pond.map("m").get("a", "2024-03-29T20:00Z")["count"] == 2
    elif not emptied:
        pond.alter_map("m", store="layers" if store == "shard" else "shard")
        assert pond.map("m").get("a", "2024-03-29T20:00Z")["count"] == 2


@in_both_stores
def test_a_sum_that_a_wide_bucket_cannot_hold_refuses_the_roll_up_or_the_load(sales: Map) -> None:
    sales.load([event("2024-03-28T01:00Z", units=2**62), event("2024-03-28T02:00Z", units=2**62)])
    with pytest.raises(Invalid, match="a sum is larger than its type holds"):
        sales.retain(before="2024-03-31T12:00Z")
    assert len(shown(sales)) == 74
    sales.delete("time = '2024-03-28T02:00Z'")
    sales.retain(before="2024-03-31T12:00Z")
    with pytest.raises((Invalid, Corrupt), match="a sum is larger than its type holds"):
        sales.load([event("2024-03-28T09:00Z", units=2**62)])
    assert sales.get("a", "2024-03-28T09:00Z")["units"] == 2**62


@in_both_stores
@pytest.mark.usefixtures("process")
def test_late_events_count_in_the_wide_bucket_in_every_form(pond: Pond, sales: Map) -> None:
    sales.freeze()
    sales.retain(before="2024-03-31T22:00Z")
    sales.load([event("2024-03-30T05:00Z", units=7), event("2024-03-29T05:00Z", "b")])
    for store in ("layers", "shard", "layers"):
        sales = pond.map("sales")
        assert sales.get("a", "2024-03-30T20:00Z")["orders"] == 25
        assert sales.lookup(["b"], "2024-03-29T21:00Z").field("orders").to_pylist() == [1]
        assert shown(sales, where="key = 'a'") == {"28 23": 23, "29 23": 25, "30 23": 23, "31 22": 1, "31 23": 1}
        assert pond.sql("select sum(orders) as n from sales where time = '2024-03-29T23:00Z'").to_pylist() == [
            {"n": 25}
        ]
        assert sales.snapshot(keys=("a", "b")).lookup(["a"], "2024-03-30T20:00Z").field("orders").to_pylist() == [25]
        assert pond.verify().ok
        pond.alter_map("sales", store=store)
    sales.load([event("2024-03-30T06:00Z")])
    assert pond.map("sales").get("a", "2024-03-30T20:00Z")["orders"] == 26


@pytest.mark.parametrize("sales", ["shard"], indirect=True)
def test_a_part_that_waited_in_quarantine_is_added_to_a_wide_bucket(pond: Pond, sales: Map) -> None:
    sales.load([event("2024-03-30T01:00Z", units=2**62)])
    with pytest.raises(Corrupt):
        sales.load([event("2024-03-30T01:00Z", units=2**62)], again=True)
    sales.retain(before="2024-03-31T22:00Z")
    sales.load([event("2024-03-30T08:00Z", units=-(2**62))])
    pond.parts.retry()
    assert sales.get("a", "2024-03-30T20:00Z")["orders"] == 27


@pytest.mark.parametrize("sales", ["shard"], indirect=True)
def test_a_shard_is_rolled_up_change_by_change(sales: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two changes a state is shown, with rows in order of time; what was done stays done."""
    monkeypatch.setattr(roll_up, "ROWS_PER_CHANGE", 20)
    digests = [digest(sales)]

    def state(name: str) -> None:
        if name == "roll_up.committed":
            assert sum(shown(sales).values()) == 72
            digests.append(digest(sales))
            if len(digests) == 3:
                raise RuntimeError("stopped")

    with listening(state), pytest.raises(RuntimeError):
        sales.retain(before="2024-03-31T22:00Z")
    assert shown(sales)["29 23"] == 24
    assert shown(sales)["31 05"] == 1
    sales.retain(before="2024-03-31T22:00Z")  # what was ordered before is carried out, too
    assert shown(sales) == {"28 23": 23, "29 23": 24, "30 23": 23, "31 22": 1, "31 23": 1}
    assert len({*digests, digest(sales)}) == 4
    before = digest(sales)
    sales.delete("time < '2024-03-20'")
    assert sales.retain(before="2024-03-31T22:00Z").changes == 0
    assert digest(sales) == before


@pytest.mark.parametrize("zone", ["UTC", ZONE, "Australia/Lord_Howe", "America/St_Johns"])
def test_bounds_of_rolled_up_buckets_agree(zone: str) -> None:
    plain = Aggregation((Rule.COUNT,), "15 minutes", zone)
    month = rolled_up(plain, "1 month", 1_704_500_000_000)
    both = rolled_up(month, "1 day", 1_712_500_000_000)
    assert rolled_up(both, "1 day", 1_700_000_000_000) == both
    assert [part.resolution for part in both.rolled_up] == ["1 month", "1 day"]
    assert rolled_up(both, "1 year", 1_740_000_000_000).rolled_up == (RolledUp(both_year(zone), "1 year"),)
    instants = np.arange(1_698_000_000_000, 1_713_000_000_000, 977_000_003)
    starts = shown_starts(both, instants)
    ends = shown_ends(both, starts, starts + 1)
    assert (starts <= instants).all()
    assert (shown_starts(both, starts) == starts).all()
    assert (shown_from(both, starts) == starts).all()
    old = ends > starts + 1
    assert (instants[old] < ends[old]).all()
    assert (shown_from(both, starts[old] + 1) == ends[old]).all()
    assert (starts[~old] == bucket_starts(instants[~old], "15 minutes", zone)).all()


def both_year(zone: str) -> int:
    return int(bucket_starts(np.array([1_740_000_000_000]), "1 year", zone)[0])


@pytest.mark.usefixtures("process")
def test_differences_and_copies_show_the_buckets_of_each_state(pond: Pond, sales: Map, tmp_path: Path) -> None:
    before = next(pond.refs.log("main")).id
    sales.retain(before="2024-03-31T12:00Z")
    sales.load([event("2024-03-30T05:00Z")])
    changes = pond.refs.diff(before, "main", map="sales").to_pylist()
    assert [change["change"] for change in changes].count("removed") == 46
    days = {change["time"].astimezone(UTC).strftime("%d %H"): change for change in changes if change["new"]}
    assert {day: change["new"]["orders"] for day, change in days.items()} == {"28 23": 23, "29 23": 25}
    millpond.copy(pond.folder, tmp_path / "copy")
    with millpond.open(tmp_path / "copy") as copied:
        assert shown(copied.map("sales")) == shown(sales)
        copied.catalogue.copy("sales", "other")
        assert shown(copied.map("other"), resolution="1 day") == {"28 23": 23, "29 23": 25, "30 23": 23, "31 22": 2}
        assert copied.verify().ok
