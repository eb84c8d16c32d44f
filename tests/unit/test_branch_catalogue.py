"""Maps that are made, dropped, copied and renamed on branches, and how that comes to `main` and is taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Conflict, Denied, Invalid, NotFound
from millpond.refs.refs import Refs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond
    from millpond.refs.pond import RefPond


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as opened:
        opened.create_map("m", kind="state", value="long", store="layers")
        put(opened.map("m"), 1, "a", "b")
        opened.refs.states.record()
        yield opened


def put(target: Map, value: int, *keys: str) -> None:
    target.load([{"key": key, "value": value} for key in keys])


def values(target: Map, *keys: str) -> list[object]:
    return target.lookup(list(keys)).to_pylist()


def names(target: Pond | RefPond) -> list[str]:
    return [opened.name for opened in target.maps()]


def test_a_map_that_was_dropped_on_main_is_restored(pond: Pond) -> None:
    held = pond.map("m")
    pond.drop_map("m")
    pond.refs.restore("main~1", maps=["m"])
    put(pond.map("m"), 2, "b")
    assert values(pond.map("m"), "a", "b") == values(held, "a", "b") == [1, 2]
    assert pond.history("m")["message"].to_pylist() == ["Load m", "Restore m from main~1", "Load m"]
    pond.drop_map("m")
    pond.create_map("m", kind="state", value="string", store="layers")
    pond.refs.restore("main~1", maps=["m"])
    assert values(pond.map("m"), "a", "b") == [1, 2], "the other map of its name went"
    with pytest.raises(NotFound):
        pond.refs.restore("main~1", maps=["nothing"])


def test_a_map_is_dropped_on_a_branch_and_by_its_merge_on_main(pond: Pond) -> None:
    pond.create_map("other", kind="state", value="long", store="layers")
    fix, early = pond.branch("fix", source="main"), pond.branch("early", source="main")
    fix.drop_map("M")
    assert names(fix) == ["other"]
    for act in (lambda: fix.map("m"), lambda: fix.drop_map("m")):
        with pytest.raises(NotFound):
            act()
    assert values(pond.map("m"), "a") == [1]
    held, other = pond.map("m"), pond.map("other")
    merged = fix.merge()
    assert names(pond) == ["other"]
    assert other.get("a") is None
    with pytest.raises(NotFound):
        held.get("a")
    assert values(pond.at(f"{merged.id}~1").map("m"), "a") == [1], "commits stay what they are"
    put(early.map("m"), 2, "a")
    with pytest.raises(Invalid, match="both sides changed what the map is"):
        early.merge()
    pond.refs.revert(merged.id, parent_number=1)
    assert values(pond.map("m"), "a", "b") == [1, 1]
    early.merge()
    assert values(pond.map("m"), "a", "b") == [2, 1]
    assert pond.log.position()[0] == len(pond.log.entries(0))


def test_a_map_that_both_sides_changed_is_not_dropped(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    fix.drop_map("m", commit=False)
    assert names(fix) == [] and names(pond.at("fix")) == ["m"]
    fix.commit("gone")
    put(pond.map("m"), 2, "a")
    with pytest.raises(Invalid, match="both sides changed what the map is"):
        fix.merge()
    assert values(pond.map("m"), "a") == [2]


def test_a_map_of_another_kind_takes_the_place_of_one_that_is_dropped(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    fix.drop_map("m", commit=False)
    fix.create_map("m", kind="temporal_state", value="string", commit=False)
    fix.map("m").load([{"key": "a", "effective_time": "2020-01-01T00:00Z", "value": "x"}])
    again = fix.create_map("m", kind="temporal_state", value="string", exist_ok=True)
    with pytest.raises(AlreadyExists):
        fix.create_map("m", kind="state", value="string", exist_ok=True)
    assert again.get("a") == "x"
    held = pond.map("m")
    fix.merge()
    with pytest.raises(NotFound):
        held.get("a")
    assert pond.map("m").get("a") == "x"
    assert [entry.kind for entry in pond.log.entries(0)][-3:] == ["drop", "create", "load"]
    pond.refs.revert("main", parent_number=1)
    assert pond.map("m").get("a") == 1


def test_a_map_that_both_sides_restored_is_merged_by_key(pond: Pond) -> None:
    pond.drop_map("m")
    fix = pond.branch("fix", source="main")
    for branch, value in (("main", 5), ("fix", 6)):
        pond.refs.restore("main~1" if branch == "main" else "fix~1", branch, maps=["m"])
        put(pond.map("m") if branch == "main" else fix.map("m"), value, branch)
    fix.merge()
    assert values(pond.map("m"), "a", "b", "main", "fix") == [1, 1, 5, 6]
    pond.drop_map("m")
    pond.refs.restore("main~1", maps=["m"])
    with pytest.raises(Invalid, match="no changes"):
        pond.refs.revert("main~1")


def test_a_refused_merge_says_in_what_both_maps_differ(pond: Pond) -> None:
    fields = ", ".join(f"field_of_a_long_name_{number} long" for number in range(9))
    pond.create_map("wide", kind="state", value=fields, store="layers")
    fix = pond.branch("fix", source="main")
    fix.alter_map("wide", add={"gust": "long"})
    pond.alter_map("wide", add={"gust": "string"})
    with pytest.raises(Invalid, match="to_theirs=drop gust, add gust long"):
        fix.merge()


def test_maps_that_were_made_apart_are_told_from_each_other_and_one_of_them_stays(pond: Pond) -> None:
    left, right = pond.branch("left", source="main"), pond.branch("right", source="main")
    for side in (left, right):
        put(side.create_map("twice", kind="state", value="long"), 1, side.ref)
    with pytest.raises(Invalid, match="made twice") as refused:
        left.merge(into="right")
    shown = refused.value.values
    assert shown["ours"] == shown["theirs"]
    assert shown["our_incarnation"] == right.map("twice").definition.incarnation
    assert shown["their_incarnation"] == left.map("twice").definition.incarnation
    pond.refs.restore("right", "left", maps=["twice"])
    put(left.map("twice"), 1, "left")
    left.merge(into="right")
    assert values(right.map("twice"), "left", "right") == [1, 1]


def test_a_drop_by_a_merge_needs_the_right_to_drop(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    fix.drop_map("m")

    def need(right: str, *maps: str) -> None:
        if right == "admin":
            raise Denied("not you", kind="denied", maps=", ".join(maps))

    with pytest.raises(Denied, match="maps=m"):
        Refs(pond, need).merge("fix")
    assert names(pond) == ["m"]


def test_copies_and_renamings_come_by_a_merge(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "b")
    fix.catalogue.copy("m", "twin", commit=False)
    fix.catalogue.rename("m", "n")
    put(fix.map("twin"), 3, "c")
    assert names(fix) == ["n", "twin"]
    assert values(fix.map("n"), "a", "b", "c") == [1, 2, None]
    assert values(fix.map("twin"), "a", "b", "c") == [1, 2, 3]
    assert pond.history("n", "fix")["message"].to_pylist() == ["Rename m to n", "Load m", "Load m"]
    with pytest.raises(AlreadyExists):
        fix.catalogue.copy("n", "twin")
    with pytest.raises(NotFound):
        fix.catalogue.rename("m", "l")
    assert names(pond) == ["m"]
    fix.merge()
    assert names(pond) == ["n", "twin"]
    assert values(pond.map("n"), "a", "b", "c") == [1, 2, None]
    pond.refs.delete_branch("fix")
    pond.collect_garbage(grace="1m")
    assert values(pond.map("twin"), "a", "b", "c") == [1, 2, 3]
    empty = pond.branch("late", source="main")
    empty.create_map("empty", kind="state", retain="10d", retain_by="update_time")
    assert empty.catalogue.rename("empty", "none").retain_by == "update_time"
    assert empty.map("none").get("a") is None


def test_a_branch_converts_no_map(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    with pytest.raises(Invalid, match="not done at a ref"):
        fix.alter_map("m", store="shard")
    assert fix.alter_map("m", store="layers", retain="5d").definition.retain_ms == 5 * 86_400_000


def test_a_load_before_a_drop_is_published_makes_it_a_conflict(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    fix.drop_map("m")
    late = list[str]()

    def load_late(right: str, *_: str) -> None:
        if right == "admin" and not late:
            late.append(right)
            put(pond.map("m"), 7, "z")

    with pytest.raises((Invalid, Conflict)):
        Refs(pond, load_late).merge("fix")
    assert values(pond.map("m"), "z") == [7]


def test_maps_are_objects_as_they_are_by_then(pond: Pond) -> None:
    repository = pond.repository("pond")
    main, ref = repository.branch("main"), repository.ref("main")
    before = main.stat("maps/m").checksum
    put(pond.map("m"), 2, "a")
    assert main.stat("maps/m").checksum == ref.stat("maps/m").checksum != before
    pond.create_map("new", kind="state", value="long", store="layers")
    assert [entry.path for entry in main.list().results] == ["maps/m", "maps/new"]
    pond.drop_map("new")
    assert [batch["key"].to_pylist() for batch in ref.entries()] == [[b"maps/m"]]
    pond.drop_map("m")
    assert ref.head().message == main.head().message == "Drop m"
    assert [commit.message for commit in main.log(limit=3)] == ["Drop m", "Drop new", "Create new"]
    assert repository.ref("main~1").stat("maps/m").path == "maps/m"
