"""Merge: the parts of loads into the shard of their map, in one transaction.

Invariants:
* a load becomes visible in its map as a whole or not at all, and merging it again changes nothing:
  the shard remembers the last load it absorbed, and its position in the log, in the same transaction;
* several loads merged together leave the rows, and the times they were put, that one after another leave;
* rows of an aggregate are added to those that are there, once: a part that comes again is noted in table `added`, in
  the same transaction. They are added load by load, part by part: so doubles are rounded alike on all nodes;
* parts are merged in the order of the loads, and within a load in its order; of rows with the same address the later
  part's wins, or where the map said `overwrite=False` when the load was entered, the first stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import lmdb
import pyarrow as pa

from millpond.arrays.longs import unpack_long
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import step
from millpond.maps.alerts.alerted import LoadOfShard, leave_alerted
from millpond.maps.alerts.judging import Judged
from millpond.maps.alerts.merged import judged_load
from millpond.maps.alerts.rules import AlertRule
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, open_part
from millpond.maps.parts.touched import read_touched
from millpond.maps.shard.bucket_tables import BucketStore, add_rows, is_added, note_added
from millpond.maps.shard.interned_tables import InternedStore
from millpond.maps.shard.layouts import decode_rows
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.range_widths import WIDTHS, width_class
from millpond.maps.shard.row_batches import column_of, gathered
from millpond.maps.shard.shard import Shard, ShardView

__all__ = ("Arrived", "MergeReport", "merge_loads", "part_rows", "rows_held")

ROWS_PER_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class Arrived:
    """The part one load brings to one map: its number, its time, and whether its rows win over existing ones.

    `again`: it is merged although the shard has absorbed it.
    """

    number: int
    stamp_ms: int
    overwrite: bool
    parts: tuple[PartFile, ...]
    position: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of a merge: rows brought, rows of the map afterwards, and a flag for a repeated merge."""

    rows: int
    rows_after: int
    repeated: bool


def merge_loads(
    shard: Shard, loads: Sequence[Arrived], *, rules: Sequence[AlertRule] = ()
) -> MergeReport:  # fmt: skip
    """Merge loads of one map, in order, in one transaction. Call it while `shard.exclusive()`.

    `rules`: those of the alerts that a load, which is alone, may make: they are left to be told.

    Raises:
        Corrupt: a part is missing or LMDB refuses it; nothing was merged.
        Unavailable: the disk is full; nothing was merged.
    """
    rows = sum(part.manifest.rows for load in loads for part in load.parts)
    has, before = rows_held(shard), shard.position
    due = [load for load in loads if load.again or not has(load.number, load.position)]
    if not due:
        return MergeReport(rows, shard.stats().rows, repeated=True)
    parts = [part for load in due for part in load.parts]
    outcome, after = _judged(shard, due, rules) if rules else (None, None)
    position = max(before, *(load.position for load in due))

    def act(tx: lmdb.Transaction) -> None:
        for load in due:
            for part in load.parts:
                if load.again and not _is_fresh(tx, shard.store, part, load):
                    continue
                if after is not None and len(parts) == 1:  # more are added one after another
                    shard.put_rows(tx, after, load.stamp_ms, overwrite=True)
                    step("merge.part_put")
                else:
                    _merge_part(shard, tx, part, load)
        if outcome is not None and outcome.crossings:
            assert isinstance(shard.store, BucketStore), "it has rules"
            leave_alerted(shard.store, tx, outcome, LoadOfShard(due[0].number, due[0].stamp_ms, position))

    touched = _touched(parts) if shard.version else None  # nothing was frozen before the first change
    longest = max(part.manifest.longest_session for part in parts)
    shard.change(act, touched, absorbed=max(load.number for load in due), position=position, longest=longest)
    return MergeReport(rows, shard.stats().rows, repeated=False)


def _judged(
    shard: Shard, loads: Sequence[Arrived], rules: Sequence[AlertRule]
) -> tuple[Judged, pa.RecordBatch | None]:  # fmt: skip
    """Judge a load by rules: what is added of it; with the rows of its groups after it, of a load that is not large."""
    [load] = loads
    with shard.view() as view:
        parts = [part for part in load.parts if not (load.again and _was_added(view, part, load))]
        return judged_load(
            view, view.definition, rules,
            lambda: chain.from_iterable(part_rows(shard.definition, part) for part in parts),
            sum(part.manifest.rows for part in parts), sum(part.manifest.data_bytes for part in parts),
        )  # fmt: skip


def _was_added(view: ShardView, part: PartFile, load: Arrived) -> bool:
    store, tx = view.store, view.tx
    return tx is not None and isinstance(store, BucketStore) and is_added(store, tx, part.manifest.id, load.number)


def rows_held(shard: Shard) -> Callable[[int, int], bool]:
    """Tells of the number and position of a load whether the shard, as it is now, has its rows already."""
    with shard.view() as view:
        absorbed, last = view.number("absorbed"), view.number("position")
    return lambda number, position: number <= absorbed or 0 < position <= last


def _touched(parts: Sequence[PartFile]) -> pa.Array:
    touched = [read_touched(part.file) for part in parts]
    return pa.concat_arrays(touched).unique() if len(parts) > 1 else touched[0]


def _put_widths(tx: lmdb.Transaction, store: PlainStore | InternedStore, part: PartFile) -> None:
    keys = (
        bytes([width_class(unpack_long(key[:8], plain=False), unpack_long(key[8:], plain=False))]) + key
        for key in read_touched(part.file).to_pylist()
    )
    tx.cursor(db=store.dbs[WIDTHS]).putmulti((key, b"") for key in sorted(keys))


def _merge_part(shard: Shard, tx: lmdb.Transaction, part: PartFile, load: Arrived) -> None:
    definition = shard.definition
    if definition.aggregation is not None:
        _add_part(shard, tx, part)
        return
    if isinstance(shard.store, InternedStore) or shard.tracking:
        for rows in part_rows(definition, part):
            shard.put_rows(tx, rows, load.stamp_ms, overwrite=load.overwrite)
        return
    with open_part(part.file) as env:
        for table in part.manifest.tables:
            db = env.open_db(table.encode(), create=False)
            with env.begin(db=db) as reading:
                shard.store.put_table(tx, table, reading.cursor().iternext(), load.overwrite)
    if WIDTHS in shard.store.dbs:
        _put_widths(tx, shard.store, part)
    step("merge.part_put")


def _is_fresh(tx: lmdb.Transaction, store: PlainStore | InternedStore, part: PartFile, load: Arrived) -> bool:
    """False for a part of an aggregate that was merged again before, when a kill cut off what follows; else it is
    noted.
    """
    return not isinstance(store, BucketStore) or note_added(store, tx, part.manifest.id, load.number)


def _add_part(shard: Shard, tx: lmdb.Transaction, part: PartFile) -> None:
    """Add the rows of a part of an aggregate.

    Raises: `Corrupt`, kind `part_sums`, when a sum becomes larger than its type holds.
    """
    assert isinstance(shard.store, BucketStore), "it is an aggregate"
    try:
        definition = shard.tables.definition(tx)
        for rows in part_rows(definition, part):
            add_rows(shard.store, tx, definition, rows)
    except Invalid as error:
        raise Corrupt(
            "the part cannot be added to what is there", kind="part_sums", part=part.manifest.id, map=part.manifest.map,
            reason=error, hint="count in a larger unit, and load it again",
        ) from error  # fmt: skip
    step("merge.part_put")


def part_rows(definition: MapDefinition, part: PartFile) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a part, in bounded batches, each sorted by address."""
    schema = canonical_schema(definition)
    with open_part(part.file) as env:
        for table in part.manifest.tables:
            db = env.open_db(table.encode(), create=False)
            with env.begin(db=db) as tx:
                for keys, values in gathered(tx.cursor().iternext(), ROWS_PER_BATCH):
                    rows = decode_rows(definition, table, column_of(keys), column_of(values))
                    assert rows.schema.equals(schema), "what was encoded decodes to the same columns"
                    yield rows
