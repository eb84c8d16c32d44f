"""The rules of maintenance: the rows it removes from a map and those it puts in their place, decided over whole
columns.

Every rule looks at rows in the order of their addresses, groups whole or cut where the rows before were settled.

* temporal kinds: a row is redundant when the row before it in its group has the same value and it is settled itself.
  What is left of a run is its earliest row, so no answer changes at any time.
* sessions: in order of start, a session joins the one before it when it starts no later than that one's end
  so far, and both are settled. The joined session ends at the greatest end: time is never lost to a nested one.
* settled is what lies before the watermark: by its (start) time, or, by update time, by when it was last put.
* age: a row goes when its time (a session's end, or its update time) lies strictly before the watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millpond.arrays.compiled import kernel
from millpond.maps.model.definition import Kind, MapDefinition

__all__ = ("Joined", "OrderedRows", "age_column", "joined_sessions", "redundant")

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


class OrderedRows(Protocol):
    """Rows in the order of their addresses: which begin a group, their times (sessions: start and end)."""

    @property
    def first(self) -> Mask: ...
    @property
    def longs(self) -> Sequence[I64]: ...
    def __len__(self) -> int: ...
    def repeats(self) -> Mask:
        """Rows with the value of the row before them."""


def redundant(rows: OrderedRows, settled: Mask) -> Mask:
    """Mask of the settled rows of a temporal kind that only confirm the row before them."""
    mask: Mask = ~rows.first & rows.repeats() & settled
    return mask


@dataclass(frozen=True, slots=True)
class Joined:
    """Sessions after joining.

    * `run`: for every row, the number of the session it is, or is part of, now.
    * `start`, `end`: of each of these sessions.
    * `first`: the row each starts with.
    * `grown`: sessions that are joined of several rows.
    """

    run: I64
    first: I64
    start: I64
    end: I64
    grown: Mask


def joined_sessions(rows: OrderedRows, settled: Mask) -> Joined:
    """Join settled sessions that overlap or touch."""
    start, end = rows.longs
    run, reach = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    count = _join(rows.first, start, end, settled, run, reach)
    first = np.flatnonzero(np.diff(run, prepend=-1))
    return Joined(run, first, start[first], reach[:count], np.bincount(run, minlength=count) > 1)


@kernel
def _join(fresh, start, end, settled, run, reach):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(start)):
        if not fresh[i] and settled[i - 1] and settled[i] and start[i] <= reach[count - 1]:
            reach[count - 1] = max(reach[count - 1], end[i])
        else:
            reach[count] = end[i]
            count += 1
        run[i] = count - 1
    return count


def age_column(definition: MapDefinition) -> str | None:
    """The column that says how old a row is; None: only its update time does."""
    if definition.retain_by == "update_time" or not definition.kind.timed:
        return None
    return {Kind.SESSION: "end", Kind.AGGREGATE: "time"}.get(definition.kind, "effective_time")
