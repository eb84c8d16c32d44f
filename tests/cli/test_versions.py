"""Repositories on the command line: a story, and what goes wrong in it; of a folder, and of a node's process."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.cli.versions import locations, output
from millpond.cli.versions.transfers import AT_ONCE
from tests.cli.conftest import Shell
from tests.clients.conftest import serving


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node."""
    with serving(tmp_path_factory.mktemp("node") / "pond") as url:
        yield url


@pytest.fixture(params=["folder", "node"])
def flights(millpond: Shell, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell with a pond, its folder's or a node's, and in it a repository with one commit of two objects."""
    if request.param == "node":
        monkeypatch.setenv("MILLPOND_POND", request.getfixturevalue("node"))
    Path("data/sub").mkdir(parents=True)
    Path("data/01.csv").write_text("january")
    Path("data/sub/02.csv").write_text("february")
    if request.param == "folder":
        millpond("init")
    millpond("repo", "create", "flights")
    millpond("fs", "put", "-r", "data", "flights/main/2013")
    millpond("commit", "flights/main", "-m", "One", "--committer", "ann")
    yield millpond
    CliRunner().invoke(app, ["repo", "delete", "flights", "--yes"])


def put(shell: Shell, place: str, text: str) -> None:
    """Put a text at a place."""
    Path("text").write_text(text)
    shell("fs", "put", "text", place)


@pytest.mark.parametrize("module", [locations, output])
def test_the_examples_in_the_code_are_true(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.usefixtures("process")
def test_a_branch_is_made_changed_and_merged(flights: Shell) -> None:
    flights("branch", "create", "flights/fix")
    put(flights, "lakefs://flights/fix/2013/01.csv", "mended")
    assert flights("diff", "flights/fix").out == "~ 2013/01.csv  7 B → 6 B\n1 changed\n"
    made = flights("commit", "flights/fix", "-m", "Mend January", "--meta", "ticket=7", "--json").object
    assert (made["message"], made["metadata"]) == ("Mend January", {"ticket": "7"})
    for words in (("flights/main", "fix"), ("flights/main...fix",), ("main", "flights/fix")):
        (change,) = flights("diff", *words, "--json").objects
        assert (change["type"], change["right"]["size"]) == ("changed", 6)
    merged = flights("merge", "flights/fix", "main", "--json").object
    assert merged["parents"][1] == made["id"]
    assert flights("fs", "cat", "flights/main/2013/01.csv").out == "mended"
    drawn = flights("log", "flights", "--graph").out.splitlines()
    assert [line.split(" ")[0] for line in drawn] == ["◎", "├─╮", "│", "├─╯", "●", "●"]
    assert "(main) Merge 'fix' into 'main'" in drawn[0]
    assert "(fix) Mend January" in drawn[2]
    below = flights("log", "flights/main/2013/", "--json").objects
    assert [commit["message"] for commit in below] == ["Mend January", "One"]
    assert flights("log", "flights/main/2013/sub/02.csv", "--json").object["committer"] == "ann"
    flights("revert", "flights/main", "main", code=6)
    flights("revert", "flights/main", "main", "--parent", "1")
    assert flights("fs", "cat", "flights/main/2013/01.csv").out == "january"
    flights("cherry-pick", "flights/fix", "main")
    assert flights("diff", "flights/main..fix", "--summary", "--json").object["changed"] == 0
    flights("branch", "delete", "flights/fix")
    assert [row["branch"] for row in flights("branch", "list", "flights", "--json").objects] == ["main"]


@pytest.mark.usefixtures("process")
def test_a_conflict_names_its_paths_and_the_way_out(flights: Shell) -> None:
    flights("branch", "create", "flights/fix", "--from", "flights/main")
    for branch in ("main", "fix"):
        put(flights, f"flights/{branch}/2013/01.csv", f"of {branch}")
        flights("commit", f"flights/{branch}", "-m", branch)
    refused = flights("merge", "flights/fix", "main", code=6)
    assert refused.out == "conflict  2013/01.csv\n"
    assert "--take source=PATH" in refused.err
    assert json.loads(flights("merge", "flights/fix", "main", "--json", code=6).err)["error"]["paths"] == [
        "2013/01.csv"
    ]
    assert flights("diff", "flights/main", "fix").out.startswith("! 2013/01.csv")
    flights("merge", "flights/fix", "main", "--take", "source=2013/")
    assert flights("fs", "cat", "flights/main/2013/01.csv").out == "of fix"


@pytest.mark.usefixtures("process")
def test_objects_are_listed_copied_deleted_and_restored(flights: Shell) -> None:
    rows = flights("fs", "ls", "flights/main/2013", "--json").objects
    assert [row.get("folder") or row["path"] for row in rows] == ["2013/01.csv", "2013/sub/"]
    assert len(flights("fs", "ls", "flights", "-r", "--json").objects) == 2
    facts = flights("fs", "stat", "flights/main/2013/01.csv", "--json").object
    assert (facts["size"], facts["content_type"]) == (7, "text/csv")
    flights("fs", "cp", "flights/main/2013/01.csv", "flights/main/copies/")
    assert flights("fs", "cp", "-r", "flights/main@/2013", "flights/main/archive", "--json").object["objects"] == 2
    said = flights("fs", "mv", "flights/main/copies/01.csv", "flights/main/moved").out
    assert said == "moved flights/main/copies/01.csv to flights/main/moved; not committed yet\n"
    assert flights("fs", "mv", "flights/main/moved", "flights/main/copies/01.csv", "--json").object == {
        "source": "flights/main/moved", "target": "flights/main/copies/01.csv",
    }  # fmt: skip
    flights("fs", "rm", "-r", "flights/main/2013")
    counts = flights("diff", "flights/main", "--summary", "--json").object
    assert counts == {"added": 3, "removed": 2, "changed": 0, "conflict": 0}
    assert "this is a folder" in flights("reset", "flights/main/copies", code=5).err
    flights("reset", "flights/main/copies/")
    flights("commit", "flights/main", "-m", "Only the archive", "--only", "archive/")
    assert flights("diff", "flights/main", "--summary", "--json").object["removed"] == 2
    flights("commit", "flights/main", "-m", "Two")
    assert flights("fs", "restore", "flights/main/2013/", "--from", "main~2", "--json").object["changes"] == 2
    flights("reset", "flights/main")
    flights("reset", "flights/main", "--hard", "main~2")
    assert len(flights("fs", "ls", "flights", "-r", "--json").objects) == 2


@pytest.mark.usefixtures("process")
def test_folders_come_back_as_they_were_put(flights: Shell) -> None:
    for number in range(16 * AT_ONCE + 10):
        Path(f"data/sub/{number}").write_text(str(number))
    flights("fs", "put", "-r", "data/sub", "flights/main/many")
    said = flights("fs", "get", "-r", "flights/main/many/", "out", "--json").object
    assert said["objects"] == 16 * AT_ONCE + 11
    assert {file.name: file.read_text() for file in Path("out").iterdir()} == {
        file.name: file.read_text() for file in Path("data/sub").iterdir()
    }
    flights("fs", "get", "flights/main/many/7")
    assert Path("7").read_text() == "7"
    flights("fs", "put", "-", "flights/main/typed", typed="from a pipe")
    assert flights("fs", "get", "flights/main/typed", "-").out == "from a pipe"


@pytest.mark.usefixtures("process")
def test_no_path_leads_out_of_the_folder(flights: Shell, tmp_path: Path) -> None:
    for path in ("../../escaped", "/absolute", "a//b"):
        flights("fs", "put", "data/01.csv", f"flights/main/bad/{path}")
        assert "no file can have this path" in flights("fs", "get", "-r", "flights/main/bad", "out", code=5).err
        flights("reset", "flights/main/bad/")
    assert not list(tmp_path.parent.glob("escaped"))
    flights("fs", "put", "data/01.csv", "flights/main/bad/a")
    flights("fs", "put", "data/01.csv", "flights/main/bad/a/b")
    assert "one name" in flights("fs", "get", "-r", "flights/main/bad", "out", code=5).err
    assert not list(Path("out").rglob("*.partial"))


@pytest.mark.usefixtures("process")
def test_linked_files_are_put_and_linked_folders_are_not(flights: Shell) -> None:
    Path("data/link").symlink_to(Path("data/01.csv").absolute())
    Path("data/folder").symlink_to(Path("data").absolute())
    Path("data/nowhere").symlink_to("nothing")
    flights("fs", "put", "-r", "data", "flights/main/linked")
    rows = flights("fs", "ls", "flights/main/linked/", "-r", "--json").objects
    assert [row["path"] for row in rows] == ["linked/01.csv", "linked/link", "linked/sub/02.csv"]


@pytest.mark.usefixtures("process")
def test_a_grace_time_that_would_lose_uploads_is_refused(flights: Shell, request: pytest.FixtureRequest) -> None:
    is_folder = "folder" in request.node.name
    for grace in ("59s", "0"):
        refused = flights("repo", "gc", "flights", "--grace", grace, code=5).err
        assert f"(grace_ms={59_000 if grace == '59s' else 0}" in refused
        assert ("give a minute or more" if is_folder else "leave it at its default, a day") in refused
    assert flights("repo", "gc", "flights", "--grace", "1m" if is_folder else "1d", "--json").object["objects"] == 0


@pytest.mark.usefixtures("process")
def test_tags_settings_compaction_and_garbage(flights: Shell) -> None:
    flights("tag", "create", "flights/v1", "main")
    assert flights("tag", "list", "flights", "--json").object["tag"] == "v1"
    assert flights("fs", "cat", "flights/v1/2013/01.csv").out == "january"
    flights("tag", "delete", "flights/v1")
    put(flights, "flights/main/new", "1")
    assert flights("branch", "compact", "flights/main", "--json").object["done"] is True
    assert flights("branch", "show", "flights/main", "--json").object["compacted_index"]
    known = flights(
        "repo", "settings", "flights", "--protect", "main,rel-*", "--retain", "30d", "--retain-branch", "main=365d",
        "--compact-deletions", "5", "--json",
    ).object  # fmt: skip
    assert known["protected"] == ["main", "rel-*"]
    assert known["retention_days"] == {"": 30, "main": 365}
    assert "protected branch" in flights("fs", "rm", "flights/main/new", code=11).err
    flights("repo", "settings", "flights", "--protect", "", "--read-only")
    assert "--writable" in flights("fs", "rm", "flights/main/new", code=11).err
    assert flights("repo", "gc", "flights", "--dry-run", "--json").object["objects"] == 0
    assert flights("repo", "show", "flights", "--json").object["settings"]["compact_deletions"] == 5
    assert "--yes" in flights("repo", "delete", "flights", code=5).err
    flights("repo", "delete", "flights", "--yes")
    assert "flights" not in flights("repo", "list", "--json").out


@pytest.mark.usefixtures("process")
def test_a_repository_is_dumped_deleted_and_restored(flights: Shell) -> None:
    flights("tag", "create", "flights/v1", "main")
    log = flights("log", "flights/main", "--json").out
    assert (
        flights("repo", "dump", "flights", "refs.jsonl", "--json").object["bytes"] == Path("refs.jsonl").stat().st_size
    )
    assert flights("repo", "dump", "flights", "-").out == Path("refs.jsonl").read_text()
    assert "restore into a new one" in flights("repo", "restore", "flights", "refs.jsonl", code=6).err
    flights("repo", "delete", "flights", "--yes")
    Path("cut").write_bytes(Path("refs.jsonl").read_bytes()[:-30])
    for file in ("nowhere", "data", "cut", "data/01.csv"):
        flights("repo", "restore", "flights", file, code=3 if file == "nowhere" else 5)
    assert flights("repo", "restore", "flights", "refs.jsonl", "--json").object["tags"] == 1
    assert flights("log", "flights/main", "--json").out == log
    assert flights("fs", "cat", "flights/v1/2013/01.csv").out == "january"


def test_a_place_in_a_folder_is_found_from_other_folders(millpond: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    millpond("init")
    made = millpond("repo", "create", "flights", "bytes", "--json").object
    assert made["place"] == str(Path("bytes").absolute())
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    Path("a").write_text("1")
    millpond("fs", "put", "a", "flights/main/", "--pond", "../pond")
    assert millpond("fs", "cat", "flights/main/a", "--pond", "../pond").out == "1"


@pytest.mark.usefixtures("process")
def test_a_repository_is_made_with_the_pond_that_it_needs(millpond: Shell) -> None:
    assert millpond("repo", "list", code=3).err.startswith("error: there is no pond here")
    millpond("repo", "create", "flights")
    assert millpond("repo", "list", "--json").object["repository"] == "flights"


WRONG = [
    ("repo create Flights", "3 to 63 lower-case letters"), ("repo create flights", "there is one already"),
    ("repo create flights/main", "write flights"), ("repo show nope", "millpond repo list"),
    ("repo settings flights --retain 36h", "whole days"), ("repo settings flights --retain-branch main", "main=365d"),
    ("branch create flights", "write flights/BRANCH"), ("branch create flights/a.b", "not a name for a branch"),
    ("branch create flights/new --from nope", "millpond log"),
    ("branch create flights/new --from other/main", "own repo"),
    ("branch delete flights/nope", "millpond branch list"), ("branch delete flights/main", "default branch"),
    ("commit flights/main -m again", "no changes"), ("commit flights/main/2013 -m x", "write flights/main"),
    ("merge fix main", "REPO/fix main"), ("merge flights/fix other/main", "two repositories"),
    ("merge flights/main main --strategy ours", "dest-wins"),
    ("merge flights/main main --take mine=a", "take source="),
    ("diff s3://bucket/x", "lakefs://"), ("diff /flights/main", "REPO/REF/PATH"),
    ("diff flights/main$ main", "leave out"),
    ("log flights/main~9", "not found"), ("log flights/main --since yesterday", "ISO 8601"),
    ("log flights/main/2013/ --graph", "every commit"), ("revert flights/main main~9", "not found"),
    ("revert flights/main main --parent 2", "parent number"), ("cherry-pick flights/main nope", "millpond branch list"),
    ("reset flights/main/2013 --hard main", "leave out the path"), ("reset flights/main/nope", "nothing is staged"),
    ("tag create flights/..x main", "not a name for a tag"), ("tag delete flights/nope", "millpond tag list"),
    ("fs put nope flights/main/", "does not exist"), ("fs put data flights/main/", "add -r"),
    ("fs put - flights/main/", "name the object"), ("fs put data/01.csv flights", "write flights/BRANCH"),
    ("fs put data/01.csv flights/main/2013/01.csv --if-absent", "already exists"),
    ("fs put data/01.csv flights/main/x --meta a", "NAME=VALUE"), ("fs get flights/main", "add -r"),
    ("fs get flights/main/2013", "add -r"), ("fs get flights/main/nope", "millpond fs ls"),
    ("fs get -r flights/main/2013 data/01.csv", "this is a file"), ("fs cat flights/main/2013", "millpond fs ls"),
    ("fs stat flights/main/2013", "millpond fs ls"), ("fs rm flights/main/2013", "-r"),
    ("fs rm -r flights/main/nope", "nothing lies below"), ("fs cp data/01.csv flights/main/x", "millpond fs put"),
    ("fs cp flights/main/2013 flights/main/e", "add -r"),
    ("fs mv flights/main/2013 flights/main/e", "of a folder"), ("fs mv flights/main/nope flights/main/e", "not found"),
    ("fs mv flights/main/2013/01.csv flights/fix/x", "one branch"),
    ("fs cp flights/main/2013/01.csv other/main/x", "one repository"),
    ("fs ls nope", "millpond repo list"),
    ("repo dump flights data", "name a file"), ("repo dump flights none/x", "make it first"),
    ("repo restore flights data/01.csv", "dump is damaged"),
    ("fs restore flights/main/2013 --from nope", "not found"),
]  # fmt: skip


@pytest.mark.usefixtures("process")
def test_what_is_wrong_ends_with_a_sentence_and_a_way_out(flights: Shell) -> None:
    for line, expected in WRONG:
        done = CliRunner().invoke(app, line.split(), prog_name="millpond")
        assert done.exit_code in (3, 4, 5, 6, 11), (line, done.exit_code, done.exception)
        assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1, line
        assert expected in done.stderr, (line, done.stderr)
