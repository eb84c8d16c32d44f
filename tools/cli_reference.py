"""Writes docs/reference/cli.md from the command line itself: `make docs`. A test compares the two.

python tools/cli_reference.py            prints the page
python tools/cli_reference.py --write    writes docs/reference/cli.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from millpond.cli.main import app
from millpond.cli.terminal import exits

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

OPENING = """\
# The command line

<!-- written by `make docs` from the commands themselves -->

A command works on one pond: `./pond`, or what `--pond` or `MILLPOND_POND` names. Results go to standard output;
progress, notes and errors to standard error, and progress only on a terminal. With `--json` a command prints one JSON
object, or one object a line where it lists things or answers rows; an error is a JSON object too, on standard error.
A list of nothing is `[]`; `scan` and `query` print a line for each row and nothing where there is none.
`millpond --version` prints the version alone.

Times are written with their zone: `2013-02-08T18:00Z`, `2013-02-08 13:00-05:00`, or UTC milliseconds. Ages are written
`90s`, `15min`, `12h`, `30d`, `10y`: see [settings](../nodes.md#settings).
"""


def page() -> str:
    """The whole page."""
    command = typer.main.get_command(app)
    parts = [OPENING, "## Commands\n", *_contents(command), *_sections(command, "millpond"), *_exit_codes()]
    return "\n".join(parts).rstrip() + "\n"


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        words = f"{path} {name}"
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield words, command
        if hasattr(command, "commands"):
            yield from commands(command, words)


def _contents(group: Any) -> Iterator[str]:
    yield "| command | does |\n|---|---|"
    for words, command in commands(group, "millpond"):
        summary = inspect.cleandoc(command.help).split("\n")[0].split(". ")[0].rstrip(".")
        yield f"| [`{words}`](#{words.replace(' ', '-')}) | {summary} |"
    yield ""


def _sections(group: Any, path: str) -> Iterator[str]:
    for words, command in commands(group, path):
        yield f"## {words}\n"
        yield inspect.cleandoc(command.help) + "\n"
        yield "```sh\n" + "\n".join(examples_of(command)) + "\n```\n"
        yield "| | |\n|---|---|"
        for parameter in command.params:
            if parameter.name != "help":
                yield f"| `{_called(parameter)}` | {_explained(parameter)} |"
        yield ""


def examples_of(command: Any) -> list[str]:
    """The lines of a command's help that can be typed."""
    return [line.strip().removeprefix("$ ") for line in command.epilog.split("\n\n")[1:]]


def _called(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper()).replace("|", "\\|")
    names = ", ".join(parameter.opts)
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    value = _value(parameter)
    return f"{names} {value}".strip()


def _value(parameter: Any) -> str:
    if parameter.is_flag:
        return ""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "{" + ",".join(kind) + "}"
    return str(parameter.metavar or kind.__name__.upper())


def _explained(parameter: Any) -> str:
    text = (parameter.help or "").replace("|", "\\|")
    shown = getattr(parameter, "show_default", None)
    if parameter.required:
        return text + " Required."
    if isinstance(shown, str):
        return f"{text} Default: {shown}."
    default = parameter.default
    if parameter.param_type_name == "option" and default not in (None, False, True) and str(default):
        return f"{text} Default: {default}."
    return text


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield "An error is one sentence that says what happened and names the way out. `MILLPOND_TRACEBACK=1` adds the"
    yield "traceback. The kinds of error are explained in [errors.md](errors.md).\n"
    yield "| code | means |\n|---|---|"
    yield "| 0 | it worked |"
    yield f"| {exits.EXIT_NO_ANSWER} | no answer: a key without a value, or `verify` found something wrong |"
    yield f"| {exits.EXIT_USAGE} | the command line itself is wrong |"
    for error, code in sorted(exits.EXITS.items(), key=lambda item: item[1]):
        meaning = inspect.cleandoc(error.__doc__ or "").split("\n")[0].rstrip(".")
        yield f"| {code} | `{error.__name__}`: {meaning[0].lower()}{meaning[1:]} |"
    yield f"| {exits.EXIT_INTERRUPTED} | interrupted; a load that was interrupted left nothing behind |"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
