"""Sources: places that other programs write, read under whatever names their files have.

    local:///data/flights/2013/Jan 1.csv     a file of this machine
    local://flights/data/…                   a file below a folder that the opener knows
    s3://bucket/flights/2013/Jan 1.csv       an object of a bucket

An address is a root (`local://`, `file://`, `s3://bucket`) and a name below it. A source lists, looks and reads; it
never writes.

Invariants:
* A walk is ascending by the bytes of the names, in blocks, and takes memory for the entries of the open folders.
* A name never leaves its root: it has no `.` and no `..` among its parts. That of a file has no `//`, so a file has one
  name; an object `a//b` of a bucket is refused by name, for the client of buckets cannot read it.
* Of a folder only plain files are seen: links, to files or to folders, sockets and devices are not. The folder that an
  address itself names may be reached through links.
* The checksum of a file is the MD5 of its bytes; of an object in a bucket it is the tag that the bucket gives.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millpond.errors import Denied, Invalid, MillpondError, NotFound, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = (
    "FolderSource", "Ranges", "Source", "SourceFile", "SourceObject", "join_address", "open_source", "split_address",
)  # fmt: skip

BLOCK_OBJECTS = 1_024
HASHING_THREADS = 4
SMALL_BYTES = 64 << 10
"""Smaller files are read at once: a thread costs more."""
_CHUNK_BYTES = 1 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""A link is not followed, and a pipe does not make the reader wait."""
_NO_BYTES = hashlib.md5(b"", usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One object of a source: its name below the root, its bytes and its time in seconds since 1970."""

    name: str
    size: int
    mtime: int
    checksum: str


class Ranges(Protocol):
    """A place whose objects are read by ranges."""

    where: str

    def get_range(self, name: str, start: int, stop: int) -> bytes | memoryview:
        """The bytes `[start, stop)` of an object; fewer when it ends before.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """

    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: as `get_range`.
        """


class Source(Ranges, Protocol):
    """A place that is read."""

    def check(self, prefix: str) -> None:
        """Look whether a walk can begin.

        Raises: as `walk`.
        """

    def walk(self, prefix: str) -> Iterator[list[SourceObject]]:
        """All objects whose names begin with a prefix, ascending, in blocks.

        Raises: `NotFound` when the folder is not there; `Denied`, `Unavailable`; `Invalid` for a name that is no text.
        """

    def look(self, name: str) -> SourceObject:
        """One object.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """


def split_address(address: str) -> tuple[str, str]:
    """The root and the name of an address.

    Raises: `Invalid` for an address that is none, or leaves its root.

    >>> split_address("s3://bucket/a/b"), split_address("local:///data/x"), split_address("local://repo/x")
    (('s3://bucket', 'a/b'), ('local:///', 'data/x'), ('local://', 'repo/x'))
    """
    scheme, colon, rest = address.partition("://")
    if scheme in ("local", "file") and colon and "//" not in rest:
        root = f"{scheme}:///" if rest.startswith("/") else f"{scheme}://"
        name = rest.removeprefix("/")
    elif scheme == "s3" and colon:
        bucket, _, name = rest.partition("/")
        root = f"s3://{bucket}" if bucket else ""
    else:
        root = name = ""
    if not root or {".", ".."} & set(name.split("/")) or "\0" in name:
        raise Invalid(
            "not the address of an object", kind="address_invalid", address=address,
            hint="s3://bucket/name, or local:///folder/name",
        )  # fmt: skip
    return root, name


def join_address(root: str, name: str) -> str:
    """The address that `split_address` takes apart."""
    return root + name if root.endswith("/") else f"{root}/{name}"


def open_source(root: str, local: Path | None = None, config: Mapping[str, object] | None = None) -> Source:
    """The source at a root. `local` is the folder that `local://` without a slash stands for, `config` how buckets are
    reached, as `open_objects` takes it.

    Raises: `Invalid` for a root that is none.
    """
    if root.startswith("s3://"):
        # obstore is a large library, and most sources are folders.
        from millpond.stores.objects.bucket_source import BucketSource

        return BucketSource(root, dict(config or {}))
    if root in ("local:///", "file:///"):
        return FolderSource(root, Path("/"))
    if root in ("local://", "file://") and local is not None:
        return FolderSource(root, local)
    raise Invalid("not the root of a source", kind="address_invalid", address=root, hint="s3://bucket, or local:///")


class FolderSource:
    """The plain files below a folder."""

    def __init__(self, where: str, folder: Path) -> None:
        self.where = where
        self._folder = os.fspath(folder).rstrip("/")

    def check(self, prefix: str) -> None:
        """Look whether the folder of a walk can be read."""
        with self._errors(prefix):
            os.scandir(f"{self._folder}/{prefix.rpartition('/')[0]}").close()

    def walk(self, prefix: str) -> Iterator[list[SourceObject]]:
        """All files whose names begin with a prefix, ascending, in blocks."""
        self.check(prefix)  # the folder itself must be there; one below may go
        folder = prefix.rpartition("/")[0]
        with self._errors(prefix):
            names = self._names(f"{folder}/" if folder else "", prefix)
            with ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="hash") as threads:
                while block := list(islice(names, BLOCK_OBJECTS)):
                    if objects := self._block(block, threads):
                        yield objects

    def _names(self, start: str, prefix: str) -> Iterator[str]:
        """The names of the files below a folder; `start` is its name with a slash."""
        try:
            with os.scandir(f"{self._folder}/{start}") as entries:
                named = sorted(
                    (_text(start, entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else "")).encode()
                    for entry in entries
                )
        except FileNotFoundError:
            return  # removed meanwhile
        for raw in named:
            name = raw.decode()
            if name.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._names(name, prefix)
            elif name.startswith(prefix):
                yield name

    def _block(self, names: list[str], threads: ThreadPoolExecutor) -> list[SourceObject]:
        """Files with their MD5s; without those that are no plain files, or were removed meanwhile."""
        objects: list[SourceObject | Future[SourceObject]] = []
        for name in names:
            with suppress(FileNotFoundError):
                status = os.stat(f"{self._folder}/{name}", follow_symlinks=False)  # noqa: PTH116 - a million times
                if stat.S_ISREG(status.st_mode) and not status.st_size:
                    objects.append(SourceObject(name, 0, int(status.st_mtime), _NO_BYTES))
                elif stat.S_ISREG(status.st_mode) and status.st_size < SMALL_BYTES:
                    objects.append(self._look(name))
                elif stat.S_ISREG(status.st_mode):
                    objects.append(threads.submit(self._look, name))
        hashed = []
        for item in objects:
            with suppress(FileNotFoundError):
                hashed.append(item.result() if isinstance(item, Future) else item)
        return hashed

    def look(self, name: str) -> SourceObject:
        """One file."""
        with self._errors(name):
            return self._look(name)

    def _look(self, name: str) -> SourceObject:
        handle = os.open(f"{self._folder}/{name}", _OPEN)
        with io.FileIO(handle) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise _NoFileError
            digest, size = hashlib.md5(usedforsecurity=False), 0
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return SourceObject(name, size, int(status.st_mtime), digest.hexdigest())

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)` of a file."""
        with self._open(name) as file:
            return os.pread(file.fileno(), max(0, stop - start), start)

    def size(self, name: str) -> int:
        """The number of bytes of a file."""
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    @contextmanager
    def _open(self, name: str) -> Iterator[io.FileIO]:
        with self._errors(name), io.FileIO(os.open(f"{self._folder}/{name}", _OPEN)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _NoFileError
            yield file

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(name, error) from error

    def _error(self, name: str, error: OSError) -> MillpondError:
        values = {"where": self.where, "name": name}
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | _NoFileError):
            return NotFound("there is no such file", kind="object_not_found", hint="check the address", **values)
        if isinstance(error, PermissionError):
            return Denied(
                "the file may not be read", kind="objects_denied", hint="check its owner and its mode", **values
            )
        return Unavailable(
            "the file cannot be read", kind="objects_unavailable", reason=error.strerror or str(error),
            hint="check the disk, then try again", **values,
        )  # fmt: skip


class _NoFileError(OSError):
    """A link, a folder, a device: no plain file."""


def _text(start: str, name: str) -> str:
    """The name of an entry of a folder.

    Raises: `Invalid` for bytes that are no UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise Invalid(
            "a file's name is no text", kind="source_name", folder=start, name=repr(name), hint="rename the file"
        ) from error
    return start + name


class SourceFile(io.RawIOBase):
    """An object of a source as a file that is read from any place."""

    def __init__(self, source: Ranges, name: str) -> None:
        super().__init__()
        self._source, self._name = source, name
        self._size = source.size(name)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer with the bytes from here on; how many there were."""
        view = memoryview(buffer).cast("B")
        data = self._source.get_range(self._name, self._at, min(self._size, self._at + len(view)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
