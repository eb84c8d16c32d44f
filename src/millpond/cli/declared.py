"""Commands of operations that are declared with one, see `kernel/operations.py`.

    millpond keys MAP [--limit …] [--pond …] [--json]

Positional parameters of the method are arguments, the others options, unless the operation has other forms of them; the
name of a map comes first. What a command shows is its result as facts, or what the function draws that `draws` names:

    @draws(AlertOperations.list)
    def listed(rules: Sequence[AlertRule], *, map: str, json: bool) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import typer

from millpond import json_forms
from millpond.cli.options import Json, PondPlace, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import keyword, signed, verb
from millpond.kernel.operations import Operation, operation_of, operations_of

__all__ = ("commands", "draws")

F = TypeVar("F", bound=Callable[..., None])
Owner = Callable[..., Any]
"""The thing in a pond that has the method; named arguments of the command say which."""
_DRAWN: dict[str, Callable[..., None]] = {}
"""The functions that show results: they take the result, the arguments, and `json`."""


def commands(interface: type, owner: Owner, named: Mapping[str, Any]) -> None:
    """Make the commands of the operations of an interface; `named` are the arguments that name their owner."""
    for operation in operations_of(interface):
        if operation.command:
            verb(operation.command, *operation.examples)(_command(operation, owner, named))


def draws(method: Callable[..., Any]) -> Callable[[F], F]:
    """Let a function show the result of the command of a declared method."""

    def declare(function: F) -> F:
        _DRAWN[operation_of(method).command] = function
        return function

    return declare


def _command(operation: Operation, owner: Owner, named: Mapping[str, Any]) -> Callable[..., None]:
    def command(pond: str, json: bool, **arguments: Any) -> None:
        names = {name: arguments.pop(name) for name in named}
        with existing_pond(pond) as opened:
            result = getattr(owner(opened, **names), operation.name)(**arguments)
        if operation.command in _DRAWN:
            _DRAWN[operation.command](result, **names, **arguments, json=json)
        else:
            _show(operation, names, json_forms.plain(result), as_json=json)

    taken = [keyword(name, annotation) for name, annotation in named.items()]
    taken += [_parameter(operation, parameter) for parameter in operation.parameters]
    return signed(
        command, [*taken, keyword("pond", PondPlace, "pond"), keyword("json", Json, False)], operation.summary
    )


def _parameter(operation: Operation, parameter: inspect.Parameter) -> inspect.Parameter:
    name, default, kinds = parameter.name, parameter.default, get_args(parameter.annotation)
    option = f"--{name.replace('_', '-')} " if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
    form, _, unless = operation.forms.get(name, f"{option}{name.upper()}").partition("=")
    *flags, metavar = form.rsplit(" ", 1)
    about: dict[str, Any] = {"metavar": metavar, "help": operation.words[name], "show_default": unless or True}
    kind: Any = parameter.annotation
    if str in kinds:  # what is typed is text, of which the method makes what it needs
        kind = str | None if NoneType in kinds else str
        default = str(default) if isinstance(default, int) else default
    shown: Any = typer.Option(*flags, **about) if flags else typer.Argument(**about)
    return keyword(name, Annotated[kind, shown], default)


def _show(operation: Operation, names: Mapping[str, str], result: Any, *, as_json: bool) -> None:
    facts = result if isinstance(result, dict) else {operation.answer or operation.name: result}
    if as_json:
        console.print_json({**names, **facts})
    elif isinstance(result, dict):
        console.print_facts({name.replace("_", " "): value for name, value in facts.items()})
    else:
        console.say(str(result))
