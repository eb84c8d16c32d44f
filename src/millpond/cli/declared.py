"""Commands of operations that are declared with one, see `kernel/operations.py`.

    millpond keys MAP [--limit …] [--pond …] [--json]

Positional parameters of the method are arguments, the others options, unless the operation has other forms of them; the
name of a map comes first. What a command shows is its result as facts, or what the function draws that `draws` names:

    @draws(AlertOperations.list)
    def listed(rules: Sequence[AlertRule], *, map: str) -> console.Shown: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from millpond import json_forms
from millpond.cli.terminal import console
from millpond.cli.verbs import POND, Reached, keyword, signed, verb
from millpond.kernel.operations import Operation, operation_of, operations_of

if TYPE_CHECKING:
    from millpond.maps.protocols import PondLike

__all__ = ("commands", "draws")

F = TypeVar("F", bound=Callable[..., console.Shown])
Owner = Callable[..., Any]
"""The thing in a pond that has the method; named arguments of the command say which."""
_DRAWN: dict[str, Callable[..., console.Shown]] = {}
"""The functions that show results: they take the result and the arguments."""


def commands(interface: type, owner: Owner, named: Mapping[str, Any], on: Reached = POND) -> None:
    """Make the commands of the operations of an interface; `named` are the arguments that name their owner."""
    for operation in operations_of(interface):
        if operation.command:
            verb(operation.command, *operation.examples, on=on)(_command(operation, owner, named))


def draws(method: Callable[..., Any]) -> Callable[[F], F]:
    """Let a function show the result of the command of a declared method."""

    def declare(function: F) -> F:
        _DRAWN[operation_of(method).command] = function
        return function

    return declare


def _command(operation: Operation, owner: Owner, named: Mapping[str, Any]) -> Callable[..., console.Shown]:
    def command(pond: PondLike, **arguments: Any) -> console.Shown:
        names = {name: arguments.pop(name) for name in named}
        result = getattr(owner(pond, **names), operation.name)(**arguments)
        if operation.command in _DRAWN:
            return _DRAWN[operation.command](result, **names, **arguments)
        return _facts(operation, names, json_forms.plain(result))

    taken = [keyword(name, annotation) for name, annotation in named.items()]
    taken += [_parameter(operation, parameter) for parameter in operation.parameters]
    return signed(command, [keyword("pond", Any), *taken], operation.summary)


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


def _facts(operation: Operation, names: Mapping[str, str], result: Any) -> console.Shown:
    facts = result if isinstance(result, dict) else {operation.answer or operation.name: result}
    if not isinstance(result, dict):
        return console.said({**names, **facts}, str(result))
    return console.facts({**names, **facts}, {name.replace("_", " "): value for name, value in facts.items()})
