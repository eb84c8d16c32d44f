"""Sketches of aggregates: how far they are off, that their texts make their bytes, and what they are asked for by."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, MillpondError
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.event_digest import digest_of
from millpond.maps.model.sketches import event_sketches, texts_counted, united
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

NOW = 1_704_200_000_000
HOUR = "2024-01-01T10:00Z"
TWO_HOURS = (HOUR, "2024-01-01T12:00Z")
VALUE = "users distinct, latency quantiles(0, 0.5, 0.999, 1)"


def event(minute: int, user: Any, latency: Any, key: str = "a") -> dict[str, Any]:
    return {"key": key, "time": f"2024-01-01T{10 + minute // 60:02}:{minute % 60:02}Z", "users": user,
            "latency": latency}  # fmt: skip


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=NOW)) as opened:
        yield opened


@pytest.fixture
def visits(pond: Pond) -> Map:
    return pond.create_map("visits", kind="aggregate", value=VALUE, resolution="1 hour")


def answer_of(row: dict[str, Any] | None) -> tuple[Any, ...]:
    """The texts that differ, and the quantiles."""
    assert row is not None
    users = row["users"]
    return (
        None if users is None else round(users, 3),
        *(row[f"latency_p{share}"] for share in ("0", "50", "99_9", "100")),
    )


def one(rule: Rule, values: pa.Array) -> pa.Array:
    return united(rule, values, np.array([0]))


@settings(max_examples=examples(8, 300), deadline=None)
@given(st.sampled_from((0, 1, 7, 8, 9, 200, 384, 385, 1000)), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_texts_make_the_bytes_in_any_order_and_parts(count: int, parts: int, chance: Any) -> None:
    texts = [f"text {number}" for number in range(count)]
    came = [*texts, *chance.choices(["", *texts], k=10)]
    chance.shuffle(came)
    cuts = [0, *sorted(chance.randrange(len(came) + 1) for _ in range(parts - 1)), len(came)]
    pieces = [event_sketches(Rule.DISTINCT, pa.array(came[a:b])) for a, b in itertools.pairwise(cuts) if b > a]
    chance.shuffle(pieces)
    some = [one(Rule.DISTINCT, piece) if chance.random() < 0.7 else piece for piece in pieces]
    whole = event_sketches(Rule.DISTINCT, pa.array([*texts, ""]))
    assert one(Rule.DISTINCT, pa.concat_arrays(some)) == one(Rule.DISTINCT, whole)


def test_what_comes_of_a_run_is_what_comes_of_it_alone() -> None:
    texts = event_sketches(Rule.DISTINCT, pa.array(["x", None, "y", None, "x", "x", "z"]))
    mixed = pa.concat_arrays([texts, one(Rule.DISTINCT, texts), pa.array([None], pa.binary())])
    runs = united(Rule.DISTINCT, mixed, np.array([0, 1, 3, 4, 6, 8]))
    assert texts_counted(runs).to_pylist() == pytest.approx([1, 1, None, 1, 3, None], abs=1e-6)
    numbers = event_sketches(Rule.QUANTILES, pa.array([3.0, None, 1.0, 2.0]))
    made = united(Rule.QUANTILES, pa.concat_arrays([numbers, one(Rule.QUANTILES, numbers)]), np.array([0, 1, 2, 4]))
    sketches = [
        None if data is None else datasketches.kll_doubles_sketch.deserialize(data) for data in made.to_pylist()
    ]
    assert [sketch and (sketch.n, sketch.get_min_value(), sketch.get_max_value()) for sketch in sketches] == [
        (1, 3.0, 3.0), None, (2, 1.0, 2.0), (3, 1.0, 3.0)
    ]  # fmt: skip


def test_many_values_are_as_far_off_as_is_said() -> None:
    texts = event_sketches(Rule.DISTINCT, pa.array([f"u{number}" for number in range(20_000)]))
    assert texts_counted(one(Rule.DISTINCT, texts))[0].as_py() == pytest.approx(20_000, rel=0.05)
    numbers = np.random.default_rng(5).permutation(20_000) / 20_000
    halves = [one(Rule.QUANTILES, event_sketches(Rule.QUANTILES, pa.array(part))) for part in np.split(numbers, 2)]
    sketch = datasketches.kll_doubles_sketch.deserialize(one(Rule.QUANTILES, pa.concat_arrays(halves))[0].as_py())
    assert sketch.get_quantiles([0.1, 0.5, 0.99]) == pytest.approx([0.1, 0.5, 0.99], abs=0.04)
    assert sketch.normalized_rank_error(False) < 0.0134


@pytest.mark.usefixtures("process")
def test_every_reader_answers(pond: Pond, visits: Map) -> None:
    visits.load(
        [event(1, "x", 3), event(2, "y", 1.5), event(3, None, None), event(70, "x", 9), event(1, None, None, "b")]
    )
    visits.load([event(4, "x", 2), event(5, 7, 2)])
    assert answer_of(visits.get("a", at=HOUR)) == (3.0, 1.5, 2.0, 3.0, 3.0)
    assert answer_of(visits.get("b", at=HOUR)) == (None,) * 5
    both = visits.lookup(["a", "c"], between=TWO_HOURS)
    assert (answer_of(both[0].as_py()), both[1].as_py()) == ((3.0, 1.5, 2.0, 9.0, 9.0), None)
    assert visits.snapshot().take(visits.snapshot().find(["a"], HOUR), "latency_p50").to_pylist() == [2.0]
    query = "select round(sum(users)) as users, max(latency_p100) as most from visits where latency_p0 >= 1.5"
    assert pond.sql(query).to_pylist() == [{"users": 4.0, "most": 9.0}]
    visits.compact()
    assert answer_of(visits.get("a", at=HOUR)) == (3.0, 1.5, 2.0, 3.0, 3.0)
    stored = visits.get("a", at=HOUR)
    assert datasketches.hll_sketch.deserialize(stored["users_sketch"]).get_estimate() == stored["users"]
    assert datasketches.kll_doubles_sketch.deserialize(stored["latency_sketch"]).n == 4
    assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_the_same_events_count_once_though_coins_are_thrown(visits: Map) -> None:
    events = [event(number % 60, number, number) for number in range(3000)]
    assert visits.load(events).parts == 1
    again = pa.Table.from_pylist(list(reversed(events))).to_batches(max_chunksize=700)
    assert visits.load(pa.Table.from_batches(again)).duplicate_parts == 1
    read = datasketches.kll_doubles_sketch.deserialize
    assert read(visits.get("a", at=HOUR)["latency_sketch"]).n == 3000
    visits.load([*events, event(1, 1, 1)])
    assert read(visits.get("a", at=HOUR)["latency_sketch"]).n == 6001


def test_the_digest_of_events_adds_up_over_batches(visits: Map) -> None:
    schema = canonical_schema(visits.definition)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"a"] * 500), pa.array(range(500)), pa.array([{}] * 500, schema.field("value").type)], schema=schema
    )
    whole = digest_of(visits.definition, rows)
    for cut in (1, 250, 499):
        assert digest_of(visits.definition, rows.slice(cut)) + digest_of(visits.definition, rows.slice(0, cut)) == whole


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("folded", [False, True])
def test_both_sides_of_a_merge_unite(pond: Pond, visits: Map, folded: bool) -> None:
    visits.load([event(1, "x", 1, "old")])
    fix = pond.branch("fix", source="main")
    for number in range(7):  # so many layers fold
        fix.map("visits").load([event(number, f"t{number}", number)])
        visits.load([event(number, f"o{number}", 100 + number)])
        if not folded:
            break
    if folded:
        visits.compact()
    fix.merge()
    users, least, *_, most = answer_of(visits.get("a", at=HOUR))
    assert (users, least, most) == ((14.0, 0.0, 106.0) if folded else (2.0, 0.0, 100.0))


@pytest.mark.usefixtures("process")
def test_a_revert_of_numbers_that_were_put_together_is_refused(pond: Pond, visits: Map) -> None:
    visits.load([event(1, "x", 1)])
    visits.load([event(2, "y", 2)])
    visits.load([event(3, "z", 3)])
    pond.refs.revert("main", branch="main")  # a layer of its own
    assert answer_of(visits.get("a", at=HOUR)) == (2.0, 1.0, 2.0, 2.0, 2.0)
    visits.load([event(3, "w", 4)])
    visits.compact()
    with pytest.raises(MillpondError) as caught:
        pond.refs.revert("main~2", branch="main")
    assert caught.value.kind == "merge_conflict"
    assert answer_of(visits.get("a", at=HOUR)) == (3.0, 1.0, 2.0, 4.0, 4.0)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("a distinct, a long sum", "value_field_name"), ("a quantiles(0.5, 0.50)", "value_field_name"),
        ("a quantiles(2)", "aggregate_rule"), ("a quantiles(x)", "aggregate_rule"),
        ("a quantiles(0.5", "aggregate_fields"),
        ("a distinct, a_sketch binary latest", "value_field_name"), ("time distinct", "value_field_name"),
        ("a long distinct", "aggregate_rule"),
    ],
)  # fmt: skip
def test_definitions_that_cannot_be_are_refused(pond: Pond, value: str, kind: str) -> None:
    with pytest.raises(Invalid) as caught:
        pond.create_map("m", kind="aggregate", value=value, resolution="none")
    assert caught.value.kind == kind


@pytest.mark.usefixtures("process")
def test_events_that_no_sketch_takes_are_rejected(visits: Map) -> None:
    for wrong, reason in ((event(1, "x", float("nan")), "is no number"), (event(1, "x", "abc"), "not a number")):
        with pytest.raises(Invalid, match=reason):
            visits.load([wrong])


def test_without_the_library_a_sketch_says_what_to_install(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(Invalid) as caught:
        pond.create_map("m", kind="aggregate", value="a distinct", resolution="none")
    assert (caught.value.kind, caught.value.hint) == ("extra_missing", "pip install 'millpond[sketches]'")
