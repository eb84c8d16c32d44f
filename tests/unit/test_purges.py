"""Purges of all refs: branches, tags and merge bases lose the rows, and no file of the map has their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.maps.model.keyspaces import STAND_IN
from millpond.refs.named import HISTORY_DAYS, release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

KEY, VALUE = "ann-of-the-hill", "a-value-of-ann"
WHERE = f"key = '{KEY}'"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1_700_000_000_000)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        opened.create_map("people", kind="state", value="string", store="layers")
        yield opened


def put(target: Map, *keys: str, value: str = "v", **options: object) -> None:
    target.load([{"key": key, "value": value} for key in keys], **options)


def keys(target: Map) -> list[str]:
    return sorted(target.scan().read_all()["key"].to_pylist())


def files_with(pond: Pond, *texts: str) -> list[Path]:
    files = [path for path in (pond.folder / "snapshots").rglob("*") if path.is_file()]
    return [path for path in files if any(text.encode() in path.read_bytes() for text in texts)]


def fill(pond: Pond) -> str:
    """A tag and the merge bases of two branches have the row, one hides it by what is staged; the commit of the tag."""
    people = pond.map("people")
    put(people, KEY, value=VALUE)
    put(people, "bob")
    first = pond.refs.states.record().id
    pond.repository("pond").create_tag("v1", first)
    fix, staged = pond.branch("fix", source="main"), pond.branch("staged", source="main")
    put(people, "carl")
    put(fix.map("people"), "dora")
    put(staged.map("people"), KEY, value="hides it", commit=False)
    return first


@pytest.mark.usefixtures("process")
def test_no_ref_and_no_file_has_the_row_after_it_and_refs_work_on(pond: Pond, tmp_path: Path) -> None:
    first, people = fill(pond), pond.map("people")
    assert files_with(pond, KEY)
    assert files_with(pond, VALUE)
    assert not people.delete(WHERE, now=True).purged
    report = people.delete(WHERE, now=True, branches=True)
    assert (report.purged, report.left, report.rows_removed) == (True, (), 0)
    assert [line.partition(",")[0] for line in report.changed] == [
        "branch fix: 1 row", "branch staged: 1 row", f"a tag of commit {first[:12]}: 1 row",
    ]  # fmt: skip
    assert files_with(pond, KEY, VALUE, "hides it") == []
    refs = {"v1": ["bob"], "main": ["bob", "carl"], "fix": ["bob", "dora"], "staged": ["bob"]}
    assert {ref: keys(pond.at(ref).map("people")) for ref in refs} == refs
    with pytest.raises(NotFound):
        keys(pond.at("fix~1").map("people"))
    for at in map(pond.repository("pond").ref, refs):
        assert len(at.get("maps/people")) == at.stat("maps/people").size
    assert pond.verify(full=True).ok
    for branch in ("fix", "staged"):
        pond.branch(branch).merge()
    assert keys(people) == ["bob", "carl", "dora"]
    millpond.copy(pond.folder, tmp_path / "copy")
    with millpond.open(tmp_path / "copy") as copied:
        assert keys(copied.at("v1").map("people")) == ["bob"]


@pytest.mark.usefixtures("process")
def test_what_stands_in_is_branched_from_purged_again_and_goes_with_its_tag(pond: Pond, clock: ManualClock) -> None:
    fill(pond)
    people = pond.map("people")
    people.delete(WHERE, now=True, branches=True)
    anew = pond.branch("anew", source="v1")
    put(anew.map("people"), "eve", commit=False)
    put(anew.map("people"), "fay")
    assert keys(anew.map("people")) == ["bob", "eve", "fay"]
    anew.merge()
    assert keys(people) == ["bob", "carl", "eve", "fay"]
    assert people.delete("key = 'bob'", now=True, branches=True).purged
    assert (keys(pond.at("v1").map("people")), keys(anew.map("people"))) == ([], ["eve", "fay"])
    assert files_with(pond, "bob") == []
    repository = pond.repository("pond")
    repository.delete_tag("v1")
    for branch in ("fix", "staged", "anew"):
        repository.delete_branch(branch)
    clock.advance((HISTORY_DAYS + 1) * 86_400_000)
    put(people, "gil")
    pond.refs.states.record()
    release(pond.refs.states.repository.context)
    with pond.space.read() as tx:
        assert list(tx.keys(STAND_IN.range())) == []
    assert pond.verify(full=True).ok


def test_branches_of_a_map_that_is_in_a_shard_by_now_lose_the_rows(pond: Pond) -> None:
    fill(pond)
    pond.alter_map("people", store="shard")
    report = pond.map("people").delete(WHERE, now=True, branches=True)
    assert (report.rows_removed, report.purged, report.left) == (1, True, ())
    assert files_with(pond, KEY, VALUE) == []
    assert (keys(pond.map("people")), keys(pond.at("v1").map("people"))) == (["bob", "carl"], ["bob"])


def test_a_ref_where_the_map_has_no_such_field_is_named_and_stays(pond: Pond) -> None:
    pond.create_map("w", kind="state", value="temp long", store="layers").load([{"key": "a", "temp": 1}])
    pond.repository("pond").create_tag("v1", pond.refs.states.record().id)
    pond.alter_map("w", add={"gust": "long"}, default={"gust": 7})
    report = pond.map("w").delete("gust = 7", now=True, branches=True)
    assert (report.rows_removed, report.purged, len(report.left)) == (1, False, 1)
    assert "delete the tag" in report.left[0]
    assert pond.at("v1").map("w").get("a") == {"temp": 1}


def test_branches_are_purged_now_and_from_main(pond: Pond) -> None:
    fill(pond)
    with pytest.raises(Invalid) as refused:
        pond.map("people").delete(WHERE, branches=True)
    assert (refused.value.kind, refused.value.hint) == ("delete_branches", "purge now, too: now=True")
    with pytest.raises(Invalid) as refused:
        pond.branch("fix").map("people").delete(WHERE, now=True, branches=True)
    assert refused.value.kind == "ref_unsupported"
    assert KEY in keys(pond.map("people"))


def test_no_file_of_a_sharded_map_has_the_key_after_it(pond: Pond) -> None:
    sharded = pond.create_map("sharded", kind="state", value="string", store="shard")
    put(sharded, KEY, "bob", value=VALUE)
    sharded.freeze()
    put(sharded, KEY, "carl", value=VALUE)
    assert sharded.delete(WHERE, now=True).purged
    files = [path for folder in ("shards", "snapshots", "parts") for path in (pond.folder / folder).rglob("*.*")]
    assert not [path for path in files if path.is_file() and KEY.encode() in path.read_bytes()]
    assert keys(sharded) == ["bob", "carl"]


def test_sums_of_both_sides_still_add_up_after_it(pond: Pond) -> None:
    sales = pond.create_map("sales", kind="aggregate", value="n long count, total long sum", resolution="none")

    def add(target: Map, total: int, *names: str) -> None:
        target.load([{"key": name, "time": 5, "total": total} for name in names])

    add(sales, 7, KEY, "bob")
    fix = pond.branch("fix", source="main")
    add(fix.map("sales"), 6, "bob")
    add(sales, 5, "bob")
    assert sales.delete(WHERE, now=True, branches=True).purged
    fix.merge()
    assert sales.get("bob", at=5) == {"n": 3, "total": 18}
    assert keys(sales) == ["bob"]
