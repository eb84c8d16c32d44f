"""`millpond get`: one key, one value."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from millpond.cli.options import At, Json, KnownAt, MapName, Resolution
from millpond.cli.terminal import console, exits
from millpond.cli.verbs import AT_REF, verb
from millpond.errors import Invalid
from millpond.maps.protocols import MapLike, PondLike

__all__ = ("get",)


@verb(
    "get",
    "millpond get weather JFK --at 2013-02-08T18:00Z",
    "millpond get ipv4_country 134744072",
    "millpond get airborne N14228 --at 2013-01-01T11:00Z --json",
    "millpond get weather JFK --at 2013-02-08T18:00Z --known-at 2013-02-09T00:00Z",
    "millpond get sales JFK --between 2013-02-01T00:00Z 2013-03-01T00:00Z",
    'millpond get sales JFK --at 2013-02-08T18:00Z --resolution "1 day"',
    'millpond get sales JFK --at 2013-02-08T18:00Z --window "7 days"',
    "millpond get weather JFK --history",
    "millpond get weather JFK --ref main~1",
    "millpond get weather JFK --history --at 2013-03-01T00:00Z --json",
    context_settings={"ignore_unknown_options": True},
    on=AT_REF,
)
def get(
    pond: PondLike,
    name: MapName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key; a whole number for ranged maps.")],
    at: At = None,
    known_at: KnownAt = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option("--between", metavar="START STOP", help="Combine the buckets of an aggregate that begin in here."),
    ] = None,
    resolution: Resolution = None,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="TIME", help="Combine the buckets of an aggregate in so long a time before."),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="All values over time, up to --at: drawn on a terminal, else rows.")
    ] = False,
    json: Json = False,
) -> None:
    """Look up one key, now or at a time. Ends with 1 when there is no value.

    With --history a terminal shows a chart: numbers as steps, other values and sessions as bars. In a pipe and with
    --json the rows are printed instead.
    """
    pond_map = pond.map(name)
    lookup_key = key if pond_map.kind.keyed else _number(key, pond_map.name)
    if history:
        _show_history(pond_map, lookup_key, at, as_json=json)
        return
    value = pond_map.get(
        lookup_key, at=at, known_at=known_at, between=between, resolution=resolution, window=window
    )  # fmt: skip
    if json:
        from millpond.cli.rows import plain

        console.print_json({"map": pond_map.name, "key": key, "at": at, "value": plain(value)})
    elif value is None:
        when = f" at {at}" if at is not None else ""
        sys.stderr.write(f"no value for {key}{when} in {pond_map.name}\n")
    else:
        _print(value)
    if value is None:
        raise typer.Exit(exits.EXIT_NO_ANSWER)


def _show_history(pond_map: MapLike, key: str | int, until: str | None, *, as_json: bool) -> None:
    from millpond.cli.terminal.history import history_of, show_history

    table = history_of(pond_map, key, until)
    if not show_history(pond_map.definition, table.schema, table.to_batches(), as_json=as_json):
        sys.stderr.write(f"no value for {key} in {pond_map.name}\n")
        raise typer.Exit(exits.EXIT_NO_ANSWER)


def _number(key: str, name: str) -> int:
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
