"""Mistakes: one sentence, an exit code, no traceback; JSON when JSON was requested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond import errors
from millpond.cli.terminal import exits
from tests.cli.conftest import Shell


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "MillpondError"])
def test_every_class_is_a_sentence_and_an_object(name: str) -> None:
    error = getattr(errors, name)("it happened", kind="some_kind", hint="do this", path="a/b", count=3)
    assert exits.sentence(error) == "it happened (path=a/b, count=3); do this"
    body = exits.as_object(error)["error"]
    assert (body["kind"], body["class"], body["exit_code"]) == ("some_kind", name, exits.exit_code(error))


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (FileNotFoundError(2, "no such file", "x.csv"), "file_not_found", 3),
        (PermissionError(13, "not allowed", "x.csv"), "permission", 7),
        (OSError(28, "no space left"), "system", 7),
        (ModuleNotFoundError("no pyspark", name="pyspark.sql"), "extra_missing", 5),
        (ModuleNotFoundError("no other", name="other"), "module_missing", 10),
        (ZeroDivisionError("division by zero"), "unexpected", 10),
    ],
)
def test_errors_of_the_system_say_what_to_do(error: Exception, kind: str, code: int) -> None:
    understood = exits.classify_error(error)
    assert (understood.kind, exits.exit_code(understood)) == (kind, code)


def test_errors_are_json_when_json_was_requested(millpond: Shell) -> None:
    response = json.loads(millpond("maps", "--json", code=3).err)
    assert response["error"]["kind"] == "pond_not_found"
    assert response["error"]["exit_code"] == 3


@pytest.mark.usefixtures("process")
def test_a_reader_that_has_seen_enough_ends_it_quietly(weather: Shell, tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m millpond scan weather --json | head -n 1'
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.usefixtures("processor")
def test_help_is_there_for_all(millpond: Shell) -> None:
    assert "Examples" in millpond("--help").out
    assert "Examples" in millpond("maintenance", "compact", "-h").out
    millpond("no_such_command", code=2)
    assert millpond("version", "--json").object["millpond"]
