"""The rows of a layered map that maintenance leaves, by the rules that shards are maintained by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import run_ends, sort_order, take
from millpond.maps.layered.rows import batches_of_spans
from millpond.maps.maintenance.rules import age_column, joined_sessions, redundant
from millpond.maps.model.address import address_bytes, long_column
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.values import encode_values
from millpond.maps.snapshots.rows_of_groups import GroupSpan

if TYPE_CHECKING:
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects

__all__ = ("retained_rows",)

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


def retained_rows(
    objects: Objects, definition: MapDefinition, manifest: SnapshotManifest, what: str, before_ms: int
) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a snapshot after `condense` or `retain` before a time.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    # All rows of a key come out of one span, so its groups are whole.
    for pieces in batches_of_spans(objects, manifest, GroupSpan()):
        batches = list(pieces)
        table = pa.Table.from_batches(batches, canonical_schema(definition)).combine_chunks()
        for rows in table.to_batches():
            yield (
                _retained(definition, rows, before_ms) if what == "retain" else _condensed(definition, rows, before_ms)
            )


def _retained(definition: MapDefinition, rows: pa.RecordBatch, before_ms: int) -> pa.RecordBatch:
    age = age_column(definition)
    assert age is not None, "a layered map is retained by a time of its rows"
    return rows.filter(pc.greater_equal(rows.column(age), pa.scalar(before_ms, pa.int64())))


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Rows in the order of their addresses."""

    rows: pa.RecordBatch
    definition: MapDefinition
    first: Mask
    longs: list[I64]

    def __len__(self) -> int:
        return self.rows.num_rows

    def repeats(self) -> Mask:
        values = encode_values(self.rows.column("value"), self.definition.value)
        return ~_begins(run_ends(values))


def _begins(ends: Mask) -> Mask:
    """The mask of rows that begin a run, of the mask of those that end one."""
    return np.concatenate([[True], ends[:-1]])


def _in_order(definition: MapDefinition, rows: pa.RecordBatch) -> _Ordered:
    address = address_bytes(definition, rows)
    order = sort_order(address)
    address, rows = take(address, order), rows.take(pa.array(order))
    times = [name for name in definition.kind.address if name not in ("key", "key_start", "key_end")]
    first = _begins(run_ends(address, 8 * len(times)))
    return _Ordered(rows, definition, first, [long_column(rows, name) for name in times])


def _condensed(definition: MapDefinition, rows: pa.RecordBatch, before_ms: int) -> pa.RecordBatch:
    ordered = _in_order(definition, rows)
    if definition.kind is not Kind.SESSION:
        return ordered.rows.filter(pa.array(~redundant(ordered, before_ms)))
    joined = joined_sessions(ordered, before_ms)
    schema = rows.schema
    columns = [ordered.rows.column("key").take(pa.array(joined.first)), pa.array(joined.start), pa.array(joined.end)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
