"""Aggregates: what they answer, what they refuse, and that no load counts twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, MillpondError
from millpond.maps.layered.maintenance import fold_due
from millpond.maps.snapshots.layers import LAYERS_MAX
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.nodes.jobs.maintenance import MaintenanceOrders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

NOW = 1_704_200_000_000
HOUR = "2024-01-01T10:00Z"
VALUE = "orders long count, total double sum, low double min, high double max, units long sum, last string latest"
COLUMNS = {"value": {"total": "price", "low": "price", "high": "price", "units": "units", "last": "item"}}


def at(minute: int, hour: int = 10) -> str:
    return f"2024-01-01T{hour:02}:{minute:02}Z"


def event(key: str, time: str | None, price: Any = 1.0, *, units: Any = 1, item: Any = "tea", **more: Any) -> Any:
    return {"key": key, "time": time, "price": price, "units": units, "item": item, **more}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=NOW)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        yield opened


@pytest.fixture
def sales(pond: Pond) -> Map:
    return pond.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour")


def load(target: Map, *events: Any, **options: Any) -> Any:
    return target.load(list(events), columns=COLUMNS, **options)


def counted(target: Map) -> dict[tuple[str, str], tuple[int, float]]:
    rows = target.scan().read_all().to_pylist()
    return {(row["key"], f"{row['time']:%H:%M}"): (row["orders"], row["total"]) for row in rows}


@pytest.mark.usefixtures("process")
def test_events_of_a_bucket_combine_within_a_load_and_over_loads(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(5), 1.5), event("a", at(15), 2.5, item="pot"), event("b", at(15), 7))
    load(sales, event("a", at(10), -1, item="jam"), event("a", at(0, 11), 4))
    bucket = sales.get("a", at=at(59))
    assert {name: bucket[name] for name in ("orders", "total", "low", "high", "units", "last")} == {
        "orders": 3, "total": 3.0, "low": -1.0, "high": 2.5, "units": 3, "last": "pot"
    }  # fmt: skip
    assert f"{bucket['last_time']:%H:%M}" == "10:15"
    assert (sales.get("a", at=at(59, 9)), sales.get("c", at=HOUR)) == (None, None)
    both = sales.lookup(["a", "b", "c"], between=(at(0), at(0, 12)))
    assert both.field("orders").to_pylist()[:2] == [4, 1]
    assert both.is_valid().to_pylist() == [True, True, False]
    two = sales.lookup(["a", "a"], between=([at(0), at(30)], [at(1), at(0, 13)]))
    assert two.field("orders").to_pylist() == [3, 1]
    query = f"select key, orders from sales where time between '{at(0)}' and '{at(30)}' order by key"
    assert pond.sql(query).to_pylist() == [{"key": "a", "orders": 3}, {"key": "b", "orders": 1}]
    (state,) = pond.sql(f"select get_state('sales', 'a', '{at(30)}').total as total").to_pylist()
    assert state == {"total": 3.0}
    before = sales.scan().read_all().sort_by([("key", "ascending"), ("time", "ascending")])
    sales.compact()
    assert sales.scan().read_all().sort_by([("key", "ascending"), ("time", "ascending")]) == before
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_an_average_is_a_field_that_no_row_stores(pond: Pond) -> None:
    value = "n long count, total double sum, mean double average of total/n"
    trips = pond.create_map("trips", kind="aggregate", value=value, resolution="1 hour")
    trips.load(
        [{"key": "a", "time": at(1), "total": 2.0, "n": None}, {"key": "a", "time": at(2), "total": 4.0, "n": 3}]
    )
    trips.load([{"key": "b", "time": at(1), "total": 4.0, "n": 0}, {"key": "c", "time": at(1), "total": None}])
    assert trips.get("a", at=HOUR) == {"n": 4, "total": 6.0, "mean": 1.5}
    fix = pond.branch("fix", source="main")
    load_one = [{"key": "a", "time": at(0, 11), "total": 4.0, "n": 1}]
    fix.map("trips").load(load_one)
    (change,) = pond.refs.diff("main", "fix", map="trips").to_pylist()
    assert change["new"] == {"n": 1, "total": 4.0, "mean": 4.0}
    fix.merge()
    answers = trips.lookup(["a", "b", "c", "d"], between=(HOUR, at(0, 12)))
    assert answers.field("mean").to_pylist() == [2.0, None, None, None]
    assert trips.snapshot().take(trips.snapshot().find(["a"], HOUR), "mean").to_pylist() == [1.5]
    assert pond.sql("select key, mean from trips where mean > 2").to_pylist() == [{"key": "a", "mean": 4.0}]
    assert trips.scan("mean = 1.5", ["key"]).read_all().to_pylist() == [{"key": "a"}]
    query = f"select get_state('trips', 'a', '{HOUR}').mean as mean"
    assert pond.sql(query).to_pylist() == [{"mean": 1.5}]
    with millpond.open(pond.folder) as second:
        assert second.map("trips").definition == trips.definition
    manifest = trips.freeze()
    assert SnapshotManifest.from_bytes(manifest.to_bytes()) == manifest
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_the_same_events_count_once_and_equal_rows_of_others_again(pond: Pond, sales: Map) -> None:
    first = event("a", at(5)), event("a", at(6))
    assert load(sales, *first).parts == 1
    assert load(sales, *reversed(first)).duplicate_parts == 1
    load(sales, event("a", at(7)), event("a", at(8), item="tea"))  # other events, the same row but for `last_time`
    counts = pond.create_map("counts", kind="aggregate", value="n long count", resolution="1 hour")
    for minute in (1, 2, 3):
        counts.load([{"key": "a", "time": at(minute)}])
    counts.load([{"key": "a", "time": at(3)}])
    assert (sales.get("a", at=HOUR)["orders"], counts.get("a", at=HOUR)) == (4, {"n": 3})
    counts.load([{"key": "a", "time": at(3)}], again=True)
    assert counts.get("a", at=HOUR) == {"n": 4}


@pytest.mark.usefixtures("process")
def test_rows_that_were_counted_before_bring_their_counts(pond: Pond) -> None:
    hits = pond.create_map("hits", kind="aggregate", value="n long count, last long latest", resolution="none")
    hits.load([{"key": "a", "time": at(1), "n": 5, "last": 1}, {"key": "a", "time": at(1), "n": None, "last": 3}])
    hits.load([{"key": "a", "time": at(1), "n": 2, "last": 2}])
    assert {name: hits.get("a")[name] for name in ("n", "last")} == {
        "n": 8,
        "last": 3,
    }  # of equal instants the greatest


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (event("a", HOUR, "abc"), "price 'abc' is not a number"),
        (event("a", HOUR, float("nan")), "price nan is no number, and cannot be combined"),
        (event("a", HOUR, float("inf")), "price inf is infinite, and cannot be added"),
        (event("a", HOUR, orders=-1), "orders -1 is a count below zero"),
        (event("a", None), "time is missing"),
        (event(None, HOUR), "key is missing"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.usefixtures("process")
def test_events_that_cannot_be_combined_are_rejected(sales: Map, tmp_path: Path, wrong: Any, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(sales, wrong)
    assert reason in str(caught.value)
    result = load(sales, wrong, event("b", HOUR), max_rejects=1, rejects=tmp_path / "rejects.jsonl")
    assert (result.rejected, counted(sales)) == (1, {("b", "10:00"): (1, 1.0)})
    assert json.loads((tmp_path / "rejects.jsonl").read_text())["reason"] == reason


@pytest.mark.usefixtures("process")
def test_a_load_whose_sums_outgrow_their_type_is_refused_and_nothing_is_lost(sales: Map) -> None:
    load(sales, event("a", at(1), units=2**62), event("b", at(1), 1.7e308))
    for more in (event("a", at(2), units=2**62), event("b", at(2), 1.7e308)):
        with pytest.raises(Invalid, match="a sum is larger than its type holds") as caught:
            load(sales, more)
        assert (caught.value.values["key"], caught.value.values["bucket"][:16]) == (more["key"], "2024-01-01T10:00")
    with pytest.raises(Invalid, match="field=units"):
        load(sales, event("c", at(1), units=2**62), event("c", at(2), units=2**62))
    load(
        sales, event("a", at(3), units=-(2**62)), event("a", at(1, 11), units=2**62), event("a", at(1, 12), units=2**62)
    )
    assert [sales.get("a", at=at(0, hour))["units"] for hour in (10, 11, 12)] == [0, 2**62, 2**62]
    with pytest.raises(Invalid, match="ask for fewer buckets"):
        sales.get("a", between=(at(0), at(0, 13)))
    sales.compact()
    assert sales.get("a", between=(at(0), at(0, 12)))["units"] == 2**62


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"resolution": None}, "resolution"), ({"time_zone": ""}, "zone_unknown"),
        ({"time_zone": "Mars/Base"}, "zone_unknown"), ({"value": None}, "aggregate_fields"),
        ({"value": "double"}, "aggregate_fields"), ({"value": "n long"}, "aggregate_fields"),
        ({"value": "n long median"}, "aggregate_rule"), ({"value": "n string sum"}, "aggregate_rule"),
        ({"value": "n double count"}, "aggregate_rule"), ({"value": "n instant latest"}, "value_type_unknown"),
        ({"value": "n long instant"}, "aggregate_rule"), ({"value": "time long sum"}, "value_field_name"),
        ({"value": "n long sum, N long max"}, "value_field_name"),
        ({"value": "n long latest, n_time long sum"}, "value_field_name"),
        ({"value": "n long count, mean average of total/n"}, "aggregate_rule"),
        ({"value": "n long count, mean average of n/n"}, "aggregate_rule"),
        ({"value": "n long count, t long sum, N average of t/n"}, "value_field_name"),
        ({"value": "mean average of t/n"}, "aggregate_fields"),
        ({"condense": "1d"}, "aggregate_unsupported"), ({"condense_by": "update_time"}, "aggregate_unsupported"),
        ({"overwrite": False}, "aggregate_unsupported"),
        ({"retain": "1d", "retain_by": "update_time"}, "aggregate_unsupported"),
        ({"retain": "1d", "resolution": "none"}, "aggregate_unsupported"),
        ({"store": "shard", "scheme": "lookup"}, "aggregate_unsupported"),
        ({"kind": "state"}, "resolution"),
    ],
)  # fmt: skip
def test_a_definition_that_cannot_be_is_refused(pond: Pond, settings: dict[str, Any], kind: str) -> None:
    with pytest.raises(Invalid) as caught:
        pond.create_map("m", **{"kind": "aggregate", "value": "n long count", "resolution": "1 hour"} | settings)
    assert caught.value.kind == kind
    assert caught.value.hint
    assert not pond.maps()


@pytest.mark.parametrize(
    "act",
    [
        lambda pond, _: pond.alter_map("sales", condense="1d"),
        lambda pond, _: pond.alter_map("sales", overwrite=False),
        lambda pond, _: pond.alter_map("sales", add={"gust": "double"}),
        lambda pond, _: pond.branch("fix", source="main").alter_map("sales", drop=["units"]),
        lambda _, sales: load(sales, event("a", HOUR, more=1), extra="add"),
        lambda _, sales: sales.condense("2024-01-02T00:00Z"),
        lambda _, sales: sales.snapshot(window=(HOUR, None)),
    ],
    ids=["condense", "overwrite", "add", "drop", "extra", "condensed", "window"],
)
@pytest.mark.usefixtures("process")
def test_what_an_aggregate_does_not_do_is_refused_by_name(pond: Pond, sales: Map, act: Any) -> None:
    load(sales, event("a", HOUR))
    with pytest.raises(Invalid) as caught:
        act(pond, sales)
    assert (caught.value.kind, caught.value.values["map"]) == ("aggregate_unsupported", "sales")
    assert caught.value.hint
    assert counted(sales) == {("a", "10:00"): (1, 1.0)}


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        (lambda sales: sales.get("a", between=HOUR), "between"),
        (lambda sales: sales.get("a", HOUR, between=(HOUR, HOUR)), "between"),
        (lambda sales: sales.get("a", between=("2024-01-01", HOUR)), "time_naive"),
        (lambda sales: sales.lookup(["a"], between=([HOUR, HOUR], HOUR)), "at_length"),
        (lambda sales: load(sales, event("a", HOUR, more=1)), "column_extra"),
        (lambda sales: sales.load([{"key": "a", "time": HOUR}]), "column_missing"),
        (lambda sales: sales.load([event("a", HOUR)], columns={"value": "price"}), "column_mapping"),
    ],
    ids=["pair", "both", "naive", "length", "extra", "missing", "mapping"],
)
@pytest.mark.usefixtures("process")
def test_questions_and_loads_that_are_not_understood(sales: Map, question: Any, kind: str) -> None:
    with pytest.raises(Invalid) as caught:
        question(sales)
    assert caught.value.kind == kind


@pytest.mark.usefixtures("process")
def test_only_aggregates_combine_what_lies_between(pond: Pond) -> None:
    for store in ("layers", "shard"):
        other = pond.create_map(f"in_{store}", kind="temporal_state", value="long", store=store)
        with pytest.raises(Invalid, match="only aggregates combine"):
            other.get("a", between=(HOUR, HOUR))


@pytest.mark.usefixtures("process")
def test_known_at_a_time_later_loads_do_not_count(pond: Pond, sales: Map, clock: ManualClock) -> None:
    for minute in range(7):
        clock.now = NOW + minute
        load(sales, event("a", at(minute)))
    known = [NOW + minute for minute in range(7)]
    answers = sales.lookup(["a"] * 7, [HOUR] * 7, known_at=pa.array(known, pa.timestamp("ms", "UTC")))
    assert answers.field("orders").to_pylist() == [1, 2, 3, 4, 5, 6, 7]
    assert sales.get("a", between=(HOUR, at(1)), known_at=NOW + 2)["orders"] == 3
    assert sales.scan(known_at=NOW + 4).read_all()["orders"].to_pylist() == [5]
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_buckets_are_retained_as_long_as_an_event_of_them_may_be_young_enough(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(30)), event("a", at(30, 11)), event("a", at(30, 12)))
    sales.retain(at(45, 11))
    assert counted(sales) == {("a", "11:00"): (1, 1.0), ("a", "12:00"): (1, 1.0)}
    assert sales.delete(f"time < '{at(0, 12)}'").rows_removed == 1
    load(sales, event("a", at(31, 11)))
    assert counted(sales) == {("a", "11:00"): (1, 1.0), ("a", "12:00"): (1, 1.0)}
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_a_node_retains_a_bucket_until_it_is_over(pond: Pond, clock: ManualClock) -> None:
    days = pond.create_map("days", kind="aggregate", value="n long count", resolution="1 day", retain="2h")
    days.load([{"key": "a", "time": NOW}])  # 2024-01-02T12:53:20Z
    orders, seen = MaintenanceOrders(pond, 60_000), []
    for hours in range(40):
        clock.now = NOW + hours * 3_600_000
        before = orders.due(days, "retain", clock.now)
        if before is not None:
            days.retain(before)
            seen.append((hours, days.scan().read_all().num_rows))
    assert seen == [(0, 1), (14, 0)]


@pytest.mark.usefixtures("process")
def test_loads_on_both_sides_of_a_merge_count_and_a_revert_takes_one_away_by_any_rule(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(1), 5))
    fix = pond.branch("fix", source="main")
    load(fix.map("sales"), event("a", at(2), 1), event("b", at(2), 2))
    load(sales, event("a", at(3), 9))
    assert load(fix.map("sales"), event("b", at(2), 2), event("a", at(2), 1)).duplicate_parts == 1
    fix.merge()
    merged = sales.get("a", at=HOUR)
    assert (merged["orders"], merged["low"], merged["high"]) == (3, 1.0, 9.0)
    with pytest.raises(Invalid):  # there is nothing more
        fix.merge()
    pond.refs.revert("main~1", branch="main")  # the load of 9, with the merge after it
    assert (sales.get("a", at=HOUR)["orders"], sales.get("a", at=HOUR)["high"]) == (2, 5.0)
    assert counted(sales) == {("a", "10:00"): (2, 6.0), ("b", "10:00"): (1, 2.0)}
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_a_merge_that_would_be_wrong_is_refused_by_name(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(1), 5))
    fix = pond.branch("fix", source="main")
    same = event("a", at(2), 1)
    load(fix.map("sales"), same)
    load(fix.map("sales"), event("a", at(3)))
    load(sales, same)
    load(sales, event("a", at(4)))
    with pytest.raises(Invalid) as caught:
        fix.merge()
    assert caught.value.kind == "aggregate_loaded_twice"
    pond.refs.revert("fix~1", branch="fix")
    assert counted(fix.map("sales")) == {("a", "10:00"): (2, 6.0)}
    fix.map("sales").delete("key = 'a'")
    sales.compact()
    with pytest.raises(MillpondError) as conflict:  # gone there, counted on here
        fix.merge()
    assert conflict.value.kind == "merge_conflict"
    assert counted(sales) == {("a", "10:00"): (3, 7.0)}


@pytest.mark.usefixtures("process")
def test_events_that_one_side_deletes_go_and_those_that_the_other_loads_stay(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(1), 5))
    fix = pond.branch("fix", source="main")
    fix.map("sales").delete("key = 'a'")
    load(sales, event("a", at(2), 1))
    fix.merge()
    assert counted(sales) == {("a", "10:00"): (1, 1.0)}


@pytest.mark.usefixtures("process")
def test_a_load_that_both_sides_have_counts_once(pond: Pond, sales: Map) -> None:
    fix = pond.branch("fix", source="main")
    for target in (sales, fix.map("sales")):
        load(target, event("a", at(1)))
    load(sales, event("a", at(2)))
    fix.merge()
    assert counted(sales) == {("a", "10:00"): (2, 2.0)}
    pond.refs.merge("main", "fix")
    assert counted(fix.map("sales")) == {("a", "10:00"): (2, 2.0)}


@pytest.mark.usefixtures("process")
def test_folds_that_were_made_on_both_sides_lose_nothing(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(1)))
    fix = pond.branch("fix", source="main")
    for minute in range(10, 17):
        load(fix.map("sales"), event("b", at(minute)))
        load(sales, event("c", at(minute)))
    layers = sales.layers
    assert layers is not None
    fold_due(layers, everything=True)
    fix.merge()
    assert counted(sales) == {("a", "10:00"): (1, 1.0), ("b", "10:00"): (7, 7.0), ("c", "10:00"): (7, 7.0)}


@pytest.mark.usefixtures("process")
def test_sides_whose_layers_were_folded_are_added_up_where_that_is_exact(pond: Pond) -> None:
    counts = pond.create_map("counts", kind="aggregate", value="n long count, units long sum", resolution="1 hour")
    counts.load([{"key": "a", "time": at(1), "units": 5}])
    fix = pond.branch("fix", source="main")
    for minute in range(10, 17):  # equal rows, of other events
        fix.map("counts").load([{"key": "a", "time": at(minute), "units": 1}])
        counts.load([{"key": "a", "time": at(minute + 20), "units": 1}])
    counts.compact()
    assert fix.map("counts").get("a", at=HOUR) == counts.get("a", at=HOUR) == {"n": 8, "units": 12}
    fix.merge()
    assert counts.get("a", at=HOUR) == {"n": 15, "units": 19}
    counts.load([{"key": "b", "time": at(1), "units": 2}])
    counts.load([{"key": "b", "time": at(2), "units": 3}])
    counts.compact()
    pond.refs.revert("main~1", branch="main")
    assert counts.get("b", at=HOUR) == {"n": 1, "units": 3}
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_loads_that_fold_leave_merges_what_each_branch_brought(pond: Pond) -> None:
    """Of sketches only layers tell it: those that another branch has, too, stay apart in folds, while they are few."""
    waits = pond.create_map("waits", kind="aggregate", value="n long count, d quantiles", resolution="1 hour")
    waits.load([{"key": "a", "time": at(0), "d": 0.0}])

    def loaded(*names: str) -> None:
        for number in range(20):
            for name in names:
                target = waits if name == "main" else pond.branch(name).map("waits")
                target.load([{"key": "a", "time": at(number), "d": sum(name.encode()) + number / 100}])

    for sides in (("one", "other"), ("third", "main")):
        for name in sides:
            if name != "main":
                pond.refs.create_branch(name)
        loaded(*sides)
        for name in sides:
            if name != "main":
                pond.refs.merge(name)
    assert waits.get("a", at=HOUR)["n"] == 81
    assert waits.layers is not None
    assert len(waits.layers.head().manifest.layers) <= LAYERS_MAX  # type: ignore[union-attr]
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_a_revert_that_is_not_exact_is_refused(pond: Pond, sales: Map) -> None:
    load(sales, event("b", at(1), 1))
    load(sales, event("a", at(1), 1))
    load(sales, event("a", at(2), 5))
    sales.compact()
    with pytest.raises(MillpondError) as caught:  # nobody knows any more what the least was without the first
        pond.refs.revert("main~1", branch="main")
    assert caught.value.kind == "merge_conflict"
    assert "low min, high max" in str(caught.value.values["inexact"])
    assert "on a branch from main~1^ load what else came since, and restore" in str(caught.value)
    assert counted(sales) == {("a", "10:00"): (2, 6.0), ("b", "10:00"): (1, 1.0)}
    load(pond.branch("again", source="main~1^").map("sales"), event("a", at(2), 5))
    pond.refs.restore("again", maps=["sales"])
    assert (sales.get("a", at=HOUR)["low"], sales.get("a", at=HOUR)["orders"]) == (5.0, 1)
    assert counted(sales) == {("a", "10:00"): (1, 5.0), ("b", "10:00"): (1, 1.0)}


@pytest.mark.usefixtures("process")
def test_more_events_than_memory_holds_are_combined(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = pond.create_map("counts", kind="aggregate", value="n long count, most long max", resolution="1 minute")
    layers = type(counts.layers)
    monkeypatch.setattr(layers, "spill", lambda self: SpillTo(pond.folder, 40_000))
    times = pa.array([NOW + 977 * number for number in range(50_000)], pa.timestamp("ms", "UTC"))
    for key in (pa.array(["a"] * 50_000), pa.array([f"k{number % 997}" for number in range(50_000)])):
        counts.load(pa.table({"key": key, "time": times, "most": pa.array(range(50_000))}))
    rows = counts.scan("key = 'a'").read_all()
    assert (sum(rows["n"].to_pylist()), max(rows["most"].to_pylist())) == (50_000, 49_999)
    minutes = {(NOW + 977 * number) // 60_000 for number in range(50_000)}
    assert rows.num_rows == len(minutes)
    assert sum(counts.scan().read_all()["n"].to_pylist()) == 100_000


@pytest.mark.usefixtures("process")
def test_an_aggregate_is_copied_backed_up_and_opened_again(pond: Pond, sales: Map, tmp_path: Path) -> None:
    load(sales, event("a", HOUR))
    load(sales, event("a", at(1)))
    pond.catalogue.copy("sales", "twin")
    load(pond.map("twin"), event("a", at(2)))
    assert (sales.get("a", at=HOUR)["orders"], pond.map("twin").get("a", at=HOUR)["orders"]) == (2, 3)
    assert sales.snapshot(keys=("a", "b")).lookup(["a"], HOUR).field("orders").to_pylist() == [2]
    with millpond.open(pond.folder) as second:
        definition = second.map("sales").definition
        assert (definition, second.map("sales").get("a", at=HOUR)["orders"]) == (sales.definition, 2)
    pond.drop_map("sales")
    assert pond.verify().ok


def test_files_are_loaded_as_rows_are(pond: Pond, sales: Map, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("city,when,price,units,item\nLyon,2024-01-01T10:05Z,2.5,1,tea\n")
    columns = {"key": "city", "time": "when", **COLUMNS}
    assert pond.load_files(str(tmp_path / "events.csv"), "sales", columns=columns).rows == 1
    assert sales.get("Lyon", at=HOUR)["total"] == 2.5


@pytest.mark.usefixtures("process")
def test_the_manifest_of_an_aggregate_has_format_7(sales: Map) -> None:
    load(sales, event("a", at(1), units=2**61))
    load(sales, event("a", at(2)))
    manifest = sales.freeze()
    stored = json.loads(manifest.to_bytes())
    assert (stored["format"], len(stored["tickets"])) == (7, 2)
    assert [layer.get("reach") for layer in stored["layers"]] == [None, 0.25]
    assert stored["aggregation"] == {
        "rules": ["count", "sum", "min", "max", "sum", "latest", "instant"], "resolution": "1 hour", "time_zone": "UTC"
    }  # fmt: skip
    assert SnapshotManifest.from_bytes(manifest.to_bytes()) == manifest
