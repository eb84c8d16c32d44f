"""Alerts are told as brute force tells them: loads, merges, reverts, deletes and folds, cut off anywhere; in a folder,
in a bucket by two processes in turn, and in shards, which loads reach in several parts.

Of each change the model looks at all rows, as a scan shows them, before and after.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import MillpondError
from millpond.kernel.steps import listening
from millpond.maps.alerts import merged
from millpond.maps.parts import part
from millpond.stores.objects import open_objects
from tests.harness.buckets.processes import pond_over
from tests.rings.sampling import examples

EXAMPLES = examples(8, 150)
IN_A_BUCKET, IN_A_SHARD = examples(2, 40), examples(6, 120)
COLUMNS = pa.schema([("key", pa.string()), ("time", pa.timestamp("ms", "UTC")), ("total", pa.int64()),
                     ("text", pa.string()), ("top", pa.int64())])  # fmt: skip
VALUE = "orders long count, total long sum, top long max, mean average of total/orders, text string latest"
HOUR_MS = 3_600_000
BEGAN = datetime(2024, 10, 26, 20, tzinfo=UTC)
"""Some hours before the clocks of Paris go back."""
ZONES = {"1 hour": "UTC", "1 day": "Europe/Paris", "none": "UTC"}
RULES = {
    "many": ("orders > 2", 1),
    "late": ("mean > 4 and orders > 1", 2),
    "long": ("total > 3", 3),
    "some": ("key != 'b' and (top = 9 or text is null)", 1),
}
CUTS = ("layers.layer_written", "load.layers_placed", "load.received", "load.committed", "alerts.appended",
        "alerts.told", "refs.published", "merge.part_put", "shard.changed_uncommitted", "shard.changed",
        "merge.dequeued")  # fmt: skip

Row = dict[str, Any]
Address = tuple[str, int]
Held = dict[str, set[Address]]


class Cut(Exception):
    """A process ends here."""


def held_by(rows: list[Row], number_of: Callable[[datetime], int]) -> Held:
    """The buckets in which each condition holds."""
    held: Held = {name: set() for name in RULES}
    for row in rows:
        key, orders, total = row["key"], row["orders"], row["total"]
        holds = {
            "many": orders > 2, "late": total / orders > 4 and orders > 1, "long": total > 3,
            "some": key != "b" and (row["top"] == 9 or row["text"] is None),
        }  # fmt: skip
        for name in RULES:
            if holds[name]:
                held[name].add((key, number_of(row["time"])))
    return held


def on(held: set[Address], buckets: int) -> set[Address]:
    return {(key, number) for key, number in held if all((key, number - back) in held for back in range(buckets))}


def crossings(before: set[Address], after: set[Address]) -> set[Address]:
    """The first of neighbours that came to be on, unless one beside them was on already, and still is."""
    new, firsts = after - before, set()
    for key, number in new:
        if (key, number - 1) in new:
            continue
        end = next(end for end in itertools.count(number + 1) if (key, end) not in new)
        if (key, number - 1) not in after and (key, end) not in after:
            firsts.add((key, number))
    return firsts


events = st.fixed_dictionaries({
    "key": st.sampled_from(("a", "b")), "time": st.integers(0, 9), "total": st.integers(0, 9),
    "text": st.none() | st.just("x"),
})  # fmt: skip
loads = st.lists(events, min_size=1, max_size=8)
cuts = st.none() | st.sampled_from(CUTS)
acts = st.one_of(
    st.tuples(st.just("load"), st.booleans(), loads, cuts), st.tuples(st.just("load"), st.just(False), loads, cuts),
    st.tuples(st.just("merge"), st.none(), st.none(), cuts), st.tuples(st.just("revert"), st.none(), st.none(), cuts),
    st.tuples(st.just("delete"), st.just(False), st.sampled_from(("a", "b")), st.none()),
    st.tuples(st.just("compact"), st.none(), st.none(), st.none()),
)  # fmt: skip


converted = st.tuples(st.just("convert"), st.none(), st.none(), st.none())


@dataclass
class Story:
    """A pond that is opened again when it was cut off, and the alerts that it has to tell; of a bucket, as two
    processes have it, which take turns.
    """

    folder: Path
    resolution: str
    bucket: Path | None = None
    store: str = "layers"
    ponds: list[millpond.Pond] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    expected: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    made: str = ""

    def number_of(self, time: datetime) -> int:
        if self.resolution == "none":
            return 0
        if self.resolution == "1 day":
            return time.astimezone(ZoneInfo(ZONES["1 day"])).date().toordinal()
        return int(time.timestamp()) // 3600

    def buckets(self, name: str) -> int:
        return 1 if self.resolution == "none" else RULES[name][1]

    def opened(self) -> millpond.Pond:
        if self.bucket is None:
            return millpond.open(self.folder)
        folder = self.folder / f"{next(self.numbers)}"
        return pond_over(open_objects(self.bucket), folder, address=str(self.bucket))

    @property
    def pond(self) -> millpond.Pond:
        """The pond of the process whose turn it is."""
        return self.ponds[0]

    def close(self) -> None:
        for pond in self.ponds:
            pond.close()

    def begin(self) -> None:
        self.ponds = [self.opened() for _ in range(1 if self.bucket is None else 2)]
        sales = self.pond.create_map("sales", kind="aggregate", value=VALUE, resolution=self.resolution,
                                     time_zone=ZONES[self.resolution], store=self.store)  # fmt: skip
        for name, (when, _) in RULES.items():
            sales.alerts.add(when, name=name, buckets=self.buckets(name))
        self.made = self.pond.refs.states.record().id
        self.pond.branch("fix", source="main")

    def act(self, what: str, branch: bool | None, content: Any, cut: str | None) -> None:
        if what == "load":
            content = [self._event(event) for event in content]
        try:
            with listening(partial(_end, cut)):
                self._do(self.pond, what, branch, content)
        except Cut:
            self.pond.close()
            self.ponds[0] = self.opened()
            self._see()  # it was done before the cut, or not; to revert again undoes it
            self._do(self.pond, what, branch, content)
        self._see()
        self.ponds.reverse()

    def _see(self) -> None:
        rows = self.pond.map("sales").scan().read_all().to_pylist()
        before, after, self.rows = held_by(self.rows, self.number_of), held_by(rows, self.number_of), rows
        for name in RULES:
            many = self.buckets(name)
            for key, number in crossings(on(before[name], many), on(after[name], many)):
                self.expected[name, key, number] += 1

    def _event(self, event: Row) -> Row:
        step = 24 * HOUR_MS if self.resolution == "1 day" else HOUR_MS
        millis = event["time"] * step + next(self.numbers)  # no two are the same
        return event | {"time": BEGAN + timedelta(milliseconds=millis), "top": event["total"]}

    def _do(self, pond: millpond.Pond, what: str, branch: bool | None, content: Any) -> None:
        layered = pond.map("sales").layers is not None
        branched = branch and self.store == "layers"  # shards have no branches
        target = pond.branch("fix").map("sales") if branched else pond.map("sales")
        if what == "load" and layered:
            target.load(content)
        elif what == "load":
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(part, "PART_ROWS_MAX", 2)
                patched.setattr(merged, "SHARE_ROWS", 3)
                target.load(pa.Table.from_pylist(content, COLUMNS).to_reader(1))
        elif what == "convert":
            pond.alter_map("sales", store="shard" if layered else "layers")
        elif what == "delete":
            target.delete([("key", "=", content)])
        elif what == "compact":
            target.compact()
        elif self.store == "layers" and (what == "merge" or pond.refs.states.record().id != self.made):  # a map stays
            with suppress(MillpondError):  # what cannot be right is refused, and changes nothing
                pond.refs.merge("fix", "main") if what == "merge" else pond.refs.revert("main")

    def check(self) -> None:
        stream = list(self.pond.events.read("millpond", "alerts/sales"))
        assert self.expected == Counter(
            (event.headers["rule"], event.headers["key"],
             self.number_of(datetime.fromisoformat(event.headers["bucket"]))) for event in stream
        )  # fmt: skip
        assert all(json.loads(event.payload)["after"] is not None for event in stream)
        sales = self.pond.map("sales")
        held = held_by(self.rows, self.number_of)
        for name, (when, _) in RULES.items() if sales.layers is None else ():
            made = on(held[name], self.buckets(name))
            found = sales.alerts.try_(when, buckets=self.buckets(name)).alerts
            assert {(key, number) for key, number in made if (key, number - 1) not in made} == {
                (crossing.key, self.number_of(datetime.fromisoformat(crossing.bucket))) for crossing in found
            }


def _end(at: str | None, name: str) -> None:
    if name == at:
        raise Cut


stories = given(st.sampled_from([*ZONES]), st.lists(acts, min_size=1, max_size=8))


@settings(max_examples=EXAMPLES, deadline=None)
@stories
def test_alerts_are_told_once_for_each_crossing(
    tmp_path_factory: pytest.TempPathFactory, resolution: str, story: list[tuple[Any, ...]]
) -> None:
    play(Story(tmp_path_factory.mktemp("alerts") / "pond", resolution), story)


@settings(max_examples=IN_A_SHARD, deadline=None)
@given(st.sampled_from([*ZONES]), st.lists(acts | converted, min_size=1, max_size=8))
def test_alerts_of_a_shard_are_told_by_the_merge_of_each_load(
    tmp_path_factory: pytest.TempPathFactory, resolution: str, story: list[tuple[Any, ...]]
) -> None:
    play(Story(tmp_path_factory.mktemp("alerts") / "pond", resolution, store="shard"), story)


@settings(max_examples=IN_A_BUCKET, deadline=None)
@stories
def test_alerts_of_a_bucket_are_told_once_whichever_process_loads(
    tmp_path_factory: pytest.TempPathFactory, resolution: str, story: list[tuple[Any, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("alerts")
    play(Story(folder, resolution, folder / "bucket"), story)


def play(tale: Story, story: list[tuple[Any, ...]]) -> None:
    tale.begin()
    try:
        for act in story:
            tale.act(*act)
        tale.check()
    finally:
        tale.close()
