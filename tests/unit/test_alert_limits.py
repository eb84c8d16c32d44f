"""Limits of what groups hold after a load never leave out a group that a condition takes; and what they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millpond
from millpond.maps.alerts import judging
from millpond.maps.alerts.after_load import AfterLoad
from millpond.maps.alerts.crossings import Addresses, GroupsOf
from millpond.maps.alerts.limits import limits_of, within
from millpond.maps.predicates.predicate import predicate
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.model.definition import MapDefinition

RULES = {"total": sum, "low": min, "high": max}
numbers = st.none() | st.integers(-5, 5) | st.sampled_from((0.1, 1e308, -1e308, 1e-300, 2.0**53))
NOTHING: dict[str, float | None] = dict.fromkeys(RULES)
rows = st.fixed_dictionaries(dict.fromkeys(RULES, numbers))
layers = st.lists(st.dictionaries(st.integers(0, 4), rows, min_size=1), min_size=1, max_size=4)
comparisons = st.sampled_from(["<", "<=", "=", ">=", ">", "is null"])
tests = st.tuples(st.sampled_from([*RULES]), comparisons, st.integers(-9, 9) | numbers)


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> MapDefinition:
    with millpond.open(tmp_path_factory.mktemp("limits") / "pond") as pond:
        value = "total double sum, low double min, high double max"
        return pond.create_map("sales", kind="aggregate", value=value, resolution="none").definition


def holds(value: float | None, comparison: str, bound: float) -> bool:
    if value is None or comparison == "is null":
        return value is None and comparison == "is null"
    return {"<": value < bound, "<=": value <= bound, "=": value == bound, ">=": value >= bound,
            ">": value > bound}[comparison]  # fmt: skip


def combined(name: str, parts: list[float | None]) -> float | None:
    values = [float(part) for part in parts if part is not None]
    if not values:
        return None
    return float(RULES[name](values))


def layer_of(groups: dict[int, dict[str, float | None]]) -> Layer:
    known = {name: [float(row[name]) for row in groups.values() if row[name] is not None] for name in RULES}
    extremes = tuple((name, min(values), max(values)) for name, values in known.items() if values)
    return Layer("index", len(groups), 1, extremes=extremes)


@settings(max_examples=examples(60, 2_000), deadline=None)
@given(layers, st.lists(tests, min_size=1, max_size=2))
@example([{0: NOTHING, 1: NOTHING | {"total": 5}}, {0: NOTHING | {"total": 2}}], [("total", "<=", 3)])
def test_no_group_is_left_out_that_a_condition_takes(
    definition: MapDefinition, stack: list[dict[int, dict[str, float | None]]],
    parts: list[tuple[str, str, float | None]],
) -> None:  # fmt: skip
    parts = [(name, comparison, 0 if bound is None else bound) for name, comparison, bound in parts]
    brought, *below = stack
    condition = predicate(definition, [part for part in parts if part[1] != "is null"])
    condition = replace(condition, nulls=frozenset(name for name, test, _ in parts if test == "is null"))
    with np.errstate(all="raise", under="ignore"):
        held = replace(SnapshotManifest.empty(definition, created_ms=0), layers=tuple(map(layer_of, below)))
        limits = limits_of(definition, condition, held, layer_of(brought))
        values = pa.StructArray.from_arrays(
            [pa.array([row[name] for row in brought.values()], pa.float64()) for name in RULES], names=[*RULES]
        )
        mask = within(limits, values)
    for (key, _), inside in zip(brought.items(), mask.tolist(), strict=True):
        after = {name: combined(name, [groups[key][name] for groups in stack if key in groups]) for name in RULES}
        if all(holds(after[name], comparison, bound) for name, comparison, bound in parts):  # type: ignore[arg-type]
            assert inside and all(limit.of_load() for limit in limits), (key, after)


def test_a_rule_is_met_when_it_comes_within_reach(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        value = "orders long count, total long sum"
        sales = pond.create_map("sales", kind="aggregate", value=value, resolution="none")
        sales.load([{"key": "a", "time": 1, "total": 1}] * 3)
        sales.alerts.add("orders > 5", name="many")
        sales.alerts.add("orders > 5 and (total is null or total is null and key = 'b')", name="none")
        assert predicate(sales.definition, sales.alerts.list()[1].when).nulls == {"total"}
        assert sales.freeze().layers[0].extremes == (("orders", 3.0, 3.0), ("total", 3.0, 3.0))
        for more, keys in ((2, []), (1, ["a"])):
            sales.load([{"key": "a", "time": 1, "total": 1}] * more)
            assert [event.headers["key"] for event in pond.events.read("millpond", "alerts/sales")] == keys


WHEN = ("orders > 2", "total >= 3", "most is null", "mean < 1.5", "text = 't2'", "key = 'b'", "total > 0 and key < 'c'")
measures = st.none() | st.integers(-4, 4)
brought = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), measures), min_size=1, max_size=8)


@settings(max_examples=examples(10, 200), deadline=None)
@given(st.lists(brought, max_size=3), brought)
def test_groups_after_a_load_hold_what_the_state_after_it_says(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], load: Any
) -> None:
    """They are worked out of what was there and what was brought, without a look into the state after it."""
    value = "orders long count, total long sum, most long max, mean average of total/orders, text string latest"
    with millpond.open(tmp_path_factory.mktemp("after") / "pond") as pond:
        sales = pond.create_map("sales", kind="aggregate", value=value, resolution="1 hour")
        states = []
        for number, rows in enumerate([*before, load]):
            states.append(sales.freeze())
            sales.load([
                {"key": key, "time": (500_000 + hour) * 3_600_000 + number, "total": total, "most": total,
                 "text": None if total is None else f"t{total}"} for key, hour, total in rows
            ], again=True)  # fmt: skip
        below, above = states[-1], sales.freeze()
        old = GroupsOf(sales.objects, below.definition, below if before else None)
        new = GroupsOf(sales.objects, above.definition, above)
        for touched in judging._touched(sales.objects, above.definition, None, above, above.layers[0]):
            rows = touched.within([()])
            assert rows is not None
            addresses = Addresses(rows.column("key"), rows.column("time").to_numpy())
            after = AfterLoad(above.definition, old.looked(addresses), new, addresses, rows)
            for when in WHEN:
                condition = predicate(sales.definition, when)
                expected = new.holds(condition, addresses.take(np.arange(len(addresses))))
                assert after.holds(condition, addresses).tolist() == expected.tolist()
