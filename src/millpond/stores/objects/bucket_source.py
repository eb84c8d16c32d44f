"""A bucket of S3 that other programs write, read under whatever names its objects have.

The client of buckets takes a name apart at its slashes. It would read `a` for `/a` and for `a/`, and knows no name with
an empty part, with a part `.` or `..`, or with a control character. Such a name is refused, and a walk that meets one
fails: nothing is read under another name.

A walk leaves out the empty objects `a/` that some programs put for folders. The client lists each as `a`, so an empty
object is looked for by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.stores.objects.bucket import BucketObjects, unreadable
from millpond.stores.objects.sources import BLOCK_OBJECTS, SourceObject

if TYPE_CHECKING:
    from obstore import ObjectMeta

__all__ = ("BucketSource",)


class BucketSource(BucketObjects):
    """The objects of a bucket, under whatever names they have."""

    def _checked(self, name: str) -> str:
        if not all(name.split("/")):
            raise unreadable(name, self.where)
        return name

    def check(self, prefix: str) -> None:
        """Look whether the bucket can be listed."""
        with self._errors(prefix):
            next(iter(self._store.list(prefix.rpartition("/")[0] or None, chunk_size=1)), None)

    def walk(self, prefix: str) -> Iterator[list[SourceObject]]:
        """All objects whose names begin with a prefix, ascending, in blocks."""
        folder, last = prefix.rpartition("/")[0], b""
        with self._errors(prefix):
            for batch in self._store.list(folder or None, chunk_size=BLOCK_OBJECTS):
                block: list[SourceObject] = []
                for row in batch:
                    name = row["path"].encode()
                    if row["path"].startswith(prefix) and (row["size"] or (name > last and self.exists(row["path"]))):
                        self._check_order(name, last)
                        block.append(_object_of(row))
                        last = name
                if block:
                    yield block

    def _check_order(self, name: bytes, last: bytes) -> None:
        if name <= last:
            raise Invalid(
                "the bucket does not list its objects in order", kind="objects_unsupported", operation="list",
                where=self.where, hint="use a general purpose bucket",
            )  # fmt: skip

    def look(self, name: str) -> SourceObject:
        """One object."""
        with self._errors(self._checked(name)):
            return replace(_object_of(self._store.head(name)), name=name)


def _object_of(row: ObjectMeta) -> SourceObject:
    tag = (row["e_tag"] or "").strip('"')
    return SourceObject(row["path"], row["size"], int(row["last_modified"].timestamp()), tag)
