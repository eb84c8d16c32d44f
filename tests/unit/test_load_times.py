"""Times that are values keep their microseconds; numbers are in the unit that is named, or cannot be mistaken."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN, read_times

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.pond import Pond

NOON = datetime(2013, 2, 8, 18, tzinfo=UTC)
SECONDS = 1_360_346_400
PER = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.fixture
def pond(tmp_path: Path) -> Pond:
    return millpond.open(tmp_path / "pond")


FINE = NOON + timedelta(microseconds=123_457)


@pytest.mark.parametrize("value", ["timestamp", "seen timestamp", None])
def test_microseconds_come_back_from_every_question(pond: Pond, value: str | None) -> None:
    made = pond.create_map("m", kind="state", value=value)
    name = "seen" if value == "seen timestamp" else "value"
    made.load(pa.table({"key": ["a", "b"], name: pa.array([FINE, None], pa.timestamp("us", "UTC"))}))
    wanted: Any = {"seen": FINE} if name == "seen" else FINE
    assert made.get("a") == wanted
    column = made.scan("key = 'a'").read_all().column(name)
    shown: Any = FINE if value else "2013-02-08T18:00:00.123457Z"
    assert column.to_pylist() == [shown]
    assert pond.sql("select * from m where key = 'a'").column(name).to_pylist() == [shown]
    if value:
        assert made.lookup(["a"]).to_pylist() == [wanted]
        assert column.type == pa.timestamp("us", "UTC")
        for where, count in (
            (f"{name} = '2013-02-08T18:00:00.123457Z'", 1), (f"{name} > '2013-02-08T18:00:00.123456Z'", 1),
            (f"{name} > '2013-02-08T18:00:00.123457Z'", 0), (pc.field(name) == FINE, 1),
            ([(name, "<=", FINE)], 1), ([(name, "<", FINE)], 0),
        ):  # fmt: skip
            assert made.scan(where).read_all().num_rows == count, where


def test_what_is_finer_than_a_microsecond_is_rejected(pond: Pond, tmp_path: Path) -> None:
    made = pond.create_map("m", kind="state", value="timestamp")
    raw = SECONDS * 10**9 + 1_000
    made.load(pa.table({"key": ["a"], "value": pa.array([raw], pa.timestamp("ns", "UTC"))}))
    assert made.get("a") == NOON + timedelta(microseconds=1)
    for column in (pa.array([raw + 1], pa.timestamp("ns", "UTC")), ["2013-02-08T18:00:00.0000001Z"]):
        with pytest.raises(millpond.Invalid, match="finer than a microsecond"):
            made.load(pa.table({"key": ["a"], "value": column}))
    with pytest.raises(millpond.Invalid, match="finer than a microsecond"):
        made.load(pa.table({"key": ["a"], "value": [raw + 1]}), time_unit="ns")
    timed = pond.create_map("timed", kind="temporal_state", value="long")
    fine = pa.array([raw + 1], pa.timestamp("ns", "UTC"))
    timed.load(pa.table({"key": ["a"], "effective_time": fine, "value": [1]}))
    assert timed.get("a", at=NOON) == 1, "times that rows are found by are floored, as documented"


KINDS = {
    "temporal_state": ("long", {"key": "a", "effective_time": SECONDS, "value": 1}),
    "session": (None, {"key": "a", "start": SECONDS, "end": SECONDS + 9}),
    "state": ("timestamp", {"key": "a", "value": SECONDS}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["table", "float", "jsonl", "csv", "xml"])
def test_seconds_need_their_unit(pond: Pond, tmp_path: Path, kind: str, form: str) -> None:
    value, row = KINDS[kind]
    if form == "xml" and kind == "session":
        return  # a session of XML has a timeout
    made = pond.create_map("m", kind=kind, value=value)

    def load(**options: Any) -> Any:
        if form in ("table", "float"):
            as_given = {
                name: float(v) if form == "float" and v != 1 and name != "key" else v for name, v in row.items()
            }
            return made.load(pa.table({name: [v] for name, v in as_given.items()}), **options)
        file = tmp_path / f"a.{form}"
        if form == "jsonl":
            file.write_text(json.dumps(row) + "\n")
        elif form == "csv":
            file.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
        else:
            time = f"<time>{row['effective_time']}</time>" if "effective_time" in row else ""
            file.write_text(
                f'<referenceData xmlns="reference-data:2"><reference><map>m</map><key>a</key>{time}'
                f"<value>{row['value']}</value></reference></referenceData>"
            )
        return pond.load_files(file, "m", **options)

    with pytest.raises(millpond.Invalid, match="another unit than milliseconds") as caught:
        load()
    assert "--time-unit" in str(caught.value)
    with pytest.raises(millpond.Invalid, match="unit of time is not known"):
        load(time_unit="seconds")
    assert load(time_unit="s").rows == 1
    answer = made.get("a") if kind == "state" else made.get("a", at=NOON + timedelta(seconds=1))
    wanted = {"temporal_state": 1, "session": {"start": NOON, "end": NOON + timedelta(seconds=9)}, "state": NOON}
    assert answer == wanted[kind]


def test_milliseconds_that_look_like_seconds_are_taken_when_it_is_said(pond: Pond) -> None:
    made = pond.create_map("m", kind="temporal_state", value="long")
    rows = pa.table({"key": ["a"], "effective_time": [SECONDS], "value": [1]})
    made.load(rows, time_unit="ms")
    assert made.get("a", at=datetime(1970, 1, 17, tzinfo=UTC)) == 1


@given(
    st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**11), 10**11), max_size=9),
    st.sampled_from(tuple(PER)),
)
def test_numbers_in_a_unit_are_what_arithmetic_says(numbers: list[int], unit: str) -> None:
    for ticks in ("ms", "us"):
        quotients = [divmod(number * PER[ticks], PER[unit]) for number in numbers]
        valid = [INSTANT_MIN <= value * 1000 // PER[ticks] <= INSTANT_MAX for value, _ in quotients]
        wanted = [value if good else None for (value, _), good in zip(quotients, valid, strict=True)]
        for column in (pa.array(numbers, pa.int64()), pa.array([str(number) for number in numbers], pa.string())):
            read = read_times(column, ticks, unit)
            assert read.values.to_pylist() == wanted
            assert read.invalid.to_pylist() == [not good for good in valid]
            assert read.finer.tolist() == [
                bool(rest) and good for (_, rest), good in zip(quotients, valid, strict=True)
            ]


@given(st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**11), 10**11))
def test_only_nine_or_ten_digits_are_unclear(number: int) -> None:
    read = read_times(pa.array([number]), "ms")
    assert read.vague.tolist() == [len(str(abs(number))) in (9, 10)]


def test_a_null_end_is_rejected_unless_a_timeout_says_it(pond: Pond, tmp_path: Path) -> None:
    made = pond.create_map("m", kind="session")
    rejects = tmp_path / "r.jsonl"
    rows = pa.table({"key": ["a", "b", "c"], "start": [1, 2, 3], "end": [5, None, None], "timeout": [None, "1s", None]})
    result = made.load(rows, max_rejects=1, rejects=rejects)
    assert result.rows == 2
    assert json.loads(rejects.read_text())["reason"] == "end is missing"


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "arrow"])
def test_a_file_without_rows_is_an_error(pond: Pond, tmp_path: Path, form: str) -> None:
    made = pond.create_map("m", kind="state", value="long")
    none = pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.int64())})
    file = tmp_path / f"empty.{form}"
    if form == "csv":
        file.write_text("key,value\n")
    elif form == "parquet":
        pq.write_table(none, file)
    elif form == "arrow":
        with pa.ipc.new_file(str(file), none.schema) as sink:
            sink.write(none)
    else:
        file.write_text("")
    (tmp_path / "some.csv").write_text("key,value\na,1\n")
    result = pond.load_files([file, tmp_path / "some.csv"], "m")
    assert (result.empty, result.rows) == ((str(file),), 1)
    assert pond.load_files(file, "m").rows == 0
    assert made.get("a") == 1


@pytest.mark.parametrize("days", [2**31 - 1, -(2**31) + 5, 2_932_897, -719_163])
def test_dates_of_no_year_are_rejects(pond: Pond, days: int) -> None:
    thirty_two = pa.array([days], pa.int32()).cast(pa.date32())
    sixty_four = pa.array([days * 86_400_000], pa.int64()).cast(pa.date64())
    states = {
        name: pond.create_map(name, kind="state", value=name) for name in ("string", "timestamp", "json")
    }  # fmt: skip
    timed = pond.create_map("timed", kind="temporal_state", value="string")
    for dates in (thirty_two, sixty_four):
        nested = pa.StructArray.from_arrays([dates], ["date"])
        loads = [
            (states["string"], {"key": ["a"], "value": dates}), (states["string"], {"key": dates, "value": ["a"]}),
            (states["timestamp"], {"key": ["a"], "value": dates}), (states["json"], {"key": ["a"], "value": nested}),
            (timed, {"key": ["a"], "effective_time": dates, "value": ["x"]}),
        ]  # fmt: skip
        for loaded, columns in loads:
            with pytest.raises(millpond.Invalid) as refused:
                loaded.load(pa.table(columns), zone="Europe/Paris")
            assert refused.value.kind == "too_many_rejects"
        assert states["string"].lookup(dates, on_invalid="miss").to_pylist() == [None]
    edges = pa.array([0, 2_932_896, -719_162], pa.int32()).cast(pa.date32())
    states["string"].load(pa.table({"key": edges, "value": edges}))
    assert states["string"].lookup(edges).to_pylist() == ["1970-01-01", "9999-12-31", "0001-01-01"]
