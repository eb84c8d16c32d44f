"""Buckets of an aggregate as they were known, in windows, between two times and in wider ones: each is the sum of the
events that were loaded by then, one by one.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.maps.layered.maintenance import fold_due
from millpond.maps.snapshots import bucket_finder
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Map, Pond

HOUR, DAY = 3_600_000, 86_400_000
FIRST = 1_699_920_000_000
"""A midnight in UTC; the events are of the three days that begin there."""
BEGAN = FIRST + 10 * DAY
KEYS = ("a", "b")
HOURS = st.integers(0, 71)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.lists(st.tuples(st.sampled_from(KEYS), HOURS, st.integers(0, 9)), min_size=1)),
        st.tuples(st.just("roll up"), st.integers(1, 3)),
        st.tuples(st.just("fold"), st.none()),
    ),
    min_size=1,
    max_size=7,
)
QUESTIONS = st.lists(
    st.tuples(st.sampled_from((*KEYS, "c", None)), st.one_of(st.none(), HOURS), st.integers(0, 7), st.integers(-1, 1)),
    min_size=1,
)
"""Keys, times, the state that is asked about its number, and how far from its beginning."""
Event = tuple[str, int, int]
Answer = dict[str, int] | None
State = tuple[int, list[Event], int]
"""The moment from which it was known, its events, and the instant before which buckets are days."""


def bucket(instant: int, days_before: int) -> int:
    """The start of the bucket that an instant is shown in."""
    return instant // DAY * DAY if instant < days_before else instant // HOUR * HOUR


def answer(state: State | None, key: str | None, at: int | None, window: int) -> Answer:
    if state is None or at is None:
        return None
    until = bucket(at, state[2])
    return answer_between(state, key, until - window, until)


def answer_between(state: State | None, key: str | None, since: int | None, until: int | None) -> Answer:
    if state is None or since is None or until is None:
        return None
    _, events, days_before = state
    values = [value for of, time, value in events if of == key and since <= bucket(time, days_before) < until]
    return {"n": len(values), "total": sum(values), "most": max(values)} if values else None


def answer_of_day(state: State | None, key: str | None, at: int | None) -> Answer:
    day = None if at is None else at // DAY * DAY
    return answer_between(state, key, day, None if day is None else day + DAY)


def act_on(pond: Pond, sales: Map, what: str, about: Any, state: State, now: int) -> State:
    _, events, days_before = state
    if what == "load":
        loaded = [(key, FIRST + hour * HOUR + 60_000, value) for key, hour, value in about]
        sales.load(
            [{"key": key, "time": time, "total": value, "most": value} for key, time, value in loaded], again=True
        )
        return now, [*events, *loaded], days_before
    if what == "fold":
        fold_due(sales.rows.snapshots, everything=True)
        return now, events, days_before
    pond.alter_map("sales", retain="1d", roll_up="1 day")
    sales.retain(before=FIRST + about * DAY)
    pond.alter_map("sales", roll_up="off", retain="off")
    return now, events, max(days_before, FIRST + about * DAY)


@settings(max_examples=examples(6, 150), suppress_health_check=list(HealthCheck))
@given(acts=ACTS, drawn=QUESTIONS, window=st.sampled_from((1, 5, 24, 48)), together=st.sampled_from((1, 3)))
def test_a_window_is_that_of_its_moment(acts: list[Any], drawn: list[Any], window: int, together: int) -> None:
    clock = ManualClock(now=BEGAN)
    with tempfile.TemporaryDirectory() as folder, millpond.open(folder, clock=clock) as pond:
        sales = pond.create_map(
            "sales", kind="aggregate", value="n long count, total long sum, most long max", resolution="1 hour",
            store="layers",
        )  # fmt: skip
        states: list[State] = [(BEGAN, [], 0)]
        for what, about in acts:
            clock.advance(1000)
            states.append(act_on(pond, sales, what, about, states[-1], clock.now_ms()))
        clock.advance(1000)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(bucket_finder, "_TOGETHER", together)
            check(pond, sales, states, drawn, window)


def check(pond: Pond, sales: Map, states: list[State], drawn: list[Any], window: int) -> None:
    moments = [states[number % len(states)][0] + step for *_, number, step in drawn]
    times = [None if hour is None else FIRST + hour * HOUR + 120_000 for _, hour, *_ in drawn]
    known = [next((state for state in reversed(states) if state[0] <= moment), None) for moment in moments]
    expected = [
        answer(state, key, at, window * HOUR) for state, (key, *_), at in zip(known, drawn, times, strict=True)
    ]  # fmt: skip
    keys, wide = [key for key, *_ in drawn], f"{window} hours" if window % 24 else f"{window // 24} days"
    instants, column = (pa.array(some, pa.timestamp("ms", "UTC")) for some in (times, moments))
    assert sales.lookup(keys, instants, known_at=column, window=wide).to_pylist() == expected
    check_spans(sales, known, keys, times, column, window)
    check_sql(pond, keys, times, moments, wide, expected)
    events = pa.table({"k": pa.array(keys, pa.string()), "t": instants, "seen": column})
    features = pond.enrich(events, map="sales", key="k", at="t", known_at="seen", window=wide)
    assert features["sales"].to_pylist() == expected
    set_of = {"sales": millpond.Lookup("sales", "k", "t", known_at="seen", window=wide)}
    assert pond.training_set(events, set_of, flat=False)["sales"].to_pylist() == expected

    now = [answer(states[-1], key, at, window * HOUR) for (key, *_), at in zip(drawn, times, strict=True)]
    assert sales.lookup(keys, instants, window=wide).to_pylist() == now
    last = states[-1][0]
    for moment in {last, moments[0]}:
        state = next((state for state in reversed(states) if state[0] <= moment), None)
        if state is None or not any(loaded for _, loaded, _ in states[: states.index(state) + 1]):
            continue  # nothing was known then: an error, as of any question
        of_all = [answer(state, key, at, window * HOUR) for (key, *_), at in zip(drawn, times, strict=True)]
        assert sales.lookup(keys, instants, known_at=moment, window=wide).to_pylist() == of_all
        assert sales.get("a", FIRST + DAY, known_at=moment, window=wide) == answer(
            state, "a", FIRST + DAY, window * HOUR
        )


def check_spans(
    sales: Map, known: list[State | None], keys: list[Any], times: list[int | None], column: pa.Array, window: int
) -> None:
    """Between two times, or the times of two columns, and in wider buckets: each question as known at its moment."""
    since = [None if at is None else at - window * HOUR for at in times]
    every = list(zip(known, keys, since, times, strict=True))
    bounds = tuple(pa.array(some, pa.timestamp("ms", "UTC")) for some in (since, times))
    expected = [answer_between(*question) for question in every]
    assert sales.lookup(keys, between=bounds, known_at=column).to_pylist() == expected
    expected = [answer_between(state, key, FIRST + DAY, at) for state, key, _, at in every]
    assert sales.lookup(keys, between=(FIRST + DAY, bounds[1]), known_at=column).to_pylist() == expected
    expected = [answer_of_day(state, key, at) for state, key, _, at in every]
    assert sales.lookup(keys, bounds[1], resolution="1 day", known_at=column).to_pylist() == expected


def check_sql(
    pond: Pond, keys: list[Any], times: list[int | None], moments: list[int], wide: str, expected: list[Answer]
) -> None:
    """The same windows by SQL, each as known at its moment."""
    rows = ", ".join(
        f"({number}, {literal(key)}, {literal(time)}::bigint, {moment})"
        for number, (key, time, moment) in enumerate(zip(keys, times, moments, strict=True))
    )
    for call in (f"k, t, s, window := '{wide}'", f"k, t, (s), window => '{wide}'"):
        table = pond.sql(f"select get_state('sales', {call}) as sold from (values {rows}) q(n, k, t, s) order by n")
        assert table.column("sold").to_pylist() == expected


def literal(value: str | int | None) -> str:
    return "null" if value is None else repr(value)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        sales = pond.create_map("sales", kind="histogram", resolution="1 hour", store="layers")
        other = pond.create_map("other", kind="temporal_state", value="long", store="layers")
        cases: list[tuple[str, Map, dict[str, Any]]] = [
            ("window", sales, {"window": "90 minutes"}),
            ("window", sales, {"window": "1 day", "resolution": "1 day"}),
            ("window", sales, {"window": "1 day", "between": (None, None)}),
            ("between_unsupported", other, {"window": "1 day"}),
        ]
        for kind, target, question in cases:
            for known_at in (None, "2024-01-01T00:00Z"):
                with pytest.raises(Invalid) as caught:
                    target.lookup(["a"], known_at=known_at, **question)
                assert caught.value.kind == kind
