"""Deletes in both stores, against a dictionary of addresses: any loads, deletes and conversions in any order."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.maps.model.definition import Kind
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from millpond import Map
    from tests.s3_server import S3Server

Row = dict[str, Any]
Rows = dict[tuple[Any, ...], Row]
KINDS = ("state", "temporal_state", "ranged_state", "temporal_ranged_state", "session")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NUMBERS = st.integers(0, 6)
EXAMPLES = examples(5, 150)


def columns_of(kind: Kind) -> list[str]:
    return [*kind.address, *(["value"] if kind.valued else [])]


def loads(kind: Kind) -> st.SearchStrategy[list[Row]]:
    def row(numbers: list[int]) -> Row:
        made = dict(zip(columns_of(kind), numbers, strict=True))
        for first, last in (("key_start", "key_end"), ("start", "end")):
            if first in made:
                made[first], made[last] = sorted((made[first], made[last]))
        return made

    width = len(columns_of(kind))
    return st.lists(st.lists(NUMBERS, min_size=width, max_size=width).map(row), min_size=1, max_size=6)


def conditions(kind: Kind) -> st.SearchStrategy[list[tuple[str, str, int]]]:
    one = st.tuples(st.sampled_from(columns_of(kind)), st.sampled_from(sorted(COMPARISONS)), NUMBERS)
    return st.lists(one, min_size=1, max_size=2)


def acts(kind: Kind) -> st.SearchStrategy[list[tuple[str, Any]]]:
    act = st.one_of(
        st.tuples(st.just("load"), loads(kind)),
        st.tuples(st.just("delete"), st.tuples(conditions(kind), st.booleans())),
        st.tuples(st.just("convert"), st.none()),
    )
    return st.lists(act, min_size=1, max_size=8)


def text_of(kind: Kind, condition: list[tuple[str, str, int]]) -> str:
    return " and ".join(f"{name} {comparison} {literal(name, value)}" for name, comparison, value in condition)


def literal(name: str, value: int) -> str:
    if name == "key":
        return f"'k{value}'"
    return f"'1970-01-01T00:00:00.00{value}Z'" if name in ("effective_time", "start", "end") else str(value)


def table_of(kind: Kind, rows: list[Row]) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in columns_of(kind)}
    for name, values in columns.items():
        if name == "key":
            columns[name] = [f"k{value}" for value in values]
        elif name in ("effective_time", "start", "end"):
            columns[name] = pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    return pa.table(columns)


def holds(condition: list[tuple[str, str, int]], row: Row) -> bool:
    return all(COMPARISONS[comparison](row[name], value) for name, comparison, value in condition)


def held(pond_map: Map) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, (row.values() for batch in pond_map.scan() for row in batch.to_pylist())))


def shown(kind: Kind, rows: Rows) -> list[tuple[Any, ...]]:
    table = table_of(kind, list(rows.values())).to_pylist() if rows else []
    return sorted(tuple(row.values()) for row in table)


def run(pond: millpond.Pond, kind: Kind, story: list[tuple[str, Any]], stores: Sequence[str]) -> None:
    """Tell a story of a map in each of some stores; they are converted where there are two."""
    value = "long" if kind.valued else None
    both = [pond.create_map(f"m{number}", kind=kind, value=value, store=store)
            for number, store in enumerate(stores)]  # fmt: skip
    model: Rows = {}
    for act, about in story:
        if act == "load":
            model |= {tuple(row[name] for name in kind.address): row for row in about}
            for pond_map in both:
                pond_map.load(table_of(kind, about), again=True)
        elif act == "delete":
            condition, now = about
            gone = [address for address, row in model.items() if holds(condition, row)]
            for address in gone:
                del model[address]
            for pond_map in both:
                report = pond_map.delete(text_of(kind, condition), now=now)
                assert (report.rows_removed, report.rows_after) == (len(gone), len(model))
                assert report.purged == (now and not report.left)
        elif len(stores) == 2:
            for pond_map in both:
                other = "layers" if pond_map.definition.store == "shard" else "shard"
                pond.alter_map(pond_map.name, store=other)
        assert [held(pond_map) for pond_map in both] == [shown(kind, model)] * len(stores)
    for pond_map in both:
        pond.drop_map(pond_map.name)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_both_stores_lose_the_rows_that_a_model_loses(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    with millpond.open(tmp_path_factory.mktemp("deletes") / "pond") as pond:

        @settings(max_examples=EXAMPLES, deadline=None)
        @given(acts(Kind(kind)))
        def check(story: list[tuple[str, Any]]) -> None:
            run(pond, Kind(kind), story, ("shard", "layers"))

        check()


@pytest.mark.usefixtures("process")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_map_in_a_bucket_loses_them_too(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:  # fmt: skip
    for name, said in s3_server.environment.items():
        monkeypatch.setenv(name, said)
    bucket = s3_server.make_bucket(f"deletes-{os.getpid()}-{kind.replace('_', '-')}")
    with millpond.open(f"{bucket}/pond", cache=tmp_path) as pond:

        @settings(max_examples=examples(3, 30), deadline=None)
        @given(acts(Kind(kind)))
        def check(story: list[tuple[str, Any]]) -> None:
            run(pond, Kind(kind), story, ("layers",))

        check()
