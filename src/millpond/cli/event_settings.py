"""`millpond events settings`: the ages at which a queue, or a job set, is compressed and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import POND, verb
from millpond.maps.protocols import PondLike

if TYPE_CHECKING:
    from millpond.events.ages import AgeRule

__all__ = ("listed", "put", "remove")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
JobSet = Annotated[
    str | None, typer.Argument(metavar="[JOBSET]", help="The job set; by default all of the queue without a rule.")
]
_INHERITED = "of what is less specific"


@verb(
    "events settings list", "millpond events settings list", "millpond events settings list etl nightly --json", on=POND
)
def listed(
    pond: PondLike,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only rules of this queue.")] = None,
    job_set: Annotated[
        str | None, typer.Argument(metavar="[JOBSET]", help="The ages that hold for this job set.")
    ] = None,
) -> console.Shown:
    """List the rules, or the ages that hold for one job set by them. Where they name none, the pond's own hold."""
    settings = pond.events.settings
    if queue is not None and job_set is not None:
        return _table([settings.holding(queue, job_set)])
    return _table(settings.rules(queue))


@verb(
    "events settings set",
    "millpond events settings set etl --retention 90d",
    "millpond events settings set etl nightly --compress-after 12h --retention off",
    on=POND,
)
def put(
    pond: PondLike,
    queue: Queue,
    job_set: JobSet = None,
    compress_after: Annotated[
        str | None,
        typer.Option("--compress-after", metavar="AGE", help="Compress days that ended so long ago; off: never.",
                     show_default=_INHERITED),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="AGE", help="Drop days that ended so long ago; off: never.",
                     show_default=_INHERITED),
    ] = None,
) -> console.Shown:  # fmt: skip
    """Set the ages of a queue, or of one job set. They take the place of the rule that was there."""
    rule = pond.events.settings.set(queue, job_set, compress_after=compress_after, retention=retention)
    return console.Shown(lambda: console.print_json(rule.shown()), _table([rule]).draw)


@verb("events settings remove", "millpond events settings remove etl nightly", on=POND)
def remove(pond: PondLike, queue: Queue, job_set: JobSet = None) -> console.Shown:
    """Remove the rule of a queue, or of one job set: the ages of what is less specific hold again."""
    pond.events.settings.remove(queue, job_set)
    return console.said(
        {"queue": queue, "job_set": job_set, "removed": True},
        f"removed the rule of {queue}{'' if job_set is None else f' {job_set}'}",
    )


def _table(rules: list[AgeRule]) -> console.Shown:
    rows = [rule.shown() for rule in rules]
    return console.table(
        rows, ["queue", "job set", "compress after", "retention"],
        [["" if text is None else text for text in row.values()] for row in rows],
        nothing="no rules: the pond's own ages hold",
    )  # fmt: skip
