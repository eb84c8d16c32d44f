"""`millpond fs ls`: the objects of a ref, as they come: a listing may be long."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import Limit, Recursive, parse_path, repository
from millpond.cli.versions.output import entry_object, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.versions.objects.entries import Entry
    from millpond.versions.paging import CommonPrefix
    from millpond.versions.protocols import ReferenceLike

__all__ = ("listed",)

_PAGE = 1_000


@verb("fs ls", "millpond fs ls flights/main", "millpond fs ls flights/v1/2013/ -r --json")
def listed(
    location: Annotated[
        str, typer.Argument(metavar="REPO[/REF[/PREFIX]]", help="Where to look, such as flights/main/2013/.")
    ],
    recursive: Recursive = False,
    limit: Limit = None,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """List objects; what lies below a folder shows as the folder."""
    where = parse_path(location, ref=False)
    with repository(pond, where.repository) as repo:
        ref = repo.ref(where.ref or repo.record.default_branch)
        rows = _listing(ref, where.path, "" if recursive else "/")
        if json:
            console.print_json_list(map(_row_object, islice(rows, limit)))
            return
        count = _print_rows(islice(rows, limit))
    if not count:
        console.say(f"nothing begins with {where.path}" if where.path else "no objects")
    elif limit is not None and count == limit:
        console.note("there may be more: a larger -n shows them")


def _listing(ref: ReferenceLike, prefix: str, delimiter: str) -> Iterator[Entry | CommonPrefix]:
    """The entries below a prefix; where nothing lies directly at it, those of the folder of its name."""
    from millpond.versions.paging import pages_of

    page_at = partial(ref.list, prefix, delimiter=delimiter, amount=_PAGE)
    for number, page in enumerate(pages_of(lambda after: page_at(after=after))):
        results = page.results
        if not number and delimiter and len(results) == 1 and results[0].path == f"{prefix}/" and not page.has_more:
            yield from _listing(ref, f"{prefix}/", delimiter)  # `ls 2013` means the folder
        else:
            yield from results


def _row_object(row: Entry | CommonPrefix) -> dict[str, Any]:
    from millpond.versions.paging import CommonPrefix

    return {"folder": row.path} if isinstance(row, CommonPrefix) else entry_object(row)


def _print_rows(rows: Iterator[Entry | CommonPrefix]) -> int:
    """Print rows as they come: a listing may be long."""
    from millpond.versions.paging import CommonPrefix

    count = 0
    for row in rows:
        count += 1
        if isinstance(row, CommonPrefix):
            console.say(f"{'':>10}  {'':17}  {row.path}")
        else:
            console.say(f"{console.human_bytes(row.size):>10}  {when(row.mtime):17}  {row.path}")
    return count
