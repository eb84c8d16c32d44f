"""`millpond copy`: of a map within its pond, or of a pond to another place.

A place has a `/` in it, such as `./pond` or `s3://bucket/pond`; the name of a map has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.maps import copied
from millpond.cli.options import Branch, Json, PondLocation, pond_at
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.errors import Invalid, NotFound

__all__ = ("copy",)

_Location = Annotated[str, typer.Argument(show_default=False, help="A map; or a pond: ./folder, a bucket, a node.")]


@verb(
    "copy",
    "millpond copy weather climate",
    "millpond copy data/pond s3://bucket/pond",
    "millpond copy http://n1:7433 ./pond",
    "millpond copy http://n1:7433 s3://bucket/pond --without-runs",
    "millpond copy s3://bucket/pond ./pond --map weather --map prices --json",
)
def copy(
    source: _Location, target: _Location,
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME", help="Of a pond only this map, of main.", show_default="the whole pond"),
    ] = None,
    without_runs: Annotated[
        bool, typer.Option("--without-runs", help="Leave runs of workflows behind, where they need not go.")
    ] = False,
    branch: Branch = None, pond: PondLocation = "pond", json: Json = False,
) -> console.Shown:  # fmt: skip
    """Copy a layered map, which takes no room and no time; or a pond to another place, where it is verified.

    A pond that is copied again sends what changed since. Let one of the two go on with its runs of workflows.
    """
    locations = ["/" in location for location in (source, target)]
    if any(locations) != all(locations):
        raise Invalid("a map and a pond are given", kind="copy_place", source=source, target=target,
                      hint="write a pond in this folder as ./pond")  # fmt: skip
    if all(locations):
        if branch is not None:
            raise typer.BadParameter("a pond is copied with its branches: leave --branch out")
        return _copy_pond(source, target, maps or [], without_runs=without_runs, json=json)
    with pond_at(pond, branch) as opened:
        try:
            definition = opened.catalogue.copy(source, target)
        except NotFound as error:
            if not Path(source).is_dir():
                raise
            hint = f"the folder of a pond: ./{source}"
            raise NotFound(error.message, kind=error.kind, hint=hint, **error.values) from error
    return copied("copied", source, definition)


def _copy_pond(source: str, target: str, maps: list[str], *, without_runs: bool, json: bool) -> console.Shown:
    import millpond

    with console.progress("copying", unit="bytes", quiet=json) as advance:
        report = millpond.copy(source, target, maps=maps, without_runs=without_runs, advance=advance)
    counted = console.human_count(len(report.maps), "map") + (f" ({', '.join(report.maps)})" if report.maps else "")
    return console.said(
        {
            "source": source, "target": target, "maps": report.maps, "files": report.files, "bytes": report.bytes,
            "files_reused": report.files_reused,
        },
        f"{target}: {counted}; {console.human_count(report.files, 'file')} sent "
        f"({console.human_bytes(report.bytes)}), {report.files_reused:,} there already",
    )  # fmt: skip
