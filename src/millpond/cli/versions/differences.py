"""`millpond diff`: what is staged, or what differs between two refs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondPlace
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.output import entry_object
from millpond.cli.versions.places import Limit, parse_pair, parse_place, repository

if TYPE_CHECKING:
    from millpond.versions.diffs import Change

__all__ = ("diff",)

_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "conflict": ("!", "bold red")}
_DOTS = re.compile(r"(.+?)(\.\.\.?)(.+)")
_PAGE = 1_000


@verb(
    "diff",
    "millpond diff flights/main",
    "millpond diff flights/main fix",
    "millpond diff flights/main...fix --json",
    "millpond diff flights/v1 v2 --two-dots --prefix 2013/",
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
    summary: Annotated[bool, typer.Option("--summary", help="Only count.")] = False,
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """Show what is staged on a branch, or what a ref changed since it parted from another.

    + added, - removed, ~ changed, ! conflict: a merge of right into left is refused there.
    """
    from millpond.versions.paging import results_of

    name, old, new, two_dots, prefix = _sides(left, right, two_dots, prefix)
    counts: Counter[str] = Counter()
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
        else:
            _print(shown)
    if not json:
        _print_counts(counts, staged=new is None)


def _sides(left: str, right: str | None, two_dots: bool, prefix: str) -> tuple[str, str, str | None, bool, str]:
    """The repository, both refs, the kind of difference, and the prefix.

    Raises: `Invalid`.
    """
    from millpond.errors import Invalid

    if right is None:
        place = parse_place(left, ref=False)
        dotted = _DOTS.fullmatch(place.ref)
        if place.path and prefix:
            raise Invalid(
                "the prefix is given twice", kind="place_path", place=left, prefix=prefix, hint="leave out one"
            )
        if dotted is None:
            return place.repository, place.ref, None, False, place.path or prefix
        return place.repository, dotted[1], dotted[3], two_dots or dotted[2] == "..", place.path or prefix
    return *parse_pair(left, right), two_dots, prefix


def _counted(changes: Iterator[Change], counts: Counter[str]) -> Iterator[Change]:
    for change in changes:
        counts[change.type] += 1
        yield change


def _object(change: Change) -> dict[str, Any]:
    sides = {"left": change.left, "right": change.right}
    return {"type": change.type, "path": change.path} | {
        name: None if entry is None else entry_object(entry) for name, entry in sides.items()
    }


def _print(changes: Iterator[Change]) -> None:
    from rich.text import Text

    printer = console.console()
    for change in changes:
        mark, style = _MARKS[change.type]
        printer.print(
            Text(console.neutral(f"{mark} {change.path}"), style=style).append(f"  {_size(change)}", style="dim"),
            soft_wrap=True,
        )


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
