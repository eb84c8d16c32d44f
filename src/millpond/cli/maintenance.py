"""`millpond maintenance condense`, `retain`, `compact` and `collect`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from millpond import json_forms
from millpond.cli.options import AllMaps, Before, Branch, Json, MapNames, Master, PondLocation, pond_at
from millpond.cli.rows import plain
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.errors import Invalid

if TYPE_CHECKING:
    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("collect", "compact", "condense", "retain")

_HERE = "pond"


@verb(
    "maintenance condense",
    "millpond maintenance condense weather",
    "millpond maintenance condense weather --before 2013-06-01T00:00Z --json",
)
def condense(
    names: MapNames = None, all_maps: AllMaps = False, before: Before = None, branch: Branch = None,
    pond: PondLocation = _HERE, json: Json = False,
) -> console.Shown:  # fmt: skip
    """Drop rows that only confirm what is known; join sessions that overlap or touch."""
    return _maintain_maps(
        "condensing", lambda _, pond_map: pond_map.condense(before=before), names, all_maps, pond, quiet=json,
        setting=None if before else "condense_ms", branch=branch,
    )  # fmt: skip


@verb(
    "maintenance retain",
    "millpond maintenance retain --all",
    "millpond maintenance retain weather --before 2012-01-01T00:00Z",
)
def retain(
    names: MapNames = None, all_maps: AllMaps = False, before: Before = None, branch: Branch = None,
    pond: PondLocation = _HERE, json: Json = False,
) -> console.Shown:  # fmt: skip
    """Delete rows that are older than the map keeps them, or combine them to wider buckets."""
    return _maintain_maps(
        "retaining", lambda _, pond_map: pond_map.retain(before=before), names, all_maps, pond, quiet=json,
        setting=None if before else "retain_ms", branch=branch,
    )  # fmt: skip


@verb(
    "maintenance compact",
    "millpond maintenance compact weather",
    "millpond maintenance compact --all --json",
    "millpond maintenance compact weather --master spark://host:7077",
)
def compact(
    names: MapNames = None, all_maps: AllMaps = False,
    spark: Annotated[bool, typer.Option("--spark", help="Fold many layers with Spark.")] = False,
    master: Master = None, pond: PondLocation = _HERE, json: Json = False,
) -> console.Shown:  # fmt: skip
    """Rewrite the map's file so that the disk gets back what was deleted."""
    if not spark and master is None:
        return _maintain_maps("compacting", lambda _, pond_map: pond_map.compact(), names, all_maps, pond, quiet=json)
    from millpond.cli.enrich.by_spark import running
    from millpond.spark.compaction import compact_map

    with ExitStack() as stack:
        session = cache(lambda: stack.enter_context(running(master, quiet=True)))  # when the maps are found
        return _maintain_maps(
            "compacting", lambda opened, pond_map: compact_map(session(), pond_map.name, pond=cast(Any, opened)), names,
            all_maps, pond, quiet=json,
        )  # fmt: skip


@verb(
    "maintenance collect",
    "millpond maintenance collect --pond s3://bucket/pond",
    "millpond maintenance collect --grace 2d --dry-run --json",
)
def collect(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and remove nothing; of a bucket.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="AGE", help="Of a bucket, what is younger stays: a minute at least.")
    ] = "1d",
    pond: PondLocation = _HERE,
    json: Json = False,
) -> console.Shown:
    """Collect garbage: remove the files of layered maps that nothing needs."""
    with pond_at(pond, None) as opened, console.working("collecting garbage", quiet=json):
        if not hasattr(opened, "collect_garbage"):
            raise Invalid("a node collects its garbage itself", kind="pond_local", pond=pond,
                          hint="name the folder or the bucket by --pond")  # fmt: skip
        garbage = opened.collect_garbage(grace=grace, dry_run=dry_run)
    text = (
        f"{'would remove' if dry_run else 'removed'} {console.human_count(garbage.manifests, 'snapshot')} and "
        f"{console.human_count(garbage.files, 'file')} ({console.human_bytes(garbage.bytes)}); "
        f"{garbage.retained:,} more when they are older"
    )
    busy = [f"another process writes or collects {folder}: left as it is" for folder in garbage.busy]
    return console.said(json_forms.plain(garbage), "\n".join([text, *busy]))


def _maintain_maps(
    doing: str, act: Callable[[PondLike, MapLike], Any], names: list[str] | None, all_maps: bool, pond: str, *,
    quiet: bool, setting: str | None = None, branch: str | None = None,
) -> console.Shown:  # fmt: skip
    """Do it to the maps named; with --all, to those whose settings ask for it."""
    if bool(names) == all_maps:
        raise typer.BadParameter("name one map or several, or say --all")
    reports: list[dict[str, Any]] = []
    with pond_at(pond, branch) as opened:
        chosen = [opened.map(name) for name in names or ()]
        if all_maps:
            chosen = [
                pond_map
                for pond_map in opened.maps()
                if setting is None or getattr(pond_map.definition, setting) is not None
            ]
        with console.progress(doing, total=len(chosen), unit="maps", quiet=quiet) as advance:
            for pond_map in chosen:
                reports.append({"map": pond_map.name} | _facts(act(opened, pond_map)))
                advance(1)
    return console.table(
        reports,
        ["map", "rows before", "removed", "rows after", "size before", "size after", ""],
        [
            [
                report["map"], f"{report['rows_before']:,}", f"{report['rows_removed']:,}",
                f"{report['rows_after']:,}", console.human_bytes(report["bytes_before"]),
                console.human_bytes(report["bytes_after"]), "maintenance is suspended" if report["suspended"] else None,
            ]
            for report in reports
        ],
        nothing="no map asks for it",
    )  # fmt: skip


def _facts(report: Any) -> dict[str, Any]:
    return {name: plain(value) for name, value in json_forms.plain(report).items() if name not in ("map", "seconds")}
