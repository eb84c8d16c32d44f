"""Branches lose the rows that a dictionary of addresses loses, and merges take them along: any kind, any order."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Invalid
from millpond.maps.model.definition import Kind
from millpond.versions.merges import Strategy
from tests.models.test_deletes_model import (
    KINDS,
    Rows,
    columns_of,
    conditions,
    held,
    holds,
    loads,
    shown,
    table_of,
    text_of,
)
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond import Map, Pond

EXAMPLES = examples(4, 100)
Act = tuple[str, int, Any]


def acts(kind: Kind) -> st.SearchStrategy[list[Act]]:
    side = st.integers(0, 1)
    act = st.one_of(
        st.tuples(st.just("load"), side, loads(kind)),
        st.tuples(st.just("stage"), st.just(1), loads(kind)),
        st.tuples(st.just("delete"), side, conditions(kind)),
        st.tuples(st.just("merge"), side, st.none()),
        *([st.tuples(st.sampled_from(("condense", "retain")), st.just(1), st.integers(0, 7))] if kind.timed else []),
    )
    return st.lists(act, min_size=1, max_size=8)


def merged(base: Rows, ours: Rows, theirs: Rows) -> Rows:
    """Ours with what theirs changed since base, address by address; theirs wins."""
    outcome = dict(ours)
    for address in {**base, **theirs}:
        if base.get(address) != theirs.get(address):
            outcome.pop(address, None)
            if address in theirs:
                outcome[address] = theirs[address]
    return outcome


def load(target: Map, kind: Kind, rows: list[dict[str, Any]], model: Rows, **options: object) -> None:
    model |= {tuple(row[name] for name in kind.address): row for row in rows}
    target.load(table_of(kind, rows), again=True, **options)


def delete(target: Map, kind: Kind, condition: list[tuple[str, str, int]], model: Rows) -> None:
    gone = [address for address, row in model.items() if holds(condition, row)]
    for address in gone:
        del model[address]
    report = target.delete(text_of(kind, condition))
    assert (report.rows_removed, report.rows_after) == (len(gone), len(model))
    assert bool(report.commit) == (bool(gone) and getattr(target, "at", None) is not None)


def maintained(pond: Pond, kind: Kind, act: str, before: int, target: Map, model: Rows) -> Rows:
    """The rows that the act leaves on the branch: those that it leaves of a map on main with the same rows."""
    twin = pond.create_map("twin", kind=kind, value="long" if kind.valued else None, store="layers")
    if model:
        twin.load(table_of(kind, list(model.values())))
    moment = f"1970-01-01T00:00:00.00{before}Z"
    removed = getattr(twin, act)(moment).rows_removed
    assert getattr(target, act)(moment).rows_removed == removed
    left = [dict(zip(columns_of(kind), numbers(row), strict=True)) for row in held(twin)]
    pond.drop_map("twin")
    return {tuple(row[name] for name in kind.address): row for row in left}


def numbers(row: tuple[Any, ...]) -> list[int]:
    """A row as the model has it."""
    return [
        int(cell[1:]) if isinstance(cell, str) else cell.microsecond // 1000 if isinstance(cell, datetime) else cell
        for cell in row
    ]


def run(pond: Pond, kind: Kind, story: list[Act]) -> None:
    pond.create_map("m", kind=kind, value="long" if kind.valued else None, store="layers")
    fix = pond.branch("fix", source="main")
    sides: list[Map] = [pond.map("m"), fix.map("m")]
    models: list[Rows] = [{}, {}]
    base: Rows = {}
    for act, side, about in [*story, ("merge", 0, None)]:
        if act == "delete":
            delete(sides[side], kind, about, models[side])
        elif act in ("condense", "retain"):
            models[1] = maintained(pond, kind, act, about, fix.map("m"), models[1])
        elif act != "merge":
            load(sides[side], kind, about, models[side], **({"commit": False} if act == "stage" else {}))
        else:
            models[side] = merge(pond, side, base, models)
            base = dict(models[1 - side])
        assert [held(target) for target in sides] == [shown(kind, model) for model in models], act
    pond.refs.delete_branch("fix")
    pond.drop_map("m")


def merge(pond: Pond, side: int, base: Rows, models: list[Rows]) -> Rows:
    """Merge into one side; first what is staged is committed."""
    for act in (
        lambda: pond.branch("fix").commit("staged"),
        lambda: pond.refs.merge(*(("fix", "main"), ("main", "fix"))[side], strategy=Strategy.SOURCE_WINS),
    ):
        with suppress(Invalid):  # there are no changes
            act()
    return merged(base, models[side], models[1 - side])


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_branches_lose_what_a_model_loses(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    with millpond.open(tmp_path_factory.mktemp("branches") / "pond") as pond:

        @settings(max_examples=EXAMPLES, deadline=None)
        @given(acts(Kind(kind)))
        def check(story: list[Act]) -> None:
            run(pond, Kind(kind), story)

        check()
