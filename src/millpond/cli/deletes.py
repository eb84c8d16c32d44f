"""`millpond delete`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millpond import json_forms
from millpond.cli.options import Branch, Confirmed, Json, MapName, PondLocation, pond_at
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.errors import Invalid

__all__ = ("delete",)

_HERE = "pond"


@verb(
    "delete",
    "millpond delete weather --where \"key = 'JFK' and temp > 200\"",
    "millpond delete people --where \"key = 'ann'\" --now --yes --json",
    "millpond delete people --where \"key = 'ann'\" --now --branches --yes",
    "millpond delete weather --where \"key = 'JFK'\" --branch fix --yes",
)
def delete(
    name: MapName,
    where: Annotated[str, typer.Option("--where", metavar="CONDITION", help="Rows to delete, as in scan.")],
    now: Annotated[bool, typer.Option("--now", help="Purge them from all files, and read these as a proof.")] = False,
    branches: Annotated[
        bool, typer.Option("--branches", help="With --now: from all branches, tags and merge bases, too.")
    ] = False,
    yes: Confirmed = False,
    branch: Branch = None,
    pond: PondLocation = _HERE,
    json: Json = False,
) -> None:
    """Delete the rows for which a condition holds. Asks first; off a terminal, --yes is needed."""
    with pond_at(pond, branch) as opened:
        pond_map = opened.map(name)
        if not yes:
            if json or not sys.stdin.isatty():
                raise Invalid("deleting rows is for ever", kind="not_confirmed", map=pond_map.name, hint="say --yes")
            columns = ["key" if pond_map.kind.keyed else "key_start"]
            rows = sum(batch.num_rows for batch in pond_map.scan(where, columns))
            typer.confirm(f"delete {console.human_count(rows, 'row')} of {pond_map.name}?", abort=True)
        report = pond_map.delete(where, now=now, branches=branches)
        if now and hasattr(opened, "refs"):  # a node looks into backups itself
            from millpond.nodes.backups.holding import naming_backups
            from millpond.settings import load_settings

            report = naming_backups(report, pond_map.definition, where, load_settings().objects.backups)
    if json:
        console.print_json(json_forms.plain(report))
        return
    as_commit = f", commit {report.commit[:12]}" if report.commit else ""
    console.say(f"deleted {console.human_count(report.rows_removed, 'row')} of {report.map}{as_commit}")
    for ref in report.changed:
        console.say(f"also from {ref}")
    for location in report.left:
        console.say(f"not purged: {location}")
    if now and report.purged:
        console.say("purged: no file of the map has such rows")
