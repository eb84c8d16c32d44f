"""The log and the checkpoints of a space that is shared as one in a bucket is, as rows of a database.

    "log/00000000000000000007"     batch 7
    "checkpoint", "rows/…"         as objects in a bucket have them, see `docs/format/bucket.md`
    "trimmed"                      the name of the last batch that was trimmed: its row, and those before, are gone
    "pond"                         the row that every transaction reads first, see `head.py`

To put a batch is one short transaction; reads are answered from the copies that processes have.

Invariants:
* a batch is put only behind the one before it: a database that was set back takes none;
* a name that was trimmed stays taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.errors import Corrupt
from millpond.kernel.keys import KeyRange
from millpond.stores.bucket_space.batch_log import BatchLog, Content, batch_name
from millpond.stores.bucket_space.forms import Trimmed, decode_batch
from millpond.stores.objects.memory import content_tag
from millpond.stores.objects.protocol import ObjectInfo, TaggedObject, changed, not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millpond.clock import Clock
    from millpond.kernel.space import Transaction
    from millpond.stores.postgres.space import PostgresSpace

__all__ = ("DatabaseLog", "DatabaseObjects", "set_back")

_LOG, _TRIMMED = "log/", b"trimmed"


class DatabaseObjects:
    """The objects of a space in the rows of another. `landed` is called with each batch that this process put."""

    def __init__(self, space: PostgresSpace, where: str, landed: Callable[[str, bytes], None]) -> None:
        self.where, self._space, self._landed = where, space, landed

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object; a mark for a batch that was trimmed.

        Raises: `NotFound`; as `PostgresSpace.read_together`.
        """
        [data] = self.get_many([name])
        if data is None:
            raise not_found(name, self.where)
        return pa.py_buffer(data)

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """The same of several, on one journey; None where there is none.

        Raises: as `PostgresSpace.read_together`.
        """
        rows, _ = self._space.read_together([*(name.encode() for name in names), _TRIMMED], ())
        trimmed = rows.get(_TRIMMED)
        return [
            Trimmed(int(name.removeprefix(_LOG))).encode() if _is_trimmed(name, trimmed) else rows.get(name.encode())
            for name in names
        ]

    def get_tagged(self, name: str) -> TaggedObject:
        data = self.get(name)
        return TaggedObject(data, content_tag(data))

    def put(self, name: str, data: bytes) -> None:
        """Store an object.

        Raises: as `PostgresSpace.write`.
        """
        self._space.write(lambda tx: tx.put(name.encode(), data))

    def swap(self, name: str, data: bytes, expected: str | None) -> str:
        """Store an object if the one there has the tag `expected`, or, with None, if there is none; the new tag.

        Raises: `Conflict`, kind `object_changed`; `Corrupt`, kind `head_behind`; as `PostgresSpace.write`.
        """
        before = batch_name(int(name.removeprefix(_LOG)) - 1) if name.startswith(_LOG) else ""

        def act(tx: Transaction) -> None:
            there, last, trimmed = tx.get_many([name.encode(), before.encode() or _TRIMMED, _TRIMMED])
            tag = None if there is None else content_tag(pa.py_buffer(there))
            if tag != expected or _is_trimmed(name, trimmed):
                raise changed(name, self.where)
            if before > batch_name(0) and last is None and not _is_trimmed(before, trimmed):
                raise set_back(self.where, before)
            tx.put(name.encode(), data)

        self._space.write(act)
        if before:
            self._landed(name, data)
        return content_tag(pa.py_buffer(data))

    def list(self, under: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """The names below a folder, behind `after`; their sizes are left out."""
        start = max(f"{under}/".encode(), after.encode() + b"\0" if after else b"")
        with self._space.read() as tx:
            yield from [ObjectInfo(key.decode(), 0) for key in tx.keys(KeyRange(start, f"{under}0".encode()))]

    def delete(self, *names: str) -> None:
        def act(tx: Transaction) -> None:
            for name in names:
                tx.delete(name.encode())

        self._space.write(act)

    def trim(self, last: str) -> None:
        """Remove the batches up to one; their names stay taken."""

        def act(tx: Transaction) -> None:
            if not _is_trimmed(last, tx.get(_TRIMMED)):
                tx.delete_range(KeyRange(_LOG.encode(), last.encode() + b"\0"))
                tx.put(_TRIMMED, last.encode())

        self._space.write(act)


class DatabaseLog(BatchLog):
    """A log that is read on one journey, and leaves no marks: one row says up to where it was trimmed."""

    ahead = 16

    def __init__(self, objects: DatabaseObjects, clock: Clock) -> None:
        super().__init__(objects, clock)
        self._rows = objects

    def read_many(self, numbers: Sequence[int]) -> list[Content | None]:
        names = [batch_name(number) for number in numbers]
        return [
            None if data is None else decode_batch(number, data, name, self._rows.where)
            for number, name, data in zip(numbers, names, self._rows.get_many(names), strict=True)
        ]

    def trim(self, numbers: Iterable[int]) -> None:
        last = max(numbers, default=0)
        if last:
            self._rows.trim(batch_name(last))


def _is_trimmed(name: str, trimmed: bytes | None) -> bool:
    return trimmed is not None and name.startswith(_LOG) and name <= trimmed.decode()


def set_back(where: str, missing: str) -> Corrupt:
    """The error of a database that lacks what it had."""
    return Corrupt(
        "the database is older than the bucket, or is a copy that went on by itself", kind="head_behind", space=where,
        missing=missing, hint="restore a newer copy of the database; to go on without the loads that are missing, "
        "remove the object space/witness of the bucket",
    )  # fmt: skip
