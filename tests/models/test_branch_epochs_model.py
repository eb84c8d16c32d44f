"""An epoch of a stream is entered on a branch unless that comes from its commit, or a later one: by brute force."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Conflict, Invalid
from millpond.maps.layered.writer import LayerWriter, WrittenLayer
from millpond.maps.loads.load import LoadResult, write_data
from millpond.refs import refs
from millpond.refs.loads import BranchLoad
from millpond.versions.merges import Strategy
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from millpond import Pond

QUERIES, BRANCHES = ("one", "two"), ("fix", "side")
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(BRANCHES), st.sampled_from(QUERIES), st.integers(-2, 2)),
        st.tuples(
            st.sampled_from(("load", "remake", "pick", "restore")), st.sampled_from(BRANCHES), st.none(), st.none()
        ),
        st.tuples(
            st.sampled_from(("merge", "squash")),
            st.sampled_from(BRANCHES),
            st.sampled_from((*BRANCHES, "main")),
            st.none(),
        ),
        st.tuples(st.just("reset"), st.sampled_from(BRANCHES), st.none(), st.integers(1, 3)),
        st.tuples(st.just("reopen"), st.just(""), st.none(), st.none()),
    ),
    min_size=1,
    max_size=14,
)


def enter(pond: Pond, query: str, epoch: int, value: int = 0, branch: str = "fix") -> LoadResult:
    """Load an epoch of a query on a branch, as Spark's driver does."""
    opened = pond.branch(branch).map("m")
    load = BranchLoad(states=pond.refs.states, branch=branch, stream=(query, epoch), again=True)
    writer = LayerWriter(opened.rows.layers)
    try:
        rows = [{"key": f"{query}{epoch}", "value": value}]
        brought, _ = write_data(writer, opened.definition, rows)
        return load.enter([layer for layer in brought if isinstance(layer, WrittenLayer)])
    finally:
        writer.close()


Epoch: TypeAlias = tuple[str, int]


@dataclass
class Model:
    """All commits: those that each comes from, the epoch that it is of, and the epochs whose rows it brought without
    their commits; and the heads of branches. `first`: the commit of the map.
    """

    parents: dict[str, list[str]] = field(default_factory=dict)
    epochs: dict[str, Epoch] = field(default_factory=dict)
    brought: dict[str, set[Epoch]] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    first: str = ""

    def moved(self, branch: str, head: str, *others: str, brought: Collection[Epoch] = ()) -> None:
        if head not in self.parents:
            self.parents[head] = [*([self.heads[branch]] if branch in self.heads else []), *others]
            self.brought[head] = {*brought}
        self.heads[branch] = head

    def history(self, head: str) -> set[str]:
        seen, left = set[str](), [head]
        while left:
            commit = left.pop()
            if commit not in seen:
                seen.add(commit)
                left += self.parents[commit]
        return seen

    def known(self, head: str) -> set[Epoch]:
        """All epochs whose rows a commit has."""
        return {epoch for commit in self.history(head) for epoch in self.of(commit)}

    def of(self, commit: str) -> set[Epoch]:
        return self.brought[commit] | ({self.epochs[commit]} if commit in self.epochs else set())

    def last(self, branch: str, query: str) -> int:
        return max((number for name, number in self.known(self.heads[branch]) if name == query), default=-1)


def head(pond: Pond, branch: str) -> str:
    return next(iter(pond.refs.log(branch))).id


def check_entry(pond: Pond, model: Model, branch: str, query: str, epoch: int, value: int) -> None:
    known = model.last(branch, query) >= epoch
    before = head(pond, branch)
    result = enter(pond, query, epoch, value, branch)
    assert (result.parts == 0) == known
    if known:
        history = model.history(model.heads[branch])
        own = {commit for commit in history if model.epochs.get(commit) == (query, epoch)}
        assert head(pond, branch) == before and result.rows == (1 if own else 0)
        bringing = {commit for commit in history
                    if any(name == query and number >= epoch for name, number in model.of(commit))}  # fmt: skip
        assert result.commit in (own or bringing), "the commit that has it, else one that brought it or a later one"
    else:
        assert result.rows == 1 and result.commit == head(pond, branch) != before
        assert pond.branch(branch).map("m").get(f"{query}{epoch}") == value
        model.moved(branch, result.commit)
        model.epochs[result.commit] = (query, epoch)


def act_on(pond: Pond, model: Model, act: str, branch: str, into: str | None, number: int) -> None:
    other = BRANCHES[1 - BRANCHES.index(branch)]
    if act == "load":
        pond.branch(branch).map("m").load([{"key": "a", "value": number}], again=True)
        model.moved(branch, head(pond, branch))
    elif act == "remake":
        pond.refs.delete_branch(branch)
        pond.branch(branch, source="main")
        model.heads[branch] = model.heads["main"]
    elif act == "reset":
        log = [commit.id for commit in pond.refs.log(branch, first_parent=True)]
        pond.refs.reset(branch, log[min(number, log.index(model.first))])  # the map stays
        model.heads[branch] = head(pond, branch)
    elif act in ("merge", "squash") and into is not None:
        if into == branch:  # main comes to it
            branch, into = "main", branch
        source, squash = model.heads[branch], act == "squash"
        commit = pond.refs.merge(branch, into, strategy=Strategy.SOURCE_WINS, squash=squash)
        model.moved(into, commit.id, *([] if squash else [source]), brought=model.known(source))
    elif act == "pick":  # the newest change of the other branch
        picked = model.heads[other]
        commit = pond.refs.cherry_pick(other, branch, parent_number=1)
        before = model.known(model.parents[picked][0])
        model.moved(branch, commit.id, brought=model.known(picked) - before)
    elif act == "restore":
        commit = pond.refs.restore(other, branch, maps=["m"])
        model.moved(branch, commit.id, brought=model.known(model.heads[other]))


def older_epochs_brought(*act: str | None) -> list[tuple[str, str, str | None, int | None]]:
    """A branch that has later epochs takes those of another one, which does not make it forget."""
    entered = [("enter", branch, "one", 1) for branch in ("fix", "fix", "fix", "side")]
    return [*entered, (*act, None), ("enter", "fix", "one", 0), ("enter", "fix", "one", -1), ("enter", "fix", "one", 1)]  # type: ignore[list-item]


@settings(max_examples=examples(15, 300), deadline=None)
@given(acts=ACTS)
@example(acts=older_epochs_brought("merge", "side", "fix"))
@example(acts=older_epochs_brought("squash", "side", "fix"))
@example(acts=older_epochs_brought("pick", "fix", None))
@example(acts=older_epochs_brought("restore", "fix", None))
def test_an_epoch_is_entered_where_its_rows_are_not(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, str | None, int | None]]
) -> None:
    folder, model = tmp_path_factory.mktemp("epochs") / "pond", Model()
    pond = millpond.open(folder)
    try:
        pond.create_map("m", kind="state", value="long", store="layers")
        pond.map("m").load([{"key": "a", "value": -1}])
        for commit in reversed(list(pond.refs.log("main"))):
            model.moved("main", commit.id)
        model.first = model.heads["main"]
        for branch in BRANCHES:
            pond.branch(branch, source="main")
            model.heads[branch] = model.first
        for value, (act, branch, into, number) in enumerate(acts):
            if act == "enter":
                query, ahead = into or "", number or 0
                check_entry(pond, model, branch, query, max(model.last(branch, query) + ahead, 0), value)
            elif act == "reopen":
                pond.close()
                pond = millpond.open(folder)
            else:
                with suppress(Invalid, Conflict):  # no changes, or both sides changed what a pick is about
                    act_on(pond, model, act, branch, into, number or value)
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


def test_a_merge_tells_of_epochs_that_came_while_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        for name in ("m", "n"):
            pond.create_map(name, kind="state", value="long", store="layers")
        for branch in BRANCHES:
            pond.branch(branch, source="main")
        enter(pond, "one", 0, branch="side")
        merge_maps = refs.merge_maps
        meanwhile = [
            lambda: enter(pond, "one", 1, 7),
            lambda: pond.branch("fix").map("n").load([{"key": "a", "value": 1}]),
        ]

        def merged(*arguments: Any, **named: Any) -> Any:
            outcome = merge_maps(*arguments, **named)
            if meanwhile:
                meanwhile.pop(0)()
            return outcome

        monkeypatch.setattr(refs, "merge_maps", merged)
        commit = pond.refs.merge("side", "fix")
        assert commit.metadata["epochs"] == '{"m one":1}' and commit.parents[0] == head(pond, "fix~1")
        assert enter(pond, "one", 1, 9).parts == 0 and pond.branch("fix").map("m").get("one1") == 7
        assert pond.branch("fix").map("n").get("a") == 1
