"""`millpond demo`: a year of real flights, enriched by Spark from maps that Spark built.

FOLDER/data/             the data as files
FOLDER/pond/             the maps
FOLDER/flights.parquet   the flights, with what the maps know about each

With `--workflow` the flights are in FOLDER/flights/, and FOLDER/server.log and FOLDER/worker.log say what went on.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, Master, examples
from millpond.cli.terminal import console
from millpond.json_forms import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond.clock import Clock
    from millpond.demo.plan import Lookup, PlannedMap

__all__ = ("demo", "register")

ADDRESSES = 1_000_000
"""IPv4 addresses that are looked up, evenly spread over all there are."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=examples("millpond demo", "millpond demo /tmp/flights --json", "millpond demo --workflow"))(demo)


def demo(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to put it; made anew.")] = Path("demo"),
    master: Master = None,
    workflow: Annotated[
        bool, typer.Option("--workflow", help="As a workflow, with a server and a worker that end with it.")
    ] = False,
    json: Json = False,
) -> None:
    """Load a year of real flights and their weather with Spark, and enrich every flight. Takes a minute or two."""
    from millpond.cli.enrich.by_spark import running
    from millpond.clock import SystemClock
    from millpond.demo.plan import register_views, warm_up
    from millpond.demo.sources import prepare

    clock = SystemClock()
    began = clock.monotonic()
    _clear(folder)
    with console.working("unpacking a year of flights", quiet=json):
        sources = prepare(folder / "data")
    if workflow:
        from millpond.cli.demo_workflow import run_workflow

        run_workflow(folder, sources, master, clock, quiet=json)
        return
    with running(master, quiet=json) as session:
        with console.working("warming up", quiet=json):
            register_views(session, sources)
            warm_up(session)
        run = _Run(session, folder, clock, quiet=json)
        results = {"maps": _load_maps(run), "flights": _enrich_flights(run), "addresses": _place_addresses(run)}
    seconds = clock.monotonic() - began
    if json:
        console.print_json({**results, "folder": str(folder), "seconds": round(seconds, 1)})
    else:
        _say_what_next(folder, seconds)


def _clear(folder: Path) -> None:
    """Make room for what the demo writes; what it did not write stays, and stops it.

    Raises: `Invalid` when the folder holds something else.
    """
    from millpond.errors import Invalid

    ours = {"data", "pond", "flights.parquet", "flights", "server.log", "worker.log"}
    others = [path.name for path in folder.iterdir() if path.name not in ours] if folder.is_dir() else []
    if others:
        raise Invalid(
            "the folder holds something else", kind="demo_folder", folder=folder, found=others[0],
            hint="name another one: millpond demo FOLDER",
        )  # fmt: skip
    if folder.is_dir():
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class _Run:
    """The inputs of every step."""

    session: SparkSession
    folder: Path
    clock: Clock
    quiet: bool

    @property
    def pond(self) -> Path:
        return self.folder / "pond"


# -- maps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loaded:
    map: str
    kind: str
    rows: int
    seconds: float


def _load_maps(run: _Run) -> list[dict[str, Any]]:
    """All five kinds of map, created and loaded by Spark."""
    import millpond
    from millpond.demo.plan import MAPS

    loaded = []
    with (
        millpond.open(run.pond) as pond,
        console.progress("loading", total=len(MAPS), unit="maps", quiet=run.quiet) as on,
    ):
        for planned in MAPS:
            pond.create_map(planned.name, kind=planned.kind, value=planned.value)
            loaded.append(_load_map(run, planned, pond))
            on(1)
    if not run.quiet:
        console.print_table(
            ["map", "kind", "rows", "seconds", "rows/s"],
            [[e.map, e.kind, f"{e.rows:,}", f"{e.seconds:.1f}", _speed(e)] for e in loaded],
            title="Maps, loaded by Spark",
        )
    return [plain(loaded_map) for loaded_map in loaded]


def _speed(loaded: _Loaded) -> str | None:
    # of a few rows it would only say how long Spark takes to plan
    return f"{loaded.rows / loaded.seconds:,.0f}" if loaded.rows > 10_000 else None


def _load_map(run: _Run, planned: PlannedMap, pond: Any) -> _Loaded:
    from millpond import spark

    began = run.clock.monotonic()
    result = spark.load(run.session.sql(planned.rows), pond, planned.name, source=planned.name)
    return _Loaded(planned.name, planned.kind, result.rows, round(run.clock.monotonic() - began, 3))


# -- flights ------------------------------------------------------------------------------------------


def _enrich_flights(run: _Run) -> dict[str, Any]:
    from millpond.cli.enrich.by_spark import enrich_frame, write_events
    from millpond.demo.plan import LOOKUPS

    out = run.folder / "flights.parquet"
    began = run.clock.monotonic()
    wanted = [_wanted(lookup) for lookup in LOOKUPS]
    with console.working("enriching every flight", quiet=run.quiet):
        enriched = enrich_frame(run.session.table("flights"), run.pond, wanted)
        done = write_events(enriched, wanted, str(out))
    seconds = run.clock.monotonic() - began
    rows = done["rows"]
    if not run.quiet:
        _show_lookups(LOOKUPS, done)
        console.say(
            f"{rows:,} flights read, looked up {len(wanted)} times each and written in {seconds:.1f} s: "
            f"{rows / seconds:,.0f} flights a second, {rows * len(wanted) / seconds:,.0f} lookups a second\n"
        )
        _show_sample(run.session.read.parquet(str(out)))
    return {"rows": rows, "seconds": round(seconds, 3), "found": {lookup.into: done[lookup.into] for lookup in wanted}}


def _wanted(lookup: Lookup) -> Any:
    from millpond.cli.terminal.messages import Wanted

    return Wanted(lookup.map, lookup.key, lookup.at, lookup.into, textual=True)


def _show_lookups(lookups: tuple[Lookup, ...], done: dict[str, int]) -> None:
    console.print_table(
        ["question", "map", "found", "of all"],
        [
            [lookup.asks, lookup.map, f"{done[lookup.into]:,}", f"{done[lookup.into] / done['rows']:.1%}"]
            for lookup in lookups
        ],
        title="Every flight, looked up",
    )


def _show_sample(flights: DataFrame) -> None:
    from millpond.demo.plan import SAMPLE

    flights.createOrReplaceTempView("enriched")
    rows = flights.sparkSession.sql(SAMPLE).toArrow()
    console.print_table(rows.schema.names, [list(row.values()) for row in rows.to_pylist()], title="Some of them")


# -- addresses ----------------------------------------------------------------------------------------


def _place_addresses(run: _Run) -> dict[str, Any]:
    """Look up the places of a million addresses: the ranged map at work."""
    from millpond.cli.enrich.by_spark import enrich_frame
    from millpond.cli.terminal.messages import Wanted

    began = run.clock.monotonic()
    step = (1 << 32) // ADDRESSES
    addresses = run.session.range(0, step * ADDRESSES, step).withColumnRenamed("id", "address")
    wanted = [Wanted("ipv4_country", "address", None, "country", textual=False)]
    with console.working(f"placing {ADDRESSES:,} addresses", quiet=run.quiet):
        counted = enrich_frame(addresses, run.pond, wanted).groupBy("country").count().toArrow().to_pylist()
    seconds = run.clock.monotonic() - began
    counts = {row["country"]: row["count"] for row in counted}
    nowhere = counts.pop(None, 0)
    largest = sorted(counts.items(), key=lambda pair: -pair[1])[:6]
    if not run.quiet:
        console.print_table(
            ["country", "share of all addresses"],
            [[country, f"{count / ADDRESSES:.1%}"] for country, count in [*largest, ("reserved or unknown", nowhere)]],
            title=f"{ADDRESSES:,} IPv4 addresses placed in {seconds:.1f} s",
        )
    return {"rows": ADDRESSES, "seconds": round(seconds, 3), "largest": dict(largest), "found": sum(counts.values())}


# -- the end ------------------------------------------------------------------------------------------


def _say_what_next(folder: Path, seconds: float) -> None:
    # A virtual environment that is not active is not searched for the commands named below.
    path = "" if shutil.which("millpond") else f'\n  export PATH="{Path(sys.executable).parent}:$PATH"'
    console.say(
        f"""Done in {seconds:.0f} s. The enriched flights are in {folder}/flights.parquet. Try next:
{path}
  export MILLPOND_POND={folder}/pond
  millpond maps
  millpond get weather JFK --at 2013-02-08T18:00Z
  millpond get ipv4_country 134744072
  millpond query "select key, round(avg(temp), 1) as mean from weather group by key order by key"
  millpond scan airborne --where "key = 'N14228'" --limit 5
  millpond enrich {folder}/data/flights.csv --null NA --with 'planes on tailnum' --out planes.csv"""
    )
