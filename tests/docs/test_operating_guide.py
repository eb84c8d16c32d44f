"""The walk of docs/operating.md runs as it stands, from the first node to a restored pond."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import millpond
from millpond.cli.terminal.exits import EXIT_USAGE, EXITS
from millpond.errors import Denied, Invalid
from millpond.maps.loads.pond_folder import FOLDERS
from tests.docs.shell import Shell
from tests.docs.snippets import ROOT, snippets

PAGE = "docs/operating.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def test_the_walk_works_from_top_to_bottom(shell: Shell) -> None:
    typed = {block.heading: block.text for block in snippets(PAGE) if block.language == "sh"}
    assert list(typed) == [
        "A pond to try it on", "Adding a node", "Replacing the primary", "Removing a node", "Backup", "Restore",
    ]  # fmt: skip
    printed = {heading: shell.type(text) for heading, text in typed.items()}
    assert "loaded 2 rows into weather" in printed["A pond to try it on"]
    assert "all nodes agree" in printed["Adding a node"]
    assert "loaded 2 rows into weather" in printed["Replacing the primary"]
    assert printed["Replacing the primary"].rstrip().endswith("all nodes agree")
    assert "33.2" in printed["Removing a node"]
    assert printed["Backup"].rstrip().endswith("is whole")
    assert "33.2" in printed["Restore"]


def test_every_folder_of_a_pond_is_named() -> None:
    for name in (*FOLDERS, "space"):
        assert f"`{name}/`" in TEXT, name


def test_a_copy_without_what_may_be_left_out_has_all_rows(tmp_path: Path) -> None:
    rows = [{"key": "JFK", "temp": 33.2}]
    with millpond.open(tmp_path / "pond") as pond:
        for store in ("layers", "shard"):
            pond.create_map(store, kind="state", value="temp double", store=store).load(rows)
            assert pond.map(store).lookup(["JFK"]).to_pylist()[0]["temp"] == 33.2
    lines = re.findall(r"^\| (.+) \| may be left out", TEXT, flags=re.MULTILINE)
    left_out = re.findall(r"`(.+?)/?`", " ".join(lines))
    assert "writer" in left_out
    shutil.copytree(tmp_path / "pond", tmp_path / "copy", ignore=shutil.ignore_patterns(*left_out))
    with millpond.open(tmp_path / "copy") as pond:
        assert pond.verify().ok
        for store in ("layers", "shard"):
            assert pond.map(store).lookup(["JFK"]).to_pylist()[0]["temp"] == 33.2


def test_the_exit_codes_are_those_of_mistakes() -> None:
    (found,) = re.findall(r"exit codes ([\d, and]+)\)", TEXT)
    assert [int(code) for code in re.findall(r"\d+", found)] == [EXIT_USAGE, EXITS[Invalid], EXITS[Denied]]
