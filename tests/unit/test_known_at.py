"""Questions as known at a moment, in every form they have: Python, frames, SQL; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond import Lookup
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.maps.layered.maintenance import collect_files
from millpond.maps.search.partial import last_up_to, order_by_parts
from millpond.refs.changes import moment_of
from millpond.versions.graph.commits import Commit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

DAY = 86_400_000
BEGAN = 1_700_000_000_000
INSTANT = pa.timestamp("ms", "UTC")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=BEGAN)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock, maps_history="10d") as opened:
        yield opened


@pytest.fixture
def weather(pond: Pond, clock: ManualClock) -> Map:
    """Loaded on the first day, corrected on the third."""
    weather = pond.create_map("weather", kind="temporal_state", value="temp double", store="layers")
    for day, temp in ((1, 50.0), (3, 60.0)):
        clock.now = BEGAN + day * DAY
        weather.load([{"key": "JFK", "effective_time": BEGAN, "temp": temp}])
    clock.now = BEGAN + 5 * DAY
    return weather


def day(number: float) -> str:
    return pd.Timestamp(int(BEGAN + number * DAY), unit="ms", tz="UTC").isoformat()


def test_a_correction_does_not_leak_into_the_past(weather: Map) -> None:
    assert weather.get("JFK", known_at=day(2)) == {"temp": 50.0}
    assert weather.get("JFK", known_at=day(3)) == {"temp": 60.0}
    assert weather.get("JFK") == {"temp": 60.0}
    moments = pa.array([BEGAN, BEGAN + 2 * DAY, BEGAN + 4 * DAY, None], INSTANT)
    answers = weather.lookup(["JFK"] * 4, known_at=moments).to_pylist()
    assert answers == [None, {"temp": 50.0}, {"temp": 60.0}, None]
    assert weather.scan(columns=["temp"], known_at=day(2)).read_all().to_pylist() == [{"temp": 50.0}]


def test_frames_are_enriched_as_known(pond: Pond, weather: Map) -> None:
    events = {"origin": ["JFK", "JFK"], "decided_at": [day(2), day(4)]}
    request = {"map": "weather", "key": "origin", "into": "w"}
    for frame in (pa.table(events), pd.DataFrame(events), pl.DataFrame(events)):
        answer = pond.enrich(frame, **request, known_at="decided_at")
        assert list(answer["w"].to_list() if hasattr(answer["w"], "to_list") else answer["w"].to_pylist()) == [
            {"temp": 50.0},
            {"temp": 60.0},
        ]
    assert pond.enrich(pa.table(events), **request, known_at=day(2))["w"].to_pylist() == [{"temp": 50.0}] * 2
    with pytest.raises(Invalid, match="no such column"):
        pond.enrich(pa.table(events), **request, known_at="decided")


def test_a_training_set_is_right_in_both_times(pond: Pond, weather: Map, clock: ManualClock) -> None:
    planes = pond.create_map("planes", kind="state", value="string", store="layers")
    planes.load([{"key": "N1", "value": "747"}])
    clock.advance(DAY)
    times = [day(0.5), day(2), day(4), day(6.5)]
    events = pd.DataFrame({"origin": ["JFK"] * 4, "tail": ["N1"] * 4, "time": times, "decided": [day(7)] * 4})
    expected = {"weather_temp": [None, 50.0, 60.0, 60.0], "planes": [None, None, None, "747"]}
    features = pond.training_set(events, {"weather": "origin", "planes": "tail"}, at="time")
    rows = features[list(expected)].astype(object)
    assert rows.where(rows.notna(), None).to_dict("list") == expected
    late = pond.training_set(
        pl.DataFrame(events), {"w": Lookup("weather", "origin", "time", into="w", known_at="decided")}, flat=False
    )
    assert late["w"].to_list() == [{"temp": 60.0}] * 4
    with pytest.raises(Invalid, match="up to when"):
        pond.training_set(events, {"weather": "origin"})


def test_sql_asks_as_known(pond: Pond, weather: Map) -> None:
    pond.create_map("decisions", kind="state", value="timestamp").load([{"key": "a", "value": day(2)}])
    query = f"select get_state('weather', 'JFK', '{day(5)}', '{day(2)}').temp as temp"
    assert pond.sql(query).to_pylist() == [{"temp": 50.0}]
    query = f"select get_state('weather', 'JFK', value, {BEGAN + 4 * DAY}).temp as temp from decisions"
    assert pond.sql(query).to_pylist() == [{"temp": 60.0}]
    query = "select get_state('weather', 'JFK', value, value).temp as temp from decisions"
    assert pond.sql(query).to_pylist() == [{"temp": 50.0}]
    with pytest.raises(Invalid, match="timestamp"):
        pond.sql("select get_state('weather', 'JFK', '2024-01-01', 1.5)")


def test_a_query_asks_all_its_maps_as_known(pond: Pond, weather: Map) -> None:
    query = f"select max(temp) as temp, get_state('weather', 'JFK', '{day(5)}').temp as state from weather"
    for moment, temp in ((2, 50.0), (4, 60.0)):
        assert pond.sql(query, known_at=day(moment)).to_pylist() == [{"temp": temp, "state": temp}]
    own = f"select get_state('weather', 'JFK', '{day(5)}', '{day(4)}').temp as temp"
    assert pond.sql(own, known_at=day(2)).to_pylist() == [{"temp": 60.0}], "a time of its own counts"
    pond.create_map("sharded", kind="state", value="long", store="shard")
    assert pond.sql("select 1 as one", known_at=day(2)).to_pylist() == [{"one": 1}]
    for ask in ("select * from sharded", "select get_state('sharded', 'a')"):
        with pytest.raises(Invalid) as refused:
            pond.sql(ask, known_at=day(2))
        assert refused.value.kind == "known_at_unsupported"
    with pond.branch("fix", source="main") as fix:
        assert fix.sql("select max(temp) as temp from weather", known_at=day(2)).to_pylist() == [{"temp": 50.0}]


def test_moments_that_have_no_answer_say_so(pond: Pond, weather: Map, clock: ManualClock) -> None:
    empty = pond.create_map("empty", kind="state", value="long", store="layers")
    assert empty.lookup(["a"], known_at=day(1)).to_pylist() == [None]
    with pytest.raises(Invalid) as refused:
        weather.get("JFK", known_at=day(0.5))
    assert (refused.value.kind, refused.value.values["first_change"]) == ("nothing_known", day(1))
    clock.now = BEGAN + 14 * DAY
    collect_files(weather.rows.snapshots)
    assert weather.get("JFK", known_at=day(4)) == {"temp": 60.0}
    for known_at in (day(2), [day(2)], [day(4), day(0)]):
        with pytest.raises(Invalid, match=r"(?s)history of the map begins later") as refused:
            weather.lookup(["JFK"] * (len(known_at) if isinstance(known_at, list) else 1), known_at=known_at)
        assert (refused.value.kind, "maps.history" in str(refused.value.hint)) == ("history_ended", True)


def test_what_has_no_past_refuses(pond: Pond) -> None:
    sharded = pond.create_map("sharded", kind="state", value="long")
    for ask in (
        lambda: sharded.get("a", known_at=day(1)),
        lambda: sharded.lookup(["a"], known_at=[day(1)]),
        lambda: sharded.scan(known_at=day(1)),
        lambda: pond.enrich(pa.table({"k": ["a"]}), map="sharded", key="k", known_at=day(1)),
    ):
        with pytest.raises(Invalid) as refused:
            ask()
        assert (refused.value.kind, "layers" in str(refused.value.hint)) == ("known_at_unsupported", True)


def test_the_past_is_shown_with_the_fields_of_now(pond: Pond, weather: Map, clock: ManualClock) -> None:
    assert weather.get("JFK", known_at=day(2)) == {"temp": 50.0}
    pond.alter_map("weather", add={"gust": "double"}, rename={"temp": "degrees"})
    clock.now = BEGAN + 6 * DAY
    weather.load([{"key": "JFK", "effective_time": BEGAN, "degrees": 70.0, "gust": 9.0}])
    before, after = {"degrees": 50.0, "gust": None}, {"degrees": 70.0, "gust": 9.0}
    assert (weather.get("JFK", known_at=day(2)), weather.get("JFK")) == (before, after)
    moments = pa.array([BEGAN + 2 * DAY, BEGAN + 6 * DAY], INSTANT)
    assert weather.lookup(["JFK"] * 2, known_at=moments).to_pylist() == [before, after]
    scanned = weather.scan(columns=["key", "degrees", "gust"], known_at=day(2)).read_all().to_pylist()
    assert scanned == [{"key": "JFK", "degrees": 50.0, "gust": None}]


@pytest.mark.parametrize("kind", ["state", "ranged_state"])
def test_a_field_that_was_restored_is_not_known_of_the_time_without_it(
    pond: Pond, clock: ManualClock, kind: str
) -> None:
    key = {"key": "a"} if kind == "state" else {"key_start": 1, "key_end": 2}
    layered = pond.create_map("m", kind=kind, value="n long, w string", store="layers")
    layered.load([{**key, "n": 1, "w": "x"}])
    moments = []
    for act in (
        lambda: pond.alter_map("m", drop=["n"]), lambda: layered.load([{**key, "w": "y"}]),
        lambda: pond.refs.restore("main~2", maps=["m"]),
    ):  # fmt: skip
        moments.append(clock.now_ms())
        clock.advance(1000)
        act()
        pond.refs.resolve("main")
    moments.append(clock.now_ms())
    states = [{"n": 1, "w": "x"}, {"n": None, "w": "x"}, {"n": None, "w": "y"}, {"n": 1, "w": "x"}]
    first, known = next(iter(key.values())), pa.array(moments, INSTANT)
    events = pa.table({"k": [first] * 4, "t": known})
    for opened in (pond, pond.at("main")):
        shown = opened.map("m")
        assert shown.lookup([first] * 4, known_at=known).to_pylist() == states
        assert opened.enrich(events, map="m", key="k", into="m", known_at="t")["m"].to_pylist() == states
        for moment, state in zip(moments, states, strict=True):
            assert shown.get(first, known_at=moment) == state
            assert shown.lookup([first], known_at=moment).to_pylist() == [state]
            assert shown.scan(known_at=moment).read_all().to_pylist() == [{**key, **state}]
            assert opened.sql("select n, w from m", known_at=moment).to_pylist() == [state]


def test_a_branch_knows_what_was_committed_to_it(pond: Pond, weather: Map, clock: ManualClock) -> None:
    fix = pond.branch("fix", source="main")
    mended = fix.map("weather")
    for number, temp, options in ((6, 70.0, {}), (7, 80.0, {"commit": False})):
        clock.now = BEGAN + number * DAY + 5
        mended.load([{"key": "JFK", "effective_time": BEGAN, "temp": temp}], **options)  # type: ignore[arg-type]
    assert mended.get("JFK") == {"temp": 80.0}
    assert mended.get("JFK", known_at=day(9)) == {"temp": 70.0}, "what is staged was never committed"
    moments = [BEGAN, BEGAN + 2 * DAY, BEGAN + 6 * DAY + 4, BEGAN + 6 * DAY + 5]
    said = [None, {"temp": 50.0}, {"temp": 60.0}, {"temp": 70.0}]
    events = pa.table({"k": ["JFK"] * 4, "t": pa.array(moments, INSTANT)})
    for opened in (fix, pond.at("fix")):
        assert opened.map("weather").lookup(["JFK"] * 4, known_at=events["t"]).to_pylist() == said
        assert opened.enrich(events, map="weather", key="k", into="w", known_at="t")["w"].to_pylist() == said
        assert opened.map("weather").scan(columns=["temp"], known_at=moments[2]).read_all().to_pylist() == [said[2]]
    clock.now = BEGAN + 8 * DAY
    fix.commit()
    fix.merge()
    merged = pond.at("main").map("weather")
    assert [merged.get("JFK", known_at=day(number)) for number in (7, 8)] == [{"temp": 60.0}, {"temp": 80.0}]
    assert pond.at("main~1").map("weather").get("JFK", known_at=day(9)) == {"temp": 60.0}


def test_a_branch_is_asked_on_after_a_purge_of_what_was_known(pond: Pond, weather: Map, clock: ManualClock) -> None:
    fix = pond.branch("fix", source="main").map("weather")
    for number, key in ((6, "LGA"), (7, "EWR")):
        clock.now = BEGAN + number * DAY
        fix.load([{"key": key, "effective_time": BEGAN, "temp": 70.0}])
    assert fix.lookup(["LGA"], known_at=day(6)).to_pylist() == [{"temp": 70.0}]
    first, clock.now = pond.refs.resolve("fix~1"), BEGAN + 8 * DAY
    fix.delete("key = 'LGA'", now=True)
    assert fix.lookup(["LGA", "EWR"], known_at=day(8)).to_pylist() == [None, {"temp": 70.0}]
    for ask in (
        lambda: fix.get("LGA", known_at=day(6)),
        lambda: fix.lookup(["LGA"], known_at=[day(6)]),
        lambda: fix.scan(known_at=day(6)).read_all(),
        lambda: pond.at("fix").sql("select * from weather", known_at=day(6)),
    ):
        with pytest.raises(NotFound) as refused:
            ask()
        assert (refused.value.kind, refused.value.values["ref"]) == ("ref_collected", first)
        assert refused.value.hint


def test_a_commit_that_tells_no_moment_counts_from_the_end_of_its_second() -> None:
    exact = Commit("", "", created=7, metadata={"moment_ms": "7250"})
    assert [moment_of(commit) for commit in (exact, replace(exact, created=8), replace(exact, metadata={}))] == [
        7250, 8999, 7999,
    ]  # fmt: skip


def test_a_ref_tells_where_its_history_begins(pond: Pond, weather: Map, clock: ManualClock) -> None:
    clock.now = BEGAN + 14 * DAY
    collect_files(weather.rows.snapshots)
    at_ref = pond.at("main").map("weather")
    assert at_ref.get("JFK", known_at=day(4)) == {"temp": 60.0}
    with pytest.raises(Invalid) as refused:
        at_ref.get("JFK", known_at=day(2))
    assert refused.value.kind == "history_ended", "the first load was forgotten before a commit told of it"


def test_a_definition_with_changed_fields_is_what_json_reads_back(weather: Map, pond: Pond) -> None:
    """Manifests of parts are compared with it: one that is not alike to the letter would be read again each time."""
    changed = pond.alter_map("weather", add={"gust": "double"}).definition
    assert json.loads(json.dumps(changed.to_dict())) == changed.to_dict()
    assert type(changed).from_dict(changed.to_dict()) == changed


MOMENTS = st.lists(st.one_of(st.integers(0, 60), st.integers(-(10**14), 10**14)), max_size=40)


@pytest.mark.usefixtures("processor")
@given(moments=MOMENTS, questions=MOMENTS)
def test_the_last_moment_up_to_each_question_is_found(moments: list[int], questions: list[int]) -> None:
    """However unevenly moments come, and whether questions lie before, between or after them."""
    known = np.array(sorted(moments), np.int64)
    queried = np.array([*questions, *(moment + step for moment in moments for step in (-1, 0, 1))], np.int64)
    for some in (queried, queried[:1]):
        numbers = np.empty(len(some), np.int64)
        last_up_to(known, some, numbers)
        assert numbers.tolist() == (np.searchsorted(known, some, "right") - 1).tolist()


@pytest.mark.usefixtures("processor")
@given(
    questions=st.lists(st.tuples(st.integers(0, 63), st.integers(-1, 4)), max_size=60),
    layers=st.lists(st.integers(0, 3), min_size=5, max_size=5), bits=st.integers(0, 4),
)  # fmt: skip
def test_each_question_is_in_one_stretch_of_its_part(
    questions: list[tuple[int, int]], layers: list[int], bits: int
) -> None:
    hashes = np.array([upper << 58 for upper, _ in questions], np.uint64)
    numbers = np.array([number for _, number in questions], np.int64)
    begins, count = np.cumsum([0, *layers]), len(questions)
    order, ordered = np.empty(count, np.int64), np.empty(count, np.uint64)
    stretches = np.empty((6 << bits, 4), np.int64)
    stretches = stretches[: order_by_parts(hashes, bits, numbers, begins, order, ordered, stretches)]
    expected = sorted(range(count), key=lambda row: (int(hashes[row]) >> (64 - bits), numbers[row], row))
    assert order.tolist() == expected
    assert ordered.tolist() == hashes[order].tolist()
    assert [place for start, stop, *_ in stretches for place in range(start, stop)] == list(range(count))
    for start, stop, begin, end in stretches:
        for part in numbers[order[start:stop]]:
            assert (begin, end) == ((begins[part], begins[part + 1]) if part >= 0 else (0, 0))
