"""Commands that have nothing to say say so: `--json` prints a value always, and a miss is reported."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from millpond.cli.main import app
from tests.cli.conftest import Shell
from tools.cli_reference import commands

# What each command needs to be run in a pond without maps; None: it has no empty case, or needs nodes.
EMPTY: dict[str, tuple[str, ...] | None] = {
    "init": (),
    "maps": (),
    "maintenance condense": ("--all",),
    "maintenance retain": ("--all",),
    "maintenance compact": ("--all",),
    "parts": (),
    "parts retry": (),
    "verify": (),
    "version": (),
    "config": ("--changed",),
    "snapshots push": ("--all", "--to", "shared"),
    "snapshots list": ("--from", "shared"),
    "snapshots pull": ("--all", "--from", "shared"),
    "token list": (),
    "backup list": ("shared",),
    "repo list": (),
    "create": None,
    "load": None,
    "get": None,
    "enrich": None,
    "alter": None,
    "drop": None,
    "query": None,
    "scan": None,
    "token add": None,
    "token revoke": None,
    "token rotate": None,
    "backup create": None,
    "backup verify": None,
    "backup prune": None,
    "restore": None,
    "node status": None,
    "node drain": None,
    "node promote": None,
    "node add": None,
    "node remove": None,
    "node reset": None,
    "jobs": None,
    "jobs run": None,
    "jobs pause": None,
    "jobs resume": None,
    "repair": None,
    "repo create": None,
    "repo show": None,
    "repo settings": None,
    "repo gc": None,
    "repo delete": None,
    "branch list": None,
    "branch create": None,
    "branch show": None,
    "branch compact": None,
    "branch restore": None,
    "branch delete": None,
    "fs ls": None,
    "fs put": None,
    "fs get": None,
    "fs stat": None,
    "fs cp": None,
    "fs mv": None,
    "fs rm": None,
    "fs restore": None,
    "commit": None,
    "merge": None,
    "revert": None,
    "cherry-pick": None,
    "reset": None,
    "diff": None,
    "log": None,
    "tag list": None,
    "tag create": None,
    "tag delete": None,
    "repo dump": None,
    "repo restore": None,
    "events list": (),
    "events stats": None,
    "events compress": None,
    "events expire": None,
    "events read": None,
    "events export": None,
    "events append": None,
    "events import": None,
    "events delete": None,
    "events settings list": (),
    "events settings set": None,
    "events settings remove": None,
    "watch": None,
    "console": None,
    "runs": None,
    "workflow list": None,
    "workflow show": None,
    "workflow delete": None,
    "task list": None,
    "task delete": None,
    "schedule list": None,
    "schedule pause": None,
    "schedule resume": None,
    "schedule run": None,
    "schedule delete": None,
    "user-task list": None,
    "user-task show": None,
    "user-task assign": None,
    "user-task answer": None,
    "user-task cancel": None,
    "external-event list": None,
    "external-event post": None,
    "bulk-job list": None,
    "bulk-job delete": None,
    "run start": None,
    "run show": None,
    "run logs": None,
    "run stop": None,
    "run resume": None,
    "run rescue": None,
    "run delete": None,
    "run delete-many": None,
    "worker": None,
    "copy": None,
    "alert add": None,
    "alert list": None,
    "alert remove": None,
    "alert try": None,
    "delete": None,
    "maintenance collect": None,
    "rename": None,
    "pipeline show": None,
    "pipeline run": None,
    "pipeline deploy": None,
    "pipeline list": None,
    "pipeline pause": None,
    "pipeline resume": None,
    "pipeline backfill": None,
    "pipeline logs": None,
    "migration put": None,
    "migration list": None,
    "migration apply": None,
    "migration delete": None,
    "tenant put": None,
    "tenant list": None,
    "principal put": None,
    "principal list": None,
    "principal delete": None,
    "quota put": None,
    "quota list": None,
    "quota delete": None,
    "serve": None,
    "warm": None,
    "demo": None,
}
COMMANDS = {
    words.removeprefix("millpond "): command
    for words, command in commands(typer.main.get_command(app), "millpond")
    if any("--json" in option.opts for option in command.params)
}


def test_every_command_with_json_was_thought_of() -> None:
    assert set(COMMANDS) == set(EMPTY)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("words", [words for words in COMMANDS if EMPTY.get(words) is not None])
def test_json_is_never_nothing(millpond: Shell, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("EVENTS_REPORTS", "MAPS_STORE"):  # `config` shows the settings that differ
        monkeypatch.delenv(f"MILLPOND_{setting}", raising=False)
    millpond("init")
    objects: list[Any] = millpond(*words.split(), *(EMPTY[words] or ()), "--json").objects
    assert objects
    if words not in ("init", "verify", "version"):
        assert objects == [[]]


def test_rows_are_lines_and_no_rows_are_none(weather: Shell) -> None:
    for command in (("scan", "weather", "--where", "key = 'X'"), ("query", "select * from weather where key = 'X'")):
        assert weather(*command, "--json").out == ""


def test_a_miss_is_reported(weather: Shell) -> None:
    said = weather("get", "weather", "JFK", "--at", "2013-01-01T00:00Z", code=1)
    assert (said.out, said.err) == ("", "no value for JFK at 2013-01-01T00:00Z in weather\n")
    assert weather("get", "weather", "XYZ", code=1).err == "no value for XYZ in weather\n"
    said = weather("get", "weather", "XYZ", "--json", code=1)
    assert said.object == {"map": "weather", "key": "XYZ", "at": None, "value": None}
    assert said.err == ""
