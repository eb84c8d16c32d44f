"""Runs that several indexes find together: one is walked, and in the others each run is looked up.

    a value    … 10:00 a · 10:01 b · 10:02 c · 10:07 d …     walked
    a status   … 10:00 a                     · 10:07 d …     ─▶  a, d

Where many runs in turn are missing in an index, the walk goes on where that one does, so the rarer one leads.

Invariants:
* An object that counts for its run has the time of the run, so it is found in each index by the same time and run.
  Of runs from before an upgrade that may not be so: the lists of their tags are read, and nothing is passed over.
* A walk that has looked at `LOOKED_MAX` tags ends with its place: what it found is right, and it goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from millpond.kernel.keys import KeyRange, decode, encode
from millpond.kernel.page import behind
from millpond.kernel.space import ReadTransaction
from millpond.workflows.store.addresses import Address, Kind, RunPath
from millpond.workflows.store.tags import Attributes, index_of, listed_tags

__all__ = ("LOOKED_MAX", "END", "Index", "joined_keys")

LOOKED_MAX = 2_500
"""The tags that one walk looks at."""
END = encode((None,))
"""Behind the key of a tag: no tag, but the place where a walk ended. The address of no object ends with None."""
_MISSED_MAX = 8


@dataclass(frozen=True, slots=True)
class Index:
    """The objects of one kind that agree in some attributes; of those of a run the one counts whose address ends so."""

    kind: Kind
    attributes: Attributes
    rest: tuple[str | int, ...] = ()

    def packed(self) -> bytes:
        """The bytes that `unpacked` reads."""
        return encode((int(self.kind), encode(self.rest), *self.attributes))

    @classmethod
    def unpacked(cls, data: bytes) -> Index:
        """The index of some bytes."""
        kind, rest, *attributes = cast("tuple[Any, ...]", decode(data))
        return cls(Kind(kind), tuple(attributes), cast("tuple[str | int, ...]", decode(rest)))


class _Tags:
    """The tags of an index of a tenant, each its prefix, then the time and the run, then the rest of the address."""

    def __init__(self, tx: ReadTransaction, tenant: str, index: Index) -> None:
        self._tx, self._tenant, self._index = tx, tenant, index
        self.prefix = index_of(tenant, index.kind)[index.attributes]
        self._start, self._rest = len(self.prefix.packed), encode(index.rest)

    def run_of(self, key: bytes) -> bytes | None:
        """The time and the run in the key of a tag; None for an object that does not count."""
        if not self._rest:
            return key[self._start :]
        return key[self._start : -len(self._rest)] if key.endswith(self._rest) else None

    def has(self, run: bytes) -> bool:
        """True when there is a tag of this time and run."""
        return self._tx.get(self.prefix.packed + run + self._rest) is not None

    def lists(self, run: bytes) -> bool:
        """True when a run has such a tag, of whatever time."""
        _, root, children = decode(run)
        path = cast("RunPath", (root, *decode(cast("bytes", children))))
        listed = self._tx.get(Address(path, self._index.kind, self._index.rest).keys(self._tenant)[1])
        code = encode(self._index.attributes)
        return any(tag.startswith(code) for tag in listed_tags(listed or b""))

    def next_run(self, run: bytes, *, reverse: bool) -> bytes | None:
        """The time and the run of the tag that comes next; None at the end."""
        keys = behind(self.prefix.range(), self.prefix.packed + run + self._rest, reverse=reverse)
        key = next(self._tx.keys(keys, reverse=reverse), None)
        return None if key is None else encode(self.prefix.unpack(key)[:3])


def joined_keys(
    tx: ReadTransaction, tenant: str, indexes: Sequence[Index], keys: KeyRange, *, newest: bool, upgraded_ms: int | None
) -> Iterator[bytes]:
    """The keys in a range of the first index whose runs are in all of them; then the place of a walk that was too long.

    Raises:
        Corrupt: a tag is damaged.
    """
    walked, *others = (_Tags(tx, tenant, index) for index in indexes)
    upgraded = encode((upgraded_ms or 0,))
    walk, looked, missed = tx.keys(keys, reverse=newest), 0, 0
    key = next(walk, None)
    while key is not None:
        run = walked.run_of(key)
        is_old = upgraded_ms is not None and key[len(walked.prefix.packed) :] < upgraded
        absent = None if run is None else _absent(others, run, listed=is_old)
        if run is not None and absent is None:
            yield key
            missed = 0
        elif run is not None:
            missed += 1
        looked += 1
        if looked >= LOOKED_MAX:
            yield key + END
            return
        key = next(walk, None)
        if key is None or run is None or absent is None or is_old or missed <= _MISSED_MAX:
            continue
        following = absent.next_run(run, reverse=newest)
        keys = _behind(walked, keys, following, newest=newest, upgraded=upgraded)
        if keys.holds(key):
            missed = 0  # there was nothing to pass over
        else:
            walk = tx.keys(keys, reverse=newest)
            key = next(walk, None)


def _absent(others: Sequence[_Tags], run: bytes, *, listed: bool) -> _Tags | None:
    """An index that does not have a run."""
    return next((tags for tags in others if not (tags.has(run) or (listed and tags.lists(run)))), None)


def _behind(walked: _Tags, keys: KeyRange, run: bytes | None, *, newest: bool, upgraded: bytes) -> KeyRange:
    """Those of the keys from a run on, and those that may not be passed over; None is the end of all runs."""
    prefix = walked.prefix.packed
    if newest:
        return KeyRange(keys.start, prefix + (upgraded if run is None else max(run + b"\xff", upgraded)))
    return KeyRange(prefix + b"\xff" if run is None else prefix + run, keys.stop)
