"""`millpond fs put`, `get` and `cat`: bytes between this machine and a repository.

Invariants:
* Nothing is held whole in memory, and a file that was fetched appears whole under its name, or not at all.
* A path of a repository never leads out of the folder that it is fetched into.
* A few transfers run at once. After the first that fails, no other begins; objects that were put stay staged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import AnyLocation, Metadata, RefPath, items, parse_path, repository
from millpond.cli.versions.output import entry_object
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from millpond.cli.terminal.console import Advance
    from millpond.versions.objects.entries import Entry
    from millpond.versions.protocols import BranchLike, ReferenceLike

__all__ = ("cat", "get", "put", "stat_of")

CHUNK_BYTES = 1 << 20
AT_ONCE = 8
_PAGE = 1_000

ContentType = Annotated[
    str | None,
    typer.Option("--content-type", metavar="TYPE", help="Such as text/csv.", show_default="by the file's name"),
]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="A folder with all that lies below.")]


# -- up -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Upload:
    """A file, and the path that it is put at."""

    file: Path
    path: str


@verb(
    "fs put",
    "millpond fs put 01.csv flights/main/2013/",
    "millpond fs put -r data/2013 flights/main/2013/",
    "pg_dump flights | millpond fs put - flights/main/dump.sql",
)
def put(
    source: Annotated[
        Path, typer.Argument(metavar="FILE|FOLDER|-", help="What to put; - is standard input.", allow_dash=True)
    ],
    target: Annotated[
        str, typer.Argument(metavar="REPO/BRANCH[/PATH]", help="Where to; a path that ends with / is a folder.")
    ],
    recursive: Recursive = False,
    content_type: ContentType = None,
    meta: Metadata = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only where nothing is.")] = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """Put a file, or a folder with all that lies below it, on a branch. It is staged: commit it when it is right."""
    from millpond.stores.objects.bringing import bring

    where = parse_path(target)
    plan, size = _plan(source, where, recursive=recursive)
    options: dict[str, Any] = {"metadata": items(meta), "if_absent": if_absent}
    with repository(pond, where.repository) as repo:
        branch = repo.branch(where.ref)
        branch.head()  # before anything is read
        with console.progress("putting", total=size, unit="bytes", quiet=json) as advance:
            if str(source) == "-":
                body = iter(lambda: sys.stdin.buffer.read(CHUNK_BYTES), b"")
                entries = [branch.put(plan[0].path, body, content_type=_type(content_type, plan[0].path), **options)]
            else:
                entries = list(bring(lambda file: _put(branch, file, content_type, options, advance), plan, AT_ONCE))
    if json:
        console.print_json_list(map(entry_object, entries))
    elif recursive:
        total = console.human_bytes(sum(entry.size for entry in entries))
        console.say(f"put {console.human_count(len(entries), 'object')} ({total}) to {where}; not committed yet")
    else:
        console.say(f"put {where.repository}/{where.ref}/{entries[0].path} "
                    f"({console.human_bytes(entries[0].size)}); not committed yet")  # fmt: skip


def _plan(source: Path, where: RefPath, *, recursive: bool) -> tuple[list[_Upload], int | None]:
    """The files and their paths, and how many bytes they are together."""
    if str(source) == "-":
        if not where.path or where.path.endswith("/"):
            raise Invalid("standard input has no name", kind="place_path", place=str(where), hint="name the object")
        return [_Upload(source, where.path)], None
    if not source.exists():
        raise NotFound("file does not exist", kind="file_not_found", path=source)
    if source.is_dir():
        if not recursive:
            raise Invalid(
                "this is a folder", kind="path_folder", path=source, hint="add -r to put all that lies below it"
            )
        before = where.path if not where.path or where.path.endswith("/") else f"{where.path}/"
        plan = [_Upload(file, before + file.relative_to(source).as_posix()) for file in _files(source)]
        if not plan:
            raise NotFound("the folder holds no files", kind="file_not_found", path=source)
        return plan, sum(upload.file.stat().st_size for upload in plan)
    path = where.path + source.name if not where.path or where.path.endswith("/") else where.path
    return [_Upload(source, path)], source.stat().st_size


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, in order. Links to folders are not followed: they may lead in a circle."""
    for at, folders, names in os.walk(folder):
        folders.sort()
        yield from (file for name in sorted(names) if (file := Path(at, name)).is_file())


def _put(
    branch: BranchLike, upload: _Upload, content_type: str | None, options: dict[str, Any], advance: Advance
) -> Entry:
    def chunks() -> Iterator[bytes]:
        with upload.file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
                advance(len(chunk))

    return branch.put(upload.path, chunks(), content_type=_type(content_type, upload.path), **options)


def _type(content_type: str | None, path: str) -> str:
    from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE

    return content_type or guess_type(path)[0] or DEFAULT_CONTENT_TYPE


# -- down ---------------------------------------------------------------------------------------------


@verb(
    "fs get",
    "millpond fs get flights/v1/2013/01.csv",
    "millpond fs get flights/main/2013/01.csv copy.csv",
    "millpond fs get -r flights/main/2013/ data/2013",
)
def get(
    source: AnyLocation,
    target: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE|FOLDER|-]", help="Where to; - is standard output.", allow_dash=True,
                       show_default="this folder, under its own name"),
    ] = None,
    recursive: Recursive = False,
    pond: PondLocation = "pond",
    json: Json = False,
) -> None:  # fmt: skip
    """Get an object, or all that lies below a folder, as files. A file that is there is replaced."""
    where = parse_path(source, path=True if recursive else None, hint="or add -r, for all of it")
    if target is not None and str(target) == "-":
        cat(source, pond)
        return
    with repository(pond, where.repository) as repo:
        ref = repo.ref(where.ref)
        if recursive:
            fetched, size = _get_folder(ref, where, target or Path(), quiet=json)
        else:
            entry = stat_of(ref, where, "add -r")
            file = target or Path(PurePosixPath(entry.path).name or "object")
            if file.is_dir():
                file /= PurePosixPath(entry.path).name
            with console.progress("getting", total=entry.size, unit="bytes", quiet=json) as advance:
                _get(ref, entry, file, advance)
            fetched, size, target = 1, entry.size, file
    if json:
        console.print_json({"source": str(where), "target": str(target or "."), "objects": fetched, "bytes": size})
    else:
        shown = console.human_count(fetched, "object")
        console.say(f"got {shown} ({console.human_bytes(size)}) to {target or 'this folder'}")


def stat_of(ref: ReferenceLike, where: RefPath, hint: str) -> Entry:
    """The entry of a place; the path of a folder is said to be one.

    Raises: `NotFound`, `Invalid`.
    """
    try:
        return ref.stat(where.path)
    except NotFound as error:
        below = where.path if where.path.endswith("/") else f"{where.path}/"
        if error.kind == "entry_not_found" and ref.list(below, amount=1).results:
            raise Invalid("this is a folder", kind="path_folder", path=str(where), hint=hint) from error
        raise


def _get_folder(ref: ReferenceLike, where: RefPath, folder: Path, *, quiet: bool) -> tuple[int, int]:
    """Fetch what lies below a folder; how many objects, and their bytes."""
    from millpond.stores.objects.bringing import bring
    from millpond.versions.paging import results_of

    if folder.exists() and not folder.is_dir():
        raise Invalid("this is a file", kind="target_file", path=folder, hint="name a folder")
    start = where.path if not where.path or where.path.endswith("/") else f"{where.path}/"
    listed = results_of(lambda after: ref.list(start, after=after, amount=_PAGE))
    with console.progress("getting", unit="bytes", quiet=quiet) as advance:

        def fetch(entry: Entry) -> int:
            _get(ref, entry, _inside(folder, entry.path, start), advance)
            return entry.size

        sizes = list(bring(fetch, (entry for entry in listed if not entry.path.endswith("/")), AT_ONCE))
    if not sizes:
        raise NotFound(
            "nothing lies below it", kind="entry_not_found", path=start or "/", ref=where.ref,
            hint=f"millpond fs ls {where.repository}/{where.ref}",
        )  # fmt: skip
    return len(sizes), sum(sizes)


def _inside(folder: Path, path: str, start: str) -> Path:
    """The file for a path below a folder.

    Raises: `Invalid` for a path that leads out of it, or that no file can have.
    """
    parts = path.removeprefix(start).split("/")
    if any(part in ("", ".", "..") or "\0" in part or os.sep in part for part in parts):
        raise Invalid(
            "no file can have this path", kind="path_no_file", path=repr(path), hint="get it alone, and name the file"
        )
    return folder.joinpath(*parts)


def _get(ref: ReferenceLike, entry: Entry, file: Path, advance: Advance) -> None:
    """Fetch one object into a file that appears when it is whole."""
    partial = file.with_name(f".{file.name[:100]}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            for chunk in ref.read(entry.path):
                stream.write(chunk)
                advance(len(chunk))
        partial.replace(file)
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise Invalid(
            "a file and a folder have one name", kind="target_file", path=entry.path, file=file,
            hint="get it alone, and name the file",
        ) from error  # fmt: skip
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@verb("fs cat", "millpond fs cat flights/main/2013/01.csv", "millpond fs cat flights/v1/README", json=False)
def cat(source: AnyLocation, pond: PondLocation = "pond") -> None:
    """Write the bytes of an object to standard output."""
    where = parse_path(source, path=None)
    with repository(pond, where.repository) as repo:
        ref = repo.ref(where.ref)
        stat_of(ref, where, f"'millpond fs ls {where}' lists it")
        for chunk in ref.read(where.path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
