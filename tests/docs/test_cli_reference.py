"""The command line's reference says what the commands say, and every example can be typed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from millpond.cli.main import app
from tests.docs.snippets import ROOT
from tools import cli_reference

FRONT = typer.main.get_command(app)
COMMANDS = dict(cli_reference.commands(FRONT, "millpond"))


def examples(command: Any) -> list[str]:
    return cli_reference.examples_of(command)


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8") == cli_reference.page(), (
        "run `make docs`"
    )


def test_every_command_has_examples_and_explains_its_options(subtests: pytest.Subtests) -> None:
    for words in COMMANDS:
        with subtests.test(words=words):
            command = COMMANDS[words]
            assert examples(command), words
            assert command.help
            for parameter in command.params:
                assert parameter.name == "help" or parameter.help, f"{words} {parameter.name}"


WRITES_BYTES = ("millpond fs cat",)
"""Commands whose output is the content of a file, as it is."""


def test_every_command_speaks_json(subtests: pytest.Subtests) -> None:
    for words in COMMANDS:
        with subtests.test(words=words):
            if words not in WRITES_BYTES:
                assert any("--json" in parameter.opts for parameter in COMMANDS[words].params)


def test_every_example_is_understood(subtests: pytest.Subtests) -> None:
    for line in [line for command in COMMANDS.values() for line in examples(command)]:
        with subtests.test(line=line):
            said = next(words for words in map(shlex.split, line.split(" | ")) if "millpond" in words[:2])
            command: Any = FRONT
            words = said[1:]
            while words and words[0] in getattr(command, "commands", ()):
                command = command.commands[words.pop(0)]
            command.make_context("millpond", words).close()
