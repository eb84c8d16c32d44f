"""Parts that were merged and stay for a while: a row each, and their order by the time since when they stay.

Invariants:
* every part that is retained has a key in that order, from when `_INDEXED` is there: rows of a pond that an earlier
  version wrote get theirs when the first parts are to go;
* a key without its part, or of another time of it, says nothing: it goes when its time has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.maps.log.queue import Queued
from millpond.maps.model.keyspaces import RETAINED, RETAINED_INDEXED, RETAINED_SINCE

__all__ = ("Due", "due", "forget_retained", "index_retained", "put_retained")

_INDEXED = RETAINED_INDEXED.pack()
_AT_ONCE = 10_000


class Due(NamedTuple):
    """A key whose time has come, and its part; None where it says nothing."""

    key: bytes
    part: Queued | None


def put_retained(tx: Transaction, queued: Queued) -> None:
    """Note that a part stays, from `queued_ms` on."""
    tx.put(RETAINED.pack(queued.part), queued.to_json())
    tx.put(_since(queued), b"")


def forget_retained(tx: Transaction, queued: Queued) -> None:
    """Note that a part does not stay any more."""
    tx.delete(RETAINED.pack(queued.part))
    tx.delete(_since(queued))


def _since(queued: Queued) -> bytes:
    return RETAINED_SINCE.pack(queued.queued_ms, queued.position, queued.part)


def index_retained(space: Space) -> None:
    """Give every retained part its key, once for a pond."""
    with space.read() as tx:
        if tx.get(_INDEXED) is not None:
            return
        keys = [_since(Queued.from_json(row)) for _, row in tx.scan(RETAINED.range())]
    for first in range(0, len(keys), _AT_ONCE):
        space.write(partial(_put_keys, keys[first : first + _AT_ONCE]))
    space.write(lambda tx: tx.put(_INDEXED, b""))


def _put_keys(keys: Sequence[bytes], tx: Transaction) -> None:
    for key in keys:
        tx.put(key, b"")


def due(tx: ReadTransaction, before_ms: int, most: int) -> list[Due]:
    """The keys of parts that stay since before a time, the oldest up to so many."""
    return list(islice(_due(tx, before_ms), most))


def _due(tx: ReadTransaction, before_ms: int) -> Iterator[Due]:
    for key in tx.keys(RETAINED_SINCE.range()):
        since, _, part = RETAINED_SINCE.unpack(key)
        assert isinstance(since, int), "the keyspace says so"
        if since >= before_ms:
            return
        row = tx.get(RETAINED.pack(part))
        queued = None if row is None else Queued.from_json(row)
        yield Due(key, queued if queued is not None and _since(queued) == key else None)
