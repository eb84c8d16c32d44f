"""The start of a bucket: what clocks of a zone show, also in the hours in which they are moved."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from millpond.errors import Invalid
from millpond.times.buckets import bucket_ends, bucket_starts, bucket_width, coarser_width, starts_before, window_width


def start(at: str, resolution: str, zone: str) -> str:
    instant = int(datetime.fromisoformat(at).timestamp() * 1000)
    (begin,) = bucket_starts(np.array([instant], np.int64), resolution, zone).tolist()
    return f"{datetime.fromtimestamp(begin / 1000, UTC):%Y-%m-%dT%H:%MZ}"


@pytest.mark.parametrize(
    ("at", "resolution", "zone", "begin"),
    [
        ("2024-03-31T00:59:59Z", "1 hour", "Europe/Paris", "2024-03-31T00:00Z"),
        ("2024-03-31T01:00Z", "1 hour", "Europe/Paris", "2024-03-31T01:00Z"),
        # 02:30 is shown twice: it is in two buckets of an hour, and in one of six.
        ("2024-10-27T00:30Z", "1 hour", "Europe/Paris", "2024-10-27T00:00Z"),
        ("2024-10-27T01:30Z", "1 hour", "Europe/Paris", "2024-10-27T01:00Z"),
        ("2024-10-27T00:30Z", "6 hours", "Europe/Paris", "2024-10-26T22:00Z"),
        ("2024-10-27T01:30Z", "6 hours", "Europe/Paris", "2024-10-26T22:00Z"),
        # Clocks that are moved by half an hour cut the hour in which they are.
        ("2024-10-05T15:45Z", "1 hour", "Australia/Lord_Howe", "2024-10-05T15:30Z"),
        ("2024-10-05T15:29Z", "1 hour", "Australia/Lord_Howe", "2024-10-05T14:30Z"),
        ("2024-06-01T10:10Z", "1 hour", "Asia/Kolkata", "2024-06-01T09:30Z"),
        ("2024-03-31T12:00Z", "1 day", "Europe/Paris", "2024-03-30T23:00Z"),
        ("2024-04-01T12:00Z", "1 day", "Europe/Paris", "2024-03-31T22:00Z"),
        ("2018-11-04T12:00Z", "1 day", "America/Sao_Paulo", "2018-11-04T03:00Z"),  # no clock showed midnight
        ("2024-12-31T12:00Z", "1 week", "UTC", "2024-12-30T00:00Z"),
        ("1969-12-31T12:00Z", "1 week", "UTC", "1969-12-29T00:00Z"),
        ("2024-02-29T12:00Z", "1 month", "America/New_York", "2024-02-01T05:00Z"),
        ("2024-12-31T12:00Z", "3 months", "UTC", "2024-10-01T00:00Z"),
        ("2023-12-31T23:30Z", "1 year", "Europe/Paris", "2023-12-31T23:00Z"),
        ("1969-12-31T23:59:59Z", "15 minutes", "UTC", "1969-12-31T23:45Z"),
        ("2024-12-31T12:00Z", "none", "Europe/Paris", "1970-01-01T00:00Z"),
    ],
)
def test_a_bucket_begins_where_clocks_say(at: str, resolution: str, zone: str, begin: str) -> None:
    assert start(at, resolution, zone) == begin


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Paris", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca"]
)
@pytest.mark.parametrize("resolution", ["1 second", "30 minutes", "1 hour", "12 hours", "1 day", "1 week", "6 months"])
def test_a_bucket_begins_in_itself_and_time_goes_on(zone: str, resolution: str) -> None:
    year = np.arange(1_704_067_200_000, 1_735_689_600_000, 1_234_567, dtype=np.int64)
    starts = bucket_starts(year, resolution, zone)
    assert (starts <= year).all()
    assert (np.diff(starts) >= 0).all()
    assert (bucket_starts(starts, resolution, zone) == starts).all()


@pytest.mark.parametrize(
    "words", ["7 hours", "0 minutes", "2 days", "5 months", "12 months", "hourly", "", "1.5 hours", 60]
)
def test_other_resolutions_are_refused(words: object) -> None:
    with pytest.raises(Invalid, match="the resolution is not understood") as caught:
        bucket_width(words)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_resolution_has_one_form() -> None:
    assert [bucket_width(words).text for words in ("HOUR", " 1 hours ", "15minutes", "None", "2 month")] == [
        "1 hour", "1 hour", "15 minutes", "none", "2 months"
    ]  # fmt: skip


ZONES = ["UTC", "Europe/Paris", "America/Sao_Paulo", "Australia/Lord_Howe", "Africa/Casablanca"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("resolution", ["1 second", "30 minutes", "1 hour", "12 hours", "1 day", "1 week", "6 months"])
def test_a_bucket_ends_where_the_next_begins(zone: str, resolution: str) -> None:
    year = np.arange(1_514_764_800_000, 1_546_300_800_000, 7_654_321, dtype=np.int64)
    starts = bucket_starts(year, resolution, zone)
    ends = bucket_ends(starts, resolution, zone)
    assert (ends > year).all()
    assert (bucket_starts(ends, resolution, zone) == ends).all()
    assert (bucket_starts(ends - 1, resolution, zone) == starts).all()


@pytest.mark.parametrize("zone", ZONES)
def test_a_bucket_lies_in_one_of_each_coarser_width(zone: str) -> None:
    year = np.arange(1_514_764_800_000, 1_546_300_800_000, 7_654_321, dtype=np.int64)
    days = ["1 minute", "30 minutes", "1 hour", "6 hours", "1 day"]
    widths = [*days, "1 week", "1 month", "2 months", "6 months", "1 year"]
    made_up = 0
    for fine in widths:
        for wide in (*widths, "none"):
            try:
                coarser_width(wide, fine)
            except Invalid:
                continue
            made_up += 1
            within = bucket_starts(bucket_starts(year, fine, zone), wide, zone)
            assert (within == bucket_starts(year, wide, zone)).all(), (fine, wide)
    assert made_up == 61


@pytest.mark.parametrize(
    ("wide", "fine"),
    [("1 hour", "1 day"), ("1 hour", "45 minutes"), ("1 month", "1 week"), ("1 week", "1 month"),
     ("3 months", "2 months"), ("1 day", "none")],
)  # fmt: skip
def test_widths_that_buckets_do_not_make_up_are_refused(wide: str, fine: str) -> None:
    with pytest.raises(Invalid) as caught:
        coarser_width(wide, fine)
    assert caught.value.kind == "resolution_finer"


@pytest.mark.parametrize(
    ("begin", "window", "zone", "before"),
    [
        ("2024-04-02T22:00Z", "7 days", "Europe/Paris", "2024-03-26T23:00Z"),  # of which one had 23 hours
        ("2024-04-02T22:00Z", "168 hours", "Europe/Paris", "2024-03-26T22:00Z"),
        ("2024-10-27T23:00Z", "1 day", "Europe/Paris", "2024-10-26T22:00Z"),
        ("2024-03-31T22:00Z", "2 weeks", "UTC", "2024-03-17T22:00Z"),
        ("2024-02-29T23:00Z", "2 months", "Europe/Paris", "2023-12-31T23:00Z"),
        ("2024-01-01T00:00Z", "3 years", "UTC", "2021-01-01T00:00Z"),
    ],
)
def test_a_window_goes_back_by_the_clocks_from_a_day_on(begin: str, window: str, zone: str, before: str) -> None:
    starts = np.array([int(datetime.fromisoformat(begin).timestamp() * 1000)], np.int64)
    (instant,) = starts_before(starts, window_width(window, window.partition(" ")[2]), zone).tolist()
    assert f"{datetime.fromtimestamp(instant / 1000, UTC):%Y-%m-%dT%H:%MZ}" == before


@pytest.mark.parametrize(
    ("window", "resolution"),
    [("90 minutes", "1 hour"), ("1 month", "1 day"), ("none", "1 hour"), ("1 day", "none"), ("10 days", "1 week"),
     ("0 days", "1 day"), ("soon", "1 day"), ("1 year", "1 hour")],
)  # fmt: skip
def test_windows_that_buckets_do_not_make_up_are_refused(window: str, resolution: str) -> None:
    with pytest.raises(Invalid, match="window") as raised:
        window_width(window, resolution)
    assert raised.value.kind == "window"
