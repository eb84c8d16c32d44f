"""A command line to type into: a folder of its own, and what a command prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millpond.cli.main import app


@dataclass(frozen=True)
class Said:
    """The output of a command."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """Its lines, each a JSON value."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        """Its only line, a JSON value."""
        (only,) = self.objects
        return only


class Shell:
    """Runs commands as a user would, in the current folder."""

    def __call__(self, *words: str, code: int = 0, typed: str | None = None) -> Said:
        done = CliRunner().invoke(app, list(words), input=typed, prog_name="millpond")
        said = Said(done.exit_code, done.stdout, done.stderr)
        assert said.code == code, f"{words} ended with {said.code}\n{said.out}\n{said.err}\n{done.exception!r}"
        assert "Traceback" not in said.err
        return said


@pytest.fixture
def millpond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLPOND_POND", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return Shell()


@pytest.fixture(autouse=True)
def _default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are made where users have them."""
    monkeypatch.delenv("MILLPOND_MAPS_STORE", raising=False)


WEATHER = """\
airport,time,temp,wind_speed
JFK,2013-02-08T17:00Z,33.1,20.7
JFK,2013-02-08T18:00Z,32.0,24.2
LGA,2013-02-08T17:00Z,34.0,18.4
"""


@pytest.fixture
def weather(millpond: Shell) -> Shell:
    """A shell in a folder with a pond that holds some weather."""
    Path("weather.csv").write_text(WEATHER)
    millpond("create", "weather", "--kind", "temporal_state", "--value", "temp double, wind_speed double")
    millpond("load", "weather", "weather.csv", "--key", "airport")
    return millpond
