"""`millpond fs`: the objects of a ref: list, look at, copy, delete, restore."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondPlace, examples
from millpond.cli.terminal import console
from millpond.cli.versions import transfers
from millpond.cli.versions.output import entry_object, iso, when
from millpond.cli.versions.places import AnyPlace, Limit, Place, parse_place, repository

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.versions.objects.entries import Entry
    from millpond.versions.paging import CommonPrefix
    from millpond.versions.protocols import BranchLike, ReferenceLike

__all__ = ("copy", "listed", "register", "remove", "restore", "stat")

Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="All that lies below.")]
_PAGE = 1_000


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Objects: put, get, list, copy and delete them.", no_args_is_help=True)
    group.command("ls", epilog=examples("millpond fs ls flights/main", "millpond fs ls flights/v1/2013/ -r --json"))(
        listed
    )
    transfers.register(group)
    group.command(epilog=examples("millpond fs stat flights/main/2013/01.csv", "millpond fs stat flights/v1/a --json"))(
        stat
    )
    group.command(
        "cp",
        epilog=examples("millpond fs cp flights/v1/2013/01.csv flights/main/2013/01.csv",
                        "millpond fs cp -r flights/main/2013/ flights/main/archive/2013/"),
    )(copy)  # fmt: skip
    group.command(
        "rm", epilog=examples("millpond fs rm flights/main/2013/01.csv", "millpond fs rm -r flights/main/2013/")
    )(remove)
    group.command(
        epilog=examples(
            "millpond fs restore flights/main/2013/ --from v1", "millpond fs restore flights/main --from main~3"
        )
    )(restore)  # fmt: skip
    app.add_typer(group, name="fs")


def listed(
    place: Annotated[
        str, typer.Argument(metavar="REPO[/REF[/PREFIX]]", help="Where to look, such as flights/main/2013/.")
    ],
    recursive: Recursive = False,
    limit: Limit = None,
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """List objects; what lies below a folder shows as the folder."""
    where = parse_place(place, ref=False)
    with repository(pond, where.repository) as found:
        ref = found.ref(where.ref or found.record.default_branch)
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
    after, seen = "", False
    while True:
        page = ref.list(prefix, delimiter=delimiter, after=after, amount=_PAGE)
        results = page.results
        if not seen and delimiter and len(results) == 1 and results[0].path == f"{prefix}/" and not page.has_more:
            yield from _listing(ref, f"{prefix}/", delimiter)  # `ls 2013` means the folder
            return
        yield from results
        seen = True
        if not page.has_more:
            return
        after = page.next_offset


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


def stat(place: AnyPlace, pond: PondPlace = "pond", json: Json = False) -> None:
    """Show what is known of one object."""
    from millpond.versions.objects.uploads import physical_address

    where = parse_place(place, path=None)
    with repository(pond, where.repository) as found:
        entry = transfers.stat_of(found.ref(where.ref), where, f"'millpond fs ls {where}' lists it")
        facts = entry_object(entry) | {"address": physical_address(found.record.namespace, entry.address)}
    if json:
        console.print_json(facts)
        return
    facts["size"] = f"{entry.size:,} bytes"
    facts["modified"] = iso(entry.mtime)
    facts["metadata"] = ", ".join(f"{name}={value}" for name, value in entry.metadata.items()) or None
    console.print_facts({name.replace("_", " "): value for name, value in facts.items()})


# -- copying, deleting, restoring ---------------------------------------------------------------------


def copy(
    source: AnyPlace,
    target: Annotated[
        str, typer.Argument(metavar="REPO/BRANCH/PATH", help="Where to; a path that ends with / is a folder.")
    ],
    recursive: Recursive = False,
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:
    """Copy an object, or a folder, within a repository. The bytes are shared, whatever their size."""
    from millpond.errors import Invalid

    if "://" not in source and ("/" not in source or Path(source).exists()):
        raise Invalid("cp copies within a repository", kind="place_form", source=source, target=target,
                      hint="a file: 'millpond fs put FILE REPO/BRANCH/PATH'")  # fmt: skip
    origin, goal = parse_place(source, path=True if recursive else None), parse_place(target)
    if origin.repository != goal.repository:
        raise Invalid(
            "objects are copied within one repository", kind="place_repository", source=source, target=target,
            hint="millpond fs get, then millpond fs put",
        )  # fmt: skip
    with repository(pond, origin.repository) as found:
        branch = found.branch(goal.ref)
        if recursive:
            count = _copy_folder(branch, origin, goal)
        else:
            path = goal.path + origin.path.rpartition("/")[2] if goal.path.endswith("/") or not goal.path else goal.path
            transfers.stat_of(found.ref(origin.ref), origin, "add -r")
            entry = branch.copy(origin.path, path, ref=origin.ref)
            goal, count = replace(goal, path=entry.path), 1
    if json:
        console.print_json({"source": str(origin), "target": str(goal), "objects": count})
    else:
        console.say(f"copied {count:,} {'object' if count == 1 else 'objects'} to {goal}")


def _copy_folder(branch: BranchLike, origin: Place, goal: Place) -> int:
    """Stage the entries of a folder under another one, all or none; how many."""
    start = _folder(origin.path)
    count = branch.staging.copy_prefix(start, _folder(goal.path), ref=origin.ref)
    if not count:
        raise _nothing_below(origin, start)
    return count


def _folder(path: str) -> str:
    return path if not path or path.endswith("/") else f"{path}/"


def remove(place: AnyPlace, recursive: Recursive = False, pond: PondPlace = "pond", json: Json = False) -> None:
    """Delete an object from a branch, or all that lies below a folder: one entry, however many there are."""
    from millpond.errors import Invalid

    where = parse_place(place, path=True if recursive else None)
    with repository(pond, where.repository) as found:
        branch = found.branch(where.ref)
        if recursive:
            start = _folder(where.path)
            if not branch.list(start, amount=1).results:
                raise _nothing_below(where, start)
            branch.staging.delete_prefix(start)
        elif not branch.delete(where.path):
            if branch.list(_folder(where.path), amount=1).results:
                raise Invalid("this is a folder", kind="path_folder", path=str(where), hint="delete it with -r")
            raise _absent(where)
    if json:
        console.print_json({"deleted": str(where), "recursive": recursive})
    else:
        console.say(f"deleted {where}" + (" and all below it" if recursive else "") + "; not committed yet")


def restore(
    place: AnyPlace,
    ref: Annotated[str, typer.Option("--from", metavar="REF", help="The branch, tag or commit to take it from.")],
    pond: PondPlace = "pond",
    json: Json = False,
) -> None:
    """Let what lies below a prefix be what it was at another ref. It is staged, and no bytes are copied."""
    where = parse_place(place)
    with repository(pond, where.repository) as found:
        count = found.branch(where.ref).staging.restore(where.path, ref)
    if json:
        console.print_json({"place": str(where), "from": ref, "changes": count})
    else:
        console.say(
            f"staged {count:,} {'change' if count == 1 else 'changes'} of {where}"
            if count
            else f"{where} is what it was in {ref}"
        )


def _absent(where: Place) -> Exception:
    from millpond.versions.staging.writes import entry_not_found

    return entry_not_found(where.path)


def _nothing_below(where: Place, start: str) -> Exception:
    from millpond.errors import NotFound

    return NotFound(
        "nothing lies below it", kind="entry_not_found", path=start or "/", ref=where.ref,
        hint=f"millpond fs ls {where.repository}/{where.ref}",
    )  # fmt: skip
