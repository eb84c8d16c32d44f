"""A folder of this machine before a bucket: what is put lies in both, and what is read is fetched once.

    put     the bucket, then the folder             get     the folder, else the bucket, and into the folder
    list    the bucket                              delete  the folder alone

For objects whose names stand for their content: a copy that is there is never another one. Locks and what else is of
this machine alone lie in the folder, under `own` names, and never in the bucket.

Invariants:
* An object of the folder, but for `own` names, was in the bucket before. So the folder may be lost at any time.
* Nothing is removed from the bucket here: processes of other machines, whose locks are not seen, may need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import NotFound
from millpond.stores.objects.folder import FolderObjects
from millpond.stores.objects.protocol import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from millpond.stores.objects.protocol import ObjectInfo, Objects

__all__ = ("FolderBeforeBucket", "forget_copies")


def forget_copies(objects: Objects) -> None:
    """Remove the copies of objects that lie in a bucket, so that those are read anew."""
    if not isinstance(objects, FolderBeforeBucket):
        return
    for folder in objects.root.iterdir():
        if folder.is_dir() and folder.name not in objects.own and not folder.name.startswith("."):
            # File by file: another process may be about to put one into the same folder.
            for file in folder.rglob("*"):
                if file.is_file() and file.suffix != ".lock":
                    file.unlink(missing_ok=True)


def _reopened(elsewhere: Callable[[], FolderBeforeBucket]) -> FolderBeforeBucket:
    return elsewhere()


class FolderBeforeBucket(FolderObjects):
    """The objects of a bucket, with copies in a folder; names that begin with `own` folders are of the folder alone.

    `elsewhere` opens them in another process, which may be on a machine without such a folder.
    """

    collected = False

    def __init__(
        self, where: str | Path, bucket: Objects, own: Iterable[str] = (), *,
        elsewhere: Callable[[], FolderBeforeBucket] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(where)
        self.bucket, self.own, self._elsewhere = bucket, tuple(own), elsewhere

    def __reduce__(self) -> tuple[object, ...]:
        if self._elsewhere is None:
            return (type(self), (self.where, self.bucket, self.own))
        return (_reopened, (self._elsewhere,))

    def _is_own(self, name: str) -> bool:
        return check_name(name).partition("/")[0] in self.own

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Store an object in the bucket, and its copy.

        Raises: `Unavailable`, `Denied`.
        """
        if not self._is_own(name):
            self.bucket.put(name, data)
        super().put(name, data)

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object; one that is not here is fetched.

        Raises: `NotFound`, `Denied`, `Unavailable`.
        """
        try:
            return super().get(name)
        except NotFound:
            if self._is_own(name):
                raise
        data = self.bucket.get(name)
        super().put(name, data)
        try:
            return super().get(name)
        except NotFound:  # another process has let go of its copies
            return data

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
        self.delete(name)

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """The objects of the bucket; of an `own` folder those of the folder."""
        if (under or prefix).partition("/")[0] in self.own:
            return super().list(under, prefix=prefix, after=after)
        return self.bucket.list(under, prefix=prefix, after=after)
