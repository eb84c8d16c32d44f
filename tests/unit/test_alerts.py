"""Alerts of aggregates: what is refused by name, what goes along with a map, and what is not told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Conflict, MillpondError
from millpond.kernel.steps import listening
from millpond.maps.alerts import judging, rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond
    from millpond.events.event import Event

HOUR_MS, BEGIN_MS = 3_600_000, 1_767_225_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(BEGIN_MS)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        yield opened


@pytest.fixture
def sales(pond: Pond) -> Map:
    return pond.create_map("sales", kind="aggregate", value="orders long count, total long sum", resolution="1 hour")


def load(target: Any, key: str, hour: int, count: int, first: int = 0) -> None:
    target.load([{"key": key, "time": (500_000 + hour) * HOUR_MS + number, "total": number}
                 for number in range(first, first + count)])  # fmt: skip


def alerts_in(pond: Pond, name: str = "sales") -> list[Event]:
    return list(pond.events.read("millpond", f"alerts/{name}"))


def refusal(act: Any) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        act()
    return caught.value


@pytest.mark.parametrize(
    ("when", "more", "kind"),
    [
        ("orderz > 1", {}, "column_unknown"), ("orders >", {}, "condition"), ("orders > 'x'", {}, "condition_value"),
        ("", {}, "alert_condition"), ("x" * 5_000, {}, "alert_condition"), (7, {}, "alert_condition"),
        ("orders > 1", {"name": "No!"}, "alert_name"), ("orders > 1", {"buckets": 0}, "alert_buckets"),
        ("orders > 1", {"buckets": "2 days"}, "alert_buckets"), ("orders > 1", {"buckets": 25}, "alert_buckets"),
        ("orders > 1", {"buckets": True}, "alert_buckets"),
        ("orders > 1", {"buckets": "3" + " " * 500_000 + "k"}, "alert_buckets"),  # each blank is looked at once
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_name(sales: Map, when: Any, more: dict[str, Any], kind: str) -> None:
    for act in (sales.alerts.add, *([] if "name" in more else [sales.alerts.try_])):
        error = refusal(lambda act=act: act(when, **more))
        assert (error.kind, bool(error.hint)) == (kind, True)
    assert not sales.alerts.list()


def test_maps_without_buckets_and_refs_have_no_alerts(pond: Pond, sales: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(lambda: pond.create_map("weather", kind="state").alerts).kind == "alerts_unsupported"
    assert refusal(lambda: pond.branch("fix", source="main").map("sales").alerts).kind == "ref_unsupported"
    whole = pond.create_map("whole", kind="aggregate", value="orders long count", resolution="none")
    assert refusal(lambda: whole.alerts.add("orders > 1", buckets=2)).kind == "alert_buckets"
    sales.alerts.add("orders > 1", name="many")
    assert refusal(lambda: sales.alerts.add("orders > 2", name="many")).kind == "alert_exists"
    monkeypatch.setattr("millpond.maps.alerts.map_alerts.RULES_MAX", 1)
    assert refusal(lambda: sales.alerts.add("orders > 2")).kind == "alerts_max"
    assert rules.RULES_MAX == 100


def test_rules_follow_a_map_that_is_renamed_and_go_with_one_that_is_dropped(pond: Pond, sales: Map) -> None:
    rule = sales.alerts.add("orders > 1", buckets="1 bucket")
    assert rule.name == "alert_1"
    copy = pond.map(pond.catalogue.copy("sales", "other").name)
    assert copy.alerts.list() == (rule,)
    copy.alerts.remove(rule.name)
    pond.catalogue.rename("sales", "shop")
    shop = pond.map("shop")
    assert shop.alerts.list() == (rule,)
    assert refusal(sales.alerts.list).kind == "map_dropped"
    load(shop, "a", 0, 2)
    assert [event.headers["map"] for event in alerts_in(pond, "shop")] == ["shop"]
    pond.drop_map("shop")
    assert not pond.create_map("shop", kind="aggregate", value="orders long count", resolution="1 hour").alerts.list()


def test_branches_are_quiet_until_they_are_merged_and_a_revert_lets_it_be_told_again(pond: Pond, sales: Map) -> None:
    sales.alerts.add("orders > 1", name="many")
    load(sales, "a", 0, 1)
    fix = pond.branch("fix", source="main")
    load(fix.map("sales"), "a", 0, 1, first=1)
    assert not alerts_in(pond)
    pond.refs.merge("fix")
    assert [event.headers["key"] for event in alerts_in(pond)] == ["a"]
    load(sales, "a", 0, 1, first=2)  # it is on still
    assert len(alerts_in(pond)) == 1
    sales.delete("key = 'a'")
    load(sales, "a", 0, 2, first=5)
    assert len(alerts_in(pond)) == 2


def test_a_rule_that_comes_between_is_judged_by(pond: Pond, sales: Map) -> None:
    """A load that was judged is judged anew when the rules are others by the time that it is entered."""
    added = False

    def add(step: str) -> None:
        nonlocal added
        if step == "load.layers_placed" and not added:
            added = True
            sales.alerts.add("orders > 1")

    with listening(add):
        load(sales, "a", 0, 2)
    assert [event.headers["rule"] for event in alerts_in(pond)] == ["alert_1"]
    outcome = judging.Judged("sales", ())
    with pond.space.read() as tx, pytest.raises(Conflict):
        outcome.check(tx)


def test_of_very_many_the_first_are_told_and_the_others_counted(
    pond: Pond, sales: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "CROSSINGS_MAX", 3)
    monkeypatch.setattr("millpond.maps.alerts.alerted.CROSSINGS_AT_ONCE", 2)
    sales.alerts.add("orders > 0")
    sales.load([{"key": f"{'k' * 300}{n}", "time": 500_000 * HOUR_MS, "total": n} for n in range(5)])
    events = alerts_in(pond)
    assert [event.kind for event in events] == ["alert", "alert", "alert", "alerts_omitted"]
    assert events[-1].headers == {"map": "sales", "rule": "alert_1", "alerts": "2"}
    assert {len(event.headers["key"]) for event in events[:3]} == {200}
    assert sales.alerts.try_("orders > 0").changes == 1


def test_a_trial_goes_back_as_far_as_it_is_asked(pond: Pond, sales: Map, clock: ManualClock) -> None:
    assert (sales.alerts.try_("orders > 1").changes, sales.alerts.try_("orders > 1").since) == (0, "")
    for hour in range(3):
        load(sales, "a", hour, 1 + hour)
    trial = sales.alerts.try_("orders > 1 and key = 'a'", since="1d")
    assert (trial.changes, [made.bucket for made in trial.alerts]) == (3, ["2027-01-15T09:00:00+00:00"])
    clock.advance(1)
    assert sales.alerts.try_("orders > 1", since=0).changes == 0
    assert not alerts_in(pond)


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_late_events_of_a_bucket_that_was_rolled_up_are_told_of_that_bucket(pond: Pond, store: str) -> None:
    settings: dict[str, Any] = {"value": "orders long count", "resolution": "1 hour", "roll_up": "1 day"}
    sales = pond.create_map("sales", kind="aggregate", store=store, **settings)
    sales.load([{"key": "a", "time": f"2024-03-{day}T{hour:02}:00Z"} for day in (28, 29, 30) for hour in range(9)])
    sales.retain("2024-03-30T12:00Z")
    sales.alerts.add("orders > 10", name="many")
    sales.alerts.add("orders > 9", name="more", buckets=2)
    sales.load([{"key": "a", "time": f"2024-03-29T{hour}:00Z"} for hour in (11, 14, 17)])
    sales.load([{"key": "a", "time": "2024-03-29T18:00Z"}])
    sales.load([{"key": "a", "time": "2024-03-28T18:00Z"}])
    alerts = [(event.headers["rule"], event.headers["bucket"], event.payload) for event in alerts_in(pond)]
    assert [(rule, bucket[:13]) for rule, bucket, _ in alerts] == [("many", "2024-03-29T00"), ("more", "2024-03-29T00")]
    assert b'"before":{"orders":9},"after":{"orders":12}' in alerts[0][2]


def test_a_trial_on_a_shard_judges_its_buckets_in_their_order(pond: Pond, clock: ManualClock) -> None:
    clock.advance(HOUR_MS * 500_100 - clock.now_ms())
    sales = pond.create_map(
        "sales", kind="aggregate", value="orders long count, total long sum", resolution="1 hour", store="shard"
    )
    for hour, count in enumerate((3, 3, 3, 1, 3, 3)):
        load(sales, "a", hour, count)
        load(sales, "b", hour + 50, count)
    found = {
        buckets: [(made.key, made.bucket[11:13]) for made in sales.alerts.try_("orders > 2", buckets=buckets).alerts]
        for buckets in (1, 2, 3, 4)
    }
    assert found == {
        1: [("a", "08"), ("a", "12"), ("b", "10"), ("b", "14")],
        2: [("a", "09"), ("a", "13"), ("b", "11"), ("b", "15")],
        3: [("a", "10"), ("b", "12")], 4: [],
    }  # fmt: skip
    trial = sales.alerts.try_("orders > 2", since="51h")
    assert (trial.changes, trial.of, trial.since[:13], len(trial.alerts)) == (6, "bucket", "2027-01-17T10", 2)
    assert not alerts_in(pond)
