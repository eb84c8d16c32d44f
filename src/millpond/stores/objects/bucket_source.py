"""A bucket of S3 that other programs write, read under whatever names its objects have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.errors import Invalid
from millpond.stores.objects.bucket import BucketObjects
from millpond.stores.objects.sources import BLOCK_OBJECTS, SourceObject

__all__ = ("BucketSource",)


class BucketSource(BucketObjects):
    """The objects of a bucket, under whatever names they have."""

    def _checked(self, name: str) -> str:
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
                block = [
                    SourceObject(
                        row["path"], row["size"], int(row["last_modified"].timestamp()), (row["e_tag"] or "").strip('"')
                    )
                    for row in batch if row["path"].startswith(prefix)
                ]  # fmt: skip
                last = _check_order(block, last, self.where)
                if block:
                    yield block

    def look(self, name: str) -> SourceObject:
        """One object."""
        with self._errors(name):
            found = self._store.head(name)
        tag = (found["e_tag"] or "").strip('"')
        return SourceObject(name, found["size"], int(found["last_modified"].timestamp()), tag)


def _check_order(block: Iterable[SourceObject], last: bytes, where: str) -> bytes:
    for found in block:
        name = found.name.encode()
        if name <= last:
            raise Invalid(
                "the bucket does not list its objects in order", kind="objects_unsupported", operation="list",
                where=where, hint="use a general purpose bucket",
            )  # fmt: skip
        last = name
    return last
