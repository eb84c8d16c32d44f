"""Named files in one place: a folder, the memory of this process, or a bucket of S3.

    open_objects("pond/snapshots/weather")
    open_objects("memory://")
    open_objects("s3://bucket/prefix", endpoint="http://…", access_key_id="…", secret_access_key="…", allow_http=True)

Invariants every place keeps:
* A name shows whole contents or nothing. A reader never sees half a file, whenever the writer dies.
* When `put` returns, the object survives a crash of the machine (the memory of a process excepted).
* A name is parts of letters, digits and `._-=+`, joined by `/`; no part begins with a dot, so no name leaves its place.

A folder writes into `.partial/` first: bytes, fsync, rename, fsync of the folder. The writer holds a lock on its
partial file while it lives, so `sweep_partial` can tell what a dead one left.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

from millpond.errors import Invalid, NotFound, Unavailable
from millpond.stores.files import disk_errors, sweep_unfinished, sync, write_file_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("FolderObjects", "Named", "Objects", "open_objects")

_PARTIAL = ".partial"
_NAME = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9._+=-]*(/[A-Za-z0-9_+=-][A-Za-z0-9._+=-]*)*")
_URL = re.compile(r"[a-z][a-z0-9+]*://")


@dataclass(frozen=True, slots=True)
class Named:
    """One object of a listing: its name and its bytes."""

    name: str
    size: int


def open_objects(where: str | Path, **config: object) -> Objects:
    """The objects of a folder (made if missing), of `memory://`, or of a URL such as `s3://bucket/prefix`.

    `config` is what `obstore` takes for that place: for S3 `endpoint`, `access_key_id`, `secret_access_key`,
    `region`, `allow_http`, `virtual_hosted_style_request` …; what it leaves out comes from the environment.

    Raises: `Invalid` for a place that is not understood.
    """
    if not isinstance(where, str) or not _URL.match(where):
        if config:
            raise Invalid("a folder takes no configuration", kind="objects_config", names=sorted(config))
        return FolderObjects(where)
    if where.startswith("file://"):
        return FolderObjects(where.removeprefix("file://"))
    return Objects(where, config)


class Objects:
    """The objects below one URL. It may be used by several threads, and pickled (what memory holds stays behind)."""

    def __init__(self, where: str, config: dict[str, object] | None = None) -> None:
        self.where = where
        self._config = dict(config or {})
        self._store = self._connect()

    def _connect(self) -> ObjectStore:
        settings = dict(self._config)
        plain_http = bool(settings.pop("allow_http", False))
        try:
            # any scheme's settings: obstore checks the names
            return from_url(self.where, client_options={"allow_http": plain_http}, **cast(Any, settings))
        except (BaseError, ValueError, TypeError) as error:
            said = str(error).partition("\n")[0]
            raise Invalid("objects cannot be opened", kind="objects_config", where=self.where, said=said) from error

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.where, self._config))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Store a whole object under its name, over what is there.

        Raises: `Unavailable` when the place is full or cannot be reached; nothing of the object is visible then.
        """
        with self._told(_checked(name)):
            self._store.put(name, memoryview(data).cast("B"))  # obstore wants unsigned bytes, Arrow says signed

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object; from a folder they are memory-mapped, not read.

        Raises: `NotFound`.
        """
        with self._told(_checked(name)):
            return pa.py_buffer(self._store.get(name).bytes())

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)` of an object; fewer when it ends before.

        Raises: `NotFound`.
        """
        stop = min(stop, self.size(name))
        if stop <= start:
            return b""
        with self._told(name):
            return bytes(self._store.get_range(name, start=start, end=stop))

    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: `NotFound`.
        """
        with self._told(_checked(name)):
            return int(self._store.head(name)["size"])

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        try:
            self.size(name)
        except NotFound:
            return False
        return True

    def list(self, under: str = "") -> Iterator[Named]:
        """The objects below the folder `under`, in no order."""
        with self._told(under):
            for batch in self._store.list(under or None):
                for found in batch:
                    if not found["path"].startswith("."):
                        yield Named(found["path"], found["size"])

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is not an error."""
        try:
            with self._told(_checked(name)):
                self._store.delete(name)
        except NotFound:
            return

    def rename(self, name: str, target: str) -> None:
        """Give an object another name, over what has that name.

        Raises: `NotFound`.
        """
        with self._told(_checked(name)):
            self._store.rename(name, _checked(target))

    def settle(self, under: str) -> None:
        """Make sure that what can be seen right below the folder `under` survives a crash, whoever put it there."""

    def local_path(self, name: str) -> Path | None:
        """Where the object's file lies on this machine; None when it is not a file here."""
        _checked(name)
        return None

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Turn what the place says into our errors, naming the object."""
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound("there is no such object", kind="object_not_found", object=name, where=self.where) from error
        except (PermissionError, PermissionDeniedError, UnauthenticatedError) as error:
            raise Invalid(
                "the place refuses us", kind="objects_denied", object=name, where=self.where,
                hint="check the credentials",
            ) from error  # fmt: skip
        except (BaseError, OSError) as error:
            said = str(error).partition("\n")[0]
            raise Unavailable(
                "the place does not answer", kind="objects_unavailable", object=name, where=self.where, said=said
            ) from error


class FolderObjects(Objects):
    """Objects that are files: they can be mapped into memory, and their folder needs nothing but this process."""

    def __init__(self, where: str | Path, _config: dict[str, object] | None = None) -> None:
        self.root = Path(where).absolute()
        super().__init__(str(self.root))

    def _connect(self) -> ObjectStore:
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        return LocalStore(self.root)

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Store a whole object under its name, over what is there; durable when this returns.

        Raises: `Unavailable` when the disk is full; nothing of the object is visible then.
        """
        target, partial = self.root / _checked(name), self.root / _PARTIAL
        with disk_errors(target):
            partial.mkdir(exist_ok=True)
            _make_folder(target.parent, self.root)
            write_file_atomically(target, memoryview(data), through=partial)

    def sweep_partial(self) -> int:
        """Remove what writers left who died in the middle of a `put`; the number of files removed."""
        return sweep_unfinished(self.root / _PARTIAL)

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object, memory-mapped.

        Raises: `NotFound`.
        """
        with self._told(name), pa.memory_map(str(self.root / _checked(name))) as file:
            return file.read_buffer()

    def rename(self, name: str, target: str) -> None:
        """Give an object another name, durably, over what has that name.

        Raises: `NotFound`.
        """
        source, renamed = self.root / _checked(name), self.root / _checked(target)
        with self._told(name), disk_errors(renamed):
            _make_folder(renamed.parent, self.root)
            source.replace(renamed)
            sync(renamed.parent)
            sync(source.parent)

    def settle(self, under: str) -> None:
        """Make sure that what can be seen right below the folder `under` survives a crash, whoever put it there.

        A `put` does so for its own object. But one that finds an object in its place, put there by a process that
        died before it could make the name durable, must not build on it yet.
        """
        folder = self.root / _checked(under)
        if folder.is_dir():
            sync(folder)

    def local_path(self, name: str) -> Path | None:
        """Where the object's file lies, whether or not it is there."""
        return self.root / _checked(name)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid("not a name for an object", kind="object_name", name=repr(name))
    return name


def _make_folder(folder: Path, root: Path) -> None:
    """Make a folder below the root, each new name durable."""
    if folder == root or folder.is_dir():
        return
    _make_folder(folder.parent, root)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
