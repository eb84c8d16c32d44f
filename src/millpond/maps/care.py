"""Care: keeping a map small without changing what it answers.

| act | what it does |
|---|---|
| `condense` | drops rows that only confirm what is known; joins sessions that overlap or touch |
| `retain` | deletes rows that are older than a time |
| `compact` | rewrites the shard's file without free space (`care_compact.py`) |

Invariants:
* an act changes a bounded number of rows at a time, each change one transaction of its own; readers see the map
  before or after a change. What is ordered in the log holds the map's lock to its end: loads come before or after it;
* an act may stop after any change: what is done stays done, answers are right, and running it again does the rest;
* running an act twice does nothing the second time;
* a map whose care is suspended is left as it is, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.clock import Clock
from millpond.errors import Unavailable
from millpond.kernel.steps import step
from millpond.maps.address import long_column
from millpond.maps.care_compact import compact_shard
from millpond.maps.care_rules import age_column, group_keys, joined_sessions, redundant
from millpond.maps.care_walk import Chunk, GroupRows, Place, chunk_at, group_rows, rows_of_keys
from millpond.maps.columns import canonical_schema
from millpond.maps.interned_store import InternedStore, TokenTable
from millpond.maps.kinds import Kind, MapDefinition
from millpond.maps.longs import pack_long
from millpond.maps.plain_store import PlainStore
from millpond.maps.shard import Shard, ShardStats, ShardView
from millpond.maps.tables import OVERFLOW

__all__ = ("ROWS_PER_CHANGE", "CareReport", "compact", "condense", "idle_report", "retain")

ROWS_PER_CHANGE = 32_768
"""About how many rows one change looks at: what a load waits for, and what a crash can lose of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CareReport:
    """What care did. `rows_removed` counts how many rows fewer there are; bytes are those of the file on disk."""

    map: str
    rows_before: int
    rows_removed: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    changes: int
    suspended: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class _Change:
    """One bounded change: rows to delete, rows to put with their update times, and where to go on."""

    deleted: pa.RecordBatch
    put: pa.RecordBatch | None
    put_updated: list[int]
    touched: pa.Array
    longest: int
    following: Place | None


Going = Callable[[], bool]
_Plan = Callable[[ShardView, lmdb.Transaction, Chunk], _Change]


def condense(
    shard: Shard, definition: MapDefinition, before_ms: int, *, clock: Clock, rows_per_change: int = ROWS_PER_CHANGE,
    now_ms: int | None = None, going: Going | None = None,
) -> CareReport:  # fmt: skip
    """Drop confirmations and join sessions among the rows before a time; maps without a time have none.

    `now_ms`: when this counts as done; `going` is asked between two changes.

    Raises: `Unavailable` when somebody else keeps the map busy for long, the disk is full, or `going` says no.
    """
    if not definition.kind.timed:
        return _tend(shard, definition, None, clock, rows_per_change, "condense", going)
    act = _condense_sessions if definition.kind is Kind.SESSION else _condense_states
    plan = partial(act, before_ms=before_ms, now_ms=clock.now_ms() if now_ms is None else now_ms)
    return _tend(shard, definition, plan, clock, rows_per_change, "condense", going)


def retain(
    shard: Shard, definition: MapDefinition, before_ms: int, *, clock: Clock, rows_per_change: int = ROWS_PER_CHANGE,
    now_ms: int | None = None, going: Going | None = None,
) -> CareReport:  # fmt: skip
    """Delete rows strictly older than a time: by effective time (a session's end), or by when they were last put.

    `now_ms` and `going` as in `condense`.

    Raises: `Unavailable` when somebody else keeps the map busy for long, the disk is full, or `going` says no.
    """
    now = clock.now_ms() if now_ms is None else now_ms
    plan = partial(_aged, definition=definition, before_ms=before_ms, now_ms=now)
    return _tend(shard, definition, plan, clock, rows_per_change, "retain", going)


def compact(shard: Shard, *, clock: Clock) -> CareReport:
    """Rewrite the shard's file in order and without free space, and switch to it: the disk gets back what was deleted.

    Raises: `Unavailable` when somebody else keeps the map busy for long, or the disk is full; nothing has changed then.
    """
    began, before = clock.monotonic(), shard.stats()
    changes = 0
    with shard.exclusive():
        if before.rows or before.bytes:
            _sweep(shard)
            changes = compact_shard(shard)
    report = _report(shard, clock, began, before.rows, before.bytes)
    return replace(report, changes=changes)


# -- one act, change by change ------------------------------------------------------------------------


def _tend(
    shard: Shard, definition: MapDefinition, plan: _Plan | None, clock: Clock, rows_per_change: int, act: str,
    going: Going | None,
) -> CareReport:  # fmt: skip
    # A group that is cut goes on from its last row, so it takes two rows to get ahead.
    assert rows_per_change >= 2, rows_per_change
    began, before = clock.monotonic(), shard.stats()
    changes, place = 0, None
    on = plan is not None and not definition.care_suspended
    while on and plan is not None:
        if going is not None and not going():
            raise Unavailable("care was stopped", kind="care_stopped", map=definition.name, hint="it is taken up again")
        with shard.exclusive():
            change = _next_change(shard, plan, place, rows_per_change)
            if change is not None and (change.deleted.num_rows or change.put is not None):
                _apply(shard, change)
                changes += 1
                step(f"{act}.batch_committed")
        place = change.following if change is not None else None
        on = place is not None
    if changes:
        with shard.exclusive():
            _sweep(shard)
    report = _report(shard, clock, began, before.rows, before.bytes)
    return replace(report, changes=changes, suspended=plan is not None and definition.care_suspended)


def idle_report(shard: Shard, clock: Clock, began: float, before: ShardStats, *, suspended: bool) -> CareReport:
    """The report of care that was done by others, or not at all: what the shard holds now, and held before."""
    return replace(_report(shard, clock, began, before.rows, before.bytes), suspended=suspended)


def _report(shard: Shard, clock: Clock, began: float, rows: int, size: int) -> CareReport:
    after = shard.stats()
    return CareReport(
        map=shard.definition.name, rows_before=rows, rows_removed=rows - after.rows, rows_after=after.rows,
        bytes_before=size, bytes_after=after.bytes, changes=0, suspended=False, seconds=clock.monotonic() - began,
    )  # fmt: skip


def _next_change(shard: Shard, plan: _Plan, place: Place | None, rows_max: int) -> _Change | None:
    with shard.view() as view:
        if view.tx is None:
            return None
        chunk = chunk_at(view.store, view.tx, place, rows_max)
        return None if chunk is None else plan(view, view.tx, chunk)


def _apply(shard: Shard, change: _Change) -> None:
    def act(tx: lmdb.Transaction) -> None:
        # What replaces rows is there before they go; an address in both would be put and then lost.
        shard.delete_rows(tx, change.deleted)
        if change.put is not None:
            shard.store.put_rows(tx, change.put, overwrite=True)
            if shard.tracking:
                shard.updates.put_times(tx, change.put, change.put_updated)

    shard.change(act, change.touched, longest=change.longest)


def _sweep(shard: Shard) -> None:
    """Forget interned keys and values that no row uses any more."""
    with shard.view() as view:
        if view.tx is None or not isinstance(view.store, InternedStore):
            return
        unused = view.store.unused(view.tx)
    for first in range(0, len(unused), ROWS_PER_CHANGE):
        some = unused[first : first + ROWS_PER_CHANGE]
        shard.change(partial(_forget, some), pa.array([], pa.binary()))
        step("care.swept")


def _forget(unused: list[tuple[TokenTable, bytes]], tx: lmdb.Transaction) -> None:
    for table, token in unused:
        table.forget(tx, [token])


# -- plans --------------------------------------------------------------------------------------------


def _condense_states(view: ShardView, tx: lmdb.Transaction, chunk: Chunk, before_ms: int, now_ms: int) -> _Change:
    definition, store = view.shard.definition, view.store
    rows = group_rows(store, tx, chunk)
    gone = redundant(definition, rows, before_ms)
    following = chunk.following
    if chunk.split:
        # Go on from the last row of the cut group that stays: the next rows are compared with it.
        stays = int(np.flatnonzero(~gone[: rows.last_read + 1])[-1])
        following = Place(chunk.table, chunk.keys[int(rows.places[stays])])
    if gone.any() and isinstance(store, PlainStore) and _overflowing(store, tx):
        # Rows of one key may lie in two tables by their size: look at all of them together.
        rows = rows_of_keys(store, tx, _touched(definition, rows, gone).to_pylist())
        gone = redundant(definition, rows, before_ms)
    deleted = rows.addresses.filter(pa.array(gone))
    return _Change(deleted, None, [], _touched(definition, rows, gone), 0, following)


def _overflowing(store: PlainStore, tx: lmdb.Transaction) -> bool:
    return store.plain and OVERFLOW in store.dbs and bool(tx.stat(store.dbs[OVERFLOW])["entries"])


def _touched(definition: MapDefinition, rows: GroupRows, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    keys = group_keys(definition, rows.addresses.filter(pa.array(chosen))).to_arrow()
    return keys.cast(pa.binary()).unique()


def _condense_sessions(view: ShardView, tx: lmdb.Transaction, chunk: Chunk, before_ms: int, now_ms: int) -> _Change:
    shard = view.shard
    rows = group_rows(view.store, tx, chunk)
    joined = joined_sessions(shard.definition, rows, before_ms)
    start, end = long_column(rows.addresses, "start"), long_column(rows.addresses, "end")
    stays = (start == joined.start[joined.run]) & (end == joined.end[joined.run])
    gone = joined.members & ~stays
    there = np.zeros(len(joined.start), np.bool_)
    # Where update times are kept, a session that is there already takes over the latest of those it joins.
    there[joined.run[stays & ~(joined.members & shard.tracking)]] = True
    fresh = np.flatnonzero(~there)
    put, updated = None, []
    if len(fresh):
        put = _sessions(shard.definition, rows, joined.first[fresh], joined.end[fresh])
    if len(fresh) and shard.tracking:
        updated = _latest_updates(view, tx, rows, joined.run, len(joined.start), now_ms)[fresh].tolist()
    following = chunk.following
    if chunk.split:
        cut = joined.run[rows.last_read]
        last = pack_long(int(joined.start[cut]), plain=False) + pack_long(int(joined.end[cut]), plain=False)
        following = Place(chunk.table, chunk.keys[-1][:-16] + last)
    longest = int((joined.end[fresh] - joined.start[fresh]).max(initial=0))
    deleted = rows.addresses.filter(pa.array(gone))
    return _Change(deleted, put, updated, _touched(shard.definition, rows, joined.members), longest, following)


def _sessions(
    definition: MapDefinition, rows: GroupRows, first: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> pa.RecordBatch:  # fmt: skip
    told = rows.addresses.take(pa.array(first))
    return pa.RecordBatch.from_arrays(
        [told.column("key"), told.column("start"), pa.array(ends)], schema=canonical_schema(definition)
    )


def _latest_updates(
    view: ShardView, tx: lmdb.Transaction, rows: GroupRows, run: npt.NDArray[np.int64], count: int,
    now_ms: int,
) -> npt.NDArray[np.int64]:  # fmt: skip
    """When each joined session was last put: the latest of its members."""
    latest = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(latest, run, view.generation.updates.times(tx, rows.addresses, now_ms))
    return latest


def _aged(
    view: ShardView, tx: lmdb.Transaction, chunk: Chunk, definition: MapDefinition, before_ms: int, now_ms: int
) -> _Change:
    rows = group_rows(view.store, tx, chunk)
    column = age_column(definition)
    if column is None:
        age = view.generation.updates.times(tx, rows.addresses, now_ms)
    else:
        age = long_column(rows.addresses, column)
    gone = age < before_ms
    deleted = rows.addresses.filter(pa.array(gone))
    return _Change(deleted, None, [], _touched(definition, rows, gone), 0, chunk.following)
