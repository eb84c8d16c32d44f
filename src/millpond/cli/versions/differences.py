"""`millpond diff`: what is staged, or what differs between two refs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.rows import plain
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import Limit, opened, parse_pair, parse_path, repository
from millpond.cli.versions.output import entry_object
from millpond.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.versions.diffs import Change

__all__ = ("diff",)

_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "conflict": ("!", "bold red")}
_DOTS = re.compile(r"(.+?)(\.\.\.?)(.+)")
_REPOSITORY_TWICE = re.compile(r"([^/]+)/([^/]+?)(\.\.\.?)\1/")
_PAGE = 1_000


@verb(
    "diff",
    "millpond diff flights/main",
    "millpond diff flights/main fix",
    "millpond diff flights/main...fix --json",
    "millpond diff flights/v1 v2 --two-dots --prefix 2013/",
    "millpond diff pond/main..fix --map weather",
)
def diff(
    left: Annotated[
        str, typer.Argument(metavar="REPO/LEFT", help="A branch alone: what is staged on it. LEFT..RIGHT, as in git.")
    ],
    right: Annotated[str | None, typer.Argument(metavar="[RIGHT]", help="The ref to compare with.")] = None,
    two_dots: Annotated[
        bool,
        typer.Option("--two-dots", "--two-way", help="All that turns left into right, also where only left changed."),
    ] = False,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only paths that begin so.")] = "",
    limit: Limit = None,
    summary: Annotated[bool, typer.Option("--summary", "--stat", help="Only count.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Of layered maps, keys with their old and new values.")] = False,
    map_name: Annotated[str | None, typer.Option("--map", metavar="MAP", help="Of one layered map, the keys.")] = None,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """Show what is staged on a branch, or what a ref changed since it parted from another.

    + added, - removed, ~ changed, ! conflict: a merge of right into left is refused there.
    """
    from millpond.versions.paging import results_of

    name, old, new, two_dots, prefix = _sides(left, right, two_dots, prefix)
    counts: Counter[str] = Counter()
    if keys or map_name is not None:
        with opened(pond) as opened_pond:
            table = opened_pond.refs.diff(
                old or "main", new, map=map_name, three_dots=not two_dots, limit=limit
            )  # fmt: skip
        _show_keys(table, counts, summary=summary, as_json=json)
        if not json:
            _print_counts(counts, staged=new is None)
        return
    with repository(pond, name) as repo:
        if new is None:
            branch = repo.branch(old or repo.record.default_branch)
            changes = results_of(lambda after: branch.diff(prefix, after=after, amount=_PAGE))
        else:
            changes = results_of(
                lambda after: repo.diff(old, new, prefix, three_dots=not two_dots, after=after, amount=_PAGE)
            )
        shown = _counted(islice(changes, limit), counts)
        if summary:
            for _ in shown:
                pass
            if json:
                console.print_json(dict.fromkeys(_MARKS, 0) | counts)
        elif json:
            console.print_json_list(map(_object, shown))
        elif _print(shown):
            console.tell("the keys of maps that differ: --keys, or --map MAP")
    if not json:
        _print_counts(counts, staged=new is None)


def _sides(left: str, right: str | None, two_dots: bool, prefix: str) -> tuple[str, str, str | None, bool, str]:
    """The repository, both refs, the kind of difference, and the prefix."""
    if right is None:
        location = parse_path(_REPOSITORY_TWICE.sub(r"\1/\2\3", left), ref=False)
        dotted = _DOTS.fullmatch(location.ref)
        if location.path and prefix:
            raise Invalid(
                "the prefix is given twice", kind="place_path", place=left, prefix=prefix, hint="leave out one"
            )
        if dotted is None:
            return location.repository, location.ref, None, False, location.path or prefix
        return location.repository, dotted[1], dotted[3], two_dots or dotted[2] == "..", location.path or prefix
    return *parse_pair(left, right), two_dots, prefix


def _show_keys(table: pa.Table, counts: Counter[str], *, summary: bool, as_json: bool) -> None:
    """Keys of maps that differ: `~ weather JFK 2013-02-08T18:00:00Z  39.0 → 40.0`."""
    from millpond.cli import rows

    counts.update(table["change"].to_pylist())
    if as_json and summary:
        console.print_json(dict.fromkeys(_MARKS, 0) | counts)
    elif as_json:
        rows.show(table.schema, table.to_batches(), as_json=True)
    elif not summary:
        for row in table.to_pylist():
            _print_key(row)


def _print_key(row: dict[str, Any]) -> None:
    from rich.text import Text

    mark, style = _MARKS[row.pop("change")]
    values = [row.pop(side, None) for side in ("old", "new")]
    address = " ".join(str(plain(value)) for value in row.values() if value is not None)
    shown = " → ".join(str(plain(value)) for value in values if value is not None)
    line = Text(console.neutral(f"{mark} {address}"), style=style)
    console.console().print(line.append(console.neutral(f"  {shown}"), style="dim"), soft_wrap=True)


def _counted(changes: Iterator[Change], counts: Counter[str]) -> Iterator[Change]:
    for change in changes:
        counts[change.type] += 1
        yield change


def _object(change: Change) -> dict[str, Any]:
    sides = {"left": change.left, "right": change.right}
    return {"type": change.type, "path": change.path} | {
        name: None if entry is None else entry_object(entry) for name, entry in sides.items()
    }


def _print(changes: Iterator[Change]) -> bool:
    """Print changes; True when there are maps among them."""
    from rich.text import Text

    from millpond.refs.map_entries import MAPS

    printer, maps = console.console(), False
    for change in changes:
        maps |= change.path.startswith(MAPS)
        mark, style = _MARKS[change.type]
        printer.print(
            Text(console.neutral(f"{mark} {change.path}"), style=style).append(f"  {_size(change)}", style="dim"),
            soft_wrap=True,
        )
    return maps


def _size(change: Change) -> str:
    sizes = [console.human_bytes(entry.size) for entry in (change.left, change.right) if entry is not None]
    return " → ".join(sizes) if len(set(sizes)) > 1 else sizes[0] if sizes else ""


def _print_counts(counts: Counter[str], *, staged: bool) -> None:
    if not counts:
        console.say("nothing is staged" if staged else "no differences")
        return
    said = [f"{counts[kind]:,} {'conflicts' if kind == 'conflict' and counts[kind] > 1 else kind}"
            for kind in _MARKS if counts[kind]]  # fmt: skip
    console.say(", ".join(said))
