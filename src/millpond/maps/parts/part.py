"""A part: the rows that one task brings to one map, sealed in one file.

    data         an LMDB environment with the tables of `tables.py`, written in order
    touched      the distinct keys (ranged maps: 16-byte ordered ranges), for the next freeze
    manifest     what it is: id, map, layout, counts, bounds, checksums
    tail         where in the file they lie, see `tail.py`

One file, and no folder: to make an inode, or to remove one, costs more than to write a small part's bytes.

Invariants:
* LMDB reads the file where it lies: its pages are the first of it, and it looks at nothing behind its last one;
* rows within a part are unique by address: of equal ones the later was kept, or the first where the map says
  `overwrite=False`;
* the id depends on the map and its rows alone, so the same data loaded twice is one part;
* rows of an aggregate are of buckets. Its salt begins with the digest of the events that they are of, and has a number
  of the place where it was sealed: the events, not the parts, are known again, see `event_digest.py`;
* a part without a tail is unfinished and never read; one with a tail that says so is complete, and on disk once who
  sealed it has said so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from millpond.errors import Corrupt
from millpond.json_forms import FormError, JsonForm, format_of, parse_object, stable_json, to_json
from millpond.kernel.steps import step
from millpond.maps.model.address import long_column
from millpond.maps.model.columns import canonical_schema, check_columns
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.event_digest import digest_of, digest_salt
from millpond.maps.parts.data_file import write_data
from millpond.maps.parts.rows import part_rows_of
from millpond.maps.parts.tail import DATA, MANIFEST, TOUCHED, Tail, damaged, read_tail, unknown_format
from millpond.maps.parts.touched import touched_bytes
from millpond.maps.search.rows_of_buckets import combined_rows
from millpond.maps.shard.layouts import TableRows
from millpond.memory_bound import memory_bound
from millpond.stores.files import checksum_file, disk_errors, remove_tree
from millpond.stores.lmdb.environment import open_environment

__all__ = (
    "PART_FORMAT", "UNSALTED_FORMAT", "ContentId", "PartFile", "PartManifest", "PartWriter", "is_part", "open_part",
    "parse_manifest", "read_manifest", "verify_part",
)  # fmt: skip

PART_FORMAT = 3
"""The manifest, and what it speaks of; the file around them has a number of its own."""
UNSALTED_FORMAT = 2
"""The format before: its manifest names no salt. What was queued in it is merged; no part of it is accepted."""
_Scalar: TypeAlias = str | int | float | bool
_Nested: TypeAlias = dict[str, _Scalar | list[_Scalar | dict[str, _Scalar | list[str]]]]
"""The ids of fields that changed and the aggregation, as a definition holds them: `FieldIds`, `Aggregation`."""
SEALING_SHARE = 6
"""Sealing takes about so many times the bytes of its rows: to sort them, to encode them, and to fill pages."""
PART_ROWS_MAX = 4_000_000
"""More rows in one part need more memory to sort; fewer make more parts to merge."""
PART_BYTES_MAX = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartManifest:
    """The content of a part. Times and numbers are the least and greatest of its addresses.

    Invariant: no value nests deeper than the computed fields of an aggregate do, so that a manifest is read and hashed
    in any depth of calls.
    """

    format: int
    id: str
    map: str
    incarnation: str
    definition: dict[str, _Scalar | _Nested | None]
    rows: int
    tables: dict[str, int]
    least: list[int] | None
    greatest: list[int] | None
    longest_session: int
    source: str
    data_bytes: int
    data_checksum: str
    touched_checksum: str
    salt: str = ""


_MANIFEST = JsonForm(PartManifest)


@dataclass(frozen=True, slots=True)
class PartFile:
    """A sealed part and where it lies."""

    file: Path
    manifest: PartManifest


def read_manifest(file: Path) -> PartManifest:
    """The manifest of a part.

    Raises: `Corrupt` when the file is missing, is no whole part or is not understood.
    """
    return _read(file)[1]


def _read(file: Path) -> tuple[Tail, PartManifest]:
    tail, text = read_tail(file)
    manifest = parse_manifest(text, file)
    if tail.data_bytes != manifest.data_bytes:
        raise damaged(file, DATA, found=tail.data_bytes, wanted=manifest.data_bytes)
    return tail, manifest


def parse_manifest(text: bytes, file: Path | str) -> PartManifest:
    """The manifest that a text is; errors name the file in which it lies, or will.

    Raises: `Corrupt` when it is damaged or not understood.
    """
    try:
        number = format_of(text)
        if number not in (PART_FORMAT, UNSALTED_FORMAT):
            raise unknown_format(file, number, PART_FORMAT)
        payload = parse_object(text)
        stated = payload.pop("checksum", None)
        manifest = _MANIFEST.build(payload)
    except (FormError, RecursionError) as error:
        raise Corrupt(
            "the part's manifest cannot be read", kind="part_manifest", piece=MANIFEST, file=file, reason=error
        ) from error  # fmt: skip
    actual = _checksum(payload)
    if actual != stated:
        raise damaged(file, MANIFEST, found=actual, wanted=stated)
    return manifest


def is_part(file: Path, id_: str) -> bool:
    """True when a file has this part, as it was sealed."""
    try:
        return verify_part(file).id == id_
    except Corrupt:
        return False


def _checksum(payload: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(stable_json(payload))


def verify_part(file: Path) -> PartManifest:
    """Compare a part with the checksums of its manifest.

    Raises: `Corrupt` naming the piece that is damaged.
    """
    tail, manifest = _read(file)
    for piece, start, stop, stated in (
        (DATA, 0, tail.data_bytes, manifest.data_checksum),
        (TOUCHED, tail.data_bytes, tail.manifest_start, manifest.touched_checksum),
    ):  # fmt: skip
        try:
            actual = checksum_file(file, start, stop)
        except FileNotFoundError as error:  # it was moved meanwhile
            raise Corrupt("the part's file is missing", kind="part_file_missing", file=file) from error
        if actual != stated:
            raise damaged(file, piece, found=actual, wanted=stated)
    return manifest


@contextmanager
def open_part(file: Path) -> Iterator[lmdb.Environment]:
    """The part's environment, to read.

    Raises: `Corrupt` naming the file when LMDB refuses it.
    """
    try:
        env = open_environment(
            lambda: lmdb.open(str(file), subdir=False, readonly=True, lock=False, max_dbs=8, readahead=True)
        )
    except lmdb.Error as error:
        reason = str(error).removeprefix(f"{file}: ")
        raise Corrupt(
            "the part cannot be opened", kind="part_damaged", piece=DATA, file=file, reason=reason
        ) from error  # fmt: skip
    try:
        yield env
    finally:
        env.close()


class PartWriter:
    """Takes canonical rows and seals them into parts under `folder`; needs no pond, so Spark tasks use it.

    Rows are kept in memory up to `PART_ROWS_MAX`, or the share of `memory_max` that leaves room to sort and encode
    them; then a part is sealed and the next begun: `finish` gives them in order. What was written is thrown away by
    `abort`.
    """

    def __init__(
        self, definition: MapDefinition, folder: Path | str, *, source: str = "", salt: str = "",
        memory_max: int | None = None,
    ) -> None:  # fmt: skip
        """`memory_max`: the bytes of memory that sealing may take; by default what the environment says."""
        self.definition = definition
        self.folder = Path(folder)
        self.source = source
        self.salt = salt
        self._schema = canonical_schema(definition)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._digest = 0
        self._bytes_max = min(PART_BYTES_MAX, memory_bound(memory_max) // SEALING_SHARE)
        self._sealed: list[PartFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take canonical rows, in their order.

        Raises: `Invalid` when the columns are not the map's; kind `sum_overflow`.
        """
        check_columns(rows, self._schema, self.definition.name)
        if rows.num_rows == 0:
            return
        if self.definition.aggregation is not None:
            self._digest += digest_of(self.definition, rows)
        self._batches.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= PART_ROWS_MAX or self._bytes >= self._bytes_max:
            self._seal()

    def finish(self) -> list[PartFile]:
        """Seal what is left; the parts in the order they were written."""
        self._seal()
        return self._sealed

    def close(self) -> None:
        """Nothing: what was sealed stays. The method is there because `LayerWriter` has it."""

    def abort(self) -> None:
        """Remove everything that was written."""
        self._batches, self._rows, self._bytes = [], 0, 0
        remove_tree(self.folder)

    def _seal(self) -> None:
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        batches = table.to_batches()
        digest, self._digest = self._digest, 0
        self._batches, self._rows, self._bytes = [], 0, 0
        assert len(batches) == 1, "a part is small enough for one batch"
        place = self.folder / f"part-{len(self._sealed):05d}"
        salt = digest_salt(digest, self.salt, xxhash.xxh3_64_hexdigest(bytes(place)))
        with disk_errors(place):
            self._sealed.append(_seal(self.definition, batches[0], place, self.source, salt))


def _seal(definition: MapDefinition, rows: pa.RecordBatch, file: Path, source: str, salt: str) -> PartFile:
    """Write one part from canonical rows in their order of arrival."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if definition.aggregation is not None:
        rows = combined_rows(definition, rows)
    sealed = part_rows_of(definition, rows)
    data_bytes, data_checksum = write_data(file, sealed.tables)
    step("part.data_written")
    touched, longs = touched_bytes(sealed.touched), _bounds(definition, rows)
    manifest = PartManifest(
        format=PART_FORMAT, id=_id_of(definition, sealed.tables, salt), map=definition.name,
        incarnation=definition.incarnation, definition=definition.to_dict(), rows=sealed.count,
        tables={table.table: len(table.keys) for table in sealed.tables}, least=longs[0], greatest=longs[1],
        longest_session=_longest(definition, rows), source=source,
        data_bytes=data_bytes, data_checksum=data_checksum,
        touched_checksum=xxhash.xxh3_128_hexdigest(touched), salt=salt,
    )  # fmt: skip
    payload = _MANIFEST.plain(manifest)
    signed = to_json({**payload, "checksum": _checksum(payload)}, indent=1)
    with file.open("ab") as target:
        target.writelines((touched, signed, Tail(data_bytes, len(touched), len(signed)).pack()))
        target.flush()
        os.fsync(target.fileno())
    # The file's own name need not be durable: who adopts the part moves it, and makes the new name so.
    step("part.sealed")
    return PartFile(file, manifest)


def _bounds(definition: MapDefinition, rows: pa.RecordBatch) -> tuple[list[int] | None, list[int] | None]:
    columns = [long_column(rows, name) for name in definition.kind.address if name != "key"]
    if not columns:
        return None, None
    return [int(column.min()) for column in columns], [int(column.max()) for column in columns]


def _longest(definition: MapDefinition, rows: pa.RecordBatch) -> int:
    if definition.kind is not Kind.SESSION:
        return 0
    return int((long_column(rows, "end") - long_column(rows, "start")).max())


def _id_of(definition: MapDefinition, tables: Sequence[TableRows], salt: str) -> str:
    content = ContentId(definition, salt)
    for table in tables:
        content.begin_table(table.table, len(table.keys))
        for column in (table.keys, table.values):
            content.add(column.offsets)
            content.add(column.data)
    return content.hexdigest()


class ContentId:
    """An id in the making. After `begin_table`, add key offsets, keys, value offsets and values, each in any pieces.

    Offsets are int64 from 0, one more than there are rows, over the bytes of the whole table.
    """

    def __init__(self, definition: MapDefinition, salt: str) -> None:
        self._summed = xxhash.xxh3_128()
        self._summed.update(f"{definition.name}\n{definition.incarnation}\n{salt}\n".encode())

    def begin_table(self, table: str, rows: int) -> None:
        """Begin the next table, in the order in which the part has them."""
        self._summed.update(f"{table}\n{rows}\n".encode())

    def add(self, column: npt.NDArray[Any]) -> None:
        """Add the next piece of a column."""
        self._summed.update(np.ascontiguousarray(column).data)

    def hexdigest(self) -> str:
        """The id, 32 hexadecimal digits."""
        return self._summed.hexdigest()
