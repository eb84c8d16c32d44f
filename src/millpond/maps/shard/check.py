"""Checking a shard: a child process reads its file through, then rows are decoded and held against each other.

Invariants checked:
* the tables are those of the map's scheme, with every row they tell of, in order;
* rows decode to the map's columns: no address is missing, no range or session ends before it starts, text is text;
* rows of an aggregate are at the starts of their buckets, as far as they are rolled up;
* no session lasts longer than the shard says, which is how far back a question looks;
* each range has its row in `widths`, and `widths` has no others;
* no load was absorbed that was never entered.
"""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
import numpy as np
import pyarrow as pa

from millpond.arrays.byte_columns import run_ends, sort_order, take
from millpond.errors import Corrupt
from millpond.kernel.verify import Report, checked, problem
from millpond.maps.model.address import address_bytes, long_column
from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.model.rolled_up import shown_starts
from millpond.maps.shard.changed_keys import TOUCHED
from millpond.maps.shard.generation import INFO
from millpond.maps.shard.range_widths import WIDTHS, width_rows
from millpond.maps.shard.shard import Shard, ShardView, read_generation
from millpond.maps.shard.tables import ADDED, ALERTED, row_tables
from millpond.maps.shard.update_times import UPDATED
from millpond.stores.lmdb.probe import MAIN, read_through

__all__ = ("SAMPLE_ROWS", "check_shard")

SAMPLE_ROWS = 262_144
"""The number of rows decoded by default."""

_REMEDY = "restore the folder from a copy, or drop the map and load it again"
_INTERNED = frozenset({"key_ids", "keys", "value_ids", "values", "rows"})


def check_shard(shard: Shard, *, last_load: int, full: bool) -> Iterator[Report]:
    """Check one shard.

    Raises: `Corrupt` when its file cannot be read through, or its rows cannot be decoded.
    """
    generation = read_generation(shard.folder)
    if generation is None:
        return
    # Damaged pages may kill the process that reads them: a child goes first.
    tables = read_through(shard.folder / generation)
    yield checked("shard") + checked("table", len(tables) - 1)
    unknown = set(tables) - _known_tables(shard.definition) - {MAIN}
    if unknown:
        yield _wrong(shard, f"it has tables that are none of its map's: {', '.join(sorted(unknown))}")
    if shard.absorbed > last_load:
        yield _wrong(shard, f"it absorbed load {shard.absorbed}, but the last that was entered is {last_load}")
    with shard.view() as view:
        yield from _check_rows(shard, view, full)


def _known_tables(definition: MapDefinition) -> set[str]:
    rows = _INTERNED if definition.scheme is Scheme.LOOKUP else row_tables(definition)
    return {INFO.decode(), UPDATED, WIDTHS, TOUCHED, ADDED, ALERTED, *rows}


def _wrong(shard: Shard, fault: str) -> Report:
    return problem("shard", shard.folder, fault, _REMEDY, counted=False)


def _check_rows(shard: Shard, view: ShardView, full: bool) -> Iterator[Report]:
    rows, wrong = 0, set[str]()
    batches = view.read_rows()
    try:
        for batch in batches:
            rows += batch.num_rows
            wrong.update(_wrong_rows(shard, view, batch))
            if not full and rows >= SAMPLE_ROWS:
                break
        else:
            if rows != view.row_count():
                wrong.add(f"{rows} rows were read where {view.row_count()} are counted")
    except (pa.ArrowException, ValueError, IndexError, KeyError) as error:
        raise Corrupt("rows cannot be decoded", kind="shard_damaged", folder=shard.folder, reason=error) from error
    yield checked("row", rows)
    for fault in sorted(wrong):
        yield _wrong(shard, fault)


def _wrong_rows(shard: Shard, view: ShardView, batch: pa.RecordBatch) -> Iterator[str]:
    """Faults of the rows of one table."""
    assert view.tx is not None, "there are rows"
    definition = shard.definition
    batch.validate(full=True)
    if any(batch.column(name).null_count for name in definition.kind.address):
        yield "a row has no key or time"
        return
    address = address_bytes(definition, batch)
    if not run_ends(take(address, sort_order(address))).all():
        yield "an address is there twice"
    if view.definition.aggregation is not None:
        times = batch.column("time").to_numpy()
        if not np.array_equal(shown_starts(view.definition.aggregation, times), times):
            yield "a time is not the start of a bucket"
    starts, ends = _bounds(definition, batch)
    if bool(np.any(starts > ends)):
        yield "a range or session ends before it starts"
    elif definition.kind is Kind.SESSION:
        if bool(np.any(ends - starts > view.number("longest"))):
            yield "a session lasts longer than any is said to"
    elif not definition.kind.keyed:
        yield from _wrong_widths(view, view.tx, batch)


def _bounds(definition: MapDefinition, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    names = {Kind.SESSION: ("start", "end")}.get(definition.kind, ("key_start", "key_end"))
    if definition.kind in (Kind.STATE, Kind.TEMPORAL_STATE, Kind.AGGREGATE):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return long_column(batch, names[0]), long_column(batch, names[1])


def _wrong_widths(view: ShardView, tx: lmdb.Transaction, batch: pa.RecordBatch) -> Iterator[str]:
    starts, ends = long_column(batch, "key_start").tolist(), long_column(batch, "key_end").tolist()
    cursor = tx.cursor(db=view.store.dbs[WIDTHS])
    if not all(cursor.set_key(row) for row in width_rows(starts, ends)):
        yield "a range is missing among the widths"
