"""`millpond load` tells what it did; data that is known already changes nothing, unless it is to be loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millpond.cli.main import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_known_data_is_loaded_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLPOND_POND", str(tmp_path / "pond"))
    for name, value in (("old", 1), ("new", 2)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"key": "a", "value": {value}}}\n')
    run("create", "codes", "--kind", "state", "--value", "long")
    assert "loaded 1 row into codes" in run("load", "codes", "old.jsonl")
    run("load", "codes", "new.jsonl")
    assert "nothing was changed" in run("load", "codes", "old.jsonl")
    assert run("get", "codes", "a").strip() == "2"
    assert "loaded 1 row into codes" in run("load", "codes", "old.jsonl", "--again")
    assert run("get", "codes", "a").strip() == "1"


def test_a_file_without_rows_says_so(millpond: Any) -> None:
    millpond("create", "m", "--kind", "state", "--value", "long")
    Path("empty.csv").write_text("key,value\n")
    result = millpond("load", "m", "empty.csv")
    assert "empty.csv holds no rows" in result.out + result.err
    assert millpond("load", "m", "empty.csv", "--json").object["empty"] == ["empty.csv"]


def test_seconds_are_taken_with_their_unit(millpond: Any) -> None:
    millpond("create", "m", "--kind", "temporal_state", "--value", "long")
    Path("a.csv").write_text("key,time,value\na,1360346400,1\n")
    assert "--time-unit" in millpond("load", "m", "a.csv", code=5).err
    millpond("load", "m", "a.csv", "--time-unit", "s")
    assert millpond("get", "m", "a", "--at", "2013-02-08T18:00Z").out.strip() == "1"
