"""`millpond repo dump` and `restore`: the refs of a repository as a file, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import Json, PondLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.versions.locations import RepositoryName, opened, parse_repository, repository
from millpond.errors import Invalid, NotFound, Unavailable

__all__ = ("dump", "restore")

_CHUNK_BYTES = 1 << 20
_END = b'"sha256":'


@verb("repo dump", "millpond repo dump flights flights.jsonl", "millpond repo dump flights - | gzip > f.gz")
def dump(
    name: RepositoryName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE|-", help="Where to; - is standard output.", allow_dash=True)
    ],
    pond: PondLocation = "pond",
) -> console.Shown | None:  # fmt: skip
    """Write the commits, tags, branches and settings of a repository to a file, to restore them from.

    What is staged is not in it. The bytes stay where they are: copy the repository's place, too.
    """
    name = parse_repository(name)
    with repository(pond, name) as repo:
        if str(file) == "-":
            for chunk in repo.dump():
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return None
        size = _write(file, repo.dump())
        location = repo.record.namespace
    return console.said(
        {"repository": name, "file": str(file), "bytes": size, "place": location},
        f"wrote {file} ({console.human_bytes(size)}); the bytes of {name} lie in {location}",
    )


def _write(file: Path, chunks: Iterable[bytes]) -> int:
    """Write a file that appears when it is whole; its size."""
    if not file.absolute().parent.is_dir():
        raise NotFound("the folder does not exist", kind="file_not_found", path=file.parent, hint="make it first")
    if file.is_dir():
        raise Invalid("this is a folder", kind="path_folder", path=file, hint="name a file in it")
    partial, size, last = file.with_name(f".{file.name[:100]}.{os.getpid()}.partial"), 0, b""
    try:
        with partial.open("wb") as opened_file:
            for chunk in chunks:
                size += opened_file.write(chunk)
                last = (last + chunk)[-200:]
        if _END not in last:
            raise Unavailable("the dump was cut", kind="answer_cut", file=file, hint="take it again")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return size


@verb("repo restore", "millpond repo restore flights flights.jsonl", "gunzip -c f.gz | millpond repo restore flights -")
def restore(
    name: RepositoryName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE|-", help="The dump; - is standard input.", allow_dash=True)
    ],
    pond: PondLocation = "pond",
    json: Json = False,
) -> console.Shown:  # fmt: skip
    """Restore the commits, tags, branches and settings of a dump, all of them or none.

    A repository of that name must be new, and its place hold a copy of the bytes. Without one it is made where it was.
    """
    name = parse_repository(name)
    with opened(pond) as opened_pond, console.working("restoring", quiet=json):
        restored = opened_pond.repositories.restore(name, _chunks(file))
    return console.said(
        {"repository": name, "commits": restored.commits, "branches": restored.branches, "tags": restored.tags},
        f"restored {name}: {console.human_count(restored.commits, 'commit')}, "
        f"{console.human_count(restored.branches, 'branch')}, {console.human_count(restored.tags, 'tag')}",
    )


def _chunks(file: Path) -> Iterator[bytes]:
    if str(file) == "-":
        yield from iter(lambda: sys.stdin.buffer.read(_CHUNK_BYTES), b"")
        return
    if not file.exists():
        raise NotFound("file does not exist", kind="file_not_found", path=file)
    if file.is_dir():
        raise Invalid("this is a folder", kind="path_folder", path=file, hint="name a file in it")
    with file.open("rb") as opened_file:
        yield from iter(lambda: opened_file.read(_CHUNK_BYTES), b"")
