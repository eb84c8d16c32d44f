"""One of N equal shares of all hashes of keys: what a task needs of a snapshot when each task has keys of its own.

A share is a span of hashes, and groups lie in order of their hashes, so a share is a few neighbouring range files of
each layer.

Invariants:
* every hash belongs to exactly one of the `count` shares;
* hashes ascend with the number of their share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millpond.arrays.radix import I64, U64
from millpond.errors import Invalid
from millpond.maps.snapshots.rows_of_groups import GroupSpan

__all__ = ("SHARES_MAX", "HashShare", "shares_of")

SHARES_MAX = 1 << 16
"""More tasks than any job has."""
_HALF = 32


def shares_of(hashes: U64, count: int) -> I64:
    """The number of the share of each hash, of `count` shares.

    >>> shares_of(np.array([0, 1 << 62, 1 << 63, (1 << 64) - 1], np.uint64), 4).tolist()
    [0, 1, 2, 3]
    """
    upper = hashes >> np.uint64(_HALF)
    return ((upper * np.uint64(count)) >> np.uint64(_HALF)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class HashShare:
    """Share `number` of `count`."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= SHARES_MAX or not 0 <= self.number < self.count:
            raise Invalid(
                "there is no such share", kind="share_unknown", number=self.number, count=self.count,
                hint=f"shares are numbered from 0; there are 1 to {SHARES_MAX}",
            )  # fmt: skip

    @property
    def groups(self) -> GroupSpan:
        """The groups whose keys have these hashes."""
        return GroupSpan(_lower(self.number, self.count), _lower(self.number + 1, self.count))


def _lower(number: int, count: int) -> bytes | None:
    """The first 8 bytes of the least order key of a share; None where nothing bounds it."""
    if number in (0, count):
        return None
    least = -(-(number << _HALF) // count)
    return (least << _HALF).to_bytes(8, "big")
