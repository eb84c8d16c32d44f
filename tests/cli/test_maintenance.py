"""`millpond maintenance --all` tends the maps whose settings ask for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millpond.cli.main import app


@pytest.fixture
def pond(tmp_path: Path) -> str:
    folder = str(tmp_path / "pond")
    for name, setting in (("retained", []), ("tidied", ["--condense", "30d"])):
        made = CliRunner().invoke(
            app, ["create", name, "--kind", "temporal_state", "--value", "long", *setting, "--pond", folder]
        )
        assert made.exit_code == 0, made.output
    return folder


def tended(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["maintenance", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    reports = [json.loads(line) for line in result.output.splitlines()]
    assert reports, "a list of nothing is []"
    return [report["map"] for report in reports if report]


def test_all_are_those_with_the_setting(pond: str) -> None:
    assert tended("condense", "--all", "--pond", pond) == ["tidied"]
    assert tended("retain", "--all", "--pond", pond) == []
    assert tended("compact", "--all", "--pond", pond) == ["retained", "tidied"]


def test_the_option_all_may_stand_before_the_time(pond: str) -> None:
    assert tended("condense", "--all", "--before", "2020-01-01T00:00Z", "--pond", pond) == ["retained", "tidied"]
