"""Commands of operations that are declared with one, see `kernel/operations.py`.

    millpond count MAP [--where …] [--pond …] [--json]

Positional parameters of the method are arguments, the others options; a map comes first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from millpond import json_forms
from millpond.cli.options import Json, MapName, PondPlace, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.kernel.operations import Operation, operations_of
from millpond.maps.protocols import MapOperations


def _command(operation: Operation) -> Callable[..., None]:
    parameters = operation.parameters

    def command(map_name: str, pond: str, json: bool, **arguments: Any) -> None:
        with existing_pond(pond) as opened:
            result = getattr(opened.map(map_name), operation.name)(**arguments)
        _show(operation, map_name, json_forms.plain(result), as_json=json)

    taken = [inspect.Parameter("map_name", inspect.Parameter.KEYWORD_ONLY, annotation=MapName)]
    taken += [_parameter(operation, parameter) for parameter in parameters]
    taken += [
        inspect.Parameter("pond", inspect.Parameter.KEYWORD_ONLY, default="pond", annotation=PondPlace),
        inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json),
    ]
    command.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    command.__doc__ = operation.summary
    return command


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


def _show(operation: Operation, map_name: str, result: Any, *, as_json: bool) -> None:
    facts = result if isinstance(result, dict) else {operation.answer or operation.name: result}
    if as_json:
        console.print_json({"map": map_name} | facts)
    elif isinstance(result, dict):
        console.print_facts({name.replace("_", " "): value for name, value in facts.items()})
    else:
        console.say(str(result))


for declared in operations_of(MapOperations):
    if declared.command:
        verb(declared.command, *declared.examples)(_command(declared))
