"""What care takes out of a map and puts in its place, decided over whole columns of rows.

Every rule looks at rows in the order of their addresses, groups whole or cut where the rows before were settled.

* temporal kinds: a row is redundant when the row before it in its group has the same value and its own time lies
  before the watermark. What is left of a run is its earliest row, so no answer changes at any time.
* sessions: in order of start, a session joins the one before it when it starts no later than that one's end
  so far, and before the watermark. The joined session ends at the greatest end: time is never lost to a nested one.
* age: a row goes when its time (a session's end, or its update time) lies strictly before the watermark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.compiled import kernel
from millpond.maps.address import long_column
from millpond.maps.care_walk import GroupRows
from millpond.maps.kinds import Kind, MapDefinition
from millpond.maps.pieces import Bytes, bytes_of, fixed_piece, join, ordered_long, run_ends

__all__ = ("Joined", "age_column", "group_keys", "joined_sessions", "redundant")

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


def group_keys(definition: MapDefinition, addresses: pa.RecordBatch) -> Bytes:
    """The group of each row: its key, or its range as 16 ordered bytes."""
    if definition.kind.keyed:
        return bytes_of(addresses.column("key"))
    ends = [fixed_piece(ordered_long(long_column(addresses, name))) for name in ("key_start", "key_end")]
    return join(addresses.num_rows, ends)


def redundant(definition: MapDefinition, rows: GroupRows, before_ms: int) -> Mask:
    """Which rows of a temporal kind only confirm the row before them, and lie before the watermark."""
    found = _same_as_before(group_keys(definition, rows.addresses)) & _same_as_before(rows.stored)
    return found & (long_column(rows.addresses, "effective_time") < before_ms)


def _same_as_before(column: Bytes) -> Mask:
    same = np.zeros(len(column), np.bool_)
    if len(column):
        same[1:] = ~run_ends(column)[:-1]
    return same


@dataclass(frozen=True, slots=True)
class Joined:
    """Sessions after joining.

    * `members`: rows that became part of a joined session.
    * `run`: for every row, the number of the session it is, or is part of, now.
    * `start`, `end`: of each of these sessions.
    * `first`: the row each starts with.
    """

    members: Mask
    run: I64
    first: I64
    start: I64
    end: I64


def joined_sessions(definition: MapDefinition, rows: GroupRows, before_ms: int) -> Joined:
    """Join sessions that overlap or touch and start before the watermark."""
    start, end = long_column(rows.addresses, "start"), long_column(rows.addresses, "end")
    same = _same_as_before(group_keys(definition, rows.addresses))
    run, reach = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    count = _join(same, start, end, before_ms, run, reach)
    first = np.flatnonzero(np.diff(run, prepend=-1))
    sizes = np.bincount(run, minlength=count)
    return Joined(sizes[run] > 1, run, first, start[first], reach[:count])


@kernel
def _join(same, start, end, before, run, reach):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(start)):
        if same[i] and start[i] < before and start[i] <= reach[count - 1]:
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
    return "end" if definition.kind is Kind.SESSION else "effective_time"
