"""Cron expressions: five fields, and before them what a schedule is told besides, as `NAME=VALUE`.

    CRON_TZ=Europe/Paris OVERLAP=false MISSED=last PAUSED=true 0 3 * * *
    ON=loaded:weather AFTER=17 OVERLAP=false MISSED=last

The second one has no instants: it waits for data, see `data_starts`. `VERSION=1.0` is the version of the workflow whose
runs begin, where one was named.

Invariants, where the zone changes its offset:

* a local time that does not exist fires at the first instant after it, and one that exists twice fires once, the first
  time;
* where the hour is `*`, every instant fires whose local time matches: no hour has two runs for one, or none.

The text is what the protocol carries, so that a schedule has no other place for them. Processes that share a log need
the same edition of the zones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from millpond.errors import Invalid

__all__ = ("MISSED", "Cron", "instant_to_run", "instant_of", "is_data", "last_instant", "next_instant", "parse_cron",
           "run_at", "zone_of")  # fmt: skip

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = 5
_CHARACTERS_MAX = 1_000
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
_TRUTHS = {"true": True, "false": False}
_MINUTE_MS = 60_000
_DATA = re.compile(
    r"loaded:[a-z][a-z0-9_]*(,[a-z][a-z0-9_]*)*|alerted:[a-z][a-z0-9_]*(/[a-z][a-z0-9_]*)?|committed:[^\s/]+/\S+"
)
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9})?")
_RUN_AT = re.compile(r"-(\d{4}(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])t(?:[01]\d|2[0-3])[0-5]\d[0-5]\d)z$")
MISSED = ("none", "last", "all")
"""The policies for instants that passed, because nothing ran then, or the run before was open."""


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression: its fields, the zone of their times (UTC without one), and True when it is off.

    `overlap` lets a run begin while the one before it is open, `last`: its id. `missed` is one of `MISSED`. `on` is the
    data for which it waits instead, behind `after`. `version` is that of the workflow: the newest without.
    """

    fields: str
    time_zone: str = ""
    paused: bool = False
    overlap: bool = True
    missed: str = "all"
    last: str = ""
    on: str = ""
    after: str = ""
    version: str = ""

    def text(self) -> str:
        """The expression as schedules hold it."""
        options = (
            f"ON={self.on}" * bool(self.on), f"AFTER={self.after}" * bool(self.after),
            f"CRON_TZ={self.time_zone}" * bool(self.time_zone), "OVERLAP=false" * (not self.overlap),
            f"MISSED={self.missed}" * (self.missed != "all"), "PAUSED=true" * self.paused,
            f"VERSION={self.version}" * bool(self.version), f"LAST={self.last}" * bool(self.last),
        )  # fmt: skip
        return " ".join(filter(None, [*options, self.fields]))

    def numbers(self) -> tuple[int | None, int | None]:
        """The major version of the workflow, and the revision, as far as they are named.

        >>> Cron("", version="1").numbers(), Cron("", version="1.0").numbers(), Cron("").numbers()
        ((1, None), (1, 0), (None, None))
        """
        major, _, revision = self.version.partition(".")
        return int(major) if major else None, int(revision) if revision else None

    def switched(self, *, paused: bool) -> Cron:
        """The same, off or on."""
        return replace(self, paused=paused)


def parse_cron(expression: str) -> Cron:
    """The parts of an expression.

    Raises: `Invalid` for an option or a zone that there is not; fields are looked at by `next_instant`.
    """
    words = expression.split() if len(expression) <= _CHARACTERS_MAX else []
    cron = Cron("")
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        if name == "CRON_TZ":
            zone_of(value)
            cron = replace(cron, time_zone=value)
        elif name == "PAUSED" and value in _TRUTHS:
            cron = replace(cron, paused=_TRUTHS[value])
        elif name == "OVERLAP" and value in _TRUTHS:
            cron = replace(cron, overlap=_TRUTHS[value])
        elif name == "MISSED" and value in MISSED:
            cron = replace(cron, missed=value)
        elif name == "VERSION" and _VERSION.fullmatch(value):
            cron = replace(cron, version=value)
        elif name == "LAST":
            cron = replace(cron, last=value)
        elif name == "ON" and is_data(value):
            cron = replace(cron, on=value)
        elif name == "AFTER":
            cron = replace(cron, after=value)
        else:
            raise _wrong(expression, f"{name[:40]}={value[:40]} is no option: CRON_TZ=ZONE, OVERLAP=false, "
                         f"MISSED={'|'.join(MISSED)} or PAUSED=true")  # fmt: skip
    if cron.on:
        if words:
            raise _wrong(expression, "what waits for data has no fields")
        return cron
    if len(words) != _FIELDS:
        raise _wrong(" ".join(words) or expression, f"a cron expression has {_FIELDS} fields")
    return replace(cron, fields=" ".join(words))


def is_data(text: str) -> bool:
    """True for data that a schedule may wait for.

    >>> is_data("loaded:weather,flights"), is_data("committed:repository/main"), is_data("loaded:")
    (True, True, False)
    """
    return _DATA.fullmatch(text) is not None


@lru_cache(maxsize=100)
def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name.

    Raises: `Invalid`.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise Invalid("no such time zone", kind="time_zone", time_zone=name[:80],
                      hint="a name of the IANA data base, such as Europe/Paris") from None  # fmt: skip


def next_instant(expression: str, after: int) -> int | None:
    """The first instant of an expression after another one, in milliseconds; None when it is off, waits for data, or
    beyond the calendar's end.

    Raises:
        Invalid: it is no expression, or none of its instants comes within 50 years.
    """
    cron, start = parse_cron(expression), _EPOCH + timedelta(milliseconds=after)
    if cron.on:
        return None
    try:
        if not cron.time_zone:
            following = next(CronSim(cron.fields, start))
        elif cron.fields.split()[1] == "*":
            following = _matching(cron.fields, zone_of(cron.time_zone), start)
        else:
            instants = _local(cron.fields, zone_of(cron.time_zone), start)
            following = next(instant for instant in instants if instant > start)
    except CronSimError as error:
        raise _wrong(cron.fields, _problem(cron.fields, str(error))) from None
    except StopIteration:
        raise _wrong(cron.fields, "no such instant comes within 50 years") from None
    except OverflowError:
        return None
    return None if cron.paused else int((following - _EPOCH).total_seconds()) * 1000


def last_instant(expression: str, at: int, now: int) -> int:
    """The last instant of an expression up to now, of those from `at` on, which is one."""
    if _passes(expression, at, now) is None:
        return at
    low, high = at // _MINUTE_MS, now // _MINUTE_MS + 1  # the next instant after minute `low` has passed, not `high`'s
    while high - low > 1:
        middle = (low + high) // 2
        if _passes(expression, middle * _MINUTE_MS, now) is None:
            high = middle
        else:
            low = middle
    return _passes(expression, low * _MINUTE_MS, now) or at


def instant_to_run(expression: str, at: int, now: int) -> int | None:
    """Of the instants from `at` on that have passed, the first that gets a run by the expression's `missed`."""
    missed = parse_cron(expression).missed
    if missed == "all":
        return at
    last = last_instant(expression, at, now)
    return last if missed == "last" or now - last < _MINUTE_MS else None


def run_at(schedule: str, at: int) -> str:
    """The id of the run of an instant of a schedule.

    >>> run_at("night_ly", 1767312000000), instant_of("night-ly-20260102t000000z")
    ('night-ly-20260102t000000z', datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timezone.utc))
    """
    instant = _EPOCH + timedelta(milliseconds=at)
    return f"{schedule.replace('_', '-')}-{instant:%Y%m%dt%H%M%Sz}".lower()


def instant_of(run: str) -> datetime | None:
    """The instant for which a schedule began a run; None for another run."""
    match = _RUN_AT.search(run)
    return datetime.strptime(f"{match[1]}+0000", "%Y%m%dt%H%M%S%z").astimezone(UTC) if match else None


def _passes(expression: str, after: int, now: int) -> int | None:
    following = next_instant(expression, after)
    return following if following is not None and following <= now else None


def _local(fields: str, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """The instants of local times from that of `start` on, in their order; the first may be before it."""
    for naive in CronSim(fields, start.astimezone(zone).replace(tzinfo=None)):
        local = naive.replace(tzinfo=zone)
        instant = local.astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == naive:
            yield instant
        else:  # fold 1 takes the later offset, and so lies before the change; fold 0 lies behind it
            yield _change(zone, local.replace(fold=1).astimezone(UTC), instant)


def _matching(fields: str, zone: ZoneInfo, start: datetime) -> datetime:
    """The first instant after `start` whose local time matches: sought from one change of the offset to the next."""
    first = start.replace(microsecond=0) + _SECOND
    while True:
        offset = _offset(zone, first)
        naive = next(CronSim(fields, (first + offset - _SECOND).replace(tzinfo=None)))
        instant = (naive - offset).replace(tzinfo=UTC)
        before = day = first
        while day < instant and _offset(zone, day) == offset:
            before, day = day, min(day + _DAY, instant)
        if _offset(zone, day) == offset:
            return instant
        first = _change(zone, before, day)


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The first whole second between two instants at which the offset is that of the later one."""
    stop = _offset(zone, after)
    low, high = 0, int((after - before).total_seconds())
    while low < high:
        middle = (low + high) // 2
        if _offset(zone, before + timedelta(seconds=middle)) == stop:
            high = middle
        else:
            low = middle + 1
    return before + timedelta(seconds=low)


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _problem(fields: str, problem: str) -> str:
    """The problem of fields in words: of a day that none of their months has the library says less."""
    minute, hour, day, _, weekday = fields.split()
    with suppress(CronSimError):
        CronSim(f"{minute} {hour} {day} * {weekday}", _EPOCH)
        return problem.replace("Bad day-of-month", "its months have no such day: it never comes")
    return problem


def _wrong(expression: str, problem: str) -> Invalid:
    hint = "minute hour day month weekday, as in '0 6 * * 1-5'"
    return Invalid("not a cron expression", kind="cron", expression=expression[:80], problem=problem, hint=hint)
