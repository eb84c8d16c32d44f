"""Validating a part: it comes from a writer, and is merged on every node, so it is trusted only after this.

    structure      LMDB can read the data and write on in it: `stores/lmdb/page_check.py`
    rows           each is a row of the map, in its one form: `row_check.py`
    id             it is made of these rows, and of no others
    buckets        those of an aggregate are such as events make
    touched        names the keys of these rows, each once
    manifest       its counts and bounds are those of the rows

Without the third, a writer of one map could use up the id of a part of another, whose load would then seem to be there.
The rows are read once for their keys and once for their values, in pieces of some megabytes. LMDB itself opens the file
only when it has several rows under one key, and only after its structure was checked.

Rows of an aggregate combine with those that are there: one that no event can have brought would spoil its bucket for
good. So of buckets it is checked, beside the invariants of `row_check.py`:
* a time is the start of a bucket; a key of an aggregate with tags is a set of tags in its one form;
* a count is there and not below zero, no number is NaN, and none that is added is infinite;
* a sketch is one that the library reads, of the form that Millpond writes;
* the instant of a first or latest value is there where the value is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import Bytes
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Corrupt, MillpondError
from millpond.maps.inputs.tags import to_tags
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.event_digest import digest_and_salt
from millpond.maps.model.rolled_up import shown_starts
from millpond.maps.model.sketches import is_sound
from millpond.maps.parts.part import PART_FORMAT, PART_ROWS_MAX, ContentId, PartManifest, open_part
from millpond.maps.parts.row_check import CheckedRows, RowCheck
from millpond.maps.parts.tail import DATA, TOUCHED, damaged, read_tail
from millpond.maps.parts.touched import read_touched
from millpond.maps.search.combining import fields_of
from millpond.maps.shard.layouts import decode_rows
from millpond.maps.shard.row_batches import column_of
from millpond.maps.shard.tables import HASHED, row_tables
from millpond.stores.lmdb.page_check import CheckedFile, CheckedTable, check_file

__all__ = ("validate_part",)

ROWS_MAX = 2 * PART_ROWS_MAX
"""The most rows of a part: a writer seals it when it has `PART_ROWS_MAX`. Validating takes some 40 bytes for each."""
PIECE_BYTES = 1 << 20

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def validate_part(file: Path, manifest: PartManifest, definition: MapDefinition) -> None:
    """Check what a part of a map holds, see above; it has the checksums of its manifest.

    Raises: `Corrupt`, kind `part_damaged`, `part_rows`, `part_manifest` or `part_other`.
    """
    definition = _check_manifest(file, manifest, definition)
    tables = row_tables(definition)
    checked = check_file(file, manifest.data_bytes, {table: table == HASHED for table in tables})
    _same(file, "tables", {table.name: table.rows for table in checked.tables}, manifest.tables)
    content = _Content(definition, manifest)
    ordered = {table.name: table for table in checked.tables}
    for name in manifest.tables:
        content.read(file, checked, ordered[name])
    _same(file, "rows", content.rows, manifest.rows)
    _same(file, "least", content.least, manifest.least)
    _same(file, "greatest", content.greatest, manifest.greatest)
    _same(file, "longest_session", content.longest, manifest.longest_session)
    if manifest.format == PART_FORMAT and content.id.hexdigest() != manifest.id:
        raise Corrupt(
            "the part has an id that its rows do not make", kind="part_other", part=manifest.id, map=manifest.map,
            found=content.id.hexdigest(), hint="seal its rows again",
        )  # fmt: skip
    _check_touched(file, content.key_hashes)


def _same(file: Path, name: str, actual: object, stated: object) -> None:
    if actual != stated:
        raise Corrupt(
            "the part's manifest states what its rows are not", kind="part_manifest", file=file,
            field=name, stated=stated, found=actual,
        )  # fmt: skip


def _check_manifest(file: Path, manifest: PartManifest, definition: MapDefinition) -> MapDefinition:
    """Check what can be checked before any row is read; the definition that the rows were written under.

    The fields of a layered map may have changed since.
    """
    try:
        # Mostly it is the same to the letter, and need not be read.
        written, sound = definition, manifest.definition == definition.to_dict()
        if not sound:
            written = MapDefinition.from_dict(manifest.definition)
            layered = definition.store is Store.LAYERS
            alike = replace(definition, value=written.value) if layered and definition.value else definition
            sound = written.same_shape(alike) and written.incarnation == definition.incarnation
    except (MillpondError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt("the part's manifest cannot be read", kind="part_manifest", file=file, reason=error) from error
    _same(file, "map", definition.name, manifest.map)
    _same(file, "incarnation", definition.incarnation, manifest.incarnation)
    if not sound:
        raise Corrupt(
            "the part was written for a map of another shape", kind="part_manifest", file=file,
            map=definition.name,
        )  # fmt: skip
    _same(file, "data_bytes", read_tail(file)[0].data_bytes, manifest.data_bytes)
    if written.aggregation is not None and digest_and_salt(manifest.salt) is None:
        raise Corrupt(
            "the part does not say which events it is of", kind="part_manifest", file=file,
            salt=manifest.salt, hint="seal its rows again",
        )  # fmt: skip
    if not 0 < manifest.rows <= ROWS_MAX:
        raise Corrupt(
            "the part has no rows, or too many", kind="part_manifest", file=file,
            rows=manifest.rows, rows_max=ROWS_MAX,
        )  # fmt: skip
    return written


@dataclass(slots=True)
class _Content:
    """The facts that the rows of a part make."""

    definition: MapDefinition
    manifest: PartManifest
    rows: int = 0
    least: list[int] | None = None
    greatest: list[int] | None = None
    longest: int = 0
    key_hashes: list[U64] = field(default_factory=list)
    id: ContentId = field(init=False)

    def __post_init__(self) -> None:
        self.id = ContentId(self.definition, self.manifest.salt)

    def read(self, file: Path, checked: CheckedFile, table: CheckedTable) -> None:
        self.rows += table.rows
        self.id.begin_table(table.name, table.rows)
        if not table.rows:
            raise damaged(file, DATA, reason=f"table {table.name} is empty")
        check = RowCheck(self.definition, table.name)
        if table.several:
            self._add_columns(check, *_by_cursor(file, table))
            return
        self.id.add(table.key_offsets)
        for start, stop in _pieces(table.key_offsets):
            self.id.add(checked.keys(table, start, stop)[1])
        self.id.add(table.value_offsets)
        for start, stop in _pieces(table.key_offsets + table.value_offsets):
            # The last row of the piece before shows how the first one of this follows it.
            repeated = int(start > 0)
            keys = Bytes(*checked.keys(table, start - repeated, stop))
            values = Bytes(*checked.values(table, start - repeated, stop))
            self.id.add(values.data[values.offsets[repeated] :])
            self._check(check, keys, values, repeated)

    def _add_columns(self, check: RowCheck, keys: Bytes, values: Bytes) -> None:
        for column in (keys, values):
            self.id.add(column.offsets)
            self.id.add(column.data)
        self._check(check, keys, values, 0)

    def _check(self, check: RowCheck, keys: Bytes, values: Bytes, repeated: int) -> None:
        self._note(check.check(keys, values, repeated))
        if self.definition.aggregation is not None:
            _check_buckets(self.definition, decode_rows(self.definition, check.table, keys, values))

    def _note(self, rows: CheckedRows) -> None:
        self.key_hashes.append(rows.key_hashes)
        self.longest = max(self.longest, rows.longest)
        if rows.least:
            bounds = self.least or rows.least, self.greatest or rows.greatest
            self.least = [min(pair) for pair in zip(bounds[0], rows.least, strict=True)]
            self.greatest = [max(pair) for pair in zip(bounds[1], rows.greatest, strict=True)]


def _pieces(offsets: I64) -> Iterator[tuple[int, int]]:
    """Rows of some megabytes, `[start, stop)`."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        stop = int(np.searchsorted(offsets, offsets[start] + PIECE_BYTES, side="right")) - 1
        stop = min(max(stop, start + 1), start + PIECE_BYTES // 16, rows)
        yield start, stop
        start = stop


def _by_cursor(file: Path, table: CheckedTable) -> tuple[Bytes, Bytes]:
    """The columns of a table whose structure was checked, by LMDB's own cursor."""
    with open_part(file) as env:
        db = env.open_db(table.name.encode(), create=False)
        with env.begin(db=db) as tx:
            keys, values = zip(*tx.cursor(), strict=True)
    return column_of(keys), column_of(values)


def _check_touched(file: Path, pieces: list[U64]) -> None:
    """Check that `touched` names the keys with these hashes, each once, in any order."""
    expected = np.concatenate(pieces)
    hashes = hash_keys(read_touched(file))
    if np.array_equal(hashes, expected):
        return
    # Rows of several tables, or of clashing keys, are not in the order of their keys.
    if not np.array_equal(np.sort(hashes), np.unique(expected)):
        raise damaged(file, TOUCHED, reason="it does not name the keys of the rows, each once")


def _check_buckets(definition: MapDefinition, rows: pa.RecordBatch) -> None:
    """Check canonical rows of an aggregate.

    Raises: `Corrupt`, kind `part_rows`, naming the fault.
    """
    assert definition.aggregation is not None, "an aggregate has one"
    fault = _fault_of_addresses(definition, rows) or _fault_of_values(definition, rows.column("value"))
    if fault:
        raise Corrupt(
            "the part holds rows that its map cannot have", kind="part_rows", map=definition.name, reason=fault
        )


def _fault_of_addresses(definition: MapDefinition, rows: pa.RecordBatch) -> str:
    times = rows.column("time").to_numpy()
    if not np.array_equal(shown_starts(definition.aggregation, times), times):  # type: ignore[arg-type]
        return "a time is not the start of a bucket"
    if definition.tagged:
        keys = rows.column("key")
        tags = to_tags(keys.cast(pa.string()))
        if tags.faults or not tags.values.equals(keys):
            return "a key is no set of tags"
    return ""


def _fault_of_values(definition: MapDefinition, values: pa.StructArray) -> str:
    if values.null_count:
        return "a row has no value"
    for own in fields_of(definition):
        column = values.field(own.name)
        if own.rule is Rule.COUNT and (column.null_count or _any(pc.less(column, 0))):
            return f"{own.name} is no count"
        if pa.types.is_floating(column.type):
            if _any(pc.is_nan(column)):
                return f"{own.name} is NaN"
            if own.rule is Rule.SUM and _any(pc.is_inf(column)):
                return f"{own.name} is infinite"
        if own.rule.sketched and not is_sound(own.rule, column):
            return f"{own.name} is no sketch"
        if own.instant is not None and _any(pc.xor(column.is_valid(), values.field(own.instant).is_valid())):
            return f"{own.name} has no instant, or an instant no value"
    return ""


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags).as_py())
