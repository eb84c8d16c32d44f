"""Answers of a node to lookups and scans of its maps: always from all entries applied there.

| asked for | answered from |
|---|---|
| one value | the shard |
| few keys, and no open snapshot is current | the shard, key by key |
| more keys | the snapshot, if it is current |
| more keys, and something was merged since | the snapshot, with what was touched as a layer in memory over it |
| more keys, and much was, or there is no snapshot | a new snapshot, frozen first |
| rows, of up to `SHARD_ROWS_BYTES` | the shard, read to the end before the first is sent |
| more rows | the snapshot, or the layer over it |

So no transaction of a shard is ever open for as long as a slow client likes: it would keep old
pages, and keep the shard from growing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.arrays.arrow_sizes import DeclaredSizes, expanded_bytes, not_an_arrow_stream
from millpond.arrays.arrow_streams import stream_pieces
from millpond.arrays.matching import matching
from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.kernel.patience import check_patience
from millpond.maps.inputs.key_columns import instants_of, keys_of
from millpond.maps.inputs.single_key import single_key
from millpond.maps.inputs.spans import Buckets
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.json_values import typed_value
from millpond.maps.model.one_value import NULL
from millpond.maps.model.values import decode_values, present_values
from millpond.maps.search.gather import ANSWER_BYTES_MAX
from millpond.nodes.fresh_snapshots import FreshSnapshots
from millpond.nodes.ponds_at_refs import is_at_ref
from millpond.times.instants import clear_instant, parse_instant

if TYPE_CHECKING:
    from millpond.maps.map import Map
    from millpond.maps.snapshots.snapshot import Snapshot

__all__ = ("LookupService", "arrow_stream", "expanded_columns", "lookup_bytes", "read_arrow_stream", "single_question")

SHARD_KEYS_MAX = 256
"""So many keys are read from a shard in about the time that it takes to lay one merge over a snapshot."""

IDLE_MS = 60_000

SHARD_ROWS_BYTES = 8 << 20
"""So much is held in memory for one answer: most answers are smaller, and need no snapshot."""

KEY_BYTES = 64
"""The memory for looking up one key: its place in the order, its hash, its position, its offsets in the answer."""

BATCH_ROWS = 65_536
_MILLIS = re.compile(r"-?[0-9]{1,18}")
_TIMES = ("at", "known_at", "since", "until")


class LookupService:
    """Answers from the maps of one pond. Threads may share it.

    A snapshot that nobody asked in `idle_ms` is let go of, its files and the layer over it.
    """

    def __init__(self, clock: Clock, idle_ms: int = IDLE_MS) -> None:
        self.clock = clock
        self._fresh = FreshSnapshots(clock, idle_ms)

    # -- one value ------------------------------------------------------------------------------------

    def get(
        self, pond_map: Map, key: str | bytes, at: str | None = None, known_at: str | None = None
    ) -> dict[str, Any]:  # fmt: skip
        """The value of a key (of a number, for ranged maps) at a time, in the form of `maps/model/json_values.py`.

        Raises: `Invalid` for a key or time the map cannot have; as `Past.leased`.
        """
        encoded, instant = single_question(pond_map.definition, key, at, self.clock)
        if encoded is None:
            return typed_value(None, pond_map.definition.shown)
        if known_at is None:
            return typed_value(*pond_map.rows.get(encoded, instant))
        with pond_map.rows.past.snapshot(_whole(known_at)) as snapshot:
            return typed_value(snapshot.get(encoded, instant), snapshot.definition.shown)

    # -- many -----------------------------------------------------------------------------------------

    def lookup(
        self, pond_map: Map, table: pa.Table, at: str | None = None, bytes_max: int = 1 << 31, *,
        known_at: str | None = None, resolution: str | None = None, window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The answers to the column `key`, at the column `at`, or all at one instant, now by default; as known at one,
        or at the column `known_at`. Of an aggregate in a `window` before the bucket of that, at a coarser `resolution`,
        or between the columns `since` and `until`.

        Raises: `Invalid` for columns that are no keys or times, and for more text in the answer than `bytes_max`; as
        `Past.lookup`.
        """
        columns = {name: _column(table, name) for name in {"key", *table.column_names} & {"key", *_TIMES}}
        keys, bytes_max = columns["key"], min(bytes_max, ANSWER_BYTES_MAX)
        bounds = tuple(columns[name] for name in ("since", "until") if name in columns) or None
        times: Any = columns.get("at", at and _whole(at))
        if times is None and pond_map.kind.timed and bounds is None:
            times = clear_instant(self.clock.now_ms())
        moments: Any = columns.get("known_at", known_at and _whole(known_at))
        if moments is not None:
            buckets = Buckets(bounds, resolution, window)
            return pond_map.rows.past.lookup(keys, times, moments, bytes_max=bytes_max, buckets=buckets)
        few = len(keys) <= SHARD_KEYS_MAX and bounds is None and resolution is None and window is None
        if few and pond_map.layers is None and self._fresh.current(pond_map) is None:
            return _from_shard(pond_map, keys, times, bytes_max)
        return self.snapshot(pond_map).lookup(
            keys, times, bytes_max=bytes_max, between=bounds, resolution=resolution, window=window
        )  # fmt: skip

    def snapshot(self, pond_map: Map) -> Snapshot:
        """A snapshot of all that is applied to a map, open; one thread makes it, others wait for it.

        Raises: `Closed`; `Unavailable` when the disk is full, or another process freezes the map for long.
        """
        return pond_map.snapshot() if is_at_ref(pond_map) else self._fresh.of(pond_map).snapshot

    def release_idle(self) -> int:
        """Let go of the snapshots that nobody asked lately; how many."""
        return self._fresh.release_idle()

    # -- rows -----------------------------------------------------------------------------------------

    def scan(
        self, pond_map: Map, where: Any, columns: Sequence[str] | None, known_at: str | int | None = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        """Rows as they are wanted, all of one moment.

        Raises: `Invalid` for a condition or columns it cannot have.
        """
        condition = [tuple(term) for term in where] if isinstance(where, list) else where
        with closing(pond_map.scan(condition, columns, known_at=known_at, resolution=resolution)) as reader:
            schema, few = reader.schema, _few(reader)
        if few is not None:
            return pa.RecordBatchReader.from_batches(schema, few)
        if known_at is not None or resolution is not None or is_at_ref(pond_map):
            return pond_map.scan(condition, columns, known_at=known_at, resolution=resolution)
        return pa.RecordBatchReader.from_batches(schema, self._rows(pond_map, condition, schema.names))

    def _rows(self, pond_map: Map, where: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
        from millpond.maps.model.display import present
        from millpond.maps.predicates.predicate import predicate
        from millpond.maps.snapshots.rows_of_groups import GroupSpan, thaw

        condition = predicate(pond_map.definition, where)
        needed = names + [name for name in condition.columns if name not in names]
        newest = self._fresh.of(pond_map)  # held until the last row: its files stay
        for rows in thaw(newest.objects, newest.snapshot.manifest, GroupSpan()):
            check_patience()
            batch = present(pond_map.definition, rows, needed)
            if condition.expression is not None:
                batch = matching(batch, condition.expression)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS).select(names)

    def close(self) -> None:
        """Let go of all snapshots, for good: questions that need one are `Closed` from then on."""
        self._fresh.close()


def single_question(
    definition: MapDefinition, key: str | bytes, at: str | None, clock: Clock
) -> tuple[bytes | int | None, int | None]:
    """A key as the shard stores it, None for a number that no range can hold, and the instant it is asked at.

    Raises: `Invalid` for a key or time the map cannot have.
    """
    instant = None
    if definition.kind.timed:
        instant = clock.now_ms() if at is None else parse_instant(_whole(at))
    return single_key(definition, key), instant


def _few(reader: pa.RecordBatchReader) -> list[pa.RecordBatch] | None:
    """All batches of a reader; None when there is more than should be held in memory."""
    few, size = [], 0
    for batch in reader:
        few.append(batch)
        size += batch.nbytes
        if size > SHARD_ROWS_BYTES:
            return None
    return few


# -- from the shard -----------------------------------------------------------------------------------


def _from_shard(pond_map: Map, keys: pa.Array, times: Any, bytes_max: int = ANSWER_BYTES_MAX) -> pa.Array:
    from millpond.arrays.byte_columns import bytes_of
    from millpond.maps.snapshots.snapshot import answer_type

    definition = pond_map.definition
    instants, in_range = instants_of(definition, times, len(keys))
    stored_keys = [key.encode() if isinstance(key, str) else key for key in keys_of(definition, keys).to_pylist()]
    values: list[Any] = []
    size = 0
    for row, key in enumerate(stored_keys):
        missing = key is None or (len(in_range) and not in_range[row])
        at = int(instants[0 if len(instants) == 1 else row]) if definition.kind.timed else None
        values.append(None if missing else pond_map.rows.get(key, at)[0])
        size += len(values[-1]) if isinstance(values[-1], bytes) else 0
        if size > bytes_max:
            raise Invalid(
                "the answer is too large for one array", kind="answer_too_large", bytes=size, bytes_max=bytes_max,
                hint="ask for fewer keys at once",
            )  # fmt: skip
    kind = answer_type(definition)
    if definition.kind is Kind.SESSION:
        sessions = [None if session is None else {"start": session[0], "end": session[1]} for session in values]
        plain = pa.struct([("start", pa.int64()), ("end", pa.int64())])
        return pa.array(sessions, plain).cast(kind)
    encoded = pa.array([NULL if session is None else session for session in values], pa.binary())
    if definition.value is None:
        return present_values(encoded)[1]
    return decode_values(bytes_of(encoded), definition.shown).cast(value_arrow(definition.shown))


# -- Arrow over the network---------------------------------------------------------------------------


def read_arrow_stream(body: bytes | bytearray) -> pa.Table:
    """The table of an Arrow stream, checked to the last offset: kernels read it by its addresses.

    Raises: `Invalid` when it is no Arrow stream, or one that contradicts itself.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise not_an_arrow_stream(error) from error
    return table


def lookup_bytes(body: int, sizes: DeclaredSizes, bytes_max: int) -> int:
    """The memory that a bulk lookup takes: its body, what is decompressed, a copy to join batches, and the work by key.

    >>> lookup_bytes(1000, DeclaredSizes(batches=1, rows=10, elements=10, buffers=500, decoded=500), 1 << 20)
    2140

    Raises: `Invalid`, kind `lookup_too_large`, for more than a node has for all requests.
    """
    joined = sizes.buffers if sizes.batches > 1 else 0
    needed = body + sizes.decoded + joined + sizes.elements * KEY_BYTES
    if needed > bytes_max:
        raise Invalid(
            "the lookup takes more memory than the node has for requests", kind="lookup_too_large", rows=sizes.rows,
            bytes=needed, bytes_max=bytes_max, hint="look up fewer keys at once, or read a snapshot",
        )  # fmt: skip
    return needed


def expanded_columns(table: pa.Table) -> int:
    """The bytes of dictionary-encoded keys and times once each row has its own value.

    Raises: `Invalid`, kind `key_type`, for types whose rows share bytes in other ways: a few bytes may stand for many.
    """
    expanded = 0
    for name in {*table.column_names} & {"key", *_TIMES}:
        for chunk in _column(table, name).chunks:
            if _shares_bytes(chunk.type):
                raise Invalid(
                    "the keys cannot be read", kind="key_type", column=name, type=chunk.type,
                    hint="cast them to a plain type first",
                )  # fmt: skip
            expanded += expanded_bytes(chunk)
    return expanded


def _shares_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _shares_bytes(kind.value_type) or pa.types.is_dictionary(kind.value_type)
    return pa.types.is_run_end_encoded(kind) or kind in (pa.string_view(), pa.binary_view())


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if table.column_names.count(name) != 1:
        raise Invalid(
            "a column is missing", kind="column_missing", column=name, columns=", ".join(table.column_names),
            hint="send one column key and, for a time each, one column at",
        )  # fmt: skip
    return table.column(name)


def arrow_stream(reader: pa.RecordBatchReader) -> Iterator[bytes]:
    """A reader's batches as the bytes of a stream, as they come; the reader is closed with the iterator."""
    with closing(reader):
        yield from stream_pieces(reader.schema, reader)


def _whole(at: str) -> str | int:
    """An instant as a query tells it: UTC milliseconds, or text with a zone."""
    return int(at) if _MILLIS.fullmatch(at) else at
