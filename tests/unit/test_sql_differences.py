"""The keys of a map that differ between two refs, as a table of SQL: the rows and columns of the difference itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Pond
    from millpond.maps.protocols import MapLike


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as opened:
        opened.create_map("m", kind="state", value="long", store="layers")
        yield opened


def put(target: MapLike, value: int, *keys: str, **options: Any) -> None:
    target.load([{"key": key, "value": value} for key in keys], **options)


def test_differences_are_a_table_of_sql(pond: Pond) -> None:
    put(pond.map("m"), 1, "a", "b")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "b", "c")
    put(pond.map("m"), 3, "d")
    put(fix.map("m"), 4, "e", commit=False)
    calls: dict[str, dict[str, Any]] = {
        "'m', 'main', 'fix'": {"left": "main", "right": "fix"}, "'M','fix'": {"left": "fix"},
        "'m', 'main', 'fix', three_dots := TRUE": {"left": "main", "right": "fix", "three_dots": True},
        "'m', 'fix', 'fix', three_dots => false": {"left": "fix", "right": "fix"},
    }  # fmt: skip
    for call, diff in calls.items():
        expected = pond.refs.diff(map="m", **diff)
        for door in (pond, fix):
            assert door.sql(f"select * from map_diff({call}) order by key").equals(expected), call
    joined = """
        select d.key, d.new, m.value, e.new as staged from MAP_DIFF ('m', 'main', 'fix') d
        left join m using (key) left join map_diff('m', 'fix') e on e.change = 'added'
        where d.change <> 'removed' and d.new = 2 order by 1
    """
    assert pond.sql(joined).to_pylist() == [
        {"key": "b", "new": 2, "value": 1, "staged": 4}, {"key": "c", "new": 2, "value": None, "staged": 4},
    ]  # fmt: skip
    assert pond.sql("select 'map_diff(' as text").to_pylist() == [{"text": "map_diff("}]


@pytest.mark.parametrize(("call", "kind"), [
    ("'nothing', 'main', 'fix'", "map_not_found"), ("'m', 'main', 'nothing'", "ref_not_found"),
    ("m, 'main', 'fix'", "sql_map_diff"), ("'m'", "sql_map_diff"), ("'m', 'a', 'b', 'c'", "sql_map_diff"),
    ("", "sql_map_diff"), ("'shard', 'main', 'fix'", "refs_store"),
])  # fmt: skip
def test_differences_in_sql_that_cannot_be_are_refused(pond: Pond, call: str, kind: str) -> None:
    pond.create_map("shard", kind="state", value="long", store="shard")
    pond.branch("fix", source="main")
    with pytest.raises(MillpondError) as refused:
        pond.sql(f"select * from map_diff({call})")
    assert refused.value.kind == kind


def test_differences_of_a_map_that_was_made_anew_are_text_in_sql(pond: Pond) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    fix.drop_map("m")
    fix.create_map("m", kind="temporal_state", value="string")
    fix.map("m").load([{"key": "a", "effective_time": 1_600_000_000_000, "value": "x"}])
    table = pond.sql("select * from map_diff('m', 'main', 'fix') order by change desc")
    assert table.select(["change", "old", "new"]).to_pylist() == [
        {"change": "removed", "old": "1", "new": None}, {"change": "added", "old": None, "new": "x"},
    ]  # fmt: skip
    assert pond.refs.diff("main", "fix", map="m").column_names == table.column_names
