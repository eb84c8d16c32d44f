"""`millpond query` and `millpond scan`: rows, by SQL or straight from a map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import Json, KnownAt, MapName, Out, Resolution, comma_list
from millpond.cli.rows import limited
from millpond.cli.terminal import console
from millpond.cli.verbs import AT_REF, verb
from millpond.maps.protocols import PondLike

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

__all__ = ("query", "scan")


@verb(
    "query",
    'millpond query "select key, count(*) as hours, avg(temp) from weather group by key order by key"',
    "millpond query \"select get_state('weather', 'JFK', '2013-02-08T18:00Z')\"",
    "millpond query \"select get_state('sales', 'JFK', '2013-02-08T18:00Z', window := '7 days')\"",
    'millpond query "select * from planes where seats > 300" --out large.parquet',
    'millpond query "select avg(temp) from weather" --branch fix',
    'millpond query "select avg(temp) from weather" --known-at 2013-02-09T00:00Z',
    "millpond query \"select kind, count(*) from events where queue = 'etl' group by kind\"",
    on=AT_REF,
)
def query(
    pond: PondLike,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="A query in DuckDB's SQL: of maps, events, runs, refs, commits.")
    ],
    out: Out = None,
    known_at: KnownAt = None,
    json: Json = False,
) -> None:
    """Ask in SQL: every map is a table, so are events and runs, and get_state(map, key, at) looks one key up."""
    table = pond.sql(sql, known_at=known_at)
    _answer(table.schema, table.to_batches(), total=table.num_rows, out=out, as_json=json)


@verb(
    "scan",
    "millpond scan weather --where \"key = 'JFK' and effective_time >= '2013-06-01'\" --limit 20",
    "millpond scan weather --columns key,effective_time,temp --out weather.parquet",
    "millpond scan airborne --limit 3 --json",
    "millpond scan weather --known-at 2013-02-09T00:00Z --limit 3",
    "millpond scan weather --where \"key in ('JFK', 'LGA')\" --columns key,effective_time,temp --plot",
    on=AT_REF,
)
def scan(
    pond: PondLike,
    name: MapName,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="CONDITION", help="Only these rows: \"key = 'JFK' and temp > 80\"."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--columns", metavar="NAME,…", help="Only these columns.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most this many rows.")] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw values over time on a terminal; in a pipe, print the rows.")
    ] = False,
    out: Out = None,
    known_at: KnownAt = None,
    resolution: Resolution = None,
    json: Json = False,
) -> None:
    """Read a map's rows; conditions on key and time read only what they need.

    With --plot a terminal shows a chart for each key: numbers as steps, other values and sessions as bars.
    """
    if plot and out is not None:
        raise typer.BadParameter("--plot draws on the terminal: leave --out away")
    pond_map = pond.map(name)
    reader = pond_map.scan(where, comma_list(columns) or None, known_at=known_at, resolution=resolution)
    if plot:
        from millpond.cli.terminal.history import show_history

        show_history(pond_map.definition, reader.schema, limited(reader, limit), as_json=json)
        return
    _answer(reader.schema, limited(reader, limit), total=None, out=out, as_json=json)


def _answer(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, total: int | None, out: Path | None, as_json: bool
) -> None:
    from millpond.cli import rows

    if out is None:
        rows.show(schema, batches, as_json=as_json)
        return
    with console.progress(f"writing {out}", total=total, quiet=as_json) as advance:
        count = rows.write_file(out, schema, batches, advance)
    if as_json:
        console.print_json({"out": str(out), "rows": count, "bytes": out.stat().st_size})
    else:
        size = console.human_bytes(out.stat().st_size)
        console.say(f"wrote {console.human_count(count, 'row')} ({size}) to {out}")
