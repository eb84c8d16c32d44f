"""Branches and refs of layered maps on the command line: a story, and what goes wrong in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Shell


def test_a_correction_on_a_branch(millpond: Shell) -> None:
    Path("a.csv").write_text("key,t,value\nJFK,2013-01-01T00:00Z,1.5\nLGA,2013-01-01T00:00Z,2\n")
    Path("b.csv").write_text("key,t,value\nJFK,2013-01-01T00:00Z,9.5\nEWR,2013-01-01T00:00Z,3\n")
    millpond("init")
    millpond("create", "w", "--kind", "temporal_state", "--value", "double", "--store", "layers")
    millpond("load", "w", "a.csv", "--time", "t")
    millpond("branch", "create", "pond/fix")
    millpond("load", "w", "b.csv", "--time", "t", "--branch", "fix", "--stage")
    assert "1 added, 1 changed" in millpond("diff", "pond/fix", "--keys").out
    millpond("commit", "pond/fix", "-m", "two rows")
    assert "--keys" in millpond("diff", "pond/main", "fix").err, "sizes of manifests say little"
    shown = millpond("diff", "pond/main..pond/fix", "--map", "w").out
    assert "~ w JFK 2013-01-01T00:00:00Z  1.5 → 9.5" in shown
    rows = millpond("diff", "pond/main..fix", "--map", "w", "--json").objects
    assert [(row["change"], row["key"], row["new"]) for row in rows] == [("added", "EWR", 3.0), ("changed", "JFK", 9.5)]
    assert millpond("get", "w", "JFK", "--branch", "fix").out == "9.5\n"
    assert millpond("get", "w", "JFK").out == "1.5\n"
    assert "3" in millpond("query", "select count(*) from w", "--ref", "fix", "--json").out
    millpond("merge", "pond/fix", "main")
    assert millpond("get", "w", "JFK").out == "9.5\n"
    assert millpond("get", "w", "JFK", "--ref", "main~1").out == "1.5\n"
    history = millpond("log", "--map", "w", "--json").objects
    assert [(row["message"], row["rows"]) for row in history] == [
        ("Merge 'fix' into 'main'", None), ("two rows", None), ("Load w from a.csv", 2),
    ]  # fmt: skip
    for narrower in (("--since", "2013-01-01T00:00Z"), ("--graph",), ("--first-parent",)):
        assert narrower[0] in millpond("log", "--map", "w", *narrower, code=5).err, "it would not be heeded"
    millpond("revert", "pond/main", "main", "--parent", "1")
    assert millpond("get", "w", "JFK").out == "1.5\n"
    Path("c.csv").write_text("key,t,value\nJFK,2013-01-01T00:00Z,4\n")
    millpond("branch", "create", "pond/other")
    millpond("load", "w", "c.csv", "--time", "t", "--branch", "other")
    millpond("load", "w", "b.csv", "--time", "t", "--again")
    conflict = millpond("merge", "pond/other", "main", code=6).err
    assert "maps=w, key=JFK 2013-01-01T00:00:00+00:00" in conflict
    assert "or restore the map from main" in millpond("cherry-pick", "pond/main", "other", code=6).err
    for words in (("get", "w", "JFK", "--ref", "nothing"), ("scan", "w", "--branch", "nothing")):
        assert "not found" in millpond(*words, code=3).err
    assert "name one" in millpond("get", "w", "JFK", "--ref", "fix", "--branch", "fix", code=5).err
    millpond("load", "w", "a.csv", "--time", "t", "--stage", code=5)
    millpond("load", "w", "a.csv", "--time", "t", "--branch", "fix", "--stage", "--spark", code=5)


def test_the_time_of_a_commit_is_a_ref_to_it(millpond: Shell) -> None:
    millpond("init")
    millpond("create", "w", "--kind", "state", "--value", "long", "--store", "layers")
    for number in (1, 2, 3):
        Path("w.csv").write_text(f"key,value\na,{number}\n")
        millpond("load", "w", "w.csv")
        millpond("get", "w", "a", "--ref", "main")  # records the load as a commit of its own
    commits = millpond("log", "pond/main", "-n", "3", "--json").objects
    shown = millpond("log", "pond/main").out
    for number, commit in zip((3, 2, 1), commits, strict=True):
        assert commit["created"] in shown
        assert millpond("get", "w", "a", "--ref", commit["created"]).out == f"{number}\n"


def test_rows_and_fields_go_and_come_on_a_branch(millpond: Shell) -> None:
    Path("w.csv").write_text("key,temp\na,1\nb,2\n")
    millpond("init")
    millpond("create", "w", "--kind", "state", "--value", "temp long", "--store", "layers")
    millpond("load", "w", "w.csv")
    millpond("branch", "create", "pond/fix")
    (deleted,) = millpond("delete", "w", "--where", "temp = 1", "--branch", "fix", "--yes", "--json").objects
    assert (deleted["rows_removed"], bool(deleted["commit"])) == (1, True)
    assert "gust long" in millpond("alter", "w", "--add", "gust long", "--branch", "fix", "--json").out
    retained = millpond("maintenance", "retain", "w", "--before", "2013-01-01T00:00Z", "--branch", "fix", "--json")
    assert retained.objects[0]["rows_removed"] == 0, "a row of unknown age counts as put now"
    count = "select count(*) as n from w"
    assert millpond("query", count, "--branch", "fix", "--json").objects == [{"n": 1}]
    assert millpond("query", count, "--json").objects == [{"n": 2}]
    assert "nothing was known" in millpond("query", count, "--known-at", "2001-01-01T00:00Z", code=5).err


def test_maps_go_and_come_on_a_branch(millpond: Shell) -> None:
    Path("w.csv").write_text("key,temp\na,1\nb,2\n")
    millpond("init")
    millpond("create", "w", "--kind", "state", "--value", "temp long", "--store", "layers")
    millpond("load", "w", "w.csv")
    millpond("branch", "create", "pond/fix")
    on = ("--branch", "fix")
    assert "in layers" in millpond("create", "late", "--kind", "state", "--value", "long", *on).out
    assert "--store" in millpond("create", "x", "--kind", "state", "--store", "shard", *on, code=2).err
    millpond("copy", "w", "twin", *on)
    millpond("rename", "w", "n", *on)
    assert "--branch" in millpond("copy", "./pond", "./other", *on, code=2).err
    assert "--yes" in millpond("drop", "late", *on, code=5).err
    millpond("drop", "late", "--yes", *on)
    assert [row["name"] for row in millpond("maps", *on, "--json").objects] == ["n", "twin"]
    assert [row["name"] for row in millpond("maps", "--json").objects] == ["w"]
    assert millpond("maps", "twin", "--ref", "fix", "--json").objects[0]["rows"] == 2
    assert "name one" in millpond("maps", *on, "--ref", "main", code=5).err
    millpond("merge", "pond/fix", "main")
    assert [row["name"] for row in millpond("maps", "--json").objects] == ["n", "twin"]
    assert "temp" in millpond("get", "n", "a").out
    assert "Restore w from main~1" in millpond("branch", "restore", "pond/main", "main~1", "--map", "w").out
    assert [row["name"] for row in millpond("maps", "--json").objects] == ["n", "twin", "w"]
    assert "temp" in millpond("get", "w", "a").out
    assert "pond/main" in millpond("branch", "restore", "flights/main", "main~1", code=5).err
    assert "nothing" in millpond("branch", "restore", "pond/main", "main~1", "--map", "nothing", code=3).err
    millpond("revert", "pond/main", "main~1", "--parent", "1")
    assert [row["name"] for row in millpond("maps", "--json").objects] == ["w"]
