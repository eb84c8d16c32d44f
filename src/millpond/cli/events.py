"""`millpond events`: streams of events, what is in them, their days, compression and retention."""

from __future__ import annotations

import itertools
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.declared import commands
from millpond.cli.options import (
    Confirmed,
    From,
    Headers,
    Jobs,
    Json,
    Kinds,
    PondLocation,
    Until,
    event_filters,
    existing_pond,
)
from millpond.cli.terminal import console
from millpond.cli.verbs import POND, verb
from millpond.cli.watch import print_event
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.events.days import format_day
from millpond.events.ids import format_id
from millpond.events.names import StreamName
from millpond.events.operations import EventsOperations
from millpond.events.selection import no_such_stream
from millpond.json_forms import plain
from millpond.maps.protocols import PondLike
from millpond.sizes import parse_size

if TYPE_CHECKING:
    from millpond.events.index import StreamIndex
    from millpond.events.maintenance import MaintenanceReport

__all__ = ("append", "compress", "delete", "expire", "export", "imported", "listed", "read", "stats")

_HERE = "pond"
commands(EventsOperations, lambda pond: pond.events, {})
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="Only this queue.", show_default="all queues")
]
Age = Annotated[str, typer.Option("--after", metavar="AGE", help="Days that ended so long ago.")]
Rate = Annotated[
    str, typer.Option("--rate", metavar="BYTES", help="Compressed bytes a second, such as 16MiB; 0: any number.")
]


@verb(
    "events list",
    "millpond events list",
    "millpond events list etl nightly",
    "millpond events list --json --pond http://localhost:7433",
)
def listed(
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only the streams of this queue.")] = None,
    job_set: Annotated[str | None, typer.Argument(metavar="[JOBSET]", help="The days of this job set.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many streams at most.")] = 1_000,
    pond: PondLocation = _HERE,
) -> console.Shown:
    """List streams, or the days of one: their state, events, and bytes as they are stored."""
    with existing_pond(pond) as opened:
        if queue is not None and job_set is not None:
            return _days(opened.events.index(queue, job_set), queue, job_set)
        indexes = list(itertools.islice(opened.events.indexes(queue), limit))
    return console.table(
        (
            {
                "queue": index.stream.queue, "job_set": index.stream.job_set, "events": index.count,
                "days": len(index.days()), "stored_bytes": index.stored_bytes,
            }
            for index in indexes
        ),
        ["queue", "job set", "events", "days", "stored"],
        [[*index.stream, f"{index.count:,}", len(index.days()), console.human_bytes(index.stored_bytes)]
         for index in indexes]
    )  # fmt: skip


def _days(index: StreamIndex | None, queue: str, job_set: str) -> console.Shown:
    if index is None:
        raise no_such_stream(queue, job_set)
    days = [
        {
            "day": format_day(day.day), "state": state.value, "events": day.count, "bytes": day.bytes,
            "first_id": format_id(day.first_id), "last_id": format_id(day.last_id),
        }
        for day, state in index.days()
    ]  # fmt: skip
    return console.table(days, list(days[0]) if days else ["day"], [list(day.values()) for day in days])


@verb(
    "events read",
    "millpond events read etl nightly --from 2026-11-24T10:00:00Z",
    "millpond events read etl nightly --kind failed --kind cancelled --json",
)
def read(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    job_set: Annotated[str, typer.Argument(metavar="JOBSET", help="The job set.")],
    start: From = "",
    kind: Kinds = None,
    job: Jobs = None,
    header: Headers = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many events at most.", show_default="all")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the id, kind and payload of each event.")] = False,
    pond: PondLocation = _HERE,
    json: Json = False,
) -> None:
    """Print the events that are there, oldest first; `millpond watch` goes on with those to come."""
    from millpond.events.many_watch import StreamEvent

    filters = event_filters(kind, job, header)
    with existing_pond(pond) as opened:
        for event in itertools.islice(opened.events.read(queue, job_set, start, filters=filters), limit):
            print_event(StreamEvent(StreamName(queue, job_set), event), raw=raw, json=json)


@verb(
    "events export",
    "millpond events export etl nightly --out nightly.parquet",
    "millpond events export etl 'nightly-*' --from 2026-11-01T00:00Z --until 2026-12-01T00:00Z -o 11.parquet",
    "millpond events export --kind failed --out failures.parquet --json",
)
def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file, such as events.parquet.")],
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only the streams of this queue.")] = None,
    job_sets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOBSET]...", help="Only these job sets; `*` and `?` stand for those that are there."),
    ] = None,
    start: From = "",
    until: Until = "",
    kind: Kinds = None,
    job: Jobs = None,
    header: Headers = None,
    pond: PondLocation = _HERE,
    json: Json = False,
) -> None:
    """Write events to a file of Parquet, for Spark, DuckDB, Polars or pandas; it is there whole or not at all."""
    filters = event_filters(kind, job, header)
    with (
        existing_pond(pond) as opened,
        console.progress(f"writing {out}", unit="events", quiet=json) as advance,
    ):
        done = opened.events.export(
            out, queue, job_sets or (), after=start, until=until, filters=filters, advance=advance
        )
    if json:
        console.print_json({"out": str(out), "streams": done.streams, "events": done.events, "bytes": done.bytes})
    else:
        size = console.human_bytes(done.bytes)
        console.say(f"wrote {_counted(done.events, done.streams)} ({size}) to {out}")


@verb(
    "events append",
    "millpond events append etl nightly steps.ndjson --kind step",
    "tail -f steps.ndjson | millpond events append etl nightly",
)
def append(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    job_set: Annotated[str, typer.Argument(metavar="JOBSET", help="The job set.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A file of lines.", show_default="what is piped in")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="The kind of each event.")] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header of each event; repeatable."),
    ] = None,
    source: Annotated[
        str, typer.Option("--source", metavar="NAME", help="Where the lines come from: each of them counts once.")
    ] = "",
    pond: PondLocation = _HERE,
) -> console.Shown:
    """Append each line of a file, or of what is piped in, as an event of now."""
    from millpond.cli.versions.locations import items
    from millpond.events.lines import append_lines

    headers = items(header, "such as --header team=etl")
    with existing_pond(pond) as opened, nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as lines:
        done = append_lines(
            opened.events, queue, job_set, lines, now_ms=SystemClock().now_ms, kind=kind, headers=headers, source=source
        )
    return console.said(
        plain(done), f"appended {console.human_count(done.events, 'event')}; {done.repeated:,} were there before"
    )


@verb(
    "events import",
    "millpond events import nightly.parquet",
    "millpond events import history.parquet --queue etl --job-set 2025 --json",
)
def imported(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of Parquet, as `events export` writes it.")],
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="The queue of all events.", show_default="the column")
    ] = None,
    job_set: Annotated[
        str | None,
        typer.Option("--job-set", metavar="JOBSET", help="The job set of all events.", show_default="the column"),
    ] = None,
    pond: PondLocation = _HERE,
    json: Json = False,
) -> None:
    """Append the events of a file of Parquet with their times; the same file again adds nothing."""
    from millpond.events.importing import import_file

    with (
        existing_pond(pond) as opened,
        console.progress(f"importing {file}", unit="events", quiet=json) as advance,
    ):
        done = import_file(opened.events, file, queue, job_set, advance=advance)
    if json:
        console.print_json(plain(done))
        return
    console.say(f"imported {console.human_count(done.events, 'event')}; {done.repeated:,} were there before")
    if done.past_retention:
        typer.echo(
            f"{done.past_retention:,} of them are older than the retention: the next maintenance drops them, "
            "unless events.retention is raised", err=True,
        )  # fmt: skip


@verb("events compress", "millpond events compress", "millpond events compress --after 12h --json")
def compress(
    after: Age = "2d",
    rate: Rate = "0",
    pond: PondLocation = _HERE,
    json: Json = False,
) -> None:
    """Compress old days now. Ids and events stay as they are; readers and writers go on meanwhile."""
    with existing_pond(pond) as opened, console.working("compressing", quiet=json):
        report = opened.events.compress(after, bytes_per_second=parse_size(rate))
    saved = f"{console.human_bytes(report.bytes_before)} are {console.human_bytes(report.bytes_after)} now"
    days, streams = console.human_count(report.days, "day"), console.human_count(report.streams, "stream")
    _report(report, f"compressed {days} of {streams}: {saved}", json=json)


@verb("events expire", "millpond events expire --after 30d")
def expire(
    after: Age = "14d",
    pond: PondLocation = _HERE,
    json: Json = False,
) -> None:
    """Drop old days now, whole, with their events. Job sets with a rule keep theirs for its age."""
    with existing_pond(pond) as opened, console.working("dropping", quiet=json):
        report = opened.events.expire(after)
    _report(report, f"dropped {_counted(report.events, report.streams)}", json=json)


def _report(report: MaintenanceReport, summary: str, *, json: bool) -> None:
    if json:
        console.print_json(plain(report))
    else:
        console.say(summary)
        for fault in report.faults:
            console.tell(f"not done: {fault}")
    if report.failed:
        raise typer.Exit(1)


@verb("events stats", "millpond events stats", "millpond events stats --queue etl --json", on=POND)
def stats(pond: PondLike, queue: QueueOption = None) -> console.Shown:
    """Count streams, days, events and bytes, by the state of their days."""
    totals: dict[str, dict[str, Any]] = {}
    streams = 0
    for index in pond.events.indexes(queue):
        streams += 1
        for segment in index.segments:
            total = totals.setdefault(segment.state.value, {"days": 0, "events": 0, "bytes": 0, "stored_bytes": 0})
            total["days"] += len(segment.days)
            total["events"] += segment.count
            total["bytes"] += segment.bytes
            total["stored_bytes"] += segment.stored_bytes

    def draw() -> None:
        console.say(console.human_count(streams, "stream"))
        console.print_table(
            ["state", "days", "events", "bytes", "stored"],
            [[state, f"{total['days']:,}", f"{total['events']:,}", console.human_bytes(total["bytes"]),
              console.human_bytes(total["stored_bytes"])] for state, total in totals.items()],
        )  # fmt: skip

    return console.Shown(lambda: console.print_json({"streams": streams, "states": totals}), draw)


@verb("events delete", "millpond events delete etl nightly", "millpond events delete etl nightly --job 17 --yes")
def delete(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    job_set: Annotated[str, typer.Argument(metavar="JOBSET", help="The job set.")],
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only the events of this job.")] = None,
    yes: Confirmed = False,
    pond: PondLocation = _HERE,
    json: Json = False,
) -> console.Shown:
    """Delete the events of a job set, or of one job of it. Asks first; off a terminal, --yes is needed."""
    what = f"the events of {queue} {job_set}" if job is None else f"the events of job {job} of {queue} {job_set}"
    if not yes:
        if json or not sys.stdin.isatty():
            raise Invalid(
                "deleting is for ever", kind="not_confirmed", queue=queue, job_set=job_set, hint="say --yes"
            )  # fmt: skip
        typer.confirm(f"delete {what}?", abort=True)
    with existing_pond(pond) as opened, console.working("deleting", quiet=json):
        events = opened.events.delete(queue, job_set, job=job)
    return console.said(
        {"queue": queue, "job_set": job_set, "job": job, "events": events}, f"deleted {events:,} of {what}"
    )


def _counted(events: int, streams: int) -> str:
    return f"{console.human_count(events, 'event')} of {console.human_count(streams, 'stream')}"
