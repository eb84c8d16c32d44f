"""Rows become groups: all rows of one key (or one range) together, in the order a snapshot is searched in.

A group is one entry of a range file. `docs/format/snapshot.md` draws the columns:

| column | kinds | content |
|---|---|---|
| `key` | keyed | `xxh3_64(key)` as 8 bytes big-endian, then the key |
| `key` | ranged | start and end, 8 bytes each, sign bit flipped, big-endian |
| `hash` | keyed | the same hash as a number, so that a search reads one flat column |
| `rows` | all | list of structs in order of time; empty: a tombstone, the key has no rows any more |
| `cover` | session | list of `from, row`: from this instant on, this row of the group is the innermost (-1: none) |

Invariants:
* Batches come in strictly ascending order of `key`, each group once, whatever the order of the rows that came in.
* Keys whose hashes clash are different groups, side by side in order of their bytes.
* Within a group rows are in order of time; sessions in order of start, then end.
* `cover` is empty where the last session that has started is always the innermost: without nesting.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.ahead import ordered_results
from millpond.arrays.byte_columns import Bytes, bytes_of, to_list
from millpond.arrays.compiled import kernel
from millpond.arrays.memory import copy_bytes, prefetch, same_bytes, store_u64, swap_u64
from millpond.arrays.radix import I64, U64, ordered_u64, radix_order
from millpond.arrays.xxh3 import hash_keys
from millpond.maps.model.columns import UPDATED, value_arrow
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.search.kernels import AHEAD
from millpond.maps.search.rows_of_buckets import at_bucket_starts
from millpond.maps.search.session_cover import cover_sessions
from millpond.maps.snapshots.combined_groups import combined_groups
from millpond.maps.snapshots.sorted_runs import SortedRuns, SpillTo
from millpond.maps.snapshots.spilled_group import Repeats, large_group

__all__ = (
    "COVER", "freeze_groups", "group_schema", "is_before", "list_of_rows", "range_bounds", "range_order_keys",
    "row_times",
)  # fmt: skip

Mask: TypeAlias = npt.NDArray[np.bool_]

GROUPS_PER_BATCH = 65_536
"""Large enough that the cost per batch vanishes, small enough to be held many times over."""

BLOCK_BYTES_MAX = 1 << 29
"""Rows are sorted in blocks of about this size: Arrow's 32-bit offsets hold, and sorting stays in bounded memory."""

SAMPLES_PER_BATCH = 64

RUN_ROWS_MIN = 2
"""With fewer rows of one key together than this on average, rows are sorted one by one."""

THREADS_MAX = 4
LARGE_BLOCKS = 2
"""A block that has come out so many times as large as wanted is one key, or nearly so."""
BLOCKS_ROWS_MIN = 500_000
"""As many rows are worth a block of their own, which another thread sorts."""

_NO_TIMES = np.zeros(0, np.uint64)

COVER = pa.list_(pa.field("item", pa.struct([pa.field("from", pa.int64()), pa.field("row", pa.int32())]), False))


def group_schema(definition: MapDefinition, *, updates: bool = False) -> pa.Schema:
    """The columns of a group of this map; with `updates`, rows tell when they were put."""
    kind = definition.kind
    row = [pa.field(name, pa.int64(), nullable=False) for name in row_times(kind)]
    if kind.valued:
        row.append(pa.field("value", value_arrow(definition.value), nullable=definition.value is not None))
    if updates:
        row.append(pa.field(UPDATED, pa.int64(), nullable=False))
    fields = [pa.field("key", pa.binary(), nullable=False)]
    if kind.keyed:
        fields.append(pa.field("hash", pa.uint64(), nullable=False))
    fields.append(pa.field("rows", pa.list_(pa.field("item", pa.struct(row), nullable=False)), nullable=False))
    if kind is Kind.SESSION:
        fields.append(pa.field("cover", COVER, nullable=False))
    return pa.schema(fields)


def row_times(kind: Kind) -> tuple[str, ...]:
    """The columns of an address that differ between the rows of one group."""
    return tuple(name for name in kind.address if name not in ("key", "key_start", "key_end"))


def freeze_groups(
    definition: MapDefinition, rows: Iterable[pa.RecordBatch], *, touched: pa.Array | None = None,
    spill: SpillTo | None = None, repeats: Repeats | None = None, updates: bool = False,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Canonical rows, in any order, as sorted batches of groups; with `updates`, rows that tell when they were put.

    `touched` names keys (ranged kinds: the 16 bytes of `range_order_keys`) that must come out even when they have
    no row: as tombstones. `spill` says where rows wait that memory may not hold; without it all are held.
    `repeats`: which of several rows of one address, in the order in which they come, counts; None: there are no such.
    Rows of aggregates are events, or rows of buckets: those of one bucket combine.

    Raises: `Unavailable`, kind `disk_full`; `Invalid`, kind `sum_overflow`.
    """
    combining = definition.aggregation is not None
    if combining:
        rows, repeats = at_bucket_starts(definition, rows), None
    with ThreadPoolExecutor(1, thread_name_prefix="run") as thread:
        runs = SortedRuns(lambda batch: _major(definition, batch), spill, thread)
        for batch in rows:
            runs.add(batch)
        runs.end()
    gone = _touched_column(definition, touched)
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)), 1 + runs.rows // BLOCKS_ROWS_MIN)
    block_bytes = BLOCK_BYTES_MAX if spill is None else min(BLOCK_BYTES_MAX, max(1, spill.bytes_max // threads))

    times, schema = row_times(definition.kind), group_schema(definition, updates=updates)

    def block(bounds: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        rows, touched_here = runs.between(*bounds), _touched_between(definition, gone, *bounds)
        if spill is not None and times and sum(batch.nbytes for batch, _ in rows) > LARGE_BLOCKS * block_bytes:
            large = _freeze_large(definition, schema, rows, touched_here[0], spill.folder, repeats)
            if large is not None:
                return iter([large])
        return _freeze_block(definition, schema, rows, touched_here, repeats)

    for batches in ordered_results(block, _blocks(runs, block_bytes, threads), threads):
        yield from (combined_groups(definition, batch) for batch in batches) if combining else batches


def range_order_keys(starts: I64, ends: I64) -> pa.Array:
    """The order keys of ranges: 16 bytes that sort as (start, end)."""
    raw = np.empty((len(starts), 2), ">u8")
    raw[:, 0], raw[:, 1] = ordered_u64(starts), ordered_u64(ends)
    return pa.Array.from_buffers(pa.binary(16), len(starts), [None, pa.py_buffer(raw)]).cast(pa.binary())


def _touched_column(definition: MapDefinition, touched: pa.Array | None) -> pa.Array:
    if touched is None:
        return pa.array([], pa.binary())
    array = touched.combine_chunks() if isinstance(touched, pa.ChunkedArray) else touched
    return array.cast(pa.binary())


# -- blocks -------------------------------------------------------------------------------------------


def _major(definition: MapDefinition, batch: pa.RecordBatch) -> U64:
    """The first sort key of rows: the hash, or the start of the range."""
    if definition.kind.keyed:
        return hash_keys(batch.column("key"), bits=definition.hash_bits)
    return ordered_u64(_long(batch.column("key_start")))


def _long(column: pa.Array) -> I64:
    return column.to_numpy()


def _blocks(runs: SortedRuns, block_bytes: int, least: int) -> list[tuple[int, int]]:
    """Bounds `[lower, upper)` over the major column that cut the rows into blocks of about equal size."""
    count = max(least, math.ceil(runs.bytes / block_bytes))
    if count <= 1:
        return [(0, 1 << 64)]
    sample = runs.samples(SAMPLES_PER_BATCH)
    positions = [int(sample[len(sample) * cut // count]) for cut in range(1, count)]
    # What two cuts fall on has the rows of a whole block: it gets one of its own.
    alone = {position + 1 for position, following in itertools.pairwise(positions) if position == following}
    cuts = sorted({*positions, *alone} - {0, 1 << 64})
    return list(zip([0, *cuts], [*cuts, 1 << 64], strict=True))


def _inside(major: U64, lower: int, upper: int) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = (major >= np.uint64(lower)) & (major <= np.uint64(upper - 1))
    return inside


def _touched_between(definition: MapDefinition, gone: pa.Array, lower: int, upper: int) -> tuple[pa.Array, U64]:
    major = hash_keys(gone, bits=definition.hash_bits) if definition.kind.keyed else range_bounds(gone)[0]
    inside = _inside(major, lower, upper)
    return gone.filter(pa.array(inside)), major[inside]


def range_bounds(order_keys: pa.Array) -> tuple[U64, U64]:
    """(start, end) of 16-byte order keys, as unsigned numbers in order."""
    raw = bytes_of(order_keys).data.view(">u8").astype(np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(raw[:, 0]), np.ascontiguousarray(raw[:, 1])


# -- one block ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Sorted groups: their order keys, and for each the span of rows within `order`."""

    keys: Bytes
    hashes: U64 | None
    starts: I64
    order: I64


def _freeze_block(
    definition: MapDefinition, schema: pa.Schema, rows: list[tuple[pa.RecordBatch, U64]],
    gone: tuple[pa.Array, U64], repeats: Repeats | None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    batches = [batch for batch, _ in rows if batch.num_rows]
    if not batches and not len(gone[0]):
        return
    table = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
    assert len(table) <= 1, "a block is within the reach of 32-bit offsets"
    majors = np.concatenate([*(major for batch, major in rows if batch.num_rows), gone[1]])
    batch = table[0] if table else None
    columns = _keyed_group if definition.kind.keyed else _ranged_group
    grouped = columns(definition, batch, majors, gone[0], repeats)
    yield from _emit(schema, batch, grouped)


def _freeze_large(
    definition: MapDefinition, schema: pa.Schema, rows: list[tuple[pa.RecordBatch, U64]], gone: pa.Array,
    folder: Path, repeats: Repeats | None,
) -> pa.RecordBatch | None:  # fmt: skip
    """The group of rows that are all of one key, or range, put together in files; None when they are of several."""
    batches = [batch for batch, _ in rows if batch.num_rows]
    head, names = batches[0], ["key"] if definition.kind.keyed else ["key_start", "key_end"]
    if any(not pc.all(pc.equal(batch.column(name), head.column(name)[0])).as_py()
           for batch in batches for name in names):  # fmt: skip
        return None
    majors, none = rows[0][1][:1], pa.array([], pa.binary())
    columns = _keyed_group if definition.kind.keyed else _ranged_group
    grouped = columns(definition, head.slice(0, 1), majors, none, None)
    if {*_order_keys(definition, gone)} - {*to_list(grouped.keys)}:
        return None
    row_type = schema.field("rows").type.value_type
    group = large_group(batches, pa.schema(list(row_type)), row_times(definition.kind), folder, repeats)
    return _batch_of(schema, grouped, 0, 1, np.array([0, len(group)], np.int64), group)


def _order_keys(definition: MapDefinition, touched: pa.Array) -> list[bytes]:
    if not definition.kind.keyed:
        return list(touched.to_pylist())
    hashes = hash_keys(touched, bits=definition.hash_bits)
    return [int(hash_).to_bytes(8, "big") + key for hash_, key in zip(hashes, touched.to_pylist(), strict=True)]


def _times(definition: MapDefinition, batch: pa.RecordBatch | None, extra: int) -> list[U64]:
    """The time columns as sortable numbers; rows that only mark a touched key come before all times."""
    if batch is None:
        return []
    return [
        np.concatenate([ordered_u64(_long(batch.column(name))), np.zeros(extra, np.uint64)])
        for name in row_times(definition.kind)
    ]


def _that_count(order: I64, first: Mask, times: list[U64], gone: int, repeats: Repeats | None) -> tuple[I64, I64]:
    """The rows in order, without marks of touched keys, and of one address the row that counts; and the place among
    them where each group starts, and where the last one stops.

    Rows of one address lie in the order in which they came, for they are sorted stably.
    """
    rows, starts = np.empty(len(order), np.int64), np.empty(np.count_nonzero(first) + 1, np.int64)
    earliest, latest = (times[0], times[-1]) if times else (_NO_TIMES, _NO_TIMES)
    once, keep_first = repeats is not None, repeats == "first"
    count = _counted_rows(order, first, earliest, latest, len(order) - gone, once, keep_first, rows, starts)
    return rows[:count], starts


def _keyed_group(
    definition: MapDefinition, batch: pa.RecordBatch | None, hashes: U64, gone: pa.Array, repeats: Repeats | None
) -> _Grouped:
    key_columns = [gone] if batch is None else [batch.column("key"), gone]
    keys = bytes_of(pa.concat_arrays([column.cast(pa.large_binary()) for column in key_columns]))
    times = _times(definition, batch, len(gone))
    order = _keyed_order(hashes, keys, times, len(gone))
    address = keys.data.ctypes.data
    clash = _group_starts(order, hashes, keys.offsets, address, first := np.ones(len(order), np.bool_))
    if clash:
        order = _order_clashes(order, hashes, keys)
        _group_starts(order, hashes, keys.offsets, address, first)
    chosen, starts = _that_count(order, first, times, len(gone), repeats)
    heads = order[first]
    offsets = np.zeros(len(heads) + 1, np.int64)
    np.cumsum(keys.lengths[heads] + 8, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    _put_keys(data.ctypes.data, offsets, hashes, keys.offsets, address, heads)
    return _Grouped(Bytes(offsets, data), hashes[heads], starts, chosen)


def _keyed_order(hashes: U64, keys: Bytes, times: list[U64], gone: int) -> I64:
    """The order by hash and times; rows that only mark a touched key, the last ones, come anywhere within theirs.

    Tables have the rows of one key together, in order of time: then the keys are sorted, not the rows.
    """
    if times and len(hashes):
        starts = np.empty(len(hashes) + 1, np.int64)
        count = _runs(hashes, keys.offsets, keys.data, times[0], times[-1], len(hashes) - gone, starts)
        if count * RUN_ROWS_MIN <= len(hashes):
            runs = starts[: count + 1].copy()
            by_hash = radix_order([hashes[runs[:-1]]])
            order = np.empty(len(hashes), np.int64)
            if _expanded(by_hash, runs, hashes, times[0], times[-1], len(hashes) - gone, order):
                return order
    return radix_order([hashes, *times])


@kernel
def _counted_rows(order, first, earliest, latest, real, once, keep_first, rows, starts):  # type: ignore[no-untyped-def]
    """Fill in the rows that count, and where groups start; how many. `real`: rows from there on mark touched keys.

    With `once` there is but one row of an address: the first, or the last.
    """
    timed, count, group = len(earliest) > 0, 0, 0
    for i in range(len(order)):
        if timed and i + AHEAD < len(order):
            prefetch(earliest.ctypes.data + 8 * order[i + AHEAD])
        if first[i]:
            starts[group] = count
            group += 1
        row = order[i]
        if row >= real:
            continue
        if once and count > starts[group - 1]:
            other = rows[count - 1]
            if not timed or (earliest[other] == earliest[row] and latest[other] == latest[row]):
                if not keep_first:
                    rows[count - 1] = row
                continue
        rows[count] = row
        count += 1
    starts[group] = count
    return count


@kernel
def is_before(first, second, a, b):  # type: ignore[no-untyped-def]
    """True when the times of row `a` are before those of row `b`."""
    return first[a] < first[b] or (first[a] == first[b] and second[a] < second[b])


@kernel
def _runs(hashes, offsets, data, first, second, real, starts):  # type: ignore[no-untyped-def]
    """Fill in where runs of one key begin whose times ascend, and the end; how many there are."""
    count = 0
    for i in range(len(hashes)):
        same = 0 < i < real and hashes[i - 1] == hashes[i] and is_before(first, second, i - 1, i)
        if same:
            length = offsets[i + 1] - offsets[i]
            same = length == offsets[i] - offsets[i - 1]
            k = 0
            while same and k < length:
                same = data[offsets[i] + k] == data[offsets[i - 1] + k]
                k += 1
        if not same:
            starts[count] = i
            count += 1
    starts[count] = len(hashes)
    return count


@kernel
def _expanded(by_hash, starts, hashes, first, second, real, order):  # type: ignore[no-untyped-def]
    """Fill in the rows of the runs, in their order; False when runs of one hash do not follow each other in time."""
    at = 0
    for i in range(len(by_hash)):
        begin, end = starts[by_hash[i]], starts[by_hash[i] + 1]
        if i > 0 and begin < real:
            before = starts[by_hash[i - 1] + 1] - 1
            if hashes[before] == hashes[begin] and not is_before(first, second, before, begin):
                return False
        for row in range(begin, end):
            order[at] = row
            at += 1
    return True


@kernel
def _group_starts(order, hashes, offsets, data, first):  # type: ignore[no-untyped-def]
    """Mark where a new key begins; whether any hash belongs to two keys. `data` is an address."""
    clash = False
    for i in range(1, len(order)):
        if i + 2 * AHEAD < len(order):
            later = order[i + 2 * AHEAD]
            prefetch(hashes.ctypes.data + 8 * later)
            prefetch(offsets.ctypes.data + 8 * later)
            prefetch(data + offsets[order[i + AHEAD]])
        a, b = order[i - 1], order[i]
        first[i] = hashes[a] != hashes[b]
        if first[i]:
            continue
        length = offsets[a + 1] - offsets[a]
        if length != offsets[b + 1] - offsets[b] or not same_bytes(data + offsets[a], data + offsets[b], length):
            first[i] = True
            clash = True
    return clash


def _order_clashes(order: I64, hashes: U64, keys: Bytes) -> I64:
    """Put rows whose hashes clash in order of their keys, each key's rows staying in order of time.

    Two of a billion keys clash once in forty such maps: this is the rare path, but for tests with weak hashes.
    """
    ordered = hashes[order]
    edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    as_bytes = to_list(keys)
    order = order.copy()
    for low, high in itertools.pairwise(edges):
        if high - low > 1:
            order[low:high] = sorted(order[low:high].tolist(), key=as_bytes.__getitem__)
    return order


@kernel
def _put_keys(out, out_offsets, hashes, offsets, data, heads):  # type: ignore[no-untyped-def]
    """Each head's hash, big-endian, then its key; `out` and `data` are addresses."""
    for i in range(len(heads)):
        if i + AHEAD < len(heads):
            prefetch(data + offsets[heads[i + AHEAD]])
        at, row = out + out_offsets[i], heads[i]
        store_u64(at, swap_u64(hashes[row]))
        copy_bytes(at + 8, data + offsets[row], offsets[row + 1] - offsets[row])


def _ranged_group(
    definition: MapDefinition, batch: pa.RecordBatch | None, starts: U64, gone: pa.Array, repeats: Repeats | None
) -> _Grouped:
    gone_ends = range_bounds(gone)[1]
    ends = gone_ends if batch is None else np.concatenate([ordered_u64(_long(batch.column("key_end"))), gone_ends])
    times = _times(definition, batch, len(gone))
    order = radix_order([starts, ends, *times])
    sorted_starts, sorted_ends = starts[order], ends[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (sorted_starts[1:] != sorted_starts[:-1]) | (sorted_ends[1:] != sorted_ends[:-1])
    chosen, spans = _that_count(order, first, times, len(gone), repeats)
    raw = np.stack([sorted_starts[first], sorted_ends[first]], axis=1).astype(">u8").reshape(-1).view(np.uint8)
    offsets = np.arange(0, len(raw) + 1, 16, dtype=np.int64)
    return _Grouped(Bytes(offsets, raw), None, spans, chosen)


# -- batches of groups --------------------------------------------------------------------------------


def _emit(schema: pa.Schema, batch: pa.RecordBatch | None, grouped: _Grouped) -> Iterator[pa.RecordBatch]:
    row_type = schema.field("rows").type.value_type
    for low in range(0, len(grouped.keys), GROUPS_PER_BATCH):
        high = min(low + GROUPS_PER_BATCH, len(grouped.keys))
        spans = grouped.starts[low : high + 1]
        chosen = grouped.order[spans[0] : spans[-1]]
        taken = _take_rows(batch, chosen, row_type)
        yield _batch_of(schema, grouped, low, high, spans - spans[0], taken)


def _batch_of(schema: pa.Schema, grouped: _Grouped, low: int, high: int, spans: I64, rows: pa.Array) -> pa.RecordBatch:
    """Some of the groups, whose rows these are."""
    columns = [_key_slice(grouped.keys, low, high)]
    if grouped.hashes is not None:
        columns.append(pa.array(grouped.hashes[low:high]))
    return pa.RecordBatch.from_arrays([*columns, *list_of_rows(schema, spans, rows)], schema=schema)


def list_of_rows(schema: pa.Schema, spans: I64, rows: pa.Array) -> list[pa.Array]:
    """The columns of groups whose rows lie between each two of the `spans`: `rows`, and of sessions their `cover`."""
    type_ = schema.field("rows").type
    columns = [pa.ListArray.from_arrays(pa.array(spans.astype(np.int32)), rows, type=type_)]
    if "cover" in schema.names:
        columns.append(_cover(rows, spans))
    return columns


def _take_rows(batch: pa.RecordBatch | None, chosen: I64, row_type: pa.DataType) -> pa.Array:
    if batch is None:
        return pa.array([], row_type)
    indices = pa.array(chosen)
    names = [field.name for field in row_type]
    return pa.StructArray.from_arrays(
        [pc.take(batch.column(name), indices, boundscheck=False) for name in names], fields=list(row_type)
    )


def _key_slice(keys: Bytes, low: int, high: int) -> pa.Array:
    offsets = keys.offsets[low : high + 1]
    return Bytes(offsets - offsets[0], keys.data[offsets[0] : offsets[-1]]).to_arrow()


def _cover(rows: pa.Array, spans: I64) -> pa.Array:
    starts, ends = (child.to_numpy() for child in rows.flatten()[:2])
    offsets, since, row = cover_sessions(spans, starts, ends)
    items = pa.StructArray.from_arrays([pa.array(since), pa.array(row)], fields=list(COVER.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, type=COVER)
