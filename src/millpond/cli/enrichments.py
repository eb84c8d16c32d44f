"""`millpond enrich`: files of events, and what the maps know about each of them, into a new file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli import screen
from millpond.cli.options import InputFormat, Json, Master, Null, PondPlace, Zone, examples, existing_pond

if TYPE_CHECKING:
    from millpond.cli.events import Enriched
    from millpond.cli.phrases import Wanted
    from millpond.maps.api import PondLike

__all__ = ("enrich", "register")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog=examples(
            "millpond enrich flights.csv --with weather --key origin --time time_hour --out enriched.parquet",
            "millpond enrich flights.csv --with 'weather on origin at time_hour' --with 'planes on tailnum as plane' "
            "--out enriched.parquet",
            "millpond enrich logs.jsonl --with 'ipv4_country on address as country' --out enriched.csv --json",
            "millpond enrich year=*.parquet --with weather --key origin --time time_hour --master spark://host:7077 "
            "--out enriched/",
        )
    )(enrich)


def enrich(
    events: Annotated[list[str], typer.Argument(metavar="EVENTS...", help="Files: Parquet, CSV, JSON lines.")],
    what: Annotated[
        list[str],
        typer.Option(
            "--with",
            "-w",
            metavar="MAP",
            help="A map to look up: MAP, or 'MAP on KEY at TIME as COLUMN'. Give it as often as there are lookups.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FILE", help="A .parquet, .csv, .jsonl or .arrow file; FOLDER/ for many."),
    ],
    key: Annotated[
        str | None, typer.Option("--key", metavar="COLUMN", help="Column of the key, where --with does not say 'on'.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Column of the time, where --with does not say 'at'.")
    ] = None,
    flat: Annotated[
        bool | None,
        typer.Option("--flat/--nested", help="A column for each field.", show_default="flat in CSV"),
    ] = None,
    file_format: InputFormat = None,
    null: Null = "",
    zone: Zone = None,
    master: Master = None,
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:
    """Look every event up in maps, as of its time, and write it with what was found. Runs on Spark."""
    with existing_pond(pond) as opened:
        wanted = _wanted(opened, what, key, time)
    from millpond.cli import events as work

    inputs = work.Inputs(tuple(events), file_format, null, zone)
    work.check_places(inputs, out)
    with work.running(master, quiet=json) as session:
        done = work.enrich_files(session, pond, inputs, wanted, out, flat=flat, quiet=json)
    _tell(done, wanted, out, as_json=json)


def _wanted(pond: PondLike, what: list[str], key: str | None, time: str | None) -> tuple[Wanted, ...]:
    from millpond.cli.phrases import parse_lookup, settled

    return tuple(settled(parse_lookup(phrase), pond.map, key=key, time=time) for phrase in what)


def _tell(done: Enriched, wanted: tuple[Wanted, ...], out: str, *, as_json: bool) -> None:
    told: list[dict[str, Any]] = [
        {"map": each.map, "column": each.into, "found": done.found[each.into], "share": _share(done, each)}
        for each in wanted
    ]
    if as_json:
        screen.print_json({"out": out, "rows": done.rows, "seconds": round(done.seconds, 3), "lookups": told})
        return
    screen.print_table(
        ["map", "into", "found", "of all"],
        [[each["map"], each["column"], f"{each['found']:,}", f"{each['share']:.1%}"] for each in told],
    )
    speed = f", {done.rows / done.seconds:,.0f} a second" if done.rows > done.seconds > 0 else ""
    screen.say(f"wrote {done.rows:,} events to {out} in {done.seconds:.1f} s{speed}")


def _share(done: Enriched, each: Wanted) -> float:
    return done.found[each.into] / done.rows if done.rows else 0.0
