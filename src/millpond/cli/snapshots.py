"""`millpond snapshots push`, `list` and `pull`: snapshots of maps in a bucket or a shared folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import AllMaps, Json, MapNames, PondFolder, existing_pond
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.maps.map import Map
    from millpond.maps.snapshots.published import PublishedLocation
    from millpond.ranges import FetchReport
    from millpond.settings import Settings

__all__ = ("listed", "pull", "push")

_HERE = Path("pond")
Target = Annotated[
    str | None,
    typer.Option("--to", metavar="PLACE", help="s3://bucket/prefix, or a shared folder.",
                 show_default="the setting objects"),
]  # fmt: skip
Origin = Annotated[
    str | None,
    typer.Option("--from", metavar="PLACE", help="s3://bucket/prefix, or a shared folder.",
                 show_default="the setting objects"),
]  # fmt: skip
Replace = Annotated[bool, typer.Option("--replace", help="Take the place of another map of the name, or a later one.")]


@verb(
    "snapshots push",
    "millpond snapshots push weather --to s3://bucket/millpond",
    "millpond snapshots push --all --json",
)
def push(
    names: MapNames = None, all_maps: AllMaps = False, to: Target = None, replace: Replace = False,
    pond: PondFolder = _HERE, json: Json = False,
) -> console.Shown:  # fmt: skip
    """Publish maps as they are now; only ranges that the place lacks are sent."""
    _, location = _location(to)
    _one_or_all(names, all_maps)
    rows: list[dict[str, Any]] = []
    with existing_pond(pond) as opened:
        chosen = opened.maps() if all_maps else [opened.map(name) for name in names or ()]
        with console.progress("publishing", total=len(chosen), unit="maps", quiet=json) as advance:
            for chosen_map in chosen:
                rows.append(_pushed(chosen_map, location, replace=replace))
                advance(1)
    return _table(rows, "sent")


def _pushed(opened_map: Any, location: PublishedLocation, *, replace: bool) -> dict[str, Any]:
    from millpond.maps.snapshots.published import publish

    here: Map = opened_map
    with here.snapshots.refreeze() as leased:
        now_ms = here.snapshots.clock.now_ms()
        head, report = publish(here.objects, location.of(here.name), leased.manifest, now_ms=now_ms, replace=replace)
    return _row(here.name, head.manifest, report)


@verb("snapshots list", "millpond snapshots list --from s3://bucket/millpond", "millpond snapshots list --json")
def listed(origin: Origin = None) -> console.Shown:
    """Show the maps that were published, and when."""
    _, location = _location(origin)
    heads = location.heads()
    return console.table(
        ({"map": head.map, "snapshot": head.manifest, "published": _moment(head.published_ms)} for head in heads),
        ["map", "snapshot", "published"],
        [[head.map, head.manifest[:8], _moment(head.published_ms)] for head in heads],
        nothing="no map was published here",
    )


@verb(
    "snapshots pull",
    "millpond snapshots pull weather --from s3://bucket/millpond",
    "millpond snapshots pull --all --json",
)
def pull(names: MapNames = None, all_maps: AllMaps = False, origin: Origin = None, json: Json = False) -> console.Shown:
    """Bring published maps into this machine's cache, where `millpond.open_snapshot` opens them without waiting."""
    from millpond.client.snapshots.published import fetch_published

    settings, location = _location(origin)
    _one_or_all(names, all_maps)
    chosen: Sequence[str] = [head.map for head in location.heads()] if all_maps else names or []
    rows: list[dict[str, Any]] = []
    with console.progress("fetching", total=len(chosen), unit="maps", quiet=json) as advance:
        for name in chosen:
            snapshot, report = fetch_published(name, settings, SystemClock())
            with snapshot:
                rows.append(_row(snapshot.manifest.map, snapshot.manifest.id, report))
            advance(1)
    return _table(rows, "fetched")


def _location(url: str | None) -> tuple[Settings, PublishedLocation]:
    from millpond.client.snapshots.published import published_location
    from millpond.settings import load_settings

    settings = load_settings(said="command line", objects_place=url)
    return settings, published_location(settings)


def _moment(millis: int) -> str:
    return datetime.fromtimestamp(millis // 1000, UTC).isoformat().replace("+00:00", "Z")


def _one_or_all(names: Sequence[str] | None, all_maps: bool) -> None:
    if bool(names) == all_maps:
        raise typer.BadParameter("name one map or several, or say --all")


def _row(name: str, manifest: str, report: FetchReport) -> dict[str, Any]:
    return {
        "map": name, "snapshot": manifest, "ranges": report.ranges, "bytes": report.bytes,
        "ranges_reused": report.ranges_reused, "bytes_reused": report.bytes_reused,
    }  # fmt: skip


def _table(rows: Sequence[dict[str, Any]], done: str) -> console.Shown:
    return console.table(
        rows,
        ["map", "snapshot", f"ranges {done}", "size", "there already", "size"],
        [
            [
                row["map"], row["snapshot"][:8], f"{row['ranges']:,}", console.human_bytes(row["bytes"]),
                f"{row['ranges_reused']:,}", console.human_bytes(row["bytes_reused"]),
            ]
            for row in rows
        ],
        nothing="there is no map",
    )  # fmt: skip
