"""A stream of the changes of a branch: each commit's difference by key, in order, once for each pair of offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.spark.sources import MapSource
from millpond.versions.merges import Strategy
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond import Pond
    from millpond.spark.branch_changes import BranchChangesReader

State: TypeAlias = "dict[str, int]"
ChangedRows: TypeAlias = "list[tuple[str, str, int, str]]"
"""Rows of a stream: key, what became of it, value, commit."""

KEYS = st.sampled_from("abcde")
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.dictionaries(KEYS, st.integers(0, 4), min_size=1, max_size=3)),
        st.tuples(st.just("stage"), st.dictionaries(KEYS, st.integers(0, 4), min_size=1, max_size=2)),
        st.tuples(st.just("main"), st.dictionaries(KEYS, st.integers(0, 4), min_size=1, max_size=2)),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.sampled_from(("commit", "publish", "squash", "take", "remake", "revert")), st.none()),
        st.tuples(st.just("reset"), st.integers(1, 3)),
        st.tuples(st.just("read"), st.sampled_from((None, 1, 3))),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    min_size=3,
    max_size=16,
)


class Clock(SystemClock):
    """Time that passes as it is asked for: the branch is looked at each time."""

    passed = 0.0

    def monotonic(self) -> float:
        self.passed += 1
        return self.passed


def reader(pond: Pond, **options: Any) -> BranchChangesReader:
    parameters = {"pond": str(pond.folder), "map": "m", "branch": "fix", "changes": "true"}
    source = MapSource(parameters | {name: str(value) for name, value in options.items()})
    made: Any = source.streamReader(source.schema())
    made.clock = Clock()
    return made  # type: ignore[no-any-return]


def rows_between(stream: BranchChangesReader, start: dict[str, Any], end: dict[str, Any]) -> ChangedRows:
    return [
        (row["key"], row["_change"], row["value"], row["_commit"])
        for part in stream.partitions(start, end) for rows in stream.read(part) for row in rows.to_pylist()
    ]  # fmt: skip


def difference(old: Mapping[str, int], new: Mapping[str, int], commit: str) -> ChangedRows:
    changed = [(key, "changed" if key in old else "added", value, commit) for key, value in new.items()
            if old.get(key) != value]  # fmt: skip
    return sorted([*changed, *((key, "removed", value, commit) for key, value in old.items() if key not in new)])


@dataclass
class Model:
    """The state and the first parent of each commit, as they were when it was made; and what a reader was told."""

    least: int
    states: dict[str, State | None] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    copy: State = field(default_factory=dict)

    def know(self, pond: Pond, branch: str) -> None:
        for commit in pond.refs.log(branch):
            if commit.id in self.states:
                continue
            with pond.at(commit.id) as then:
                there = [opened for opened in then.maps() if opened.name == "m"]
                rows = there[0].scan().read_all().to_pylist() if there else None
            self.states[commit.id] = None if rows is None else {row["key"]: row["value"] for row in rows}
            self.parents[commit.id] = commit.parents[0] if commit.parents else ""

    def line(self, commit: str) -> Iterator[str]:
        while commit:
            yield commit
            commit = self.parents[commit]

    def counted(self, commit: str) -> State:
        return {key: value for key, value in (self.states[commit] or {}).items() if value >= self.least}

    def expected(self, after: str, end: str) -> ChangedRows:
        """The differences of commit by commit, where one comes from the other; else of both."""
        line = list(self.line(end))
        if after:
            steps = [*reversed(line[: line.index(after)])] if after in line else [end]
        else:
            steps = [commit for commit in reversed(line) if self.states[commit] is not None]
        changed, before = [], self.counted(after) if after else {}
        for commit in steps:
            changed += difference(before, self.counted(commit), commit)
            before = self.counted(commit)
        return changed

    def take(self, changed: ChangedRows) -> None:
        for key, change, value, _ in changed:
            assert (key in self.copy) == (change != "added")
            if change == "removed":
                assert self.copy.pop(key) == value
            else:
                assert self.copy.get(key) != value
                self.copy[key] = value


def in_order(changed: ChangedRows) -> ChangedRows:
    """The rows of each commit in the order of their keys; commits stay as they came."""
    places = {commit: place for place, (*_, commit) in enumerate(changed)}
    firsts = {commit: place for place, (*_, commit) in reversed(list(enumerate(changed)))}
    assert all(places[commit] - firsts[commit] + 1 == sum(row[3] == commit for row in changed) for commit in places)
    return sorted(changed, key=lambda row: (firsts[row[3]], row[:3]))


def as_rows(rows: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in rows.items()]


def act_on(pond: Pond, model: Model, act: str, about: Any) -> None:
    refs, fix = pond.refs, pond.branch("fix")
    with suppress(Invalid):  # no changes, or something is staged
        if act == "load":
            fix.map("m").load(as_rows(about), again=True)
        elif act == "stage":
            fix.map("m").load(as_rows(about), commit=False)
        elif act == "main":
            pond.map("m").load(as_rows(about), again=True)
        elif act == "delete":
            fix.map("m").delete(f"key = '{about}'")
        elif act == "commit":
            fix.commit("staged")
        elif act in ("publish", "squash"):
            refs.merge("fix", strategy=Strategy.SOURCE_WINS, squash=act == "squash")
        elif act == "take":
            refs.merge("main", "fix", strategy=Strategy.SOURCE_WINS)
        elif act == "remake":
            refs.delete_branch("fix")
            refs.create_branch("fix", "main")
        elif act == "revert":
            if model.states[model.parents[refs.resolve("fix")]] is not None:  # the map stays
                refs.revert("fix", "fix", parent_number=1)
        elif act == "reset":
            line = [commit.id for commit in refs.log("fix", first_parent=True)]
            there = [commit for commit in line if model.states[commit] is not None]
            refs.reset("fix", there[min(about, len(there) - 1)])
    model.know(pond, "main")
    model.know(pond, "fix")


@settings(max_examples=examples(12, 60), deadline=None)
@given(acts=ACTS, least=st.sampled_from((0, 2)), start=st.sampled_from(("earliest", "main")))
def test_a_stream_tells_what_each_commit_changed(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, Any]], least: int, start: str
) -> None:
    with millpond.open(tmp_path_factory.mktemp("changes") / "pond") as pond:
        model, options = Model(least), {"where": f"value >= {least}", "startingPosition": start}
        pond.create_map("m", kind="state", value="long", store="layers").load(as_rows({"a": 1, "b": 3}))
        pond.branch("fix", source="main")
        model.know(pond, "fix")
        model.copy = {} if start == "earliest" else model.counted(pond.refs.resolve("fix"))
        stream = reader(pond, **options)
        at, last = stream.initialOffset(), None
        for act, about in [*acts, ("restart", True), ("read", None)]:
            if act == "restart":
                stream.stop()
                stream = reader(pond, **options)
                if about and last is not None:  # a batch that was planned before is planned again
                    assert in_order(rows_between(stream, *last[:2])) == last[2]
            elif act == "read":
                stream.settings = stream.settings.__class__(rows_max=about, marked=True)
                end = json.loads(json.dumps(stream.latestOffset(at, stream.getDefaultReadLimit())))
                changed = in_order(rows_between(stream, at, end))
                assert changed == in_order(model.expected(at["commit"], end["commit"]))
                model.take(changed)
                at, last = end, (at, end, changed)
                if about is None:
                    assert model.copy == model.counted(pond.branch("fix").refs.resolve("fix"))
                    assert stream.latestOffset(at, stream.getDefaultReadLimit()) == at
            else:
                act_on(pond, model, act, about)
        stream.stop()
