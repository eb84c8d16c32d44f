"""`millpond events settings`: the ages at which a queue, or a job set, is compressed and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import Json, PondPlace, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import verb

if TYPE_CHECKING:
    from millpond.events.ages import AgeRule

__all__ = ("listed", "put", "remove")

_HERE = "pond"
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
JobSet = Annotated[
    str | None, typer.Argument(metavar="[JOBSET]", help="The job set; by default all of the queue without a rule.")
]
_INHERITED = "of what is less specific"


@verb("events settings list", "millpond events settings list", "millpond events settings list etl nightly --json")
def listed(
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only rules of this queue.")] = None,
    job_set: Annotated[
        str | None, typer.Argument(metavar="[JOBSET]", help="The ages that hold for this job set.")
    ] = None,
    pond: PondPlace = _HERE,
    json: Json = False,
) -> None:
    """List the rules, or the ages that hold for one job set by them. Where they name none, the pond's own hold."""
    with existing_pond(pond) as opened:
        settings = opened.events.settings
        if queue is not None and job_set is not None:
            rules = [settings.holding(queue, job_set)]
        else:
            rules = settings.rules(queue)
    if json:
        console.print_json_list(rule.shown() for rule in rules)
    else:
        _print(rules)


@verb(
    "events settings set",
    "millpond events settings set etl --retention 90d",
    "millpond events settings set etl nightly --compress-after 12h --retention off",
)
def put(
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
    pond: PondPlace = _HERE,
    json: Json = False,
) -> None:  # fmt: skip
    """Set the ages of a queue, or of one job set. They take the place of the rule that was there."""
    with existing_pond(pond) as opened:
        rule = opened.events.settings.set(queue, job_set, compress_after=compress_after, retention=retention)
    if json:
        console.print_json(rule.shown())
    else:
        _print([rule])


@verb("events settings remove", "millpond events settings remove etl nightly")
def remove(queue: Queue, job_set: JobSet = None, pond: PondPlace = _HERE, json: Json = False) -> None:
    """Remove the rule of a queue, or of one job set: the ages of what is less specific hold again."""
    with existing_pond(pond) as opened:
        opened.events.settings.remove(queue, job_set)
    console.answer(
        {"queue": queue, "job_set": job_set, "removed": True},
        f"removed the rule of {queue}{'' if job_set is None else f' {job_set}'}",
        as_json=json,
    )


def _print(rules: list[AgeRule]) -> None:
    if not rules:
        console.say("no rules: the pond's own ages hold")
        return
    rows = [rule.shown() for rule in rules]
    console.print_table(
        ["queue", "job set", "compress after", "retention"],
        [["" if text is None else text for text in row.values()] for row in rows],
    )
