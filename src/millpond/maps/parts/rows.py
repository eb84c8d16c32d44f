"""The rows of a part: put in order, one of each address, and encoded for their tables.

Two ways lead there. Any map's rows are sorted by address first, then table by table. Where the table is `hashed` and
no two keys clash, which is nearly always, they are sorted once, by hash and times, as the table wants them.

Of rows with one address the later is kept, or the first where the map says `overwrite=False`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.byte_columns import Bytes, bytes_of, run_ends, sort_order, take, take_column
from millpond.maps.model.address import address_bytes, unescape
from millpond.maps.model.definition import MapDefinition, Scheme
from millpond.maps.shard.layouts import TableRows, encode_rows, fits_hashed, hashed_keys, hashed_values
from millpond.maps.shard.tables import HASHED

__all__ = ("PartRows", "part_rows_of")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PartRows:
    """The rows of a part: its tables, its distinct keys (ranged maps: 16-byte ranges), and the number of rows."""

    tables: list[TableRows]
    touched: pa.Array
    count: int


def part_rows_of(definition: MapDefinition, rows: pa.RecordBatch) -> PartRows:
    """Canonical rows in their order of arrival, as a part keeps them."""
    if definition.scheme is Scheme.HASH and definition.kind.keyed:
        hashed = _by_hash(definition, rows)
        if hashed is not None:
            return hashed
    address = address_bytes(definition, rows)
    order = sort_order(address)
    if not bool(np.all(order[:-1] < order[1:])):
        address = take(address, order)
    last = run_ends(address)
    if not last.all():
        chosen = _winning_rows(definition, last)
        order, address = order[chosen], take(address, chosen)
    return PartRows(encode_rows(definition, rows, order, address), _distinct_keys(definition, address), len(address))


def _winning_rows(definition: MapDefinition, last: Mask) -> npt.NDArray[np.int64]:
    """The rows that stay, given the mask of the rows that end their run."""
    return np.flatnonzero(last if definition.overwrite else np.concatenate([[True], last[:-1]]))


def _distinct_keys(definition: MapDefinition, address: Bytes) -> pa.Array:
    tail = 8 * (len(definition.kind.address) - (1 if definition.kind.keyed else 2))
    chosen = take(address, np.flatnonzero(run_ends(address, tail)))
    if definition.kind.keyed:
        return unescape(chosen, tail).to_arrow().cast(pa.binary())
    ranges = np.ascontiguousarray(chosen.data.reshape(len(chosen), -1)[:, :16])
    return Bytes(np.arange(len(chosen) + 1) * 16, ranges.reshape(-1)).to_arrow()


def _by_hash(definition: MapDefinition, rows: pa.RecordBatch) -> PartRows | None:
    """The rows sorted by hash and times; None when two keys clash, or a row does not fit the table."""
    places = hashed_keys(definition, rows)
    order = sort_order(places)
    places, key = take(places, order), take(bytes_of(rows.column("key")), order)
    same_hash = ~run_ends(places, 8 * (len(definition.kind.address) - 1))
    last_of_key = run_ends(key)
    if bool(np.any(same_hash & last_of_key)):
        return None
    last = run_ends(places)
    if not last.all():
        chosen = _winning_rows(definition, last)
        order, places, key = order[chosen], take(places, chosen), take(key, chosen)
        last_of_key = run_ends(key)
    value = take_column(rows.column("value"), order) if definition.kind.valued else None
    stored = hashed_values(definition, key, value)
    if not fits_hashed(stored).all():
        return None
    touched = take(key, np.flatnonzero(last_of_key)).to_arrow().cast(pa.binary())
    return PartRows([TableRows(HASHED, places, stored)], touched, len(places))
