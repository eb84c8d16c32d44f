"""Histories of branches over a node: each act has the outcome, and leaves the rows, that it does in a folder."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import MillpondError
from tests.nodes.conftest import BEGIN, Served
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.protocols import PondLike

_NUMBERS, AT = count(1), BEGIN - 3_600_000
KEYS = ("a", "b", "c", "d")
BRANCHES = ("main", "x", "y")
MAPS: list[dict[str, Any]] = [
    {"kind": "state", "value": "long"}, {"kind": "state", "value": "long", "overwrite": False},
    {"kind": "temporal_state", "value": "v long, w string"},
    {"kind": "aggregate", "value": "n long sum", "resolution": "1 hour"},
]  # fmt: skip
branches, others = st.sampled_from(BRANCHES), st.sampled_from(("x", "y"))
rows = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), min_size=1, max_size=4)
acts = st.one_of(
    st.tuples(st.just("load"), branches, rows),
    st.tuples(st.just("load_once"), others, rows, st.sampled_from(("l1", "l2"))),
    st.tuples(st.just("stage"), others, rows),
    st.tuples(st.just("commit"), others),
    st.tuples(st.just("reset"), others),
    st.tuples(st.just("delete"), others, st.sampled_from(KEYS)),
    st.tuples(st.just("alter"), others, st.sampled_from(("5d", "9d"))),
    st.tuples(st.just("merge"), others, branches, st.sampled_from(("", "source-wins", "dest-wins"))),
    st.tuples(st.just("revert"), branches),
    st.tuples(st.just("drop"), branches),
    st.tuples(st.just("make"), branches),
    st.tuples(st.just("restore"), branches, branches),
    st.tuples(st.just("cherry_pick"), others, branches),
)


class Acting:
    """One pond, in which a history happens to a map of its own, on branches of its own."""

    def __init__(self, pond: PondLike, number: int, made: dict[str, Any]) -> None:
        self.pond, self.number, self.map, self.made = pond, number, f"m{number}", made
        self.definition = pond.create_map(self.map, store="layers", **made).definition
        for branch in ("x", "y"):
            pond.branch(self.named(branch), source="main")

    def named(self, branch: str) -> str:
        return branch if branch == "main" else f"{branch}{self.number}"

    def on(self, branch: str) -> Any:
        return self.pond if branch == "main" else self.pond.branch(self.named(branch))

    def data(self, listed: list[tuple[str, int]]) -> list[dict[str, Any]]:
        definition = self.definition
        times: dict[str, Any] = {}
        if definition.kind.timed:
            times = {"time" if definition.aggregation is not None else "effective_time": AT}
        if definition.aggregation is not None:
            return [{"key": key, "n": value, **times} for key, value in listed]
        if definition.kind.timed:
            return [{"key": key, "v": value, "w": str(value), **times} for key, value in listed]
        return [{"key": key, "value": value} for key, value in listed]

    def act(self, name: str, *arguments: Any) -> Any:
        """The outcome of an act: what it tells, or the kind of its error."""
        try:
            return getattr(self, name)(*arguments)
        except MillpondError as error:
            return type(error).__name__, error.kind, getattr(error, "paths", ())

    def _loaded(self, result: Any) -> Any:
        return result.rows, result.rejected, result.parts, result.duplicate_parts, result.maps, bool(result.commit)

    def load(self, branch: str, listed: list[tuple[str, int]]) -> Any:
        result = self.on(branch).map(self.map).load(self.data(listed))
        return self._loaded(result) if branch != "main" else result.rejected

    def load_once(self, branch: str, listed: list[tuple[str, int]], load: str) -> Any:
        return self._loaded(
            self.on(branch).map(self.map).load(self.data(listed), load_id=f"{load}-{self.number}", source=load)
        )

    def stage(self, branch: str, listed: list[tuple[str, int]]) -> Any:
        return self._loaded(self.on(branch).map(self.map).load(self.data(listed), commit=False))

    def commit(self, branch: str) -> Any:
        return self.on(branch).commit("staged").message

    def reset(self, branch: str) -> None:
        self.pond.refs.reset(self.named(branch))

    def delete(self, branch: str, key: str) -> Any:
        report = self.on(branch).map(self.map).delete(f"key = '{key}'")
        return report.rows_removed, report.rows_after, bool(report.commit)

    def alter(self, branch: str, retain: str) -> Any:
        return self.on(branch).alter_map(self.map, retain=retain).definition.retain_ms

    def merge(self, source: str, into: str, strategy: str) -> Any:
        made = self.pond.refs.merge(self.named(source), self.named(into), strategy=strategy)
        return made.message, len(made.parents)

    def revert(self, branch: str) -> Any:
        head = next(self.pond.refs.log(self.named(branch)))
        made = self.pond.refs.revert(
            self.named(branch), self.named(branch), parent_number=len(head.parents) - 1 or None
        )
        return len(made.parents)

    def drop(self, branch: str) -> None:
        self.on(branch).drop_map(self.map)

    def make(self, branch: str) -> Any:
        store = {"store": "layers"} if branch == "main" else {}
        return self.on(branch).create_map(self.map, **store, **self.made).definition.overwrite

    def restore(self, ref: str, branch: str) -> Any:
        return self.pond.refs.restore(self.named(ref), self.named(branch), maps=[self.map]).message

    def cherry_pick(self, ref: str, branch: str) -> Any:
        return self.pond.refs.cherry_pick(self.named(ref), self.named(branch), message="picked").message

    def shown(self) -> dict[str, Any]:
        """All that can be seen of the map."""
        seen: dict[str, Any] = {}
        for branch in BRANCHES:
            seen[branch] = self.act("rows", branch)
            seen[f"history of {branch}"] = self.act("history", branch)
            for other in BRANCHES:
                seen[f"{branch}..{other}"] = self.act("diff", branch, other)
        return seen

    def rows(self, branch: str) -> Any:
        opened = self.on(branch).map(self.map)
        info, table = opened.info(), opened.scan().read_all()
        order = [(name, "ascending") for name in table.column_names if name.startswith("key")]
        return (
            opened.lookup(list(KEYS), AT).to_pylist(), [opened.get(key, AT) for key in KEYS],
            table.sort_by(order).to_pylist(), {name: info[name] for name in ("rows", "retain_ms", "overwrite")},
            opened.snapshot().lookup(list(KEYS), AT).to_pylist(),
        )  # fmt: skip

    def history(self, branch: str) -> Any:
        table = self.pond.history(self.map, self.named(branch))
        return table.select(["version", "rows", "removed", "source"]).to_pylist()

    def diff(self, left: str, right: str) -> Any:
        return self.pond.refs.diff(self.named(left), self.named(right), map=self.map).to_pylist()


@pytest.fixture(scope="module")
def ponds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PondLike, PondLike]]:
    folder, clock = tmp_path_factory.mktemp("refs"), ManualClock(BEGIN)
    node = Served(clock, server_data=str(folder / "served"), server_port=0)
    try:
        with (
            millpond.open(node.url, client_cache=str(folder / "cache")) as served,
            millpond.open(folder / "pond", clock=clock) as here,
        ):
            yield served, here
    finally:
        node.close()


@pytest.mark.usefixtures("process")
@settings(max_examples=examples(3, 40), deadline=None)
@given(st.sampled_from(MAPS), st.lists(acts, min_size=1, max_size=8))
def test_a_history_over_a_node_is_one_of_a_folder(
    ponds: tuple[PondLike, PondLike], made: dict[str, Any], history: list[Any]
) -> None:
    number = next(_NUMBERS)
    over_node, here = (Acting(pond, number, made) for pond in ponds)
    assert over_node.shown() == here.shown()
    for name, *arguments in history:
        assert over_node.act(name, *arguments) == here.act(name, *arguments), (name, *arguments)
    assert over_node.shown() == here.shown()
