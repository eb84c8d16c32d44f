"""`millpond fs stat`, `cp`, `mv`, `rm` and `restore`: objects of a ref are looked at and changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions import transfers
from millpond.cli.versions.locations import AnyLocation, Recursive, RefPath, parse_path, repository
from millpond.cli.versions.output import entry_object
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from millpond.versions.protocols import BranchLike

__all__ = ("copy", "move", "remove", "restore", "stat")


@verb("fs stat", "millpond fs stat flights/main/2013/01.csv", "millpond fs stat flights/v1/a --json")
def stat(location: AnyLocation, pond: PondLocation = "pond") -> console.Shown:
    """Show what is known of one object."""
    from millpond.versions.objects.uploads import physical_address

    where = parse_path(location, path=None)
    with repository(pond, where.repository) as repo:
        entry = transfers.stat_of(repo.ref(where.ref), where, f"'millpond fs ls {where}' lists it")
        facts = entry_object(entry) | {"address": physical_address(repo.record.namespace, entry.address)}
    metadata = ", ".join(f"{name}={value}" for name, value in entry.metadata.items()) or None
    shown = facts | {"size": f"{entry.size:,} bytes", "metadata": metadata}
    return console.facts(facts, {name.replace("_", " "): value for name, value in shown.items()})


# -- copying, deleting, restoring ---------------------------------------------------------------------


@verb(
    "fs cp",
    "millpond fs cp flights/v1/2013/01.csv flights/main/2013/01.csv",
    "millpond fs cp -r flights/main/2013/ flights/main/archive/2013/",
)
def copy(
    source: AnyLocation,
    target: Annotated[
        str, typer.Argument(metavar="REPO/BRANCH/PATH", help="Where to; a path that ends with / is a folder.")
    ],
    recursive: Recursive = False,
    pond: PondLocation = "pond",
) -> console.Shown:
    """Copy an object, or a folder, within a repository. The bytes are shared, whatever their size."""
    if "://" not in source and ("/" not in source or Path(source).exists()):
        raise Invalid("cp copies within a repository", kind="place_form", source=source, target=target,
                      hint="a file: 'millpond fs put FILE REPO/BRANCH/PATH'")  # fmt: skip
    origin, goal = parse_path(source, path=True if recursive else None), parse_path(target)
    if origin.repository != goal.repository:
        raise Invalid(
            "objects are copied within one repository", kind="place_repository", source=source, target=target,
            hint="millpond fs get, then millpond fs put",
        )  # fmt: skip
    with repository(pond, origin.repository) as repo:
        branch = repo.branch(goal.ref)
        if recursive:
            count = _copy_folder(branch, origin, goal)
        else:
            transfers.stat_of(repo.ref(origin.ref), origin, "add -r")
            entry = branch.copy(origin.path, _under(goal, origin), ref=origin.ref)
            goal, count = replace(goal, path=entry.path), 1
    return console.said(
        {"source": str(origin), "target": str(goal), "objects": count},
        f"copied {console.human_count(count, 'object')} to {goal}",
    )


def _under(goal: RefPath, origin: RefPath) -> str:
    """The path of a target; one that is a folder gets the name of the source."""
    folder = goal.path.endswith("/") or not goal.path
    return goal.path + origin.path.rpartition("/")[2] if folder else goal.path


@verb("fs mv", "millpond fs mv flights/main/2013/01.csv flights/main/2013/january.csv")
def move(
    source: Annotated[str, typer.Argument(metavar="REPO/BRANCH/PATH", help="The object.")],
    target: Annotated[
        str, typer.Argument(metavar="REPO/BRANCH/PATH", help="Its new place; a path that ends with / is a folder.")
    ],
    pond: PondLocation = "pond",
) -> console.Shown:
    """Give an object of a branch another path, in one write. It is staged, and no bytes are copied."""
    origin, goal = parse_path(source, path=None), parse_path(target)
    if (origin.repository, origin.ref) != (goal.repository, goal.ref):
        raise Invalid("objects are moved on one branch", kind="place_repository", source=source, target=target,
                      hint="millpond fs cp, then millpond fs rm")  # fmt: skip
    with repository(pond, origin.repository) as repo:
        branch = repo.branch(goal.ref)
        transfers.stat_of(branch, origin, "of a folder: millpond fs cp -r, then millpond fs rm -r")
        goal = replace(goal, path=branch.staging.move(origin.path, _under(goal, origin)).path)
    return console.said({"source": str(origin), "target": str(goal)}, f"moved {origin} to {goal}; not committed yet")


def _copy_folder(branch: BranchLike, origin: RefPath, goal: RefPath) -> int:
    """Stage the entries of a folder under another one, all or none; how many."""
    start = _folder(origin.path)
    count = branch.staging.copy_prefix(start, _folder(goal.path), ref=origin.ref)
    if not count:
        raise _nothing_below(origin, start)
    return count


def _folder(path: str) -> str:
    return path if not path or path.endswith("/") else f"{path}/"


@verb("fs rm", "millpond fs rm flights/main/2013/01.csv", "millpond fs rm -r flights/main/2013/")
def remove(location: AnyLocation, recursive: Recursive = False, pond: PondLocation = "pond") -> console.Shown:
    """Delete an object from a branch, or all that lies below a folder: one entry, however many there are."""
    where = parse_path(location, path=True if recursive else None)
    with repository(pond, where.repository) as repo:
        branch = repo.branch(where.ref)
        if recursive:
            start = _folder(where.path)
            if not branch.list(start, amount=1).results:
                raise _nothing_below(where, start)
            branch.staging.delete_prefix(start)
        elif not branch.delete(where.path):
            if branch.list(_folder(where.path), amount=1).results:
                raise Invalid("this is a folder", kind="path_folder", path=str(where), hint="delete it with -r")
            raise _absent(where)
    return console.said(
        {"deleted": str(where), "recursive": recursive},
        f"deleted {where}" + (" and all below it" if recursive else "") + "; not committed yet",
    )


@verb(
    "fs restore", "millpond fs restore flights/main/2013/ --from v1", "millpond fs restore flights/main --from main~3"
)
def restore(
    location: AnyLocation,
    ref: Annotated[str, typer.Option("--from", metavar="REF", help="The branch, tag or commit to take it from.")],
    pond: PondLocation = "pond",
) -> console.Shown:
    """Let what lies below a prefix be what it was at another ref. It is staged, and no bytes are copied."""
    where = parse_path(location)
    with repository(pond, where.repository) as repo:
        count = repo.branch(where.ref).staging.restore(where.path, ref)
    return console.said(
        {"place": str(where), "from": ref, "changes": count},
        f"staged {console.human_count(count, 'change')} of {where}" if count else f"{where} is what it was in {ref}",
    )


def _absent(where: RefPath) -> Exception:
    from millpond.versions.staging.writes import entry_not_found

    return entry_not_found(where.path)


def _nothing_below(where: RefPath, start: str) -> Exception:
    return NotFound(
        "nothing lies below it", kind="entry_not_found", path=start or "/", ref=where.ref,
        hint=f"millpond fs ls {where.repository}/{where.ref}",
    )  # fmt: skip
