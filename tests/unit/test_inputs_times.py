"""Instants: one language for single values and for columns; nothing naive gets in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import moments_of
from millpond.times import instants
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN, clear_instant, parse_instant, read_times

GOOD = {
    "1970-01-01T00:00:00Z": 0,
    "1970-01-01T00:00Z": 0,
    "1970-01-01 00:00:00.001Z": 1,
    "1970-01-01t00:00:00,5z": 500,
    "1970-01-01 00:00:01 UTC": 1000,
    "1970-01-01T01:00:00+01": 0,
    "1970-01-01T01:00:00+0100": 0,
    "1970-01-01T01:00:00+01:00": 0,
    "1969-12-31T18:30:00-05:30": 0,
    "1969-12-31T23:59:59.9999999Z": -1,
    "1969-12-31T23:59:59.9Z": -100,
    "  2013-02-08T18:00Z ": 1_360_346_400_000,
    "2024-02-29T00:00:00Z": 1_709_164_800_000,
    "1360346400000": 1_360_346_400_000,
    " -62135596800000 ": INSTANT_MIN,
    "0001-01-01T00:00:00Z": INSTANT_MIN,
    "9999-12-31T23:59:59.999Z": INSTANT_MAX,
}
BAD = [
    "", " ", "now", "2013", "20130208", "1360346400", "1360346400000000", "+1360346400000", "1360346400000Z",
    "2013-02-08", "2013-02-08T18:00", "2013-02-08T18:00:00",
    "2013-02-08T18:00:00.", "2013-02-08T18:00:00.Z", "2013-02-08T18:00:60Z", "2013-02-08T24:00:00Z",
    "2013-02-30T00:00:00Z", "2023-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2013-13-01T00:00:00Z",
    "2013-00-01T00:00:00Z", "2013-01-00T00:00:00Z", "0000-01-01T00:00:00Z", "13-01-01T00:00:00Z",
    "2013-02-08T18:00:00+1", "2013-02-08T18:00:00+24:00", "2013-02-08T18:00:00+01:60", "2013-02-08T18:00:00+1:00",
    "2013-02-08T18:00:00 +01:00", "2013-02-08T18:00:00ZZ", "2013-02-08T18:00:00Z[UTC]", "2013/02/08T18:00:00Z",
    "2013-02-08X18:00:00Z", "2013-02-08T18:00:Z", "2013-02-08T1800Z", "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59-01:00",
    "\uff12\uff10\uff11\uff13-02-08T18:00:00Z", "2013-02-08T18:00:00+01:0é", "2013-02-08T18:00\x00Z",
]  # fmt: skip


@pytest.fixture(params=[0, instants.FEW_ROWS], ids=["compiled", "few"], autouse=True, scope="module")
def _both_readers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Columns of text are read by machine code, or one by one: both speak the same language."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instants, "FEW_ROWS", request.param)
        yield


def to_millis(times: pa.Array | pa.ChunkedArray) -> tuple[pa.Int64Array, pa.BooleanArray]:
    """A column of instants as UTC milliseconds, and which rows are not instants (those are null)."""
    read = read_times(times, "ms")
    return read.values, read.invalid


@pytest.mark.parametrize(("text", "millis"), GOOD.items())
def test_text_with_a_zone_is_read(text: str, millis: int) -> None:
    assert parse_instant(text) == millis


@pytest.mark.parametrize("text", BAD)
def test_other_text_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(Invalid, match="time") as caught:
        parse_instant(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_columns_of_text_distinguish_bad_rows_from_missing_ones(type_: pa.DataType) -> None:
    texts = [*GOOD, None, *BAD]
    millis, invalid = to_millis(pa.array(texts).cast(type_))
    assert millis.to_pylist() == [*GOOD.values(), None, *[None] * len(BAD)]
    assert invalid.to_pylist() == [False] * (len(GOOD) + 1) + [True] * len(BAD)


def test_sliced_and_chunked_columns_are_read_where_they_stand() -> None:
    column = pa.array(["junk", "1970-01-01T00:00:01Z", None, "1970-01-01T00:00:02Z"])
    millis, _ = to_millis(pa.chunked_array([column.slice(1, 2), column.slice(3)]))
    assert millis.to_pylist() == [1000, None, 2000]
    empty, none = to_millis(pa.array([], pa.string()))
    assert len(empty) == len(none) == 0


@given(st.datetimes(timezones=st.just(UTC)), st.integers(-23 * 60 - 59, 23 * 60 + 59), st.integers(0, 9))
def test_scalar_and_column_agree_with_datetime(moment: datetime, shift: int, digits: int) -> None:
    zone = timezone(timedelta(minutes=shift))
    try:
        local = moment.astimezone(zone)
    except OverflowError:
        return
    fraction = f".{moment.microsecond:06d}000"[: digits + 1] if digits else ""
    truncated = moment.replace(microsecond=int(fraction[1:7].ljust(6, "0") or "0"))
    text = f"{local:%Y-%m-%dT%H:%M:%S}".zfill(19) + fraction + f"{local:%z}"
    expected = (truncated - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_instant(text) == parse_instant(truncated.astimezone(zone)) == expected
    assert to_millis(pa.array([text]))[0].to_pylist() == [expected]


@given(st.lists(st.text("0123456789-:+.,TtZzUC é", max_size=30)))
def test_scalar_and_column_refuse_the_same_text(texts: list[str]) -> None:
    def alone(text: str) -> int | None:
        try:
            return parse_instant(text)
        except Invalid:
            return None

    millis, invalid = to_millis(pa.array(texts, pa.string()))
    assert millis.to_pylist() == [alone(text) for text in texts]
    assert invalid.to_pylist() == [alone(text) is None for text in texts]


def instant_or_none(text: str) -> int | None:
    try:
        return parse_instant(text)
    except Invalid:
        return None


@given(st.from_regex(r"[0-9W+ -]{4}-[0-3W +][0-9]-[0-9 ]{2}T[0-2][0-9a]:[0-9 ]{2}:[0-9 ]{2}Z", fullmatch=True))
@example("2024-02-29T24:00:00Z")
@example("2024-W01-1T00:00:00Z")
@example("2024-12-31T23:59:60Z")
def test_whole_seconds_are_read_as_every_other_form(text: str) -> None:
    """They are read by a way of their own; with a space before them they are not."""
    assert instant_or_none(text) == instant_or_none(" " + text)


def test_summer_time_is_distinguished_by_its_offset() -> None:
    london = ZoneInfo("Europe/London")
    first = datetime(2024, 10, 27, 1, 30, tzinfo=london)
    again = first.replace(fold=1)
    assert parse_instant(again) - parse_instant(first) == 3_600_000


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_are_floored_to_milliseconds(unit: str) -> None:
    per = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    raw = pa.array([0, per, -per, None, per + 1, -1], pa.int64())
    millis, invalid = to_millis(raw.view(pa.timestamp(unit, tz="Asia/Tokyo")))
    assert millis.to_pylist() == [0, 1000, -1000, None, (per + 1) * 1000 // per, -1000 // per if per < 1000 else -1]
    assert not any(invalid.to_pylist())


def test_times_that_no_reader_could_show_are_invalid() -> None:
    far = pa.array([2**62, -(2**62), INSTANT_MAX, INSTANT_MAX + 1, INSTANT_MIN, INSTANT_MIN - 1])
    assert to_millis(far)[0].to_pylist() == [None, None, INSTANT_MAX, None, INSTANT_MIN, None]
    assert to_millis(far.view(pa.timestamp("s", "UTC")))[1].to_pylist() == [True] * 6
    assert to_millis(pa.array([2**64 - 1, 5], pa.uint64()))[0].to_pylist() == [None, 5]
    with pytest.raises(Invalid, match="years 1 to 9999"):
        parse_instant(INSTANT_MAX + 1)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("millis", [INSTANT_MIN - 1000, INSTANT_MAX + 1001])
def test_a_column_that_is_asked_holds_the_years_that_one_time_may_have(unit: str, millis: int) -> None:
    per_second = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    counts = pa.array([millis * per_second // 1000, None])
    column = counts.cast(pa.timestamp(unit, "UTC"))
    with pytest.raises(Invalid, match="years 1 to 9999"):
        moments_of(column, 2)
    assert moments_of(column, 2, "miss")[1].tolist() == [False, False]
    held = pa.array([(INSTANT_MAX // 1000) * per_second, INSTANT_MIN * per_second // 1000]).cast(column.type)
    assert moments_of(held, 2)[0].tolist() == [INSTANT_MAX // 1000 * 1000, INSTANT_MIN]


def test_whole_floats_are_milliseconds() -> None:
    millis, invalid = to_millis(pa.array([1.0, -2.0, None, 0.5, float("nan"), float("inf"), 2.0**60]))
    assert millis.to_pylist() == [1, -2, None, None, None, None, None]
    assert invalid.to_pylist() == [False, False, False, True, True, True, True]


NAIVE = datetime(2013, 2, 8, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize("value", [NAIVE, NAIVE.date(), np.datetime64("2013-02-08"), pa.scalar(NAIVE)])
def test_naive_values_are_refused(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        parse_instant(value)
    assert caught.value.kind == "time_naive"
    assert caught.value.hint


@pytest.mark.parametrize("value", [None, True, 1.5, b"2013", [], pa.scalar(None, pa.int64()), pa.scalar(0.5)])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="time is") as caught:
        parse_instant(value)
    assert caught.value.kind == "time_unknown"


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.date32(), pa.date64()])
def test_naive_columns_are_refused_whole(type_: pa.DataType) -> None:
    with pytest.raises(Invalid) as caught:
        to_millis(pa.nulls(2, type_))
    assert caught.value.kind == "time_naive"


def test_columns_of_something_else_are_refused_whole() -> None:
    for column in (pa.array([True]), pa.array([b"x"]), pa.array([[1]]), pa.array([time(1)])):
        with pytest.raises(Invalid, match="does not hold times"):
            to_millis(column)


def test_scalars_of_every_library_are_read() -> None:
    aware = datetime(1970, 1, 1, 0, 0, 1, 1999, tzinfo=UTC)
    assert parse_instant(aware) == parse_instant(np.int64(1001)) == parse_instant(pa.scalar(aware)) == 1001
    assert parse_instant(pa.scalar("1970-01-01T00:00Z")) == parse_instant(pa.scalar(0)) == 0
    assert to_millis(pa.nulls(2))[0].to_pylist() == [None, None]


SECONDS = [1_577_923_201, -1_577_923_201, 100_000_000, 9_999_999_999]


@pytest.mark.parametrize("number", SECONDS)
@pytest.mark.parametrize("form", [int, np.int64, pa.scalar, lambda n: pa.scalar(float(n))])
def test_a_number_that_could_be_seconds_is_refused(number: int, form: Callable[[int], object]) -> None:
    with pytest.raises(Invalid, match="could be seconds") as caught:
        parse_instant(form(number))
    assert str(number * 1000) in str(caught.value.hint)


@pytest.mark.parametrize("millis", [*SECONDS, 0, 99_999_999, 10_000_000_000, INSTANT_MIN, INSTANT_MAX])
def test_an_instant_in_its_clear_form_is_read_back(millis: int) -> None:
    assert parse_instant(clear_instant(millis)) == millis
