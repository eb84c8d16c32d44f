"""`millpond get`: one key, one value."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from millpond.cli.options import At, Json, MapName, PondPlace, examples, existing_pond
from millpond.cli.terminal import console, exits

__all__ = ("get", "register")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog=examples(
            "millpond get weather JFK --at 2013-02-08T18:00Z",
            "millpond get ipv4_country 134744072",
            "millpond get airborne N14228 --at 2013-01-01T11:00Z --json",
        ),
        # a key may start with a minus: a negative number of a ranged map
        context_settings={"ignore_unknown_options": True},
    )(get)


def get(
    name: MapName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key; a whole number for ranged maps.")],
    at: At = None,
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:
    """Look up one key, now or at a time. Ends with 1 when there is no value."""
    with existing_pond(pond) as opened:
        found = opened.map(name)
        value = found.get(key if found.kind.keyed else _number(key, found.name), at=at)
    if json:
        from millpond.cli.rows import plain

        console.print_json({"map": found.name, "key": key, "at": at, "value": plain(value)})
    elif value is None:
        when = f" at {at}" if at is not None else ""
        sys.stderr.write(f"no value for {key}{when} in {found.name}\n")
    else:
        _print(value)
    if value is None:
        raise typer.Exit(exits.EXIT_NO_ANSWER)


def _number(key: str, name: str) -> int:
    from millpond.errors import Invalid

    try:
        return int(key)
    except ValueError:
        raise Invalid(
            "keys of a ranged map are whole numbers", kind="key_type", map=name, key=repr(key),
            hint=f"such as: millpond get {name} 42",
        ) from None  # fmt: skip


def _print(value: Any) -> None:
    from millpond.cli.rows import plain

    if isinstance(value, dict):
        console.print_facts({field: plain(inner) for field, inner in value.items()})
    else:
        console.say(str(plain(value)))
