"""Commands of operations that are declared with one, see `kernel/operations.py`.

    millpond keys MAP [--limit …] [--pond …] [--json]

Positional parameters of the method are arguments, the others options; the name of a map comes first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from millpond import json_forms
from millpond.cli.options import Json, MapName, PondPlace, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import keyword, signed, verb
from millpond.events.operations import EventsOperations
from millpond.kernel.operations import Operation, operations_of
from millpond.maps.protocols import MapOperations

Owner = Callable[..., Any]
"""The thing in a pond that has the method; named arguments of the command say which."""


def _command(operation: Operation, owner: Owner, named: Mapping[str, Any]) -> Callable[..., None]:
    def command(pond: str, json: bool, **arguments: Any) -> None:
        names = {name: arguments.pop(name) for name in named}
        with existing_pond(pond) as opened:
            result = getattr(owner(opened, **names), operation.name)(**arguments)
        _show(operation, names, json_forms.plain(result), as_json=json)

    taken = [keyword(name, annotation) for name, annotation in named.items()]
    taken += [_parameter(operation, parameter) for parameter in operation.parameters]
    return signed(
        command, [*taken, keyword("pond", PondPlace, "pond"), keyword("json", Json, False)], operation.summary
    )


def _parameter(operation: Operation, parameter: inspect.Parameter) -> inspect.Parameter:
    words = operation.words[parameter.name]
    metavar = parameter.name.upper()
    shown: Any = (
        typer.Option(f"--{parameter.name.replace('_', '-')}", metavar=metavar, help=words)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        else typer.Argument(metavar=metavar, help=words)
    )
    kind: Any = parameter.annotation
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, shown])


def _show(operation: Operation, names: Mapping[str, str], result: Any, *, as_json: bool) -> None:
    facts = result if isinstance(result, dict) else {operation.answer or operation.name: result}
    if as_json:
        console.print_json({**names, **facts})
    elif isinstance(result, dict):
        console.print_facts({name.replace("_", " "): value for name, value in facts.items()})
    else:
        console.say(str(result))


_OWNERS: tuple[tuple[type, Owner, Mapping[str, Any]], ...] = (
    (MapOperations, lambda pond, map: pond.map(map), {"map": MapName}),
    (EventsOperations, lambda pond: pond.events, {}),
)
for interface, of_pond, named_by in _OWNERS:
    for declared in operations_of(interface):
        if declared.command:
            verb(declared.command, *declared.examples)(_command(declared, of_pond, named_by))
