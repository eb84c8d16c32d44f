"""Branches of maps over a node: as in a folder, by the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import millpond
from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.refs.merges import MapMergeConflict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.client.pond import RemotePond
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.protocols import MapLike
    from tests.nodes.conftest import Served


@pytest.fixture
def pond(node: Served, tmp_path: Path) -> Iterator[RemotePond]:
    with millpond.open(node.url, client_snapshot_cache=str(tmp_path / "cache")) as opened:
        opened.create_map("m", kind="state", value="long", store="layers")
        yield cast("RemotePond", opened)


def put(target: Any, value: int, *keys: str, **options: object) -> LoadResult:
    return target.load([{"key": key, "value": value} for key in keys], **options)


def values(target: MapLike, *keys: str) -> list[object]:
    return target.lookup(list(keys)).to_pylist()


def test_a_branch_is_loaded_compared_and_merged(pond: RemotePond, node: Served) -> None:
    put(pond.map("m"), 1, "a", "b")
    fix = pond.branch("fix", source="main")
    loaded = put(fix.map("m"), 2, "b", "c")
    assert loaded.commit and loaded.rows == 2
    assert values(fix.map("m"), "a", "b", "c") == [1, 2, 2]
    assert values(pond.map("m"), "a", "b", "c") == [1, 1, None]
    assert fix.map("m").get("c") == 2
    assert pond.map("m").get("c") is None
    assert fix.sql("select sum(value) as total from m").to_pylist() == [{"total": 5}]
    assert sorted(fix.map("m").scan("value = 2").read_all()["key"].to_pylist()) == ["b", "c"]
    messages = [commit.message for commit in pond.refs.log("fix")]
    assert messages == [commit.message for commit in node.pond.refs.log("fix")] and messages[0] == "Load m"
    put(fix.map("m"), 2, "b", "c")
    assert len(list(pond.refs.log("fix"))) == len(messages), "the same data again is no commit"
    assert put(fix.map("m"), 5, "d", load_id="x").rows == 1
    assert put(fix.map("m"), 6, "d", load_id="x").rows == 1
    assert fix.map("m").get("d") == 5
    difference = pond.refs.diff("main", "fix", map="m")
    assert difference.select(["change", "key", "old", "new"]).to_pylist() == [
        {"change": "changed", "key": "b", "old": 1, "new": 2},
        {"change": "added", "key": "c", "old": None, "new": 2},
        {"change": "added", "key": "d", "old": None, "new": 5},
    ]
    assert fix.map("m").snapshot().lookup(["a", "d"]).to_pylist() == [1, 5]
    assert pond.map("m").snapshot().lookup(["a", "d"]).to_pylist() == [1, None]
    assert fix.map("m").snapshot().lookup(["a", "d"]).to_pylist() == [1, 5]
    fix.map("m").delete("key = 'd'")
    assert fix.map("m").info()["rows"] == 3
    fix.alter_map("m", retain="10d")
    fix.create_map("other", kind="state", value="long")
    put(fix.map("other"), 1, "z", commit=False)
    assert [opened.name for opened in fix.maps()] == ["m", "other"]
    fix.commit("staged")
    merged = fix.merge()
    assert values(pond.map("m"), "a", "b", "c") == [1, 2, 2]
    assert pond.map("other").get("z") == 1
    assert pond.at("main~1").map("m").get("b") == 1
    assert pond.history("m")["commit"][0].as_py() == merged.id
    pond.refs.restore("main~1", maps=["m"])
    assert values(pond.map("m"), "a", "b", "c") == [1, 1, None]
    assert node.pond.map("m").get("b") == 1


def test_conflicts_come_with_their_keys(pond: RemotePond) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "a")
    put(pond.map("m"), 3, "a")
    with pytest.raises(MapMergeConflict) as refused:
        fix.merge()
    assert refused.value.paths == ("maps/m/a",)
    fix.merge(strategy="source-wins")
    assert pond.map("m").get("a") == 2


def test_errors(pond: RemotePond) -> None:
    with pytest.raises(Invalid, match="main is the pond"):
        pond.branch("main")
    with pytest.raises(NotFound):
        pond.branch("nope")
    pond.branch("fix", source="main")
    with pytest.raises(AlreadyExists):
        pond.branch("fix", source="main")
    with pytest.raises(NotFound):
        pond.at("nope")
    with pytest.raises(Invalid) as refused:
        put(pond.at("main").map("m"), 1, "a")
    assert refused.value.kind == "ref_read_only"
    fix = pond.branch("fix")
    opened = fix.map("m")
    pond.refs.delete_branch("fix")
    with pytest.raises(NotFound):
        opened.get("a")
