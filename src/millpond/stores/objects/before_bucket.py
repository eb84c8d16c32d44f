"""A folder of this machine before a bucket: what is put lies in both, and what is read is fetched once.

    put     the bucket, then the folder             get     the folder, else the bucket, and into the folder
    list    the bucket                              delete  the folder alone
    a part  the folder, under `blocks/` (`part_copies.py`), else the bucket, and into the folder

For objects whose names stand for their content: a copy that is there is never another one. Locks and what else is of
this machine alone lie in the folder, under `own` names, and never in the bucket.

Invariants:
* An object of the folder, but for `own` names, was in the bucket before. So the folder may be lost at any time, and
  each copy in it; one that is damaged goes, and is fetched again.
* What comes from the bucket is compared with its name, or with the checksum of its part, before it becomes a copy. What
  does not fit is given to the reader as it is, who names it, and is not kept; nor is what the disk has no room for.
* A copy has the content of its object; its bytes may have another form, in which this machine reads it.
* Nothing is removed from the bucket here: processes of other machines, whose locks are not seen, may need it.
* A copy is never a reason not to put an object: what a collection removed may still have one.
* Copies from before a purge go when this process learns of it; a file of the folder, `purged`, says which it was, for
  those that come.
* What was read of manifests and indexes is held like a copy: each load and each fold needs them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from millpond.errors import NotFound, Unavailable
from millpond.kernel.cache import Cache
from millpond.stores.files import disk_errors, unfinished_file
from millpond.stores.objects.at_once import at_once
from millpond.stores.objects.copies import CopiesOf
from millpond.stores.objects.folder import FolderObjects, partial_folder, ready_to_write
from millpond.stores.objects.part_copies import Part, PartCopies, PartsRead, sound_parts
from millpond.stores.objects.protocol import ObjectInfo, Objects, check_name
from millpond.stores.verified import verify_once

__all__ = (
    "FolderBeforeBucket", "ObjectPresence", "begin_after", "drop_copies", "fetch_parts", "forget_copies", "hold_read",
    "is_whole", "originals", "put_with_copy", "read_once", "uncopied",
)  # fmt: skip

T = TypeVar("T")

READ_BYTES_MAX = 16 << 20
"""The bytes of the objects whose content is held as values, for each map."""
_PURGED = "purged"
PRESENCE_MAX = 100_000
"""The objects that are known to be in the bucket; of others that are written again, each costs a request."""


def forget_copies(objects: Objects) -> None:
    """Remove the copies of objects that lie in a bucket, so that those are read anew."""
    if isinstance(objects, FolderBeforeBucket):
        # File by file: another process may be about to put one into the same folder.
        for copy in objects.copies.below(objects.root):
            copy.file.unlink(missing_ok=True)
        objects.read.clear()


def read_once(objects: object, name: str, fetch: Callable[[], pa.Buffer], read: Callable[[pa.Buffer], T]) -> T:
    """The content of an object whose name stands for it, as `read` has it of the bytes; held where it lies in a bucket.

    Raises: what `fetch` and `read` raise.
    """
    if not isinstance(objects, FolderBeforeBucket):
        return read(fetch())

    def content() -> tuple[T, int]:
        data = fetch()
        return read(data), data.size

    return objects.read.get_or_make(name, content)[0]


def hold_read(objects: object, name: str, content: object, size: int) -> None:
    """Hold the content of an object of so many bytes that was put, as `read_once` does."""
    if isinstance(objects, FolderBeforeBucket):
        objects.read.put(name, (content, size))


def is_whole(objects: Objects, name: str, size: int) -> bool:
    """True when an object whose name stands for its content is there, and need not be put again."""
    if isinstance(objects, FolderBeforeBucket):
        return name in objects.presence  # to look would be as dear as to put it again
    # One of another size was cut short, or is another version's.
    try:
        return objects.size(name) == size
    except NotFound:
        return False


def put_with_copy(objects: Objects, name: str, data: pa.Buffer, here: Callable[[], pa.Buffer]) -> None:
    """Store an object whose copy on this machine, where it has one, is what `here` makes.

    Raises: `Unavailable`, `Denied`.
    """
    if isinstance(objects, FolderBeforeBucket):
        objects.put(name, data, here)
    else:
        objects.put(name, data)


def fetch_parts(objects: Objects, name: str, parts: Sequence[Part]) -> Callable[[], PartsRead]:
    """Read parts of an object whose name stands for its content, which ascend and hardly leave any out: copies, and
    what comes by one request. What is returned makes copies, and has the bytes; None for those that are not sound.

    Raises: `NotFound`, `Denied`, `Unavailable`.
    """
    if isinstance(objects, FolderBeforeBucket):
        return objects.blocks.fetch(name, parts)
    data = sound_parts(objects, name, parts)
    return lambda: data


class ObjectPresence:
    """The objects of a bucket that were put or seen in the term of now, which is a number of the caller's."""

    def __init__(self, bucket: Objects, copy_of: Callable[[str], pa.Buffer | None]) -> None:
        """`copy_of` has the copy of an object, in the form of a bucket."""
        self._bucket, self._copy_of = bucket, copy_of
        self._term, self._terms = 0, Cache[str, int](PRESENCE_MAX)

    def __contains__(self, name: str) -> bool:
        return self._terms.get(name) == self._term

    def begin_term(self, term: int) -> None:
        """Know nothing any more that was known in an earlier term."""
        self._term = max(self._term, term)

    @contextmanager
    def putting(self, name: str) -> Iterator[None]:
        """Know of an object that the block puts, as of the term in which it begins."""
        term = self._term
        yield
        self._terms.put(name, term)

    def put_again(self, names: Iterable[str]) -> None:
        """See that objects are in the bucket; those that went are put again, from their copies.

        Raises: `Unavailable`, kind `files_collected`, for one without a copy.
        """
        at_once(self._bucket, [partial(self._put_again, name) for name in names])

    def _put_again(self, name: str) -> None:
        with self.putting(name):
            if self._bucket.exists(name):
                return
            copy = self._copy_of(name)
            if copy is None:
                raise Unavailable(
                    "a file was collected while it was about to be used again", kind="files_collected",
                    object=name, where=self._bucket.where, hint="do it again",
                )  # fmt: skip
            self._bucket.put(name, copy)


def originals(objects: Objects) -> Objects:
    """The place of the objects themselves: the bucket, not the copies of it that lie here."""
    return objects.bucket if isinstance(objects, FolderBeforeBucket) else objects


def uncopied(objects: Objects) -> Objects:
    """The same objects, but what is put among those of a bucket has no copy here: others read what a task writes."""
    if not isinstance(objects, FolderBeforeBucket):
        return objects
    twin = object.__new__(FolderBeforeBucket)
    twin.__dict__.update(objects.__dict__, copied=False)
    return twin


def begin_after(objects: FolderBeforeBucket, purge: int) -> None:
    """Be as of a purge, before anything is read: copies from before it go, unless another process removed them."""
    with suppress(FileNotFoundError, ValueError):
        objects.purge = int((objects.root / _PURGED).read_text())
    drop_copies(objects, purge)


def drop_copies(objects: FolderBeforeBucket, purge: int) -> None:
    """Remove the copies from before a purge, and what this process holds of it."""
    if purge > objects.purge:
        with suppress(OSError):  # another user's, or a disk that only reads
            forget_copies(objects)
            if objects.root.is_dir():
                (objects.root / _PURGED).write_text(str(purge))
            objects.purge = purge


def _reopened(elsewhere: Callable[[], FolderBeforeBucket], purge: int = 0) -> FolderBeforeBucket:
    objects = elsewhere()
    begin_after(objects, purge)
    return objects


class FolderBeforeBucket(FolderObjects):
    """The objects of a bucket, with copies in a folder; names that begin with `own` folders are of the folder alone.

    `elsewhere` opens them in another process, which may be on a machine without such a folder.
    """

    collected = False
    in_blocks = True
    copied = True
    """False where what is put has no copy."""

    def __init__(
        self, where: str | Path, bucket: Objects, copies: CopiesOf, *,
        elsewhere: Callable[[], FolderBeforeBucket] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(where)
        self.bucket, self.copies, self._elsewhere = bucket, copies, elsewhere
        self.presence = ObjectPresence(bucket, self._to_put)
        self.read: Cache[str, Any] = Cache(READ_BYTES_MAX, itemgetter(1))
        self.blocks = PartCopies(bucket, copies, self.root)
        self.purge = 0

    def __reduce__(self) -> tuple[object, ...]:
        if self._elsewhere is None:
            return (type(self), (self.where, self.bucket, self.copies))
        return (_reopened, (self._elsewhere, self.purge))

    def _is_own(self, name: str) -> bool:
        return check_name(name).partition("/")[0] in self.copies.own

    def put(
        self, name: str, data: bytes | memoryview | pa.Buffer, here: Callable[[], pa.Buffer] | None = None
    ) -> None:  # fmt: skip
        """Store an object in the bucket, and its copy, where there is to be one and there is room. `here` makes that in
        the form of this machine.

        Raises: `Unavailable`, `Denied`.
        """
        if self._is_own(name):
            super().put(name, data)
            return
        with self.presence.putting(name):
            self.bucket.put(name, data)
        if self.copied:
            content = self.copies.in_form(pa.py_buffer(data), name, blocks=False) if here is None else here()
            self._keep(name, memoryview(content))

    def _to_put(self, name: str) -> pa.Buffer | None:
        copy = self._copy(name)
        return None if copy is None else self.copies.in_form(copy, name, blocks=True)

    def _keep(self, name: str, data: memoryview) -> None:
        """Have a copy, if the disk has room. It need not survive a crash of the machine: then it is fetched again."""
        file = self.root / name
        with suppress(Unavailable, FileNotFoundError):  # without room; or the folder goes, of a map that was dropped
            if self.copies.make_room(data.nbytes):
                with disk_errors(file):
                    try:
                        self._write(file, data)
                    except FileNotFoundError:  # the first, or of a folder that was removed
                        self.root.mkdir(parents=True, exist_ok=True)
                        ready_to_write(self.root, file)
                        self._write(file, data)
                self.copies.use(file)

    def _write(self, file: Path, data: memoryview) -> None:
        with unfinished_file(partial_folder(self.root)) as unfinished:
            unfinished.write(data)
            unfinished.flush()
            os.replace(unfinished.name, file)  # noqa: PTH105 - the name of an open file is text

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object; one that is not here is fetched.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """
        if self._is_own(name):
            return super().get(name)
        copy = self._copy(name)
        if copy is not None:
            return copy
        data = self.bucket.get(name)
        here = self.copies.arrived(data, name)
        if here is not None:
            self._keep(name, memoryview(here))
            with suppress(NotFound):  # there was no room, or another process has made some
                return super().get(name)
        return data

    def _copy(self, name: str) -> pa.Buffer | None:
        """The copy of an object; None when there is none, and of one that is damaged, which goes."""
        file = self.root / name
        try:
            data = super().get(name)
            sound = verify_once(file, lambda: self.copies.is_sound(data, name))
        except (NotFound, FileNotFoundError):
            return None
        if not sound:
            file.unlink(missing_ok=True)
            return None
        self.copies.use(file)
        return data

    def local_path(self, name: str) -> Path | None:
        """The file of a copy, or of an `own` name; None where there is no copy."""
        file = self.root / check_name(name)
        return file if self._is_own(name) or file.exists() else None

    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: as `get`.
        """
        try:
            return super().size(name)
        except NotFound:
            if self._is_own(name):
                raise
        return self.bucket.size(name)

    def rename(self, name: str, target: str) -> None:
        """Give an object another name in the bucket; its copy goes.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """
        if self._is_own(name):
            super().rename(name, target)
            return
        self.bucket.rename(name, target)
        self.read.pop(name)
        self.delete(name)

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """The objects of the bucket; of an `own` folder those of the folder."""
        if (under or prefix).partition("/")[0] in self.copies.own:
            return super().list(under, prefix=prefix, after=after)
        return self.bucket.list(under, prefix=prefix, after=after)
