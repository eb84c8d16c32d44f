"""The history of a layered map: each change in words, with its time, and the definition that it had then."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Pond

BEGAN = 1_700_000_000_250


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=BEGAN)


@pytest.fixture
def pond(tmp_path: Path, clock: ManualClock) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        opened.create_map("m", kind="state", value="temp double, n long", store="layers")
        yield opened


def row(key: str, **fields: Any) -> dict[str, Any]:
    return {"key": key} | fields


def lines_of(pond: Pond, name: str = "m", ref: str = "main") -> list[tuple[Any, ...]]:
    return [(row["message"], row["rows"], row["removed"]) for row in pond.history(name, ref).to_pylist()]


def test_each_change_says_what_was_done(pond: Pond, clock: ManualClock) -> None:
    pond.map("m").load([row("a", temp=1.0, n=1), row("b", temp=2.0, n=2)], source="noaa.csv")
    pond.alter_map(
        "m", rename={"temp": "degrees"}, widen={"n": "double"}, add={"gust": "double"}, default={"gust": 2.5}
    )
    clock.advance(1500)
    pond.alter_map("m", drop=["n"], retain="14d", overwrite=False)
    pond.alter_map("m", retain="off", maintenance_suspended=True)
    pond.map("m").delete("key = 'b'")
    assert lines_of(pond) == [
        ("Delete m where key = 'b'", None, 1),
        ("Alter m: retain off, maintenance suspended on", None, None),
        ("Alter m: overwrite off, retain 14d", None, None),
        ("Alter m: drop n", None, None),
        ("Alter m: rename temp to degrees, widen n to double, add gust double default 2.5", None, None),
        ("Load m from noaa.csv", 2, None),
    ]
    times = [int(time.timestamp() * 1000) for time in pond.history("m")["time"].to_pylist()]
    assert times == [BEGAN + 1500] * 4 + [BEGAN] * 2


def test_loads_on_a_branch_are_told_behind_their_merge(pond: Pond) -> None:
    pond.map("m").load([row("a", temp=1.0, n=1)], source="a.csv")
    fix = pond.branch("fix", source="main")
    fix.map("m").load([row("b", temp=2.0, n=2)], source="b.csv")
    pond.map("m").load([row("c", temp=3.0, n=3)], source="c.csv")
    pond.refs.merge("main", "fix")
    fix.map("m").load([row("d", temp=4.0, n=4)], source="d.csv")
    pond.refs.merge("fix")
    pond.map("m").load([row("e", temp=5.0, n=5)], source="e.csv")
    lines = [line["source"] or line["message"] for line in pond.history("m").to_pylist()]
    assert lines == ["e.csv", "Merge 'fix' into 'main'", "d.csv", "Merge 'main' into 'fix'", "b.csv", "c.csv", "a.csv"]


def test_a_commit_has_the_definition_of_its_moment(pond: Pond) -> None:
    pond.map("m").load([row("a", temp=1.0, n=1)])
    pond.alter_map("m", retain="14d")
    pond.map("m").load([row("b", temp=1.0, n=1)])
    pond.alter_map("m", retain="1d")
    definitions = [pond.at(f"main~{steps}").map("m").definition for steps in range(4)]
    assert [definition.retain_ms for definition in definitions] == [86_400_000, *[14 * 86_400_000] * 2, None]


def test_a_branch_says_it_in_the_same_words(pond: Pond) -> None:
    pond.map("m").load([row("a", temp=1.0, n=1)])
    fix = pond.branch("fix", source="main")
    fix.alter_map("m", add={"gust": "double"}, retain="14d")
    fix.map("m").load([row("b", temp=2.0, n=2, gust=1.0)], source="fix.csv")
    fix.map("m").delete("key = 'a'")
    words = [
        ("Delete m where key = 'a'", None, 1), ("Load m from fix.csv", 1, None),
        ("Alter m: add gust double, retain 14d", None, None), ("Load m", 1, None),
    ]  # fmt: skip
    assert lines_of(pond, ref="fix") == words
    pond.map("m").load([row(key, temp=1.0, n=1) for key in "cde"], source="main.csv")
    fix.merge()
    reverted = pond.refs.revert("main", parent_number=1)
    assert lines_of(pond)[0][0] == f"Revert {reverted.parents[0]}"
    assert lines_of(pond)[1:] == [
        ("Merge 'fix' into 'main'", 2, None), *words[:-1], ("Load m from main.csv", 3, None), words[-1],
    ]  # fmt: skip


def test_maps_that_are_made_copied_renamed_and_dropped(pond: Pond) -> None:
    pond.map("m").load([row("a", temp=1.0, n=1)])
    pond.catalogue.copy("m", "twin")
    pond.history("m")
    pond.map("m").load([row("b", temp=1.0, n=1)], source="late.csv")
    pond.catalogue.rename("m", "renamed")
    pond.map("renamed").load([row("c", temp=1.0, n=1)])
    pond.create_map("empty", kind="state", value="long", store="layers")
    pond.drop_map("twin")
    assert lines_of(pond, "renamed")[:2] == [("Load renamed", 1, None), ("Rename m to renamed", None, None)]
    assert lines_of(pond, "renamed")[-1] == ("Load m", 1, None), "it is followed to its old name"
    assert pond.at("main").map("renamed").lookup(["a", "b", "c"]).null_count == 0
    assert "m" not in {opened.name for opened in pond.at("main").maps()}
    words = [commit.message for commit in pond.refs.log()]
    assert words[0] == "Create empty; drop twin"
    assert "Copy m to twin" in words


def test_a_conversion_is_an_alteration(pond: Pond) -> None:
    pond.create_map("s", kind="state", value="long", store="shard").load([row("a", value=1)])
    pond.alter_map("s", store="layers")
    assert lines_of(pond, "s") == [("Alter s: store layers", None, None)]


def test_the_command_shows_it(pond: Pond) -> None:
    pond.map("m").load([row("a", temp=1.0, n=1)], source="noaa.csv")
    pond.alter_map("m", add={"gust": "double"})
    runner, place = CliRunner(), ["--pond", str(pond.folder)]
    shown = runner.invoke(app, ["log", "--map", "m", *place], env={"COLUMNS": "200"})
    assert "Alter m: add gust double" in shown.output and "Load m from noaa.csv" in shown.output
    as_json = runner.invoke(app, ["log", "--map", "m", "--json", *place])
    rows = [json.loads(line) for line in as_json.output.splitlines()]
    assert [(row["message"], row["rows"], row["source"]) for row in rows] == [
        ("Alter m: add gust double", None, None), ("Load m from noaa.csv", 1, "noaa.csv"),
    ]  # fmt: skip


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("by", ["revert", "restore"])
def test_a_map_that_was_dropped_comes_back(pond: Pond, clock: ManualClock, by: str, collected: bool) -> None:
    for number, key in enumerate("ab"):
        pond.map("m").load([row(key, temp=1.0, n=number)])
    pond.branch("fix", source="main")
    pond.drop_map("m")
    pond.refs.states.record()
    if collected:
        clock.advance(24 * 3_600_000)
        pond.catalogue.finish_drops()
    if by == "revert":
        pond.refs.revert("main")
    else:
        pond.refs.restore("fix", maps=["m"])
    pond.map("m").load([row("c", temp=1.0, n=2)])
    assert [pond.map("m").get(key) for key in "abc"] == [{"temp": 1.0, "n": number} for number in range(3)]
