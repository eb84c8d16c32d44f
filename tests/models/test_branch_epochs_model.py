"""An epoch of a stream is entered on a branch unless that comes from its commit, or a later one: by brute force."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Invalid
from millpond.maps.layered.writer import LayerWriter, WrittenLayer
from millpond.maps.loads.load import LoadResult, write_data
from millpond.refs.loads import BranchLoad
from millpond.versions.merges import Strategy
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from millpond import Pond

QUERIES = ("one", "two")
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(QUERIES), st.integers(-2, 2)),
        st.tuples(st.sampled_from(("load", "merge", "remake", "reopen")), st.just(""), st.just(0)),
        st.tuples(st.just("reset"), st.just(""), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=12,
)


def enter(pond: Pond, query: str, epoch: int, value: int = 0) -> LoadResult:
    """Load an epoch of a query on the branch `fix`, as Spark's driver does."""
    opened = pond.branch("fix").map("m")
    load = BranchLoad(states=pond.refs.states, branch="fix", stream=(query, epoch), again=True)
    writer = LayerWriter(opened.rows.layers)
    try:
        rows = [{"key": f"{query}{epoch}", "value": value}]
        brought, _ = write_data(writer, opened.definition, rows)
        return load.enter([layer for layer in brought if isinstance(layer, WrittenLayer)])
    finally:
        writer.close()


@dataclass
class Model:
    """All commits: the commits that each comes from, and the epochs that they are of; and the heads of branches.

    `first`: that of the map.
    """

    parents: dict[str, list[str]] = field(default_factory=dict)
    epochs: dict[str, tuple[str, int]] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    first: str = ""

    def moved(self, branch: str, head: str, *others: str) -> None:
        if head not in self.parents:
            self.parents[head] = [*([self.heads[branch]] if branch in self.heads else []), *others]
        self.heads[branch] = head

    def history(self) -> set[str]:
        seen, left = set[str](), [self.heads["fix"]]
        while left:
            commit = left.pop()
            if commit not in seen:
                seen.add(commit)
                left += self.parents[commit]
        return seen

    def last(self, query: str) -> int:
        return max((number for commit in self.history() for name, number in [self.epochs.get(commit, ("", -1))]
                    if name == query), default=-1)  # fmt: skip


def head(pond: Pond, branch: str) -> str:
    return next(iter(pond.refs.log(branch))).id


def check_entry(pond: Pond, model: Model, query: str, epoch: int, value: int) -> None:
    known = model.last(query) >= epoch
    before = head(pond, "fix")
    result = enter(pond, query, epoch, value)
    assert result.rows == 1 and (result.parts == 0) == known
    if known:
        assert head(pond, "fix") == before and result.commit in model.history()
    else:
        assert result.commit == head(pond, "fix") != before
        assert pond.branch("fix").map("m").get(f"{query}{epoch}") == value
        model.moved("fix", result.commit)
        model.epochs[result.commit] = (query, epoch)


def act_on(pond: Pond, model: Model, act: str, number: int) -> None:
    if act == "load":
        pond.branch("fix").map("m").load([{"key": "a", "value": number}], again=True)
        model.moved("fix", head(pond, "fix"))
    elif act == "remake":
        pond.refs.delete_branch("fix")
        pond.branch("fix", source="main")
        model.heads["fix"] = model.heads["main"]
    elif act == "reset":
        log = [commit.id for commit in pond.refs.log("fix", first_parent=True)]
        pond.refs.reset("fix", log[min(number, log.index(model.first))])  # the map stays
        model.heads["fix"] = head(pond, "fix")
    elif act == "merge":
        with suppress(Invalid):  # no changes
            commit = pond.branch("fix").merge(strategy=Strategy.SOURCE_WINS)
            model.moved("main", commit.id, model.heads["fix"])


@settings(max_examples=examples(10, 300))
@given(acts=ACTS)
def test_an_epoch_is_entered_where_its_commit_is_not(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, int]]
) -> None:
    folder, model = tmp_path_factory.mktemp("epochs") / "pond", Model()
    pond = millpond.open(folder)
    try:
        pond.create_map("m", kind="state", value="long", store="layers")
        pond.map("m").load([{"key": "a", "value": -1}])
        pond.branch("fix", source="main")
        for commit in reversed(list(pond.refs.log("main"))):
            model.moved("main", commit.id)
        model.first = model.heads["fix"] = model.heads["main"]
        for value, (act, query, number) in enumerate(acts):
            if act == "enter":
                check_entry(pond, model, query, max(model.last(query) + number, 0), value)
            elif act == "reopen":
                pond.close()
                pond = millpond.open(folder)
            else:
                act_on(pond, model, act, number or value)
    finally:
        pond.close()


def test_two_drivers_that_enter_an_epoch_at_once_enter_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("m", kind="state", value="long", store="layers")
        pond.branch("fix", source="main")
        earlier, first = BranchLoad.earlier, list[LoadResult | None]()

        def looked(load: BranchLoad, maps: Collection[str] = ()) -> LoadResult | None:
            answer = earlier(load, maps)
            if not first:
                first.append(None)
                first[0] = enter(pond, "one", 0, 1)
            return answer

        monkeypatch.setattr(BranchLoad, "earlier", looked)
        second = enter(pond, "one", 0, 2)
        assert first[0] is not None and (second.commit, second.parts) == (first[0].commit, 0)
        assert pond.branch("fix").map("m").get("one0") == 1
