"""Instants of cron expressions in time zones, beside brute force: every minute of the zone's days, one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.workflows.engine.cron import Cron, next_instant, parse_cron
from tests.rings.sampling import examples

MINUTE = timedelta(minutes=1)
CHANGES = [
    ("Europe/Paris", "2026-03-29"), ("Europe/Paris", "2026-10-25"), ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"), ("Australia/Lord_Howe", "2026-04-05"), ("Australia/Lord_Howe", "2026-10-04"),
    ("Pacific/Apia", "2011-12-30"), ("America/Santiago", "2026-09-06"), ("Africa/Casablanca", "2026-02-15"),
    ("Asia/Kolkata", "2026-05-01"), ("Asia/Pyongyang", "2015-08-15"), ("Asia/Pyongyang", "2018-05-04"),
]  # fmt: skip
"""Zones, and days at which their offset changes, or not."""


@cache
def minutes_of_zone(zone: ZoneInfo, start: datetime) -> dict[datetime, list[datetime]]:
    """The instants of each local minute of four days, in the order of the local minutes."""
    minutes: dict[datetime, list[datetime]] = {}
    for number in range(4 * 24 * 60):
        instant = start + number * MINUTE
        minutes.setdefault(instant.astimezone(zone).replace(tzinfo=None), []).append(instant)
    return dict(sorted(minutes.items()))


def expected(minutes: dict[datetime, list[datetime]], minute: set[int], hour: set[int] | None) -> list[datetime]:
    """All the instants of an expression whose fields for days are `*`."""
    if hour is None:
        return sorted(instant for local, all_ in minutes.items() if local.minute in minute for instant in all_)
    instants, there = set(), list(minutes)
    local = there[0]
    for following in there:
        while local <= following:
            if local.hour in hour and local.minute in minute:
                instants.add(minutes[following][0])
            local += MINUTE
    return sorted(instants)


FIELDS = st.one_of(
    st.tuples(st.sets(st.integers(0, 59), min_size=1, max_size=3), st.none()),
    st.tuples(st.sets(st.integers(0, 59), min_size=1, max_size=3), st.sets(st.integers(0, 23), min_size=1, max_size=8)),
    st.tuples(st.sets(st.integers(0, 59), min_size=1, max_size=2), st.sets(st.integers(0, 3), min_size=1)),
)


@settings(max_examples=examples(25, 100))
@given(change=st.sampled_from(CHANGES), fields=FIELDS, late=st.integers(0, 3 * 24 * 60 * 60 * 1000))
@example(change=("Europe/Paris", "2026-03-29"), fields=({30}, {2}), late=0)
@example(change=("Europe/Paris", "2026-10-25"), fields=({30}, {2}), late=24 * 60 * 60 * 1000 + 75 * 60 * 1000)
def test_the_next_instant_is_that_of_brute_force(
    change: tuple[str, str], fields: tuple[set[int], set[int] | None], late: int
) -> None:
    name, day = change
    zone = ZoneInfo(name)
    start = datetime.fromisoformat(f"{day}T00:00Z") - timedelta(days=1)
    after = start + timedelta(milliseconds=late)
    minute, hour = fields
    instants = [
        instant for instant in expected(minutes_of_zone(zone, start), minute, hour)
        if after < instant < start + timedelta(days=3, hours=12)
    ]  # fmt: skip
    text = f"{','.join(map(str, sorted(minute)))} {'*' if hour is None else ','.join(map(str, sorted(hour)))} * * *"
    at: int | None = round(after.timestamp() * 1000)
    for following in instants[:60]:
        assert at is not None
        at = next_instant(f"CRON_TZ={name} {text}", at)
        assert at == round(following.timestamp() * 1000)


DAYS = st.sets(st.integers(1, 31), min_size=1, max_size=3)
WEEKDAYS = st.sets(st.integers(0, 6), min_size=1, max_size=3)


@settings(max_examples=examples(30, 200))
@given(
    days=st.none() | DAYS | st.sampled_from([{29}, {30}, {31}]), weekdays=st.none() | WEEKDAYS,
    months=st.none() | st.sets(st.integers(1, 12), min_size=1, max_size=3) | st.just({2}),
    start=st.datetimes(datetime(1995, 1, 1), datetime(2105, 1, 1)),
    zone=st.sampled_from(["", "Europe/Paris", "America/Santiago", "Pacific/Apia", "Asia/Kolkata"]),
)  # fmt: skip
@example(days={29}, weekdays=None, months={2}, start=datetime(2096, 3, 1), zone="")
@example(days={31}, weekdays=None, months=None, start=datetime(2026, 1, 31, 23), zone="Europe/Paris")
def test_days_are_those_of_the_calendar(
    days: set[int] | None, weekdays: set[int] | None, months: set[int] | None, start: datetime, zone: str
) -> None:
    def holds(day: date) -> bool:
        of_month = days is None or day.day in days
        of_week = weekdays is None or day.isoweekday() % 7 in weekdays
        either = days is not None and weekdays is not None  # as cron has it
        return (months is None or day.month in months) and (of_month or of_week if either else of_month and of_week)

    after = start.replace(tzinfo=UTC)
    local = after.astimezone(ZoneInfo(zone or "UTC"))
    following = (local.date() + timedelta(days=number) for number in range(9 * 366))
    instants = (datetime.combine(day, time(12, 30), ZoneInfo(zone or "UTC")) for day in following if holds(day))
    expected = next((instant for instant in instants if instant.astimezone(UTC) > after), None)
    fields = " ".join("*" if own is None else ",".join(map(str, sorted(own))) for own in (days, months, weekdays))
    text = f"{f'CRON_TZ={zone} ' * bool(zone)}30 12 {fields}"
    try:
        found = next_instant(text, round(after.timestamp() * 1000))
    except Invalid:
        found = None
    assert found == (expected if expected is None else round(expected.timestamp() * 1000))


def instant(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("expression", "after", "following"),
    [
        ("CRON_TZ=Europe/Paris 0 3 * * *", "2026-01-01T00:00Z", "2026-01-01T02:00Z"),
        ("CRON_TZ=Europe/Paris 0 3 * * *", "2026-07-01T00:00Z", "2026-07-01T01:00Z"),
        ("CRON_TZ=Europe/Paris 30 2 29 3 *", "2026-01-01T00:00Z", "2026-03-29T01:00Z"),
        ("CRON_TZ=Europe/Paris 30 2 25 10 *", "2026-10-25T00:45Z", "2027-10-25T00:30Z"),
        ("CRON_TZ=Europe/Paris 30 * 25 10 *", "2026-10-25T00:45Z", "2026-10-25T01:30Z"),
        ("CRON_TZ=Europe/Paris 30 * 1 7 *", "2026-07-02T00:00Z", "2027-06-30T22:30Z"),
        ("CRON_TZ=Pacific/Apia 0 9 30 12 *", "2011-12-01T00:00Z", "2011-12-30T10:00Z"),
        ("0 3 * * *", "2026-07-01T00:00Z", "2026-07-01T03:00Z"),
    ],
)
def test_instants_of_days_at_which_a_zone_changes(expression: str, after: str, following: str) -> None:
    assert next_instant(expression, instant(after)) == instant(following)


def test_a_schedule_that_is_off_has_no_instant_and_its_text_comes_back() -> None:
    cron = Cron("0 3 * * *", "Europe/Paris", paused=True)
    assert cron.text() == "CRON_TZ=Europe/Paris PAUSED=true 0 3 * * *"
    assert parse_cron(cron.text()) == cron
    assert next_instant(cron.text(), 0) is None
    assert cron.switched(paused=False).text() == "CRON_TZ=Europe/Paris 0 3 * * *"
    assert parse_cron("0 3 * * *").text() == "0 3 * * *"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("CRON_TZ=Mars/Base 0 3 * * *", "no such time zone"),
        ("CRON_TZ=../etc/passwd 0 3 * * *", "no such time zone"),
        ("CRON_TZ= 0 3 * * *", "no such time zone"),
        ("PAUSED=maybe 0 3 * * *", "PAUSED=maybe is no option"),
        ("TZ=UTC 0 3 * * *", "TZ=UTC is no option"),
        ("CRON_TZ=Europe/Paris", "has 5 fields"),
        (
            "CRON_TZ=Europe/Paris 0 0 30 2 *",
            r"expression=0 0 30 2 \* problem=its months have no such day: it never comes",
        ),
        ("CRON_TZ=Europe/Paris 0 * 30 2 *", "not a cron expression"),
        ("0 0 31 2,4 *", "not a cron expression"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(expression: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        next_instant(expression, 0)
