"""A bucket of S3 that other programs write, read under whatever names its objects have.

The client of buckets takes a name apart at its slashes. It would read `a` for `/a` and for `a/`, and knows no name with
an empty part, with a part `.` or `..`, or with a control character. Such a name is refused, and a walk that meets one
fails: nothing is read under another name.

A walk leaves out the empty objects `a/` that some programs put for folders. The client lists each as `a`, so an empty
object is looked for by its name. So is an object `a` that has bytes and is listed right before `a/b`, and, where names
of the bucket begin with a slash, each object: what is not there under its name is refused. An object `a/` that has
bytes, and nothing below it, cannot be told from `a` without a request for each object: it is walked as `a`.
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

_LAST_BEFORE_SLASHES = ".\U0010ffff"


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
        folder = prefix.rpartition("/")[0]
        last = ""
        with self._errors(prefix):
            slashes = not folder and self._has_leading_slashes()
            for batch in self._store.list(folder or None, chunk_size=BLOCK_OBJECTS):
                block: list[SourceObject] = []
                for row in batch:
                    name = row["path"]
                    if not name.startswith(prefix) or not (row["size"] or self._is_object(name, last)):
                        continue
                    self._check_order(name, last)
                    if slashes and not self.exists(name):
                        raise unreadable(f"/{name}", self.where)
                    if last and name.startswith(f"{last}/") and not self.exists(last):
                        raise unreadable(f"{last}/", self.where)
                    block.append(_object_of(row))
                    last = name
                if block:
                    yield block

    def _is_object(self, name: str, last: str) -> bool:
        """True for an empty object; False for the mark of a folder, which is listed without its slash."""
        return name != last and self.exists(name)

    def _has_leading_slashes(self) -> bool:
        """True for a bucket in which names begin with a slash: the client lists `/a` as `a`.

        They lie between those that begin with a full stop and those that begin with a zero, so that the first object
        behind all full stops shows them.
        """
        for row in next(iter(self._store.list(None, offset=_LAST_BEFORE_SLASHES, chunk_size=1)), ()):
            name = row["path"]
            if name.encode() < b"0" or not (self.exists(name) or next(iter(self._store.list(name, chunk_size=1)), ())):
                return True
        return False

    def _check_order(self, name: str, last: str) -> None:
        if name == last:
            raise unreadable(f"{name}/", self.where)  # beside `a`, which is another object
        if name.encode() <= last.encode():
            raise Invalid(
                "the bucket does not list its objects in order", kind="objects_unsupported", operation="list",
                name=name, before=last, where=self.where, hint="use a general purpose bucket",
            )  # fmt: skip

    def look(self, name: str) -> SourceObject:
        """One object."""
        with self._errors(self._checked(name)):
            return replace(_object_of(self._store.head(name)), name=name)


def _object_of(row: ObjectMeta) -> SourceObject:
    tag = (row["e_tag"] or "").strip('"')
    return SourceObject(row["path"], row["size"], int(row["last_modified"].timestamp()), tag)
