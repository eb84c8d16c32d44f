"""Branches of layered maps: loads on them, commits, merges by key, and what stays of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Corrupt, Denied, Invalid, NotFound
from millpond.maps.layered.maintenance import collect_files, fold_due
from millpond.maps.snapshots.named import named_in
from millpond.refs.merges import KeyResolution, MapMergeConflict
from millpond.refs.named import HISTORY_DAYS, release
from millpond.versions.merges import Resolution, Take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1_700_000_000_000)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        opened.create_map("m", kind="state", value="long", store="layers")
        opened.create_map("n", kind="temporal_state", value="long", store="layers")
        yield opened


def put(target: Map, value: int, *keys: str, **options: object) -> None:
    target.load([{"key": key, "value": value} for key in keys], **options)


def values(target: Map, *keys: str) -> list[object]:
    return target.lookup(list(keys)).to_pylist()  # type: ignore[no-any-return]


def test_a_load_on_a_branch_is_a_commit_that_others_do_not_see(pond: Pond) -> None:
    put(pond.map("m"), 1, "a", "b")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "b", "c")
    assert values(fix.map("m"), "a", "b", "c") == [1, 2, 2]
    assert values(pond.map("m"), "a", "b", "c") == [1, 1, None]
    assert fix.map("m").get("c") == 2
    assert fix.sql("select sum(value) as total from m").to_pylist() == [{"total": 5}]
    assert sorted(fix.map("m").scan("value = 2").read_all()["key"].to_pylist()) == ["b", "c"]
    assert [commit.message for commit in pond.refs.log("fix")][::2] == ["Load m", "Load m"]
    put(fix.map("m"), 2, "b", "c")
    assert len(list(pond.refs.log("fix"))) == 4, "the same data again is no commit"


def test_staged_loads_of_several_maps_are_one_commit(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 1, "a", commit=False)
    fix.map("n").load([{"key": "a", "effective_time": 5_000_000_000_000, "value": 2}], commit=False)
    assert values(fix.map("m"), "a") == [1]
    assert values(pond.at("fix").map("m"), "a") == [None], "a commit is asked, and there is none yet"
    commit = fix.commit("both")
    assert pond.refs.states.maps(commit.id)["m"].version == pond.refs.states.maps(commit.id)["n"].version == 1
    with pytest.raises(Invalid, match="no changes"):
        fix.commit()
    merged = fix.merge()
    assert values(pond.map("m"), "a") == [1]
    assert values(pond.at(merged.id).map("m"), "a") == [1]
    assert [entry.kind for entry in pond.log.entries(0)].count("load") == 1, "one entry for all maps"


def test_a_resolution_of_a_range_by_no_number_fits_nothing(pond: Pond) -> None:
    ranged = pond.create_map("r", kind="ranged_state", value="long", store="layers").definition
    for key, fits in (("5", True), ("-5", False), ("--5", False), ("²", False), ("9" * 5000, False), ("x", False)):
        resolution = KeyResolution.of(Resolution(Take.SOURCE, path=f"maps/r/{key}"))
        assert resolution is not None and resolution.fits(ranged, {"key_start": 1, "key_end": 9}) is fits, key


def test_refs_name_states(pond: Pond, clock: ManualClock) -> None:
    put(pond.map("m"), 1, "a")
    pond.refs.states.record()
    pond.repository("pond").create_tag("v1", "main")
    clock.advance(DAY_MS)
    put(pond.map("m"), 2, "a")
    pond.refs.states.record()
    clock.advance(DAY_MS)
    put(pond.map("m"), 3, "a")
    for ref, value in (("main", 3), ("main~1", 2), ("main~2", 1), ("v1", 1), ("2023-11-16T00:00Z", 2)):
        assert values(pond.at(ref).map("m"), "a") == [value], ref
    clock.advance(700)
    put(pond.map("m"), 4, "a")
    for ref, value in (("2023-11-16T22:13:20.699Z", 3), ("2023-11-16T22:13:20.700Z", 4)):
        assert values(pond.at(ref).map("m"), "a") == [value], "not before its commit, which was in the same second"
    for ref in ("main~9", "nothing", "feature/x", "2001-01-01T00:00Z"):
        with pytest.raises(NotFound):
            pond.at(ref)
    with pytest.raises(Invalid, match="not a ref"):
        pond.at("main~x")
    with pytest.raises(Invalid, match="only read"):
        put(pond.at("v1").map("m"), 4, "a")


def test_names_of_branches(pond: Pond) -> None:
    with pytest.raises(Invalid, match="not a name for a branch"):
        pond.branch("feature/x", source="main")
    with pytest.raises(NotFound):
        pond.branch("fix")
    with pytest.raises(Invalid, match="main is the pond itself"):
        pond.branch("main")
    pond.branch("fix", source="main")
    with pytest.raises(AlreadyExists):
        pond.branch("fix", source="main")


def test_conflicts_are_table_by_key_and_resolved_by_map_prefix_or_key(pond: Pond) -> None:
    put(pond.map("m"), 0, "a1", "a2", "b1", "same")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 1, "a1", "a2", "b1", "same", "mine")
    put(pond.map("m"), 2, "a1", "a2", "b1")
    put(pond.map("m"), 1, "same")
    with pytest.raises(MapMergeConflict) as refused:
        fix.merge()
    assert sorted(refused.value.paths) == ["maps/m/a1", "maps/m/a2", "maps/m/b1"]
    assert values(pond.map("m"), "a1", "mine") == [2, None], "nothing is merged then"
    rules = [Resolution(Take.SOURCE, path="maps/m/a1"), Resolution(Take.BASE, prefix="maps/m/a"),
             Resolution(Take.DESTINATION, path="maps/m")]  # fmt: skip
    fix.merge(resolutions=rules)
    assert values(pond.map("m"), "a1", "a2", "b1", "same", "mine") == [1, 0, 2, 1, 1]


def test_criss_cross_merges_bring_each_change_once(pond: Pond) -> None:
    put(pond.map("m"), 0, "a", "b")
    left, right = pond.branch("left", source="main"), pond.branch("right", source="main")
    put(left.map("m"), 1, "a")
    put(right.map("m"), 2, "b")
    pond.refs.merge("left", "right")
    pond.refs.merge("right", "left")
    put(left.map("m"), 3, "a")
    put(right.map("m"), 4, "b")
    pond.refs.merge("left", "right")
    pond.refs.merge("right", "left")
    for branch in (left, right):
        assert values(branch.map("m"), "a", "b") == [3, 4]


def test_revert_cherry_pick_restore_and_reset(pond: Pond) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "a", "b")
    picked = next(pond.refs.log("fix"))
    put(fix.map("m"), 3, "c")
    pond.refs.cherry_pick(picked.id)
    assert values(pond.map("m"), "a", "b", "c") == [2, 2, None]
    pond.refs.revert("main")
    assert values(pond.map("m"), "a", "b") == [1, None]
    pond.refs.restore("fix", maps=["m"])
    assert values(pond.map("m"), "a", "b", "c") == [2, 2, 3]
    put(fix.map("m"), 9, "a", commit=False)
    pond.refs.reset("fix")
    assert values(fix.map("m"), "a") == [2]
    pond.refs.reset("fix", "fix~2")
    assert values(fix.map("m"), "a") == [1]
    with pytest.raises(Invalid, match="not moved back"):
        pond.refs.reset("main", "main~1")
    with pytest.raises(NotFound, match="not there at this ref"):
        pond.refs.restore("fix", maps=["other"])


def test_maps_are_made_on_branches_and_come_by_merges(pond: Pond) -> None:
    fix = pond.branch("fix", source="main")
    fix.create_map("fresh", kind="state", value="string")
    fix.map("fresh").load([{"key": "k", "value": "v"}])
    with pytest.raises(NotFound):
        pond.map("fresh")
    fix.merge()
    assert pond.map("fresh").get("k") == "v"
    other = pond.branch("other", source="main")
    pond.create_map("apart", kind="state", value="long", store="layers").load([{"key": "k", "value": 1}])
    other.create_map("apart", kind="state", value="string").load([{"key": "k", "value": "x"}])
    with pytest.raises(Invalid, match="the map was made twice, apart") as refused:
        other.merge()
    assert "long" in str(refused.value.values["ours"]) and "string" in str(refused.value.values["theirs"])


def test_files_that_commits_name_stay_until_the_history_is_over(pond: Pond, clock: ManualClock) -> None:
    layered = pond.map("m")
    layers = layered.layers
    assert layers is not None
    put(layered, 1, "a")
    first = pond.refs.states.record().id
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "a")
    for value in range(3, 9):
        put(layered, value, "b")
    fold_due(layers, everything=True)
    clock.advance(DAY_MS)
    layered.close()
    collect_files(layers)
    assert values(pond.at(first).map("m"), "a", "b") == [1, None]
    assert values(pond.at("main~1").map("m"), "a", "b") == [1, 7]
    assert values(fix.map("m"), "a", "b") == [2, None]
    old = pond.at("fix")
    pond.refs.delete_branch("fix")
    with pytest.raises(NotFound):
        values(fix.map("m"), "a")
    assert values(old.map("m"), "a") == [2]
    clock.advance((HISTORY_DAYS + 1) * DAY_MS)
    put(layered, 9, "b")
    pond.refs.states.record()
    pond.repository("pond").collect()
    assert release(pond.repository("pond").context) == 0
    old.close()
    fix.close()
    collect_files(layers)
    with pytest.raises((NotFound, Corrupt)):
        values(pond.at(old.ref).map("m"), "a")
    assert values(pond.at("main~1").map("m"), "a", "b") == [1, 8]
    with pond.space.read() as tx:
        assert len(named_in(tx, f"m.{layered.definition.incarnation}")) == 2


def test_a_map_that_is_dropped_stays_where_commits_name_it(pond: Pond, clock: ManualClock) -> None:
    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    pond.drop_map("m")
    clock.advance(DAY_MS)
    pond.catalogue.finish_drops()
    assert values(fix.map("m"), "a") == [1]
    assert "m" not in pond.refs.states.maps(pond.refs.states.record().id)


def test_the_objects_of_maps_are_only_read_as_objects(pond: Pond) -> None:
    put(pond.map("m"), 1, "a")
    pond.branch("fix", source="main")
    repository = pond.repository("pond")
    branch = repository.branch("fix")
    assert [entry.path for entry in repository.ref("main").list().results] == ["maps/m", "maps/n"]
    assert b'"map":"m"' in repository.ref("main").get("maps/m")
    for write in (
        lambda: branch.put("maps/m", b"x"), lambda: branch.delete("maps/m"), lambda: branch.staging.delete_prefix("ma"),
        lambda: branch.staging.copy_prefix("maps/", "maps/x/"), lambda: branch.staging.set_metadata("maps/m", {}),
        lambda: branch.staging.move("maps/m", "m"),
    ):  # fmt: skip
        with pytest.raises(Denied, match="not written as objects"):
            write()
    branch.put("files/a.csv", b"1")
    put(pond.branch("fix").map("m"), 2, "b")
    put(pond.map("m"), 3, "c")
    repository.branch("main").merge("fix")
    assert values(pond.map("m"), "a", "b", "c") == [1, 2, 3]
    assert repository.ref("main").get("files/a.csv") == b"1"
    assert values(pond.at("main").map("m"), "a", "b", "c") == [1, 2, 3]


def test_a_load_on_main_between_the_look_and_the_merge_is_not_lost(pond: Pond) -> None:
    from millpond.kernel.steps import listening

    put(pond.map("m"), 1, "a")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "b")
    loaded = []

    def load(step: str) -> None:
        if step == "versions.built" and len(loaded) < 2:
            loaded.append(step)
            if len(loaded) == 2:
                put(pond.map("m"), 3, "c")

    with listening(load):
        put(pond.map("m"), 4, "d")
        fix.merge()
    assert values(pond.map("m"), "a", "b", "c", "d") == [1, 2, 3, 4]


def test_differences_are_a_table(pond: Pond) -> None:
    put(pond.map("m"), 1, "a", "b")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "b", "c")
    put(pond.map("m"), 3, "d")
    fix.create_map("s", kind="session", commit=False)
    fix.map("s").load([{"key": "x", "start": 1_600_000_000_000, "end": 1_600_000_000_001}], commit=False)
    table = pond.refs.diff("main", "fix", map="m")
    assert table.to_pydict() == {
        "map": ["m"] * 3, "change": ["changed", "added", "removed"], "key": ["b", "c", "d"], "old": [1, None, 3],
        "new": [2, 2, None],
    }  # fmt: skip
    assert pond.refs.diff("main", "fix", map="m", three_dots=True)["key"].to_pylist() == ["b", "c"]
    assert pond.refs.diff("main", "fix")["new"].to_pylist() == ["2", "2", None]
    staged = pond.refs.diff("fix")
    assert staged["map"].to_pylist() == ["s"] and "start" in staged.column_names
    assert pond.refs.diff("fix", "fix").num_rows == 0
    with pytest.raises(NotFound):
        pond.refs.diff("main", "fix", map="nothing")


def test_each_load_on_main_is_a_commit_with_its_time(pond: Pond, clock: ManualClock) -> None:
    for number, source in enumerate(("x.csv", "y.csv", "z.csv")):
        clock.advance(60_000)
        put(pond.map("m"), number, "a", source=source)
    clock.advance(60_000)
    pond.map("n").load([{"key": "a", "effective_time": 5_000_000_000_000, "value": 2}])
    table = pond.history("m")
    assert table["source"].to_pylist() == ["z.csv", "y.csv", "x.csv"]
    assert table["rows"].to_pylist() == [1, 1, 1]
    assert table["version"].to_pylist() == [3, 2, 1]
    assert [moment.minute - table["time"][2].as_py().minute for moment in table["time"].to_pylist()] == [2, 1, 0]
    assert values(pond.at("main~1").map("m"), "a") == [2]
    assert values(pond.at("main~2").map("m"), "a") == [1]
    assert len(list(pond.refs.log())) == 5, "the first of all, and four loads"


def test_files_are_loaded_on_a_branch_as_one_commit(pond: Pond, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("key,value\na,1\nb,x\n")
    fix = pond.branch("fix", source="main")
    result = fix.load_files(tmp_path / "m.csv", "m", max_rejects=1)
    assert (result.rows, result.rejected, result.parts) == (1, 1, 1)
    assert fix.load_files(tmp_path / "m.csv", "m", max_rejects=1).duplicate_parts == 1
    assert values(fix.map("m"), "a", "b") == [1, None]
    assert next(pond.refs.log("fix")).message.startswith("Load m from ")


def test_a_load_with_an_id_is_entered_once_on_its_branch(pond: Pond, tmp_path: Path) -> None:
    fix = pond.branch("fix", source="main")
    rows = [{"key": "a", "value": 1}]
    first = fix.map("m").load(rows, load_id="nightly-1")
    put(fix.map("m"), 2, "a")
    again = fix.map("m").load(rows, load_id="nightly-1")
    assert (again.load, again.rows, again.position, again.commit) == ("nightly-1", 1, first.position, first.commit)
    assert values(fix.map("m"), "a") == [2], "it does not come on top again"
    assert values(pond.map("m"), "a") == [None]
    assert fix.map("m").load(rows, load_id="nightly-2").parts == 1, "another load of the same rows counts"
    assert values(fix.map("m"), "a") == [1]
    (tmp_path / "a.csv").write_text("key,value\nb,7\n")
    pond.loading.void("nightly-3")
    assert fix.load_files(tmp_path / "a.csv", "m", load_id="nightly-3").rows == 0, "the id was voided"
    assert values(fix.map("m"), "b") == [None]
    with pytest.raises(Invalid, match="letters, digits"):
        fix.map("m").load(rows, load_id="no id")
    with pytest.raises(Invalid, match="is committed"):
        fix.map("m").load(rows, load_id="nightly-4", commit=False)
    (entry,) = [entry for entry in pond.log.entries(0) if entry.body.get("load") == "nightly-1"]
    assert (entry.maps, entry.body["branch"], entry.body["commit"]) == ((), "fix", first.commit)


def test_rows_are_deleted_on_a_branch_as_one_commit(pond: Pond) -> None:
    put(pond.map("m"), 1, "a", "b", "c")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 9, "d", commit=False)
    report = fix.map("m").delete("key = 'a' or value = 9")
    assert (report.rows_removed, report.rows_after, report.purged) == (2, 2, False)
    head = next(pond.refs.log("fix"))
    assert (head.id, head.metadata["rows_removed"], head.metadata["where"]) == (
        report.commit, "2", "key = 'a' or value = 9",
    )  # fmt: skip
    assert values(fix.map("m"), "a", "b", "d") == [None, 1, None]
    assert values(pond.map("m"), "a") == [1], "others do not see it"
    assert fix.map("m").delete("key = 'a'").commit == "", "no such rows, no commit"
    put(pond.map("m"), 5, "b")
    fix.merge()
    assert values(pond.map("m"), "a", "b", "c") == [None, 5, 1]
    with pytest.raises(Invalid, match="a ref is only read"):
        pond.at("main~1").map("m").delete("key = 'a'")


def test_a_purge_goes_through_branches_tags_and_past_commits(pond: Pond) -> None:
    main = pond.map("m")
    put(main, 1, "a", "b")
    first = pond.refs.states.record().id
    fix = pond.branch("fix", source="main")
    put(main, 2, "b")
    put(fix.map("m"), 3, "c")
    pond.repository("pond").create_tag("v1", first)
    report = main.delete("key = 'a'", now=True)
    assert (report.rows_removed, report.purged) == (1, False)
    assert {line.partition("; ")[2].partition(":")[0] for line in report.left} == {
        f"a tag of commit {first[:12]}", "branch fix",
    }  # fmt: skip
    left = fix.map("m").delete("key = 'a'", now=True).left
    assert ["a tag of" in line for line in left] == [True]
    pond.repository("pond").delete_tag("v1")
    (left,) = main.delete("key = 'a'", now=True).left
    assert "the merge base of fix and main" in left
    fix.merge()
    assert main.delete("key = 'a'", now=True).purged
    assert values(main, "a", "b", "c") == [None, 2, 3]
    assert values(fix.map("m"), "a", "b", "c") == [None, 1, 3]
    with pytest.raises(NotFound) as refused:
        values(pond.at(first).map("m"), "a")
    assert refused.value.kind == "ref_collected"
    put(fix.map("m"), 4, "d")
    fix.merge()
    assert values(main, "b", "d") == [2, 4]
    assert main.delete("key = 'c' and value = 9", now=True).rows_removed == 0


def test_a_purge_of_hidden_rows_leaves_none_in_files(pond: Pond) -> None:
    main = pond.map("m")
    put(main, 1, "a")
    fix = pond.branch("fix", source="main")
    put(fix.map("m"), 2, "a")
    put(main, 3, "a")
    pond.refs.states.record()
    fix.map("m").delete("value = 1", now=True)
    report = main.delete("value = 1", now=True)
    assert report.rows_removed == 0
    assert ["the merge base" in line for line in report.left] == [True]
    fix.merge(strategy="source-wins")
    assert main.delete("value = 1", now=True).purged
    assert values(main, "a") == [2]


@pytest.mark.usefixtures("process")
def test_fields_change_on_a_branch_and_come_by_its_merge(pond: Pond) -> None:
    pond.create_map("w", kind="state", value="temp long, visib double", store="layers")
    weather = pond.map("w")
    weather.load([{"key": "a", "temp": 1, "visib": 1.5}, {"key": "b", "temp": 2, "visib": 2.5}])
    fix = pond.branch("fix", source="main")
    handle = fix.map("w")
    fix.alter_map("w", add={"gust": "long"}, default={"gust": 7}, drop=["visib"])
    assert next(pond.refs.log("fix")).message == "Alter w: drop visib, add gust long default 7"
    assert handle.get("a") == {"temp": 1, "gust": 7}, "a handle takes it on"
    assert weather.get("a") == {"temp": 1, "visib": 1.5}, "others do not see it"
    handle.load([{"key": "b", "temp": 3, "gust": 8}])
    pond.alter_map("w", widen={"temp": "double"}, add={"wind": "string"})
    weather.load([{"key": "c", "temp": 0.5, "visib": 3.5, "wind": "n"}])
    table = pond.refs.diff("main", "fix", map="w")
    assert table["old"].to_pylist()[-1] == {"temp": 0.5, "gust": 7}, "with the fields of the new side"
    fix.merge()
    assert str(pond.map("w").definition.value) == "temp double, wind string, gust long"
    assert weather.lookup(["a", "b", "c"]).to_pylist() == [
        {"temp": 1.0, "wind": None, "gust": 7}, {"temp": 3.0, "wind": None, "gust": 8},
        {"temp": 0.5, "wind": "n", "gust": 7},
    ]  # fmt: skip
    handle.load([{"key": "d", "temp": 4, "gust": 9}])
    fix.merge()
    assert weather.get("d") == {"temp": 4.0, "wind": None, "gust": 9}
    assert pond.verify(full=True).ok


def test_the_same_field_added_on_both_sides_is_one_and_others_of_its_name_are_refused(pond: Pond) -> None:
    pond.create_map("w", kind="state", value="temp long, visib double", store="layers")
    pond.map("w").load([{"key": "a", "temp": 1, "visib": 1.5}])
    fix = pond.branch("fix", source="main")
    fix.map("w").load([{"key": "b", "temp": 2, "visib": 2.5, "gust": 8}], extra="add")
    pond.map("w").load([{"key": "c", "temp": 3, "visib": 3.5, "gust": 9}], extra="add")
    fix.merge()
    assert [row["gust"] for row in pond.map("w").lookup(["a", "b", "c"]).to_pylist()] == [None, 8, 9]
    apart: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"add": {"rain": "long"}}, {"add": {"rain": "double"}}),
        ({"widen": {"temp": "double"}}, {"widen": {"temp": "string"}}),
        ({"rename": {"temp": "t"}}, {"rename": {"temp": "degrees"}}),
        ({"drop": ["gust"]}, {"rename": {"gust": "gusts"}}),
        ({"overwrite": False}, {"maintenance_suspended": True}),
    ]  # fmt: skip
    for number, (ours, theirs) in enumerate(apart):
        left = pond.branch(f"left-{number}", source="main")
        right = pond.branch(f"right-{number}", source="main")
        left.alter_map("w", **ours)
        right.alter_map("w", **theirs, commit=False)
        right.commit()
        with pytest.raises(Invalid, match="both sides changed what the map is") as refused:
            left.merge(into=right.ref)
        assert {"ours", "theirs"} <= set(refused.value.values)
    with pytest.raises(Invalid, match="no such field"):
        fix.alter_map("w", drop=["nothing"])


def test_a_field_that_was_dropped_does_not_come_back_by_a_revert(pond: Pond) -> None:
    pond.create_map("w", kind="state", value="temp long, visib double", store="layers")
    pond.map("w").load([{"key": "a", "temp": 1, "visib": 1.5}])
    fix = pond.branch("fix", source="main")
    fix.alter_map("w", add={"gust": "long"})
    pond.refs.revert("fix", "fix")
    assert fix.map("w").get("a") == {"temp": 1, "visib": 1.5}
    fix.alter_map("w", drop=["visib"])
    fix.map("w").load([{"key": "b", "temp": 2}])
    with pytest.raises(Invalid, match="both sides changed what the map is"):
        pond.refs.revert("fix~1", "fix")
    pond.refs.restore("fix~2", "fix", maps=["w"])
    assert fix.map("w").get("a") == {"temp": 1, "visib": 1.5}


def test_a_map_that_was_never_loaded_is_the_same_wherever_somebody_looked_at_it(pond: Pond) -> None:
    empty = pond.create_map("empty", kind="state", value="long", store="layers")
    assert empty.info()["rows"] == 0, "looking at it gives it a snapshot"
    pond.branch("fix", source="main")
    pond.refs.revert("fix", "fix")
    assert not pond.branch("fix").maps()
    pond.refs.revert("fix", "fix")
    with pytest.raises(Invalid) as refused:
        pond.refs.cherry_pick("fix", "main")
    assert refused.value.kind == "no_changes", "main has it as it is there"
