"""`millpond demo`: a year of real flights, enriched by Spark from maps that Spark built.

FOLDER/data/             the data as files
FOLDER/pond/             the maps
FOLDER/flights.parquet   the flights, with what the maps know about each

With `--workflow` the flights are in FOLDER/flights/, and FOLDER/server.log and FOLDER/worker.log say what went on.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, Master
from millpond.cli.terminal import console
from millpond.cli.terminal.messages import ColumnLookup
from millpond.cli.terminal.steps import steps
from millpond.cli.verbs import verb
from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid
from millpond.json_forms import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.demo.corrections import Corrected
    from millpond.demo.plan import Lookup, PlannedMap

__all__ = ("demo",)

ADDRESSES = 1_000_000
"""IPv4 addresses that are looked up, evenly spread over all there are."""


@verb("demo", "millpond demo", "millpond demo /tmp/flights --json", "millpond demo --workflow")
def demo(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to put it; made anew.")] = Path("demo"),
    master: Master = None,
    workflow: Annotated[
        bool, typer.Option("--workflow", help="As a workflow, with a server and a worker that end with it.")
    ] = False,
    json: Json = False,
) -> None:
    """Load a year of real flights and their weather with Spark, and enrich every flight. Takes half a minute."""
    from millpond.arrays.warming import load_ahead
    from millpond.cli.enrich.by_spark import running
    from millpond.demo.plan import LOOKUPS, MAPS, SETTINGS, register_views
    from millpond.demo.sources import prepare

    clock = SystemClock()
    began = clock.monotonic()
    _clear(folder)
    if workflow:
        from millpond.cli.demo_workflow import run_workflow

        with console.working("unpacking a year of flights", quiet=json):
            sources = prepare(folder / "data")
        run_workflow(folder, sources, master, clock, quiet=json)
        return
    with steps(len(MAPS) + 4, clock, quiet=json) as step, ThreadPoolExecutor(1) as beside:
        step("unpacking a year of flights, starting Spark")
        unpacked = beside.submit(prepare, folder / "data")
        load_ahead()
        with running(master, quiet=True, settings=SETTINGS) as session:
            register_views(session, unpacked.result())
            run = _Run(session, folder, clock, step)
            results = _Results(_load_maps(run), _enrich_flights(run), _place_addresses(run), _correct(run))
            step("stopping Spark")
    seconds = clock.monotonic() - began
    if json:
        console.print_json({**plain(results), "folder": str(folder), "seconds": round(seconds, 1)})
    else:
        _show(results, LOOKUPS, folder, seconds)


def _clear(folder: Path) -> None:
    """Make room for what the demo writes; what it did not write stays, and stops it.

    Raises: `Invalid` when the folder holds something else.
    """
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
    step: Callable[[str], None]

    @property
    def pond(self) -> Path:
        return self.folder / "pond"


@dataclass(frozen=True, slots=True)
class _Loaded:
    map: str
    kind: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Flights:
    rows: int
    seconds: float
    matches: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Addresses:
    rows: int
    seconds: float
    largest: dict[str, int]
    matches: int


@dataclass(frozen=True, slots=True)
class _Results:
    maps: list[_Loaded]
    flights: _Flights
    addresses: _Addresses
    corrected: Corrected


def _load_maps(run: _Run) -> list[_Loaded]:
    """All five kinds of map, created and loaded by Spark."""
    import millpond
    from millpond.demo.plan import MAPS

    loaded = []
    with millpond.open(run.pond) as pond:
        for planned in MAPS:
            run.step(f"loading the map {planned.name} by Spark")
            pond.create_map(planned.name, kind=planned.kind, value=planned.value, store=planned.store)
            loaded.append(_load_map(run, planned, pond))
    return loaded


def _load_map(run: _Run, planned: PlannedMap, pond: Any) -> _Loaded:
    from millpond import spark

    began = run.clock.monotonic()
    result = spark.load(run.session.sql(planned.rows), pond, planned.name, source=planned.name)
    return _Loaded(planned.name, planned.kind, result.rows, round(run.clock.monotonic() - began, 3))


def _enrich_flights(run: _Run) -> _Flights:
    from millpond.cli.enrich.by_spark import enrich_frame, write_events
    from millpond.demo.plan import LOOKUPS

    run.step("enriching every flight")
    began = run.clock.monotonic()
    questions = [ColumnLookup(lookup.map, lookup.key, lookup.at, lookup.into, textual=True) for lookup in LOOKUPS]
    enriched = enrich_frame(run.session.table("flights"), run.pond, questions)
    done = write_events(enriched, questions, str(run.folder / "flights.parquet"))
    seconds = run.clock.monotonic() - began
    return _Flights(done["rows"], round(seconds, 3), {lookup.into: done[lookup.into] for lookup in questions})


def _place_addresses(run: _Run) -> _Addresses:
    """Look up the places of a million addresses: the ranged map at work."""
    from millpond.cli.enrich.by_spark import enrich_frame

    run.step(f"placing {ADDRESSES:,} addresses")
    began = run.clock.monotonic()
    apart = (1 << 32) // ADDRESSES
    addresses = run.session.range(0, apart * ADDRESSES, apart).withColumnRenamed("id", "address")
    questions = [ColumnLookup("ipv4_country", "address", None, "country", textual=False)]
    counted = enrich_frame(addresses, run.pond, questions).groupBy("country").count().toArrow().to_pylist()
    seconds = round(run.clock.monotonic() - began, 3)
    counts = {row["country"]: row["count"] for row in counted if row["country"] is not None}
    largest = sorted(counts.items(), key=lambda pair: -pair[1])[:6]
    return _Addresses(ADDRESSES, seconds, dict(largest), sum(counts.values()))


def _correct(run: _Run) -> Corrected:
    import millpond
    from millpond.demo.corrections import correct_weather

    run.step("correcting the weather on a branch")
    with millpond.open(run.pond) as pond:
        return correct_weather(pond, run.folder / "data")


# -- what it came to, on one screen -------------------------------------------------------------------


def _show(results: _Results, lookups: tuple[Lookup, ...], folder: Path, seconds: float) -> None:
    flights, addresses = results.flights, results.addresses
    loaded = sum(loaded.rows for loaded in results.maps)
    loading = sum(loaded.seconds for loaded in results.maps)
    columns, rows = _sample(folder / "flights.parquet")
    console.print_table(columns, rows, title="Some flights of a stormy day, with the weather of their hour")
    _show_corrected(results.corrected)
    shares = ", ".join(f"{lookup.into} {flights.matches[lookup.into] / flights.rows:.0%}" for lookup in lookups[:4])
    locations = ", ".join(f"{name} {count / addresses.rows:.0%}" for name, count in list(addresses.largest.items())[:3])
    speed = f"{flights.rows * len(lookups) / flights.seconds:,.0f} lookups a second"
    # A virtual environment that is not active is not searched for the commands named below.
    path = "" if shutil.which("millpond") else f'PATH="{_typed_path(Path(sys.executable).parent)}:$PATH" '
    console.say(
        f"""{loaded:,} rows loaded into {len(results.maps)} maps by Spark in {loading:.0f} s.
{flights.rows:,} flights, looked up {len(lookups)} times each, in {flights.seconds:.1f} s: {speed}.
Found: {shares} …
{addresses.rows:,} IPv4 addresses placed in {addresses.seconds:.1f} s: {locations} …

Done in {seconds:.0f} s. All flights are in {folder}/flights.parquet. Try next:
  export {path}MILLPOND_POND={folder}/pond
  millpond maps
  millpond get weather JFK --at 2013-02-08T18:00Z
  millpond get ipv4_country 134744072
  millpond query "select key, avg(temp) as mean from weather group by key"
  millpond console
"""
    )


def _show_corrected(corrected: Corrected) -> None:
    from millpond.demo.corrections import QUESTION

    rows = [(str(row["effective_time"])[:16], row["old"]["temp"], row["new"]["temp"]) for row in corrected.difference]
    title = f"The weather of {QUESTION[0]} is corrected on a branch, and merged by key when a check finds nothing"
    console.print_table(["utc", "temp on main", "temp on the branch"], rows, title=title)
    console.say(
        f"""A file with {corrected.refused[0]["temp"]:g} degrees was refused there by a check.
{" at ".join(QUESTION)}, as known before: {corrected.before["temp"]:g}; now: {corrected.after["temp"]:g}.
"""
    )


def _typed_path(folder: Path) -> str:
    """A folder as one would type it here: from the current one where it is below that."""
    return f"$PWD/{folder.relative_to(Path.cwd())}" if folder.is_relative_to(Path.cwd()) else str(folder)


def _sample(flights: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    import duckdb

    from millpond.demo.plan import SAMPLE

    with duckdb.connect() as database:
        answer = database.execute(SAMPLE, [str(flights)])
        return [name for name, *_ in answer.description or ()], answer.fetchall()
