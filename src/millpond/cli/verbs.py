"""Commands, each declared at its function: the words that call it, and examples that can be typed.

    @verb("branch list", "millpond branch list flights", "millpond branch list flights --json")
    def listed(name: RepositoryName, pond: PondPlace = "pond", json: Json = False) -> None: ...

The parameters of the function are its arguments and options, and its docstring is its help. What it returns is shown,
as JSON where `--json` is said: a function that needs not know has no parameter for it. Words of several parts make
groups, which `GROUPS` explains; a function with the words of a group is what the group does by itself.

Commands on one thing say so, `on=RUNS`: they have the options that name it, before `--json`, and their
function gets it first, open.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import typer

from millpond.cli.options import Branch, Json, PondLocation, Ref, examples, existing_pond, pond_at
from millpond.cli.terminal.console import Shown

__all__ = ("AT_REF", "POND", "Reached", "keyword", "made", "signed", "verb")

F = TypeVar("F", bound=Callable[..., Shown | None])
GROUPS = {
    "maintenance": "Keep maps small: drop repeats, delete the old, give disk back.",
    "alert": "Alerts: events that tell when a load lets a condition hold in an aggregate.",
    "repo": "Repositories: objects with branches, commits and merges.",
    "branch": "Branches: lines of commits to write to.",
    "fs": "Objects: put, get, list, copy, move and delete them.",
    "tag": "Tags: names of commits that stay.",
    "events": "List and read streams of events, compress and drop their old days.",
    "events settings": "Set, show and remove the ages of queues and job sets.",
    "run": "Start, show, stop, resume, rescue and delete a run of a workflow; its logs.",
    "workflow": "List, show and delete workflows, in their versions.",
    "task": "List and delete the definitions of tasks; their queues and workers.",
    "schedule": "List, pause, resume, run and delete the schedules of workflows.",
    "user-task": "List, show, assign, answer and cancel what runs ask people for.",
    "external-event": "List external events, and send one to a run, or by a key.",
    "bulk-job": "List and forget deletions of many runs.",
    "pipeline": "Show, run, deploy, list, pause and fill back pipelines: Python functions of steps.",
    "migration": "Let open runs go on with another version of their workflow.",
    "tenant": "Make and list the tenants of workflows.",
    "principal": "Say what callers may do in workflows, by the names of their tokens.",
    "quota": "Limit the changing requests a second of a tenant of workflows.",
    "token": "Say who may use a node: add, rotate, list and revoke tokens.",
    "node": "Show the nodes of a pond, change their list, and prepare one to be stopped.",
    "snapshots": "Share snapshots of maps through a bucket of S3, or a folder.",
    "backup": "Back up a pond while it works, to a folder or a bucket of S3.",
}


@dataclass(frozen=True, slots=True)
class _Verb:
    """A command: its function, the end of its help, and more that click may know."""

    function: Callable[..., object]
    epilog: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reached:
    """A thing that commands work on: the options that name it, and how it is opened by their values."""

    options: Sequence[inspect.Parameter]
    open: Callable[..., AbstractContextManager[Any]]

    def opened(self, function: Callable[..., Shown | None], **arguments: Any) -> Shown | None:
        """The result of a function that gets the thing first."""
        named = {option.name: arguments.pop(option.name) for option in self.options}
        with self.open(**named) as opened:
            return function(opened, **arguments)


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter of a command that is made."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def signed(command: F, parameters: Sequence[inspect.Parameter], words: str | None) -> F:
    """A command that is made, with these parameters and words about it."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = words
    return command


def _command(function: Callable[..., Shown | None], on: Reached | None) -> Callable[..., None]:
    """The command of a function: its parameters, those of the thing that it is about, and `--json`."""
    hints = get_type_hints(function, include_extras=True)
    taken = inspect.signature(function).parameters.values()
    own = [keyword(parameter.name, hints[parameter.name], parameter.default) for parameter in taken]
    own = own if on is None else [*own[1:], *on.options]
    asks = "json" in hints

    def command(json: bool, **arguments: Any) -> None:
        arguments |= {"json": json} if asks else {}
        shown = function(**arguments) if on is None else on.opened(function, **arguments)
        if shown is not None:
            shown.show(as_json=json)

    command.__module__ = function.__module__
    options = [option for option in own if option.name != "json"]
    return signed(command, [*options, keyword("json", Json, False)], function.__doc__)


_POND = keyword("pond", PondLocation, "pond")
POND = Reached((_POND,), lambda pond: existing_pond(pond))
"""Of commands on what is in a pond: the pond."""
AT_REF = Reached(
    (keyword("branch", Branch, None), keyword("ref", Ref, None), _POND),
    lambda pond, branch, ref: pond_at(pond, branch, ref),
)
"""Of commands on a map: the pond, as it is on a branch or at a ref."""
_VERBS: dict[str, _Verb] = {}
"""The commands of all modules that were imported, in their order."""


def verb(words: str, *lines: str, on: Reached | None = None, json: bool = True, **settings: Any) -> Callable[[F], F]:
    """Declare a function as the command of these words; `lines` are its examples. Without `json` it writes bytes."""

    def declare(function: F) -> F:
        _VERBS[words] = _Verb(_command(function, on) if json else function, examples(*lines), settings)
        return function

    return declare


def made(name: str, modules: Sequence[str]) -> Any:
    """The command of one word, with those below it, in the order of their modules, which were imported."""
    top = typer.Typer()
    groups = {"": top}

    def location(verb: tuple[str, _Verb]) -> int:
        module = verb[1].function.__module__
        return modules.index(module) if module in modules else len(modules)

    for words, declared in sorted(_VERBS.items(), key=location):
        if words == name or words.startswith(f"{name} "):
            above, _, last = words.rpartition(" ")
            if any(other.startswith(f"{words} ") for other in _VERBS):
                front = typer.Typer(invoke_without_command=True, callback=declared.function, epilog=declared.epilog)
                groups[words] = front
                groups[above].add_typer(front, name=last)
            else:
                settings = dict(declared.settings)
                _group(groups, above).command(last, epilog=declared.epilog, **settings)(declared.function)
    return typer.main.get_group(top).commands[name]


def _group(groups: dict[str, typer.Typer], words: str) -> typer.Typer:
    """The group of some words, made with those above it unless it is there."""
    if words not in groups:
        above, _, last = words.rpartition(" ")
        groups[words] = typer.Typer(help=GROUPS[words], no_args_is_help=True)
        _group(groups, above).add_typer(groups[words], name=last)
    return groups[words]
