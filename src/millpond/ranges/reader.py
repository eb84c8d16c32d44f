"""Reading ranges: open one, find keys, scan between keys in either direction.

From a folder a range is memory-mapped and nothing is copied; its checksum is verified when this process opens it
for the first time. From elsewhere it is fetched whole and verified, or a block of it is. Only the ranges that hold
something wanted are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import Corrupt, NotFound
from millpond.ranges.blocks import block_in, filter_of
from millpond.ranges.cache import CachedObjects
from millpond.ranges.canonical import canonical
from millpond.ranges.files import read_sealed
from millpond.ranges.index import Index, RangeEntry, Source, load_index, quarantine_name, range_name
from millpond.ranges.key_columns import KeyColumn, find_rows, key_column, lower_bound, search
from millpond.ranges.messages import plain_message
from millpond.stores.objects import Objects, Part, PartsRead, fetch_parts
from millpond.stores.verified import verify_once

__all__ = (
    "RangeReader", "fetch_blocks", "find", "get", "open_filter", "open_index", "open_range", "range_bytes", "scan",
)  # fmt: skip


def range_bytes(objects: Source, entry: RangeEntry) -> pa.Buffer:
    """The file of a range, unverified.

    Raises: `NotFound`.
    """
    name = range_name(entry.id)
    try:
        return objects.get(name)
    except NotFound as error:
        if error.kind != "object_not_found":
            raise  # a source that knows more
        raise NotFound(
            "a range is missing", kind="range_not_found", object=name, where=error.values.get("where", objects.where),
            hint="read again, if a purge removed it; else put it back from a copy, or make anew what has it",
        ) from error  # fmt: skip


def open_range(objects: Objects, entry: RangeEntry, *, verify: bool = False, keep: bool = True) -> pa.RecordBatch:
    """The entries of a range, memory-mapped where objects are files. Without `keep`, a cache does not hold them.

    All bytes are read and their checksum is made: of a file when this process opens it first, or to `verify`; of what
    comes from elsewhere always.

    Raises: `NotFound`; `Corrupt`, or `Invalid` for a file of another format. They name the file.
    """
    if isinstance(objects, CachedObjects):
        return objects.opened_range(entry.id, lambda: _open_range(objects.inner, entry, verify=True), keep=keep)
    return _open_range(objects, entry, verify=verify)


def _open_range(objects: Objects, entry: RangeEntry, *, verify: bool) -> pa.RecordBatch:
    name = range_name(entry.id)
    try:
        data = range_bytes(objects, entry)
    except NotFound:
        # Only when it is missing: to look for it each time would cost a request.
        _refuse_quarantined(objects, name)
        raise

    def read(*, check: bool) -> pa.RecordBatch:
        return read_sealed("range", entry.id, data, name=name, where=objects.where, verify=check)

    file = objects.local_path(name)
    if verify or file is None:
        batch = read(check=True)
    else:
        # Raises for a file that is not sound, so that one is not remembered as verified.
        verify_once(file, lambda: read(check=True) is not None)
        batch = read(check=False)
    # Whoever reads goes by the count of the index, which would lead beyond the rows where it is wrong.
    if batch.num_rows != entry.count or batch.schema.get_field_index("key") < 0:
        raise Corrupt("the range is not what its index says", kind="range_damaged", object=name, where=objects.where)
    # The seal and the forms are of the file; schemas are compared without them.
    return batch.replace_schema_metadata(None)


def _refuse_quarantined(objects: Objects, name: str) -> None:
    """Say of a range that was found damaged that it is so still.

    Raises: `Corrupt`.
    """
    if objects.exists(quarantine := quarantine_name(name)):
        raise Corrupt(
            "the range was damaged, and is in quarantine", kind="range_damaged", object=name, where=objects.where,
            quarantine=quarantine, hint="millpond repair POND --from PLACE puts it back, from a copy or a backup",
        )  # fmt: skip


def fetch_blocks(
    objects: Objects, entry: RangeEntry, numbers: Sequence[int], schema: pa.Schema
) -> Callable[[], list[pa.RecordBatch]]:  # fmt: skip
    """Read blocks of a range, which ascend, by one request with those between them. What is returned verifies them, and
    has their entries.

    Bytes without their checksum may be those of a writer that put the same entries otherwise: the file tells, which is
    fetched whole then.

    Raises: as `open_range`.
    """
    table = entry.blocks
    assert table is not None, "the range has blocks"
    fetched, opened = range(numbers[0], numbers[-1] + 1), set(numbers)
    parts = [Part(*table.spans[number], table.checksums[number], plain_message, number in opened) for number in fetched]
    read = _fetch_parts(objects, entry, parts)

    def blocks() -> list[pa.RecordBatch]:
        made = [
            None if data is None else block_in(pa.py_buffer(data), schema, table.firsts[number], table.rows[number])
            for number, data in zip(fetched, read(), strict=True)
            if number in opened
        ]
        sound = [block for block in made if block is not None]
        if len(sound) == len(made):
            return sound
        whole, begins = open_range(objects, entry, verify=True), [0, *accumulate(table.rows)]
        return [canonical(whole.slice(begins[number], table.rows[number])) for number in numbers]

    return blocks


def _fetch_parts(objects: Objects, entry: RangeEntry, parts: Sequence[Part]) -> Callable[[], PartsRead]:
    """Read neighbouring parts of a range's file; None for those without their checksum."""
    try:
        return fetch_parts(objects, range_name(entry.id), parts)
    except NotFound:
        return lambda: [None] * len(parts)  # to be named as a range that is missing


def open_filter(objects: Objects, entry: RangeEntry) -> pa.Buffer:
    """The filter of a range that stands in its file alone, fetched and verified; as of `fetch_blocks`, the file tells
    where its bytes are not those of the index.

    Raises: as `open_range`.
    """
    table = entry.blocks
    assert table is not None, "the index says that there is one"
    [data] = _fetch_parts(objects, entry, [Part(*table.filter_span, table.filter_checksum)])()
    return filter_of(open_range(objects, entry, verify=True).column("key")) if data is None else pa.py_buffer(data)


@dataclass(slots=True)
class RangeReader:
    """An index and the ranges of it that were opened; they stay open, and mapped, as long as the reader lives."""

    objects: Objects
    index: Index
    verify: bool = False
    _opened: dict[int, pa.RecordBatch] = field(default_factory=dict)
    _fences: tuple[KeyColumn, KeyColumn] | None = None

    def batch(self, range_no: int) -> pa.RecordBatch:
        """The entries of one range by its place in the index.

        Raises: `NotFound`, `Corrupt`.
        """
        opened = self._opened.get(range_no)
        if opened is None:
            opened = open_range(self.objects, self.index.entries[range_no], verify=self.verify)
            if not opened.schema.equals(self.index.schema):
                raise self._damaged(range_no, "the columns of the range are not those of its index")
            opened = self.index.show(opened)
            self._opened[range_no] = opened
        return opened

    def keys(self, range_no: int) -> KeyColumn:
        """The keys of one range.

        Raises: `NotFound`, `Corrupt`.
        """
        # Kernels follow offsets wherever they lead. The checksum does not exclude that they were written wrong, nor
        # that the disk gives other bytes than when it was made.
        keys = key_column(self.batch(range_no).column("key"))
        if len(keys) != self.index.entries[range_no].count or not keys.sound():
            raise self._damaged(range_no, "keys lie outside of the range")
        return keys

    def _damaged(self, range_no: int, reason: str) -> Corrupt:
        name = range_name(self.index.entries[range_no].id)
        return Corrupt(reason, kind="range_damaged", object=name, where=self.objects.where)

    def find(self, keys: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """For each key its range and its row there; both -1 where it is not. Nulls are nowhere.

        Raises: `NotFound`, `Corrupt`.
        """
        columns_wanted, valid = _key_array(keys)
        columns = key_column(columns_wanted)
        range_nos = np.full(len(columns_wanted), -1, np.int32)
        rows = np.full(len(columns_wanted), -1, np.int32)
        # Keys are sorted by their ranges, so that each range is opened once, however the keys come. Those that lie in
        # none are -1, and stand before the first.
        places = self._places(columns, valid)
        order = np.argsort(places, kind="stable")
        starts = np.searchsorted(places[order], np.arange(len(self.index.entries) + 1))
        for range_no in np.flatnonzero(np.diff(starts)).tolist():
            rows_wanted = order[starts[range_no] : starts[range_no + 1]]
            matches = self._find_in(range_no, columns, rows_wanted)
            here = rows_wanted[matches >= 0]
            range_nos[here], rows[here] = range_no, matches[matches >= 0]
        return range_nos, rows

    def _places(self, keys: KeyColumn, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """The range whose span holds each key; -1 for none."""
        firsts, lasts = self._fence()
        wanted_rows = np.flatnonzero(valid)
        # The first range that does not end below the key. It does not begin above it, either, if more ranges begin at
        # or below the key than stand before it.
        place = np.empty(len(wanted_rows), np.int64)
        search(lasts.offsets, lasts.data, keys.offsets, keys.data, wanted_rows, False, place)
        below = np.empty(len(wanted_rows), np.int64)
        search(firsts.offsets, firsts.data, keys.offsets, keys.data, wanted_rows, True, below)
        places = np.full(len(keys), -1, np.int64)
        places[wanted_rows] = np.where(below > place, place, -1)  # first ≤ key ≤ last
        return places

    def _fence(self) -> tuple[KeyColumn, KeyColumn]:
        if self._fences is None:
            firsts = pa.array([entry.first for entry in self.index.entries], pa.binary())
            lasts = pa.array([entry.last for entry in self.index.entries], pa.binary())
            self._fences = key_column(firsts), key_column(lasts)
        return self._fences

    def _find_in(self, range_no: int, sought: KeyColumn, wanted_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        keys = self.keys(range_no)
        rows = np.empty(len(wanted_rows), np.int64)
        find_rows(keys.offsets, keys.data, sought.offsets, sought.data, wanted_rows, rows)
        return rows

    def get(self, key: bytes) -> pa.RecordBatch | None:
        """The entry of one key as a batch of one row, or None.

        Raises: `NotFound`, `Corrupt`.
        """
        range_nos, rows = self.find(pa.array([key], pa.binary()))
        return None if range_nos[0] < 0 else self.batch(int(range_nos[0])).slice(int(rows[0]), 1)

    def scan(
        self,
        lower: bytes | None = None,
        upper: bytes | None = None,
        *,
        reverse: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Entries with `lower` ≤ key < `upper` in order, or from the last to the first; one batch a range.

        Raises: `NotFound`, `Corrupt`.
        """
        numbers = range(len(self.index.entries))
        for range_no in reversed(numbers) if reverse else numbers:
            entry = self.index.entries[range_no]
            # By the index alone, so that no range is opened for nothing.
            if (upper is not None and entry.first >= upper) or (lower is not None and entry.last < lower):
                continue
            start, stop = self._span(range_no, lower, upper)
            batch = self.batch(range_no).slice(start, stop - start)
            if columns is not None:
                batch = batch.select(list(columns))
            if reverse:
                batch = batch.take(pa.array(np.arange(batch.num_rows - 1, -1, -1)))
            if batch.num_rows:
                yield batch

    def _span(self, range_no: int, lower: bytes | None, upper: bytes | None) -> tuple[int, int]:
        """The rows of a range with `lower` ≤ key < `upper`."""
        entry = self.index.entries[range_no]
        # A bound that is not within the range needs no look at its keys.
        start = 0 if lower is None or lower <= entry.first else lower_bound(self.keys(range_no), lower)
        stop = entry.count if upper is None or entry.last < upper else lower_bound(self.keys(range_no), upper)
        # With bounds the wrong way round, nothing.
        return start, max(start, stop)


def _key_array(keys: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Keys as one binary array without nulls, and which of them are asked for."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    if keys.null_count == 0:
        return keys, np.ones(len(keys), np.bool_)
    return keys, keys.is_valid().to_numpy(zero_copy_only=False)


def open_index(objects: Objects, index: Index | str, *, verify: bool = False) -> RangeReader:
    """A reader of an index, or of the one of that id.

    Raises: `NotFound`, `Corrupt`.
    """
    return RangeReader(objects, load_index(objects, index) if isinstance(index, str) else index, verify)


def find(
    objects: Objects, index: Index, keys: pa.Array | pa.ChunkedArray
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """`RangeReader.find` for once."""
    return RangeReader(objects, index).find(keys)


def get(objects: Objects, index: Index, key: bytes) -> pa.RecordBatch | None:
    """`RangeReader.get` for once."""
    return RangeReader(objects, index).get(key)


def scan(
    objects: Objects,
    index: Index,
    lower: bytes | None = None,
    upper: bytes | None = None,
    *,
    reverse: bool = False,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """`RangeReader.scan` for once: only one range is held open at a time."""
    numbers = range(len(index.entries))
    for range_no in reversed(numbers) if reverse else numbers:
        # A reader keeps what it opened; one of a single range lets go of it before the next.
        single = replace(index, entries=(index.entries[range_no],))
        yield from RangeReader(objects, single).scan(lower, upper, reverse=reverse, columns=columns)
