"""Maintenance: keeping a map small without changing what it answers.

| act | what it does |
|---|---|
| `condense` | drops rows that only confirm what is known; joins sessions that overlap or touch |
| `retain` | deletes rows that are older than a time, or combines them to wider buckets (`roll_up.py`) |
| `delete` | deletes rows for which a condition holds |
| `compact` | rewrites the shard's file without free space (`compaction.py`) |

Invariants:
* an act changes a bounded number of rows at a time, each change one transaction of its own; readers see the map
  before or after a change. What is ordered in the log holds the map's lock to its end: loads come before or after it;
* an act may stop after any change: what is done stays done, answers are right, and running it again does the rest;
* running an act twice does nothing the second time;
* a map whose maintenance is suspended is left as it is, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.byte_columns import Bytes, to_list
from millpond.clock import Clock
from millpond.error_values import ShownAsTable
from millpond.errors import Unavailable
from millpond.kernel.steps import step
from millpond.maps.maintenance.chunks import Chunk, Position, Store, chunk_at
from millpond.maps.maintenance.compaction import compact_shard
from millpond.maps.maintenance.groups import (
    GroupRows,
    addresses_of,
    emptied_ranges,
    ending_at,
    group_keys,
    group_rows,
    interrupted,
    longs_of,
)
from millpond.maps.maintenance.roll_up import roll_up
from millpond.maps.maintenance.rules import Joined, age_column, joined_sessions, redundant
from millpond.maps.maintenance.sweep import sweep
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.rolled_up import retained_from, shown_start
from millpond.maps.predicates.predicate import Predicate, predicate
from millpond.maps.predicates.taken import taken_rows
from millpond.maps.shard.cursors import delete_pairs
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.range_widths import WIDTHS, delete_widths
from millpond.maps.shard.row_batches import decoded
from millpond.maps.shard.shard import Shard, ShardStats, ShardView
from millpond.maps.shard.tables import OVERFLOW

__all__ = ("ROWS_PER_CHANGE", "MaintenanceReport", "compact", "condense", "delete", "idle_report", "retain")

ROWS_PER_CHANGE = 131_072
"""About how many rows one change looks at: what a load waits for, and what a crash can lose of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport(ShownAsTable):
    """The result of maintenance. `rows_removed`: rows before minus rows after; bytes are those of the file on disk."""

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
    """One bounded change: rows that go, sessions that come in their place, and where to go on.

    * `gone`: their table keys, and the values where keys alone do not tell rows apart.
    * `fresh`: sessions as they lie in their table.
    * `forgotten`, `renewed`: where update times are kept, the addresses whose times go, and come, with the times.
    * `emptied`: ranges (start, end) that may have lost their last row.
    """

    table: str
    gone: tuple[Bytes, Bytes | None]
    touched: pa.Array
    following: Position | None
    fresh: Chunk | None = None
    longest: int = 0
    forgotten: pa.RecordBatch | None = None
    renewed: tuple[pa.RecordBatch, list[int]] | None = None
    emptied: tuple[list[int], list[int]] = ([], [])


I64 = npt.NDArray[np.int64]
Going = Callable[[], bool]
_Plan = Callable[[ShardView, lmdb.Transaction, Chunk], _Change]


def condense(
    shard: Shard, definition: MapDefinition, before_ms: int, *, clock: Clock, rows_per_change: int = ROWS_PER_CHANGE,
    now_ms: int | None = None, going: Going | None = None,
) -> MaintenanceReport:  # fmt: skip
    """Drop confirmations and join sessions among the rows before a time (by update time: last put before it); maps
    without a time have none.

    `now_ms`: when this counts as done; `going` is asked between two changes.

    Raises: `Unavailable` when somebody else keeps the map busy for long, the disk is full, or `going` says no.
    """
    if not definition.kind.timed:
        return _maintain_maps(shard, definition, None, clock, rows_per_change, "condense", going)
    act = _condense_sessions if definition.kind is Kind.SESSION else _condense_states
    now = clock.now_ms() if now_ms is None else now_ms
    plan = partial(act, definition=definition, before_ms=before_ms, now_ms=now)
    return _maintain_maps(shard, definition, plan, clock, rows_per_change, "condense", going)


def retain(
    shard: Shard, definition: MapDefinition, before_ms: int, *, clock: Clock, rows_per_change: int = ROWS_PER_CHANGE,
    now_ms: int | None = None, going: Going | None = None,
) -> MaintenanceReport:  # fmt: skip
    """Delete rows strictly older than a time: by effective time (a session's end), or by when they were last put; those
    of an aggregate that rolls up are combined instead.

    `now_ms` and `going` as in `condense`.

    Raises: `Unavailable` when somebody else keeps the map busy for long, the disk is full, or `going` says no;
    `Invalid`, kinds `sum_overflow`, `resolution_finer`, for rows that cannot be combined.
    """
    now = clock.now_ms() if now_ms is None else now_ms
    before_ms = retained_from(definition, before_ms)
    if definition.aggregation is not None:
        if definition.roll_up is not None:
            return _rolled_up(shard, definition, before_ms, clock, going)
        before_ms = _whole_buckets(shard, before_ms)
    plan = partial(_aged, definition=definition, before_ms=before_ms, now_ms=now)
    return _maintain_maps(shard, definition, plan, clock, rows_per_change, "retain", going)


def delete(
    shard: Shard, definition: MapDefinition, where: str, *, clock: Clock, rows_per_change: int = ROWS_PER_CHANGE,
    now_ms: int | None = None, going: Going | None = None,
) -> MaintenanceReport:  # fmt: skip
    """Delete the rows for which a condition holds, whether or not maintenance is suspended. As `retain`.

    Raises: `Invalid` for a condition that the map cannot have; as `retain`.
    """
    now = clock.now_ms() if now_ms is None else now_ms
    plan = partial(_matching, definition=definition, condition=predicate(definition, where), now_ms=now)
    going_on = replace(definition, maintenance_suspended=False)
    return _maintain_maps(shard, going_on, plan, clock, rows_per_change, "delete", going)


def compact(shard: Shard, *, clock: Clock) -> MaintenanceReport:
    """Rewrite the shard's file in order and without free space, and switch to it: the disk gets back what was deleted.

    Raises: `Unavailable` when somebody else keeps the map busy for long, or the disk is full; nothing has changed then.
    """
    began, before = clock.monotonic(), shard.stats()
    changes = 0
    with shard.exclusive():
        if before.rows or before.bytes:
            sweep(shard)
            changes = compact_shard(shard)
    report = _report(shard, clock, began, before.rows, before.bytes)
    return replace(report, changes=changes)


def _rolled_up(
    shard: Shard, definition: MapDefinition, before_ms: int, clock: Clock, going: Going | None
) -> MaintenanceReport:
    began, before, changes = clock.monotonic(), shard.stats(), 0
    if not definition.maintenance_suspended:
        with shard.exclusive():
            changes = roll_up(shard, str(definition.roll_up), before_ms, lambda: _go_on(definition, going))
    report = _report(shard, clock, began, before.rows, before.bytes)
    return replace(report, changes=changes, suspended=definition.maintenance_suspended)


def _whole_buckets(shard: Shard, before_ms: int) -> int:
    """The start of the bucket that holds an instant: wide ones go as a whole, too."""
    with shard.view() as view:
        aggregation = view.definition.aggregation
    assert aggregation is not None, "an aggregate has one"
    return shown_start(aggregation, before_ms)


# -- one act, change by change ------------------------------------------------------------------------


def _maintain_maps(
    shard: Shard, definition: MapDefinition, plan: _Plan | None, clock: Clock, rows_per_change: int, act: str,
    going: Going | None,
) -> MaintenanceReport:  # fmt: skip
    # A group that is cut goes on from its last row, so it takes two rows to get ahead.
    assert rows_per_change >= 2, rows_per_change
    began, before = clock.monotonic(), shard.stats()
    changes, position = 0, None
    on = plan is not None and not definition.maintenance_suspended
    while on and plan is not None:
        _go_on(definition, going)
        with shard.exclusive():
            change = _next_change(shard, plan, position, rows_per_change)
            if change is not None and len(change.gone[0]):
                _apply(shard, change)
                changes += 1
                step(f"{act}.batch_committed")
        position = change.following if change is not None else None
        on = position is not None
    if changes:
        with shard.exclusive():
            sweep(shard)
    report = _report(shard, clock, began, before.rows, before.bytes)
    return replace(report, changes=changes, suspended=plan is not None and definition.maintenance_suspended)


def _go_on(definition: MapDefinition, going: Going | None) -> None:
    if going is not None and not going():
        raise Unavailable(
            "maintenance was stopped", kind="maintenance_stopped", map=definition.name, hint="it is taken up again"
        )


def idle_report(shard: Shard, clock: Clock, began: float, before: ShardStats, *, suspended: bool) -> MaintenanceReport:
    """The report of maintenance that was done by others, or not at all: what the shard holds now, and held before."""
    return replace(_report(shard, clock, began, before.rows, before.bytes), suspended=suspended)


def _report(shard: Shard, clock: Clock, began: float, rows: int, size: int) -> MaintenanceReport:
    after = shard.stats()
    return MaintenanceReport(
        map=shard.definition.name, rows_before=rows, rows_removed=rows - after.rows, rows_after=after.rows,
        bytes_before=size, bytes_after=after.bytes, changes=0, suspended=False, seconds=clock.monotonic() - began,
    )  # fmt: skip


def _next_change(shard: Shard, plan: _Plan, position: Position | None, rows_max: int) -> _Change | None:
    with shard.view() as view:
        if view.tx is None:
            return None
        chunk = chunk_at(view.generation, view.tx, position, rows_max)
        return None if chunk is None else plan(view, view.tx, chunk)


def _apply(shard: Shard, change: _Change) -> None:
    def act(tx: lmdb.Transaction) -> None:
        store, (keys, values), fresh = shard.store, change.gone, change.fresh
        delete_pairs(tx, store.dbs[change.table], to_list(keys), None if values is None else to_list(values))
        if fresh is not None:
            _put_fresh(store, tx, fresh)
        if change.emptied[0]:
            plain = isinstance(store, PlainStore) and store.plain
            delete_widths(tx, store.dbs[WIDTHS], store.dbs[change.table], *change.emptied, plain=plain)
        if change.forgotten is not None:
            shard.tables.updates.delete(tx, change.forgotten)
        if change.renewed is not None:
            shard.tables.updates.put_times(tx, *change.renewed)

    shard.change(act, change.touched, longest=change.longest)


def _put_fresh(store: Store, tx: lmdb.Transaction, fresh: Chunk) -> None:
    """Put rows whose addresses are in no table, in `overflow` as the first of those that clash."""
    pairs = zip(to_list(fresh.keys), to_list(fresh.values), strict=True)
    cursor = tx.cursor(db=store.dbs[fresh.table])
    if fresh.table == OVERFLOW and isinstance(store, PlainStore):
        # What lies there already is of another key: then the next clash number is looked for.
        clashing = [(key, value) for key, value in pairs if not cursor.put(key, value, overwrite=False)]
        store.put_table(tx, OVERFLOW, clashing, overwrite=True)
    else:
        cursor.putmulti(pairs)


# -- plans --------------------------------------------------------------------------------------------


def _condense_states(
    view: ShardView, tx: lmdb.Transaction, chunk: Chunk, definition: MapDefinition, before_ms: int, now_ms: int
) -> _Change:
    store = view.store
    rows = group_rows(store, chunk)
    removal = redundant(rows, _settled(view, tx, rows, definition, before_ms, now_ms))
    removal &= ~interrupted(store, tx, rows, removal)
    following = chunk.following
    if chunk.split:
        # Go on from the last row of the cut group that stays: the next rows are compared with it.
        following = Position(chunk.table, chunk.key(int(np.flatnonzero(~removal)[-1])))
    deleted = rows.positions(removal)
    touched = group_keys(store, tx, chunk.taken(rows.one_a_group(removal)))
    forgotten = _forgotten(view, tx, chunk, deleted)
    return _Change(chunk.table, chunk.to_delete(deleted), touched, following, forgotten=forgotten)


def _settled(
    view: ShardView, tx: lmdb.Transaction, rows: GroupRows, definition: MapDefinition, before_ms: int, now_ms: int
) -> npt.NDArray[np.bool_]:
    """The rows that condensing may drop or join."""
    by_update = definition.condense_by == "update_time"
    return (_put_times(view, tx, rows, now_ms) if by_update else rows.longs[0]) < before_ms


def _put_times(view: ShardView, tx: lmdb.Transaction, rows: GroupRows, now_ms: int) -> I64:
    times = view.generation.updates.times(tx, addresses_of(view.store, tx, rows.chunk), now_ms)
    return times if rows.order is None else times[rows.order]


def _forgotten(view: ShardView, tx: lmdb.Transaction, chunk: Chunk, removal: I64) -> pa.RecordBatch | None:
    return addresses_of(view.store, tx, chunk.taken(removal)) if view.shard.tracking and len(removal) else None


def _condense_sessions(
    view: ShardView, tx: lmdb.Transaction, chunk: Chunk, definition: MapDefinition, before_ms: int, now_ms: int
) -> _Change:
    store = view.store
    rows = group_rows(store, chunk)
    joined = joined_sessions(rows, _settled(view, tx, rows, definition, before_ms, now_ms))
    start, end = rows.longs
    stays = (start == joined.start[joined.run]) & (end == joined.end[joined.run])
    members = joined.grown[joined.run]
    updates = np.zeros(len(joined.start), np.bool_)
    updates[joined.run[stays]] = True
    new = np.flatnonzero(~updates)
    following = chunk.following
    if chunk.split:
        cut = int(joined.run[-1])
        first, last = chunk.taken(rows.numbers(joined.first[[cut]])), joined.end[[cut]]
        following = Position(chunk.table, ending_at(store, first, last).key(0))
    deleted = rows.positions(members & ~stays)
    return _Change(
        chunk.table,
        chunk.to_delete(deleted),
        group_keys(store, tx, chunk.taken(rows.one_a_group(members))),
        following,
        fresh=ending_at(store, chunk.taken(rows.numbers(joined.first[new])), joined.end[new]),
        longest=int((joined.end[new] - joined.start[new]).max(initial=0)),
        forgotten=_forgotten(view, tx, chunk, deleted),
        renewed=_renewed(view, tx, rows, joined, now_ms) if view.shard.tracking and len(deleted) else None,
    )


def _renewed(
    view: ShardView, tx: lmdb.Transaction, rows: GroupRows, joined: Joined, now_ms: int
) -> tuple[pa.RecordBatch, list[int]]:
    """The update time of each joined session: the latest of its members."""
    grown = np.flatnonzero(joined.grown)
    addresses = addresses_of(view.store, tx, rows.chunk)
    latest = np.full(len(joined.start), np.iinfo(np.int64).min)
    np.maximum.at(latest, joined.run, _put_times(view, tx, rows, now_ms))
    sessions = addresses.take(pa.array(rows.numbers(joined.first[grown]))).set_column(
        2, "end", pa.array(joined.end[grown])
    )
    return sessions, latest[grown].tolist()


def _aged(
    view: ShardView, tx: lmdb.Transaction, chunk: Chunk, definition: MapDefinition, before_ms: int, now_ms: int
) -> _Change:
    store = view.store
    if age_column(definition) is None:
        age = view.generation.updates.times(tx, addresses_of(store, tx, chunk), now_ms)
    else:
        age = longs_of(store, chunk)[-1]
    return _without(view, tx, chunk, definition, age < before_ms)


def _matching(
    view: ShardView, tx: lmdb.Transaction, chunk: Chunk, definition: MapDefinition, condition: Predicate, now_ms: int
) -> _Change:
    pairs = zip(to_list(chunk.keys), to_list(chunk.values), strict=True)
    batches = list(decoded(definition, view.store, tx, chunk.table, pairs, len(chunk)))
    removal = np.concatenate([taken_rows(definition, condition, batch) for batch in batches])
    return _without(view, tx, chunk, definition, removal)


def _without(
    view: ShardView, tx: lmdb.Transaction, chunk: Chunk, definition: MapDefinition, removal: npt.NDArray[np.bool_]
) -> _Change:
    """The change that deletes some rows of a chunk."""
    deleted = np.flatnonzero(removal)
    return _Change(
        chunk.table,
        chunk.to_delete(deleted),
        group_keys(view.store, tx, chunk.taken(deleted)).unique(),
        chunk.following,
        forgotten=_forgotten(view, tx, chunk, deleted),
        emptied=([], []) if definition.kind.keyed else emptied_ranges(view.store, chunk, removal),
    )
