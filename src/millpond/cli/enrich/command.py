"""`millpond enrich`: files of events, and what the maps know about each of them, into a new file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.loads import HERE_BYTES_MAX
from millpond.cli.options import Branch, InputFormat, Json, KnownAtOf, Master, Null, PondLocation, Ref, Zone, pond_at
from millpond.cli.terminal import console
from millpond.cli.terminal.messages import ColumnLookup, parse_lookup, settled
from millpond.cli.verbs import verb
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.lineage import ENRICHING
from millpond.process_settings import is_stated

if TYPE_CHECKING:
    from millpond.cli.enrich.by_spark import Enriched, Inputs
    from millpond.maps.protocols import PondLike

__all__ = ("OnInvalid", "enrich")


class OnInvalid(StrEnum):
    """The treatment of an event whose key or time is invalid."""

    ERROR = "error"
    MISS = "miss"


@verb(
    "enrich",
    "millpond enrich flights.csv --with weather --key origin --time time_hour --out enriched.parquet",
    "millpond enrich flights.csv --with 'weather on origin at time_hour' --with 'planes on tailnum as plane' "
    "--out enriched.parquet",
    "millpond enrich logs.jsonl --with 'ipv4_country on address as country' --out enriched.csv --json",
    "millpond enrich logs.csv --with 'ipv4_country on address' --out found.csv --rejects bad.jsonl --max-rejects 100",
    "millpond enrich year=*.parquet --with weather --key origin --time time_hour --master spark://host:7077 "
    "--out enriched/",
)
def enrich(
    events: Annotated[list[str], typer.Argument(metavar="EVENTS...", help="Files: Parquet, CSV, JSON lines.")],
    what: Annotated[
        list[str],
        typer.Option(
            "--with",
            "-w",
            metavar="MAP",
            help="A map to look up: MAP, or 'MAP on KEY at TIME [over WINDOW] as COLUMN'. Give one for each lookup.",
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
    on_invalid: Annotated[
        OnInvalid,
        typer.Option("--on-invalid", help="What an event is whose key or time is none: a reject, or a miss."),
    ] = OnInvalid.ERROR,
    max_rejects: Annotated[
        int, typer.Option("--max-rejects", metavar="N", min=0, help="Events that may be rejected before it fails.")
    ] = 0,
    rejects: Annotated[
        Path | None, typer.Option("--rejects", metavar="FILE", help="JSON lines file for rejected events and why.")
    ] = None,
    spark: Annotated[
        bool | None, typer.Option("--spark/--no-spark", help="Work with Spark, or here.", show_default="by size")
    ] = None,
    master: Master = None,
    known_at: KnownAtOf = None, branch: Branch = None, ref: Ref = None, pond: PondLocation = "pond", json: Json = False,
) -> None:  # fmt: skip
    """Look every event up in maps, as of its time, and write it with what was found.

    Events of up to 1 GiB are looked up here; more, and what only Spark reads, by Spark where it is installed.
    """
    from millpond.cli.enrich import by_spark as work

    clock = SystemClock()
    began = clock.monotonic()
    inputs = work.Inputs(tuple(events), file_format, null, zone)
    chosen = _Events(inputs, out, flat, str(on_invalid), max_rejects, rejects, known_at)
    with pond_at(pond, branch, ref) as opened:
        lookups = _lookups(opened, what, key, time)
        work.check_locations(inputs, out, rejects)
        job_set = _job_of(opened, chosen, lookups)
        done = None if _by_spark(spark, master, chosen) else _here(opened, chosen, lookups, spark, job_set, quiet=json)
        if done is None:
            location = opened if branch or ref else pond
            done = _with_spark(opened, location, chosen, lookups, master, job_set, quiet=json)
    _tell(replace(done, seconds=clock.monotonic() - began), lookups, chosen, as_json=json)


@dataclass(frozen=True, slots=True)
class _Events:
    """Options about the events, in and out."""

    inputs: Inputs
    out: str
    flat: bool | None
    on_invalid: str
    max_rejects: int
    rejects: Path | None
    known_at: str | None = None

    @property
    def rejectable(self) -> bool:
        """True when some events may be rejected, and written down."""
        return self.max_rejects > 0 or self.rejects is not None


def _job_of(pond: PondLike, chosen: _Events, lookups: tuple[ColumnLookup, ...]) -> str:
    """The job set; its run events, where there is a target for those, get to know the files and maps."""
    if is_stated("lineage", "target"):
        from millpond.lineage.datasets import Enriching

        into = {lookup.into: lookup.map for lookup in lookups}
        ENRICHING.set(Enriching(pond, chosen.inputs.paths, into, chosen.out))
    return "enrich/" + "+".join(sorted({lookup.map for lookup in lookups}))


def _by_spark(spark: bool | None, master: str | None, chosen: _Events) -> bool:
    """True when Spark shall work: when it is named, or when there is much to read, or what only Spark reads."""
    from millpond.cli.enrich import by_spark as work

    if spark is not None or master is not None:
        if spark is not False and chosen.rejectable:
            raise Invalid(
                "Spark does not write rejects down", kind="rejects_spark",
                hint="leave out --spark and --master, or say --on-invalid miss",
            )  # fmt: skip
        return spark is not False
    if chosen.rejectable or find_spec("pyspark") is None:
        return False
    return work.only_for_spark(chosen.inputs, chosen.out) or work.bytes_of(chosen.inputs) > HERE_BYTES_MAX


def _here(
    pond: PondLike, chosen: _Events, lookups: tuple[ColumnLookup, ...], spark: bool | None, job_set: str, *, quiet: bool
) -> Enriched | None:
    """Look events up in this process; None for columns of several types, which Spark reads, where it may be used."""
    from millpond.cli.enrich.in_process import Rejects, enrich_here

    rejects = Rejects(chosen.on_invalid == "miss", chosen.max_rejects, chosen.rejects)
    try:
        with pond.reports.job(job_set) as job:
            job.running()
            done = enrich_here(
                pond, chosen.inputs, lookups, chosen.out, flat=chosen.flat, rejects=rejects, quiet=quiet,
                known_at=chosen.known_at,
            )  # fmt: skip
            job.note(rows=done.rows, rejected=done.rejected)
            return done
    except Invalid as error:
        possible = spark is None and not chosen.rejectable and find_spec("pyspark") is not None
        if error.kind != "events_mixed" or not possible:
            raise
        return None


def _with_spark(
    opened: PondLike, location: Any, chosen: _Events, lookups: tuple[ColumnLookup, ...], master: str | None,
    job_set: str, *, quiet: bool,
) -> Enriched:  # fmt: skip
    from millpond.cli.enrich import by_spark as work

    with opened.reports.job(job_set, by="spark") as job, work.running(master, quiet=quiet) as session:
        job.running()
        done = work.enrich_files(
            session, location, chosen.inputs, lookups, chosen.out, flat=chosen.flat, on_invalid=chosen.on_invalid,
            quiet=quiet, known_at=chosen.known_at,
        )  # fmt: skip
        job.note(rows=done.rows)
    return done


def _lookups(pond: PondLike, what: list[str], key: str | None, time: str | None) -> tuple[ColumnLookup, ...]:
    return tuple(settled(parse_lookup(phrase), pond.map, key=key, time=time) for phrase in what)


def _tell(done: Enriched, questions: tuple[ColumnLookup, ...], chosen: _Events, *, as_json: bool) -> None:
    lookups: list[dict[str, Any]] = [
        {"map": lookup.map, "column": lookup.into, "found": done.matches[lookup.into], "share": _share(done, lookup)}
        for lookup in questions
    ]
    if as_json:
        console.print_json(
            {
                "out": chosen.out, "rows": done.rows, "rejected": done.rejected, "seconds": round(done.seconds, 3),
                "lookups": lookups,
            }
        )  # fmt: skip
        return
    console.print_table(
        ["map", "into", "found", "of all"],
        [[row["map"], row["column"], f"{row['found']:,}", f"{row['share']:.1%}"] for row in lookups],
    )
    events = console.human_count(done.rows, "event")
    speed = f", {done.rows / done.seconds:,.0f} a second" if done.rows > done.seconds > 0 else ""
    console.say(f"wrote {events} to {chosen.out} in {done.seconds:.1f} s{speed}")
    if done.rejected:
        where = f", see {chosen.rejects}" if chosen.rejects else "; --rejects FILE writes them down with their reasons"
        console.say(f"rejected {console.human_count(done.rejected, 'event')}{where}")


def _share(done: Enriched, lookup: ColumnLookup) -> float:
    return done.matches[lookup.into] / done.rows if done.rows else 0.0
