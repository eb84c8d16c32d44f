"""Worked cases with their row counts: what a store of state is known to answer.

Times start at 2000-01-01 and go in steps of ten seconds or of days, so every count can be done on paper.
Each keyed case runs over every scheme.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.maps.model.columns import INSTANT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from millpond import Map, Pond

REF = datetime(2000, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEN_SECONDS = timedelta(seconds=10)
DAY = timedelta(days=1)
MS = timedelta(milliseconds=1)

SCHEMES = ["auto", "direct", "hash", "hash4", "lookup"]
KEY_LENGTHS = [8, 200, 800]


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    clock = ManualClock(now=int(NOW.timestamp() * 1000))
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        yield opened


def create(pond: Pond, kind: str, scheme: str = "auto", value: str | None = "string", name: str = "m") -> Map:
    return pond.create_map(
        name, kind=kind, value=None if kind == "session" else value, scheme=scheme.removesuffix("4"),
        hash_bytes=4 if scheme == "hash4" else 8,
    )  # fmt: skip


def instants(moments: Sequence[datetime]) -> pa.Array:
    return pa.array(list(moments), INSTANT)


def load(target: Map, **columns: Sequence[object] | pa.Array) -> int:
    return target.load(pa.table(columns)).rows


def rows(target: Map) -> int:
    """The count of rows, the same by a scan and by the map's own figures."""
    count = target.scan().read_all().num_rows
    assert target.info()["rows"] == count
    return count


def sessions(target: Map, key: str, spans: Sequence[tuple[datetime, datetime]]) -> None:
    load(target, key=[key] * len(spans), start=instants([s for s, _ in spans]), end=instants([e for _, e in spans]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_1_one_key_put_a_hundred_times_is_one_row(pond: Pond, scheme: str) -> None:
    state = create(pond, "state", scheme)
    load(state, key=["TEST_KEY"] * 100, value=[f"test{n}" for n in range(100)])
    assert rows(state) == 1
    assert state.get("TEST_KEY") == "test99"
    assert state.scan().read_all().to_pylist() == [{"key": "TEST_KEY", "value": "test99"}]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_1_an_undeclared_map_knows_the_type_of_every_value(pond: Pond, scheme: str) -> None:
    state = create(pond, "state", scheme, value=None)
    load(state, key=["TEST_KEY"] * 100, value=[f"test{n}" for n in range(100)])
    assert state.scan().read_all().to_pylist() == [{"key": "TEST_KEY", "value_type": "string", "value": "test99"}]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_2_least_and_greatest_numbers_round_trip(pond: Pond, bits: int, scheme: str) -> None:
    ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    state = create(pond, "state", scheme, "long")
    load(state, key=[str(end) for end in ends], value=ends)
    assert [state.get(str(end)) for end in ends] == ends


@pytest.mark.parametrize("scheme", SCHEMES)
def test_2_least_and_greatest_doubles_round_trip(pond: Pond, scheme: str) -> None:
    ends = [5e-324, 1.7976931348623157e308, 1.401298464324817e-45, 3.4028234663852886e38, -0.0]
    state = create(pond, "state", scheme, "double")
    load(state, key=[str(end) for end in ends], value=ends)
    assert [state.get(str(end)).hex() for end in ends] == [end.hex() for end in ends]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["state", "temporal_state", "session"])
def test_3_keys_of_any_length_work(pond: Pond, kind: str, scheme: str) -> None:
    target = create(pond, kind, scheme)
    keys = ["k" * length for length in KEY_LENGTHS]
    if kind == "session":
        load(target, key=keys, start=instants([REF] * 3), end=instants([REF + DAY] * 3))
    elif kind == "state":
        load(target, key=keys, value=keys)
    else:
        load(target, key=keys, effective_time=instants([REF] * 3), value=keys)
    expected = [{"start": REF, "end": REF + DAY}] * 3 if kind == "session" else keys
    assert [target.get(key, at=REF + MS) for key in keys] == expected
    assert rows(target) == 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_4_two_parts_with_different_keys_are_both_there(pond: Pond, scheme: str) -> None:
    state = create(pond, "state", scheme)
    load(state, key=["one"], value=["a"])
    load(state, key=["two"], value=["b"])
    assert (state.get("one"), state.get("two"), rows(state)) == ("a", "b", 2)


def hundred_confirmations(target: Map) -> None:
    times = [REF + n * TEN_SECONDS for n in range(100)]
    load(target, key=["TEST_KEY"] * 100, effective_time=instants(times), value=["test"] * 100)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_5_as_of_is_found_from_the_first_row_on(pond: Pond, scheme: str) -> None:
    target = create(pond, "temporal_state", scheme)
    hundred_confirmations(target)
    assert rows(target) == 100
    assert [target.get("TEST_KEY", at=REF + delta) for delta in (-MS, 0 * MS, MS)] == [None, "test", "test"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_6_a_hundred_confirmations_condense_to_one_row_and_age_out(pond: Pond, scheme: str) -> None:
    target = create(pond, "temporal_state", scheme)
    hundred_confirmations(target)
    target.condense(before=NOW)
    assert rows(target) == 1
    assert target.get("TEST_KEY", at=REF) == "test"
    target.retain(before=datetime(1, 1, 1, tzinfo=UTC))
    assert rows(target) == 1
    target.retain(before=NOW)
    assert rows(target) == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_7_condensing_stops_at_the_watermark(pond: Pond, scheme: str) -> None:
    target = create(pond, "temporal_state", scheme)
    days = [REF + n * DAY for n in (*range(100), *range(0, -10, -1))]
    for key in ("TEST_KEY", "TEST_KEY2"):
        load(target, key=[key] * 110, effective_time=instants(days), value=["test"] * 110)
    assert rows(target) == 218
    target.condense(before=REF + MS)
    assert rows(target) == 200
    target.condense(before=datetime(2000, 1, 10, tzinfo=UTC) + MS)
    assert rows(target) == 182


@pytest.mark.parametrize("scheme", SCHEMES)
def test_8_a_range_holds_both_its_ends(pond: Pond, scheme: str) -> None:
    target = create(pond, "ranged_state", scheme)
    load(target, key_start=[10] * 100, key_end=[30] * 100, value=[f"test{n}" for n in range(100)])
    assert rows(target) == 1
    assert [target.get(number) for number in (9, 31)] == [None, None]
    assert {target.get(number) for number in range(10, 31)} == {"test99"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_9_a_range_is_known_from_its_first_time_on(pond: Pond, scheme: str) -> None:
    target = create(pond, "temporal_ranged_state", scheme)
    times = instants([REF + n * TEN_SECONDS for n in range(100)])
    load(target, key_start=[10] * 100, key_end=[30] * 100, effective_time=times, value=["test"] * 100)
    assert rows(target) == 100
    for delta, inside in ((-MS, None), (0 * MS, "test"), (MS, "test")):
        assert {target.get(number, at=REF + delta) for number in range(10, 31)} == {inside}
        assert [target.get(number, at=REF + delta) for number in (9, 31)] == [None, None]
    target.condense(before=NOW)
    assert rows(target) == 1
    [row] = target.scan().read_all().to_pylist()
    assert row == {"key_start": 10, "key_end": 30, "effective_time": REF, "value": "test"}
    target.retain(before=NOW)
    assert rows(target) == 0


def chained_sessions(target: Map) -> tuple[datetime, datetime]:
    """A hundred sessions of ten seconds forward from REF and ten backward, each touching the next."""
    forward = [(REF + n * TEN_SECONDS, REF + (n + 1) * TEN_SECONDS) for n in range(100)]
    backward = [(REF - n * TEN_SECONDS, REF - (n - 1) * TEN_SECONDS) for n in range(10)]
    sessions(target, "TEST", forward + backward)
    return backward[-1][0], forward[-1][1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_10_sessions_are_found_from_their_least_to_their_greatest_instant(pond: Pond, scheme: str) -> None:
    target = create(pond, "session", scheme)
    first, last = chained_sessions(target)
    assert rows(target) == 109
    assert target.get("TEST", at=first) == {"start": first, "end": first + TEN_SECONDS}
    assert target.get("TEST", at=last) == {"start": last - TEN_SECONDS, "end": last}
    assert target.get("TEST", at=first - MS) is None
    assert target.get("TEST", at=last + MS) is None
    assert target.scan("key = 'TEST'").read_all().num_rows == 109
    assert target.scan("key = 'OTHER'").read_all().num_rows == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_11_old_days_of_sessions_are_joined_then_deleted(pond: Pond, scheme: str) -> None:
    target = create(pond, "session", scheme)
    hour = timedelta(hours=1)
    days = [datetime(2025, 12, day, 6, tzinfo=UTC) for day in range(1, 10)]
    sessions(target, "TEST", [(day + n * hour, day + (n + 1) * hour) for day in days for n in range(9)])
    assert rows(target) == 81
    target.condense(before=datetime(2025, 12, 7, 0, 10, tzinfo=UTC))
    assert rows(target) == 6 + 3 * 9
    target.retain(before=datetime(2025, 12, 4, 0, 10, tzinfo=UTC))
    assert rows(target) == 3 + 3 * 9
    target.condense(before=NOW)
    left = target.scan().read_all().to_pylist()
    assert left == [{"key": "TEST", "start": day, "end": day + 9 * hour} for day in days[3:]]
    assert len(left) == 6


@pytest.mark.parametrize("scheme", SCHEMES)
def test_12_touching_sessions_condense_to_one_and_age_out(pond: Pond, scheme: str) -> None:
    target = create(pond, "session", scheme)
    first, last = chained_sessions(target)
    target.condense(before=NOW)
    assert target.scan().read_all().to_pylist() == [{"key": "TEST", "start": first, "end": last}]
    assert rows(target) == 1
    target.retain(before=NOW)
    assert rows(target) == 0
