"""Objects that are files below a folder: they can be mapped into memory, and need nothing but this process.

    .partial/    what writers are at: bytes, fsync, rename, fsync of the folder
    .swap.lock   held during a `swap`

The writer holds a lock on its partial file while it lives, so `sweep_partial` can tell what a dead one left. A name
cannot be an object and a folder at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from millpond.errors import Denied, Invalid, MillpondError, Unavailable
from millpond.kernel.space import WouldBlock
from millpond.stores.files import (
    begin_writing,
    disk_errors,
    make_folder,
    sweep_unfinished,
    sync,
    unfinished_file,
    whole_file,
    write_file_atomically,
)
from millpond.stores.locks import alone
from millpond.stores.objects.memory import content_tag
from millpond.stores.objects.protocol import (
    Level,
    ObjectInfo,
    Objects,
    ObjectStore,
    TaggedObject,
    beginning_of,
    changed,
    check_name,
    folder_of,
    not_found,
    watched,
)

__all__ = (
    "FolderObjects", "fsync_below", "partial_folder", "put_all", "read_at_once", "ready_to_write", "sweep_partial",
)  # fmt: skip

_PARTIAL, _SWAP_LOCK = ".partial", ".swap.lock"
AT_ONCE_BYTES_MAX = 64 << 10
SWAP_SECONDS = 60.0
"""The time a swap waits for others; one takes as long as a file needs to become durable."""


class FolderObjects(ObjectStore):
    """The files below a folder, which is made if missing, with this mode less what the umask takes away."""

    def __init__(self, where: str | Path, mode: int = 0o777) -> None:
        self.root = Path(where).absolute()
        self.where = str(self.root)
        with disk_errors(self.root):
            make_folder(self.root, mode)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.where,))

    # -- writing --------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Store a whole object under its name, over what is there; durable when this returns.

        Raises: `Unavailable` when the disk is full; nothing of the object is visible then.
        """
        target = self.root / check_name(name)
        with _errors(self.where, name, writing=True), disk_errors(target):
            write_file_atomically(target, memoryview(data), through=ready_to_write(self.root, target))

    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Store an object of any size, a chunk at a time; durable when this returns.

        Raises: as `put`.
        """
        target, failed = self.root / check_name(name), list[BaseException]()
        with (
            _errors(self.where, name, writing=True, ours=failed),
            disk_errors(target),
            whole_file(target, through=ready_to_write(self.root, target)) as unfinished,
        ):
            unfinished.writelines(watched(chunks, failed))

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        busy = Unavailable(
            "another process swaps objects here", kind="objects_busy", object=check_name(name), where=self.where,
            hint="try again when it is done",
        )  # fmt: skip
        with alone(self.root / _SWAP_LOCK, SWAP_SECONDS, busy):
            path = self.root / name
            if (content_tag(self.get(name)) if path.is_file() else None) != expected:
                raise changed(name, self.where)
            self.put(name, data)
        return content_tag(data)

    def delete(self, *names: str) -> None:
        for name in [check_name(name) for name in names]:
            with _errors(self.where, name):
                path = self.root / name
                # A folder of that name is no object.
                if path.is_file():
                    path.unlink(missing_ok=True)

    def rename(self, name: str, target: str) -> None:
        """Give an object another name, durably, over what has that name.

        Raises: `NotFound`.
        """
        source, renamed = self.root / check_name(name), self.root / check_name(target)
        with _errors(self.where, name, writing=True), disk_errors(renamed):
            if not source.is_file():
                raise FileNotFoundError(source)
            _make_folder(renamed.parent, self.root)
            source.replace(renamed)
            sync(renamed.parent)
            sync(source.parent)

    # -- reading --------------------------------------------------------------------------------------

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object, memory-mapped.

        Raises: `NotFound`.
        """
        path = self.root / check_name(name)
        with _errors(self.where, name):
            if path.is_dir():
                raise FileNotFoundError(path)
            with pa.memory_map(str(path)) as file:
                return file.read_buffer()

    def get_tagged(self, name: str) -> TaggedObject:
        data = self.get(name)
        return TaggedObject(data, content_tag(data))

    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: `NotFound`.
        """
        path = self.root / check_name(name)
        with _errors(self.where, name):
            if path.is_dir():
                raise FileNotFoundError(path)
            return path.stat().st_size

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        beginning = beginning_of(under, prefix)
        if beginning is not None:
            for info in self._walk(folder_of(beginning), after):
                if info.name > after and info.name.startswith(beginning):
                    yield info

    def _walk(self, folder: str, after: str) -> Iterator[ObjectInfo]:
        for name, entry in self._entries(folder):
            if name.endswith("/"):
                # All below a folder begins with its name: one that ends before `after` begins is not opened.
                if name > after or after.startswith(name):
                    yield from self._walk(name.rstrip("/"), after)
            else:
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:
                    continue  # removed meanwhile
                yield ObjectInfo(name, size)

    def _entries(self, folder: str) -> Sequence[tuple[str, os.DirEntry[str]]]:
        """The entries right in a folder, in the order of the names below it; folders end with `/`."""
        start = f"{folder}/" if folder else ""
        try:
            with os.scandir(self.root / folder) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        named = [(f"{start}{entry.name}{'/' if entry.is_dir() else ''}", entry) for entry in visible]
        return sorted(named, key=lambda pair: pair[0])

    def level(self, folder: str = "") -> Level:
        """The objects and folders right in a folder; empty folders are not there."""
        objects, prefixes = [], []
        for name, entry in self._entries(folder.strip("/")):
            if not name.endswith("/"):
                objects.append(ObjectInfo(name, entry.stat().st_size))
            elif next(self._walk(name.rstrip("/"), ""), None) is not None:
                prefixes.append(name)
        return Level(tuple(objects), tuple(prefixes))

    def local_path(self, name: str) -> Path | None:
        """The object's file, whether or not it is there."""
        return self.root / check_name(name)


def put_all(store: ObjectStore, objects: Sequence[tuple[str, bytes]]) -> None:
    """Store whole objects under different names, below a folder with one sync for all names; durable when this returns.

    Raises: as `ObjectStore.put`; then some of the objects may be visible.
    """
    if not isinstance(store, FolderObjects):
        for name, data in objects:
            store.put(name, data)
        return
    if not objects:
        return
    targets = [store.root / check_name(name) for name, _ in objects]
    with _errors(store.where, objects[0][0], writing=True), disk_errors(store.root), ExitStack() as unfinished:
        files = [unfinished.enter_context(unfinished_file(ready_to_write(store.root, target))) for target in targets]
        for file, (_, data) in zip(files, objects, strict=True):
            file.write(data)
            file.flush()
            begin_writing(file.fileno())
        for file in files:
            os.fsync(file.fileno())
        for file, target in zip(files, targets, strict=True):
            Path(file.name).replace(target)
        for folder in {target.parent for target in targets}:
            sync(folder)


def read_at_once(store: object, name: str, start: int, stop: int) -> bytes:
    """The bytes `[start, stop)` of an object below a folder, if there are few and the system need not ask the disk.

    Raises: `NotFound`; `WouldBlock`, also for any other store.
    """
    if not isinstance(store, FolderObjects) or stop - start > AT_ONCE_BYTES_MAX:
        raise _not_held()
    data = bytearray(stop - start)
    with _errors(store.where, name):
        file = os.open(f"{store.where}/{check_name(name)}", os.O_RDONLY)
        try:
            count = os.preadv(file, [data], start, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            raise _not_held() from None
        finally:
            os.close(file)
    if count < len(data):  # the rest is on the disk, or the object is shorter: a reader that waits finds out
        raise _not_held()
    return bytes(data)


def _not_held() -> WouldBlock:
    return WouldBlock("the bytes are not held in memory", hint="read them where waiting is allowed")


def partial_folder(root: Path) -> Path:
    """The folder for partial files."""
    return root / _PARTIAL


def ready_to_write(root: Path, target: Path) -> Path:
    """The folder for partial files, made; the one of the target is, too."""
    partial = partial_folder(root)
    partial.mkdir(exist_ok=True)
    _make_folder(target.parent, root)
    return partial


@contextmanager
def _errors(
    where: str, name: str, *, writing: bool = False, ours: Sequence[BaseException] | None = None
) -> Iterator[None]:  # fmt: skip
    """Turn what the system says into our errors, naming the object. `ours` are raised as they are."""
    try:
        yield
    except OSError as error:
        if ours:
            raise ours[0] from None
        raise _as_ours(where, name, error, writing=writing) from error


def _as_ours(where: str, name: str, error: OSError, *, writing: bool) -> MillpondError:
    if isinstance(error, NotADirectoryError | IsADirectoryError | FileExistsError) and writing:
        return Invalid(
            "a folder cannot hold an object and others below its name", kind="object_name", name=repr(name),
            where=where, hint="choose another name",
        )  # fmt: skip
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return not_found(name, where)
    if isinstance(error, PermissionError):
        return Denied(
            "the folder may not be used", kind="objects_denied", object=name, where=where,
            hint="check its owner and its mode",
        )  # fmt: skip
    return Unavailable(
        "the folder cannot be used", kind="objects_unavailable", object=name, where=where,
        reason=error.strerror or str(error), hint="check the disk, then try again",
    )  # fmt: skip


def sweep_partial(objects: FolderObjects) -> int:
    """Remove what writers left who died in the middle of a write; the number of files removed."""
    return sweep_unfinished(objects.root / _PARTIAL)


def fsync_below(objects: Objects, under: str) -> None:
    """Make sure that what can be seen right below the folder `under` survives a crash, whoever put it there.

    A write does so for its own object. But one that finds an object in its place, put there by a process that died
    before it could make the name durable, must not build on it yet. Other stores show nothing that is not durable.
    """
    # The folder is asked for by its path: what stands before a folder, as a cache of ranges does, passes that on.
    folder = objects.local_path(under) if objects.collected else None
    if folder is not None and folder.is_dir():
        sync(folder)


def _make_folder(folder: Path, root: Path) -> None:
    """Make a folder below the root, each new name durable."""
    if folder == root or folder.is_dir():
        return
    _make_folder(folder.parent, root)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
