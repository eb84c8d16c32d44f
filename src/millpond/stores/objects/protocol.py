"""Objects by name: what readers and writers of ranges need, and what a store promises besides.

Invariants every store keeps:
* A name shows whole contents or nothing. A reader never sees half an object, whenever the writer dies.
* When a write returns, the object survives a crash of the machine (the memory of a process excepted).
* A name is parts of letters, digits and `._-=+`, joined by `/`; no part begins with a dot, so no name leaves its place.
* Listings ascend by the bytes of the names.
* `swap` is the compare-and-set: of several writers that expect the same tag, exactly one succeeds. A name that is
  swapped is written by `swap` alone: a folder does not make `put` wait for a `swap`.
* A tag stands for content. An object that was changed and changed back has its first tag again: a writer to whom that
  matters puts a number or a random id into what it swaps.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from millpond.errors import Conflict, Invalid, NotFound

__all__ = (
    "Beside", "Level", "ObjectInfo", "ObjectStore", "Objects", "TaggedObject", "beginning_of", "changed", "check_name",
    "folder_of", "not_found", "watched",
)  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9._+=,-]*(/[A-Za-z0-9_+=-][A-Za-z0-9._+=,-]*)*")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing: its name and its bytes; of a bucket, when it was put last, by the bucket's clock."""

    name: str
    size: int
    modified_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TaggedObject:
    """The bytes of an object and the tag of this content, from one read."""

    data: pa.Buffer
    tag: str


@dataclass(frozen=True, slots=True)
class Level:
    """The content of one folder: its objects, and its folders as prefixes that end with `/`. Both ascend."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...]


class Objects(ABC):
    """Named bytes. Threads may share it; it may be pickled (what memory holds stays behind)."""

    where: str
    """The place, for errors."""
    collected = True
    """True when all who use the place see each other's locks: whoever holds them may remove what nobody names. Of a
    bucket, files are removed by a lease of the space."""
    in_blocks = False
    """True where files are far away: large ones are written so that parts of them can be read alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    @abstractmethod
    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Store a whole object under its name, over what is there.

        Raises: `Unavailable` when the place is full or cannot be reached; nothing of the object is visible then.
        """

    @abstractmethod
    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object; from a folder they are memory-mapped, not read.

        Raises: `NotFound`.
        """

    def get_range(self, name: str, start: int, stop: int | None = None) -> memoryview:
        """The bytes `[start, stop)` of an object, in one request; fewer when it ends before.

        Without `stop` all from `start` on; a negative `start`, without `stop`, takes that many of the last bytes.

        Raises: `NotFound`.
        """
        assert start >= 0 or stop is None, "the last bytes are taken whole"
        return memoryview(self.get(name)).cast("B")[start:stop]

    @abstractmethod
    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: `NotFound`.
        """

    def exists(self, name: str) -> bool:
        """True when there is an object of that name."""
        try:
            self.size(name)
        except NotFound:
            return False
        return True

    @abstractmethod
    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """The objects below the folder `under`, ascending: those that begin with `prefix` and lie behind `after`.

        All three are whole names, from the root of the place on.
        """

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Remove objects; a missing one is not an error. They go one after another, not all or none."""

    @abstractmethod
    def rename(self, name: str, target: str) -> None:
        """Give an object another name, over what has that name. A crash may leave both names, never none.

        Raises: `NotFound`.
        """

    def local_path(self, name: str) -> Path | None:
        """The object's file on this machine; None when it is not a file here."""
        check_name(name)
        return None


class ObjectStore(Objects):
    """Objects with conditional writes and large bodies: enough for a log's head and for what is shared by machines."""

    versioned = False
    """True when the place keeps old versions of what is removed, as the last `swap` has shown."""

    @abstractmethod
    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        """Store an object if the one there has the tag `expected`, or, with None, if there is none; the new tag.

        Raises: `Conflict`, kind `object_changed`, when it has not, also when it is gone; `Uncertain` when the answer
        was lost: read the object to learn which.
        """

    @abstractmethod
    def get_tagged(self, name: str) -> TaggedObject:
        """All bytes of an object and the tag to `swap` it by.

        Raises: `NotFound`.
        """

    @abstractmethod
    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Store an object of any size in bounded memory, over what is there; visible only when it is whole.

        An error of `chunks` is raised, and nothing is stored.

        Raises: as `put`.
        """

    @abstractmethod
    def level(self, folder: str = "") -> Level:
        """The content of one folder: a listing with the delimiter `/`. A folder is there while an object is in it."""


class Beside(NamedTuple):
    """Objects beside a space, for what is too large for its rows, and the time of day as their place tells it."""

    objects: ObjectStore
    now_ms: Callable[[], int]


def check_name(name: str) -> str:
    """The name, when it is one.

    Raises: `Invalid`.
    """
    if not _NAME.fullmatch(name):
        raise Invalid(
            "not a name for an object", kind="object_name", name=repr(name),
            hint="letters, digits and ._-=+, in parts joined by /; no part begins with a dot or comma",
        )  # fmt: skip
    return name


def beginning_of(under: str, prefix: str) -> str | None:
    """The text with which all names of a listing begin: of a folder and a prefix, the longer; None when no name can.

    >>> beginning_of("a", "a/b/c"), beginning_of("a", ""), beginning_of("", "ab"), beginning_of("a/b", "a")
    ('a/b/c', 'a/', 'ab', 'a/b/')
    >>> beginning_of("a", "z/y/")
    """
    folder = f"{under.strip('/')}/" if under.strip("/") else ""
    if folder.startswith(prefix):
        return folder
    return prefix if prefix.startswith(folder) else None


def folder_of(beginning: str) -> str:
    """The deepest folder that holds all names with a beginning; empty for the root.

    >>> folder_of("a/b/c"), folder_of("a/"), folder_of("ab")
    ('a/b', 'a', '')
    """
    return beginning.rpartition("/")[0]


def not_found(name: str, where: str) -> NotFound:
    """The error for a missing object."""
    return NotFound("there is no such object", kind="object_not_found", object=name, where=where)


def changed(name: str, where: str) -> Conflict:
    """The error for a swap that lost."""
    return Conflict(
        "the object is not what was expected", kind="object_changed", object=name, where=where,
        hint="read it again, then try again",
    )  # fmt: skip


def watched(chunks: Iterable[bytes | memoryview], failed: list[BaseException]) -> Iterator[bytes | memoryview]:
    """The chunks of a stream; what they raise is remembered, so that it is not taken for an error of the place."""
    try:
        yield from chunks
    except BaseException as error:
        failed.append(error)
        raise
