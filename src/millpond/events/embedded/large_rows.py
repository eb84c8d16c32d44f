"""A space whose large batches lie beside it: the row of one names an object, which holds the body of the batch.

    row       03 · id of the object · the header of the batch        drawn in `docs/format/events.md`
    object    <id>                  the body of the batch

It is for a space of which every process holds a copy, as that of a bucket. Whoever uses it meets whole batches.

Invariants:
* an object is put before the row that names it, under a name that nothing ever had; it is never changed;
* a row names only what was put in the term of now. Whoever collects begins a term after they listed what is there, so
  no row can come to name what goes;
* a write is tried on the copy that is there first, and what it lacks is put then: nobody waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import TypeVar

from millpond.clock import Clock
from millpond.errors import Corrupt, MillpondError, NotFound
from millpond.events.codec import Codec, header_bytes, read_header
from millpond.events.keyspaces import BATCH, COLLECTING
from millpond.kernel.cache import Cache
from millpond.kernel.keys import KeyRange
from millpond.kernel.lease import LeaseRow
from millpond.kernel.overlay import Overlay
from millpond.kernel.signal import last_change_of
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.stores.bucket_space.batch_log import later
from millpond.stores.objects import Objects, at_once

__all__ = ("LargeRows", "is_large", "naming_row", "object_of")

LARGE = b"\x03"
"""The first byte of a row whose body is an object; that of a batch is 1 or 2."""
_ID_BYTES = 16
PLAIN_BYTES_MIN, PACKED_BYTES_MIN = 32 << 10, 4 << 10
"""A batch from which on its body is an object. What was appended comes with one request while it is smaller; what is
compressed is kept for long, in the memory of each process.
"""
CACHE_BYTES_MAX = 32 << 20
AHEAD_MAX = 8
"""The rows of a scan whose bodies are fetched side by side, ahead of it."""
LOOK_SECONDS = 0.2
"""The pause between two looks of followers at a space that is to be asked each time."""

T = TypeVar("T")


def object_of(row: bytes) -> str | None:
    """The object that a row names; None for one that holds its batch."""
    return row[1 : 1 + _ID_BYTES].hex() if row[:1] == LARGE else None


def is_large(batch: bytes) -> bool:
    """True for a batch whose body is to be an object."""
    if len(batch) < PACKED_BYTES_MIN:
        return False
    return len(batch) >= (PACKED_BYTES_MIN if read_header(batch).codec is Codec.ZSTD else PLAIN_BYTES_MIN)


def naming_row(id_: bytes, batch: bytes) -> bytes:
    """The row of a batch whose body is the object with an id, of 16 bytes."""
    return LARGE + id_ + batch[: header_bytes(batch)]


class _Unstored(Exception):
    """A write that puts bodies which are no objects yet."""


@dataclass(slots=True)
class _Bodies:
    """The bodies that a write puts, by their digests: objects that were put in a term, and what is yet to be put."""

    term: int
    ids: dict[bytes, bytes] = field(default_factory=dict)
    missing: dict[bytes, bytes] = field(default_factory=dict)

    def row_of(self, batch: bytes) -> bytes:
        """The row of a batch; the batch itself, when its body is yet to be put."""
        body = batch[header_bytes(batch) :]
        digest = blake2b(body, digest_size=_ID_BYTES).digest()
        if digest in self.ids:
            return naming_row(self.ids[digest], batch)
        self.missing[digest] = body
        return batch


class LargeRows:
    """A `Space` over another one, and objects for the bodies of its large batches."""

    def __init__(self, space: Space, objects: Objects, clock: Clock) -> None:
        self.rows, self.objects, self._clock = space, objects, clock
        self._cache: Cache[str, bytes] = Cache(CACHE_BYTES_MAX, len)
        self._change, self._looked_at = -1, float("-inf")

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        with self.rows.read(wait=wait) as tx:
            yield _Reading(tx, self)

    def last_change(self) -> int | None:
        """See `CountedSpace`; of a space that asks its server each time, a moment old."""
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_SECONDS or self._change < 0:
            number = last_change_of(self.rows)()
            self._change, self._looked_at = -1 if number is None else number, now
            return number
        return self._change

    def write(self, change: Callable[[Transaction], T]) -> T:
        bodies = self._tried(change)
        while True:
            self._put(bodies)
            with suppress(_Unstored):
                return self.rows.write(lambda tx: self._changed(tx, change, bodies))

    def close(self) -> None:
        self.rows.close()

    def _tried(self, change: Callable[[Transaction], object]) -> _Bodies:
        """The bodies that a write would put, if nobody else wrote meanwhile; whether it fails is found out later."""
        with getattr(self.rows, "latest", self.rows.read)() as tx:
            bodies = _Bodies(_term(tx))
            with suppress(MillpondError):
                change(_Writing(Overlay(tx), self, bodies))
        return bodies

    def _changed(self, tx: Transaction, change: Callable[[Transaction], T], bodies: _Bodies) -> T:
        term = _term(tx)
        if term != bodies.term:  # what was put may go
            bodies.ids, bodies.term = {}, term
        bodies.missing = {}
        result = change(_Writing(tx, self, bodies))
        if bodies.missing:
            raise _Unstored
        return result

    def _put(self, bodies: _Bodies) -> None:
        if not bodies.missing:
            return

        def put(body: bytes) -> bytes:
            id_ = self._clock.random_id() + self._clock.random_id()
            assert len(id_) == 2 * _ID_BYTES
            self.objects.put(id_, body)
            self._cache.put(id_, body)
            return bytes.fromhex(id_)

        puts = [partial(put, body) for body in bodies.missing.values()]
        bodies.ids |= zip(bodies.missing, at_once(self.objects, puts, AHEAD_MAX), strict=True)
        step("events.bodies_put")

    # -- what transactions read ---------------------------------------------------------------------

    def batch_of(self, row: bytes) -> bytes:
        """The batch of a row."""
        id_ = object_of(row)
        return row if id_ is None else row[1 + _ID_BYTES :] + self._cache.get_or_make(id_, lambda: self._fetch(id_))

    def fetch(self, rows: Sequence[bytes]) -> None:
        """Fetch the bodies that some rows name, side by side."""
        ids = [id_ for row in rows if (id_ := object_of(row)) is not None and id_ not in self._cache]
        for id_, body in zip(ids, at_once(self.objects, [partial(self._fetch, id_) for id_ in ids]), strict=True):
            self._cache.put(id_, body)

    def _fetch(self, id_: str) -> bytes:
        body = later(lambda: self._there(id_), self._clock)
        if body is None:
            raise Corrupt(
                "an object with events is gone", kind="events_damaged", object=id_, where=self.objects.where,
                hint="restore the object from a version or a copy of the bucket",
            )  # fmt: skip
        return body

    def _there(self, id_: str) -> bytes | None:
        try:
            return bytes(memoryview(self.objects.get(id_)))
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            return None


def _term(tx: ReadTransaction) -> int:
    return LeaseRow.state(tx.get(COLLECTING.packed)).term


class _Reading:
    """A transaction that reads, and meets whole batches."""

    def __init__(self, tx: ReadTransaction, large: LargeRows) -> None:
        self._read_tx, self._large = tx, large

    def get(self, key: bytes) -> bytes | None:
        row = self._read_tx.get(key)
        return row if row is None or key not in BATCH else self._large.batch_of(row)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = zip(keys, self._read_tx.get_many(keys), strict=True)
        return [row if row is None or key not in BATCH else self._large.batch_of(row) for key, row in rows]

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows = self._read_tx.scan(keys, reverse=reverse)
        return self._batches(rows) if keys.start in BATCH else rows

    def _batches(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        ahead = 1
        while window := list(islice(rows, ahead)):
            self._large.fetch([row for _, row in window])
            for key, row in window:
                yield key, self._large.batch_of(row)
            ahead = min(2 * ahead, AHEAD_MAX)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        return self._read_tx.keys(keys, reverse=reverse)


class _Writing(_Reading):
    """A transaction that writes whole batches, too."""

    def __init__(self, tx: Transaction, large: LargeRows, bodies: _Bodies) -> None:
        super().__init__(tx, large)
        self._tx, self._bodies = tx, bodies

    def put(self, key: bytes, value: bytes) -> None:
        self._tx.put(key, self._bodies.row_of(value) if key in BATCH and is_large(value) else value)

    def delete(self, key: bytes) -> bool:
        return self._tx.delete(key)

    def delete_range(self, keys: KeyRange, limit: int | None = None) -> int:
        return self._tx.delete_range(keys, limit)
