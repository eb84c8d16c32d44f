"""Options and arguments that several commands share, said once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.client.location import parse_location
from millpond.errors import Invalid

if TYPE_CHECKING:
    from millpond.maps.protocols import PondLike

__all__ = (
    "AllMaps",
    "At",
    "Before",
    "Branch",
    "Confirmed",
    "From",
    "Headers",
    "InputFormat",
    "Jobs",
    "KnownAt",
    "KnownAtOf",
    "Json",
    "Kinds",
    "MapName",
    "MapNames",
    "Master",
    "Null",
    "Out",
    "NodeLocation",
    "PondFolder",
    "PondLocation",
    "Ref",
    "Resolution",
    "Until",
    "Zone",
    "comma_list",
    "event_filters",
    "examples",
    "existing_pond",
    "pond_at",
    "wants_json",
)

_JSON = "millpond.json"


def _remember_json(context: typer.Context, value: bool) -> bool:
    if value:
        context.find_root().meta[_JSON] = True
    return value


def wants_json(context: typer.Context) -> bool:
    """True when the command line asks for JSON, even if a later part of it is wrong."""
    return bool(context.find_root().meta.get(_JSON))


def _folder(folder: Path) -> Path:
    if str(folder).lower().startswith(("http:/", "https:/")):
        raise typer.BadParameter("this needs the pond's folder, not the URL of a node")
    if str(folder).lower().startswith("s3:/"):
        raise typer.BadParameter("this needs the pond's folder, not a bucket")
    return folder


PondFolder = Annotated[
    Path,
    typer.Option(
        "--pond", envvar="MILLPOND_POND", metavar="FOLDER", help="The pond's folder.", show_default="./pond",
        callback=_folder,
    ),
]  # fmt: skip
PondLocation = Annotated[
    str,
    typer.Option(
        "--pond", envvar="MILLPOND_POND", metavar="FOLDER|URL", show_default="./pond",
        help="The pond: a folder, a bucket such as s3://bucket/pond, or the URL of a node, such as http://localhost:7433.",
    ),
]  # fmt: skip
NodeLocation = Annotated[
    str | None,
    typer.Option(
        "--pond", envvar="MILLPOND_POND", metavar="URL", show_default="the node of millpond.toml",
        help="A node, such as http://localhost:7433.",
    ),
]  # fmt: skip
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else.", callback=_remember_json, is_eager=True)
]
MapName = Annotated[str, typer.Argument(metavar="MAP", help="The map's name.")]
MapNames = Annotated[list[str] | None, typer.Argument(metavar="[MAP]...", help="The maps' names.")]
AllMaps = Annotated[bool, typer.Option("--all", help="Every map of the pond.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="As of this time, such as 2013-02-08T18:00Z.", show_default="now"),
]
KnownAt = Annotated[
    str | None,
    typer.Option("--known-at", metavar="TIME", help="As a layered map was known at this time.", show_default="now"),
]
Resolution = Annotated[
    str | None,
    typer.Option(
        "--resolution", metavar="WIDTH", help="Wider buckets of an aggregate, such as '1 day'.", show_default="its own"
    ),
]
KnownAtOf = Annotated[
    str | None,
    typer.Option("--known-at", metavar="COLUMN|TIME", help="As layered maps were known then.", show_default="now"),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="TIME", help="Only rows before this time.", show_default="the map's setting"),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Write .parquet, .csv, .jsonl or .arrow instead of the screen."),
]
InputFormat = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help="parquet, csv, jsonl or xml.", show_default="by the file's name"),
]
Null = Annotated[
    str,
    typer.Option("--null", metavar="TEXT", help="What CSV writes where there is no value.", show_default="nothing"),
]
Zone = Annotated[
    str | None, typer.Option("--zone", metavar="ZONE", help="Zone of times that name none: UTC, Europe/Berlin.")
]
TimeUnit = Annotated[
    str | None,
    typer.Option("--time-unit", metavar="UNIT", help="Unit of times that are numbers: s, ms, us or ns.",
                 show_default="ms, and numbers that could be seconds are refused"),
]  # fmt: skip
From = Annotated[
    str,
    typer.Option("--from", metavar="PLACE", help="An id, a time such as 2026-11-24T10:00:00Z, or newest: only events "
                 "after it.", show_default="the first event"),
]  # fmt: skip
Until = Annotated[
    str,
    typer.Option("--until", metavar="PLACE", help="An id: only events up to it; or a time: only events before it.",
                 show_default="the newest event"),
]  # fmt: skip
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", metavar="KIND", help="Only events of this kind, or of these: repeat it.")
]
Jobs = Annotated[
    list[str] | None, typer.Option("--job", metavar="JOB", help="Only events of this job, or of these: repeat it.")
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="Only events with this header; repeat it for other values."),
]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="The Spark cluster, such as spark://host:7077, yarn or sc://host.",
                 show_default="local[*]"),
]  # fmt: skip


Branch = Annotated[
    str | None, typer.Option("--branch", metavar="NAME", help="Layered maps on a branch of pond, with what is staged.")
]
Ref = Annotated[
    str | None, typer.Option("--ref", metavar="REF", help="Layered maps as of a branch, tag, commit or time: main~3.")
]


def examples(*lines: str) -> str:
    """The end of a command's help: its examples, each a line that can be typed as it stands."""
    return "Examples:\n\n" + "\n\n".join(f"  $ {line}" for line in lines)


def comma_list(values: list[str] | None) -> list[str]:
    """Names given as `a,b`, or by repeating the option, or both.

    >>> comma_list(["temp, wind_speed", "visib"])
    ['temp', 'wind_speed', 'visib']
    """
    return [name.strip() for piece in values or () for name in piece.split(",") if name.strip()]


def event_filters(kinds: list[str] | None, jobs: list[str] | None, headers: list[str] | None) -> dict[str, list[str]]:
    """The filters of events that options name.

    >>> event_filters(["failed"], None, ["team=etl", "team=ops"])
    {'kind': ['failed'], 'header.team': ['etl', 'ops']}

    Raises: `Invalid` for a header without a value.
    """
    filters = {name: values for name, values in (("kind", kinds), ("job", jobs)) if values}
    for header in headers or ():
        name, sign, value = header.partition("=")
        if not sign:
            raise Invalid(
                "a header has a name and a value", kind="event_filter", header=header, hint="--header team=etl"
            )
        filters.setdefault(f"header.{name}", []).append(value)
    return filters


@contextmanager
def pond_at(location: str | Path, branch: str | None, ref: str | None = None, **settings: Any) -> Iterator[PondLike]:
    """An existing pond, as it is on a branch or at a ref, where one is named.

    Raises: as `existing_pond`; `NotFound` for the ref; `Invalid` where both are named, and for nodes that replicate.
    """
    with existing_pond(location, **settings) as opened:
        if branch is None and ref is None:
            yield opened
            return
        at: Any = opened
        if branch is not None and ref is not None:
            from millpond.refs.face import ref_twice

            raise ref_twice(branch, ref)
        yield at.at(ref) if branch is None else at.branch(branch) if branch != "main" else opened


def existing_pond(location: str | Path, **settings: Any) -> PondLike:
    """Open a pond that is there: in a folder, or, with those `settings` that are not None, on nodes.

    Raises: `NotFound` when there is none; only `millpond init` makes one. `Unavailable` when no node can be reached.
    """
    from millpond.arrays.deferred_pandas import defer_pandas

    defer_pandas()
    return parse_location(str(location)).open_existing(**settings)
