"""Aggregates count what a dictionary of dictionaries counts: loads in any order, folds, branches, merges and deletes.

The buckets of the model are told by the clocks of a zone, one instant at a time.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import MillpondError
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond import Map, Pond
    from millpond.refs.pond import BranchPond

EXAMPLES = examples(5, 150)
VALUE = (
    "orders long count, units long sum, total double sum, low double min, high double max, "
    "last string latest, first string first, due timestamp max, mean average of total/orders, "
    "texts distinct, sizes quantiles(0, 0.5, 1)"
)
ZONES = ("UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "America/St_Johns")
RESOLUTIONS = (
    "1 second",
    "15 minutes",
    "1 hour",
    "6 hours",
    "1 day",
    "1 week",
    "1 month",
    "3 months",
    "1 year",
    "none",
)
CHANGES = ("2024-03-10T07:00Z", "2024-03-31T01:00Z", "2024-10-27T01:00Z", "2024-11-03T06:00Z", "2024-04-06T15:00Z",
           "2024-10-05T15:30Z", "2024-12-31T23:30Z", "1969-12-31T23:59Z")  # fmt: skip
KEYS = ("a", "b", "")
EVER = datetime(1900, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
DUE = datetime(2030, 1, 1, tzinfo=UTC)

Event = dict[str, Any]
Bucket = tuple[Any, ...]
Rows = dict[tuple[str, Bucket], Event]


def bucket_of(at: datetime, resolution: str, zone: str) -> Bucket:
    """The name of a bucket: what clocks show at its start, and, up to an hour, their distance from UTC."""
    local = at.astimezone(ZoneInfo(zone))
    count, _, unit = resolution.rstrip("s").partition(" ")
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    seconds = local.hour * 3600 + local.minute * 60 + local.second
    if unit in ("second", "minute", "hour"):
        width = int(count) * {"second": 1, "minute": 60, "hour": 3600}[unit]
        return (local.date(), seconds // width, *([local.utcoffset()] if width <= 3600 else []))
    match unit:
        case "day":
            return (midnight.date(),)
        case "week":
            return tuple(local.isocalendar())[:2]
        case "month":
            return local.year, (local.month - 1) // int(count)
        case "year":
            return (local.year,)
    return ()


@dataclass
class Model:
    """The content of an aggregate: events by their numbers."""

    resolution: str
    zone: str
    events: dict[int, Event] = field(default_factory=dict)
    rolled: set[tuple[datetime, str]] = field(default_factory=set)

    def bucket(self, at: datetime) -> Bucket:
        """The bucket of the map; of the widest width by which the wide bucket of a time was rolled up."""
        widths = [
            width for before, width in self.rolled
            if at < before and bucket_of(at, width, self.zone) != bucket_of(before, width, self.zone)
        ]  # fmt: skip
        return bucket_of(at, max([self.resolution, *widths], key=RESOLUTIONS.index), self.zone)

    def rows(self) -> Rows:
        found: dict[tuple[str, Bucket], list[Event]] = {}
        for event in self.events.values():
            found.setdefault((event["key"], self.bucket(event["time"])), []).append(event)
        return {address: combined(events) for address, events in found.items()}

    def without(self, gone: Callable[[Event], bool]) -> None:
        self.events = {number: event for number, event in self.events.items() if not gone(event)}


def combined(events: list[Event]) -> Event:
    """The values of a bucket."""

    def of(name: str) -> list[Any]:
        return [event[name] for event in events if event[name] is not None]

    def over(name: str, rule: Any) -> Any:
        return reduce(rule, of(name)) if of(name) else None

    dated = [(event["time"], event["text"]) for event in events if event["text"] is not None]
    last, first = (max(dated), min(dated)) if dated else ((None, None), (None, None))
    total = over("amount", operator.add)
    return {
        "orders": len(events), "units": over("units", operator.add), "total": total,
        "low": over("amount", min), "high": over("amount", max), "last": last[1], "last_time": last[0],
        "first": first[1], "first_time": first[0], "due": over("due", max),
        "mean": None if total is None else total / len(events), "texts": len(set(of("text"))) or None,
        **quantiles(sorted(of("amount"))),
    }  # fmt: skip


def quantiles(ascending: list[float]) -> Event:
    """The least, the middle and the greatest."""
    places = {"sizes_p0": 0, "sizes_p50": len(ascending) // 2, "sizes_p100": -1}
    return {name: ascending[place] if ascending else None for name, place in places.items()}


def plain(row: Any) -> Any:
    """An answer without the bytes of sketches, and with whole numbers of texts."""
    if row is not None:
        del row["texts_sketch"], row["sizes_sketch"]
        row["texts"] = row["texts"] and round(row["texts"])
    return row


moments = st.builds(
    lambda change, minutes, millis: (
        datetime.fromisoformat(change) + timedelta(minutes=minutes, milliseconds=millis)
    ), st.sampled_from(CHANGES), st.integers(-1500, 1500), st.sampled_from((0, 1, 59_999)),
)  # fmt: skip
events = st.fixed_dictionaries({
    "key": st.sampled_from(KEYS), "time": moments, "units": st.none() | st.integers(-(2**40), 2**40),
    "amount": st.none() | st.integers(-1000, 1000).map(float), "text": st.none() | st.sampled_from(("x", "y", "é")),
    "due": st.none() | st.integers(0, 9).map(lambda days: DUE + timedelta(days=days)),
})  # fmt: skip
loads = st.lists(events, min_size=1, max_size=6)
side = st.integers(0, 1)
acts = st.one_of(
    st.tuples(st.just("load"), side, loads), st.tuples(st.just("load"), side, loads),
    st.tuples(st.just("repeat"), side, st.none()), st.tuples(st.just("compact"), st.just(0), st.none()),
    st.tuples(st.just("merge"), side, st.none()), st.tuples(st.just("delete"), side, st.sampled_from(KEYS)),
    st.tuples(st.just("retain"), side, moments),
    st.tuples(st.just("roll_up"), side, st.tuples(moments, st.integers(1, 4))),
    st.tuples(st.just("revert"), st.just(0), st.none()),
)  # fmt: skip
COLUMNS = {"value": {"units": "units", "total": "amount", "low": "amount", "high": "amount", "last": "text",
                     "first": "text", "due": "due", "texts": "text", "sizes": "amount"}}  # fmt: skip


def held(target: Map, model: Model) -> Rows:
    """The rows of a map, by key and the bucket that their time begins."""
    found: Rows = {}
    for row in target.scan().read_all().to_pylist():
        key, time = plain(row).pop("key"), row.pop("time")
        address = key, model.bucket(time)
        assert address not in found, "a bucket has one row"
        found[address] = row
    return found


def check(target: Map, model: Model) -> None:
    """The map holds what the model does, by all questions."""
    rows = model.rows()
    assert held(target, model) == rows
    every = list(model.events.values())
    if not every:
        return
    keys, times = [event["key"] for event in every], [event["time"] for event in every]
    answers = [rows[key, model.bucket(time)] for key, time in zip(keys, times, strict=True)]
    found = target.lookup([*keys, "no such key"], [*times, times[0]]).to_pylist()
    assert [*map(plain, found)] == [*answers, None]
    assert plain(target.get(keys[0], times[0])) == answers[0]
    whole = [[event for event in every if event["key"] == key] for key in KEYS]
    starts = {
        (row["key"], model.bucket(row["time"])): row["time"]
        for row in target.scan(columns=["key", "time"]).read_all().to_pylist()
    }
    since, until = min(times), max(times)
    spans = [
        [event for event in part if since <= starts[event["key"], model.bucket(event["time"])] < until]
        for part in whole
    ]  # fmt: skip
    found = target.lookup(list(KEYS), between=(since, until)).to_pylist()
    assert [*map(plain, found)] == [combined(part) if part else None for part in spans]
    found = target.lookup(list(KEYS), between=EVER).to_pylist()
    assert [*map(plain, found)] == [combined(part) if part else None for part in whole]


def coarser(model: Model) -> Iterator[Model]:
    """The same events in all the wider buckets that are made up of those of a model."""
    fine = RESOLUTIONS.index(model.resolution)
    for resolution in RESOLUTIONS[fine + 1 :]:
        if all(made_up(resolution, width) for width in (model.resolution, *(width for _, width in model.rolled))):
            yield Model(resolution, model.zone, model.events, model.rolled)


def made_up(left: str, right: str) -> bool:
    """True when buckets of one width make up those of the other."""
    widths = sorted((left, right), key=RESOLUTIONS.index)
    return widths[0] != "1 week" or widths[1] in ("1 week", "none")


def check_coarser(target: Map, wide: Model) -> None:
    """The map answers with wider buckets as a model that has no others."""
    rows, every = wide.rows(), list(wide.events.values())
    held_rows = [plain(row) for row in target.scan(resolution=wide.resolution).read_all().to_pylist()]
    assert {(row.pop("key"), wide.bucket(row.pop("time"))): row for row in held_rows} == rows
    assert len(held_rows) == len(rows)
    if every:
        keys, times = [event["key"] for event in every], [event["time"] for event in every]
        answers = [rows[key, wide.bucket(time)] for key, time in zip(keys, times, strict=True)]
        found = target.lookup([*keys, "no such key"], [*times, times[0]], resolution=wide.resolution)
        assert [*map(plain, found.to_pylist())] == [*answers, None]
        assert plain(target.get(keys[0], times[0], resolution=wide.resolution)) == answers[0]


def roll_up(place: Pond | BranchPond, target: Map, model: Model, about: tuple[datetime, int]) -> None:
    """Combine what a map and its model have before a time, to one of the next wider buckets."""
    before, wider = about
    width = RESOLUTIONS[min(RESOLUTIONS.index(model.resolution) + wider, len(RESOLUTIONS) - 2)]
    if not made_up(model.resolution, width) or model.resolution == "none":
        return
    place.alter_map("m", roll_up=width)
    try:
        target.retain(before)
        target.retain(before)
        model.rolled = model.rolled | {(before, width)}
    except MillpondError as error:
        if error.kind != "resolution_finer" or all(made_up(width, other) for _, other in model.rolled):
            raise
    place.alter_map("m", roll_up="off")


@dataclass
class Story:
    """Two sides of one map, and their models; `numbers` tells loads apart."""

    pond: Pond
    fix: BranchPond
    sides: list[Map]
    models: list[Model]
    base: dict[int, Event] = field(default_factory=dict)
    last: list[list[int]] = field(default_factory=lambda: [[], []])
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def load(self, on: int, load: list[Event]) -> None:
        numbered = {next(self.numbers): event for event in load}
        number = min(numbered)
        numbered[number] = numbered[number] | {"units": number}  # no two loads bring the same
        self.models[on].events |= numbered
        self.sides[on].load(list(numbered.values()), columns=COLUMNS)
        self.last[on] = list(numbered)

    def repeat(self, on: int, _: None) -> None:
        if self.last[on]:
            again = [self.models[on].events[number] for number in reversed(self.last[on])]
            assert self.sides[on].load(again, columns=COLUMNS).duplicate_parts == 1

    def compact(self, on: int, _: None) -> None:
        self.sides[on].compact()

    def delete(self, on: int, key: str) -> None:
        self.sides[on].delete([("key", "=", key)])
        self.models[on].without(lambda event: event["key"] == key)
        self.last[on] = []

    def retain(self, on: int, before: datetime) -> None:
        model = self.models[on]
        here = model.bucket(before)
        self.sides[on].retain(before)
        model.without(lambda event: event["time"] < before and model.bucket(event["time"]) != here)
        self.last[on] = []

    def roll_up(self, on: int, about: tuple[datetime, int]) -> None:
        """Combine what lies before a time to one of the next wider buckets."""
        roll_up((self.pond, self.fix)[on], self.sides[on], self.models[on], about)
        self.last[on] = []

    def merge(self, to: int, _: None) -> None:
        """Merge into one side; a merge that cannot be right is refused, and changes nothing."""
        try:
            self.pond.refs.merge(*(("fix", "main"), ("main", "fix"))[to])
        except MillpondError as error:
            if error.kind not in ("merge_conflict", "map_conflict", "no_changes", "aggregate_loaded_twice",
                                  "resolution_finer"):  # fmt: skip
                raise
            return
        ours, theirs = self.models[to].events, self.models[1 - to].events
        gone = {number for number in self.base if number not in ours or number not in theirs}
        self.models[to].events = {
            number: event for number, event in {**ours, **theirs}.items() if number not in gone
        }  # fmt: skip
        self.models[to].rolled = self.models[0].rolled | self.models[1].rolled
        self.base = dict(theirs)
        self.last = [[], []]

    def revert(self, on: int, _: None) -> None:
        """Take back the last load, when nothing came after it."""
        if self.last[on]:
            self.pond.refs.revert("main")
            for number in self.last[on]:
                del self.models[on].events[number]
            self.last[on] = []


@contextmanager
def story(pond: Pond, resolution: str, zone: str) -> Iterator[Story]:
    pond.create_map("m", kind="aggregate", value=VALUE, resolution=resolution, time_zone=zone)
    fix = pond.branch("fix", source="main")
    try:
        yield Story(pond, fix, [pond.map("m"), fix.map("m")], [Model(resolution, zone), Model(resolution, zone)])
    finally:
        pond.refs.delete_branch("fix")
        pond.drop_map("m")


def test_an_aggregate_counts_what_a_model_counts(tmp_path_factory: pytest.TempPathFactory) -> None:
    with millpond.open(tmp_path_factory.mktemp("aggregates") / "pond") as pond:

        @settings(max_examples=EXAMPLES, deadline=None)
        @given(st.lists(acts, min_size=1, max_size=10), st.sampled_from(RESOLUTIONS), st.sampled_from(ZONES))
        def run(drawn: list[tuple[str, int, Any]], resolution: str, zone: str) -> None:
            with story(pond, resolution, zone) as played:
                for act, on, about in drawn:
                    getattr(played, act)(on, about)
                    for target, model in zip(played.sides, played.models, strict=True):
                        check(target, model)
                for wide in coarser(played.models[0]):
                    check_coarser(played.sides[0], wide)

        run()
