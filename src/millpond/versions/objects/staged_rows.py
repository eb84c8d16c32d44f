"""Staged rows: an entry or a tombstone as the value of a row, and blocks of rows as columns.

    tombstone   00
    entry       01 · size i64 · mtime i64 · a u16 · c u16 · t u16 · address a · checksum c · content type t · metadata

All numbers are little-endian; `a`, `c`, `t` are lengths, and the metadata go to the end of the value. A block is
decoded without a loop over its rows: the values lie one after another, and each column is a slice of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import Corrupt, Invalid
from millpond.kernel.keys import Prefix
from millpond.versions.objects.entries import CHANGES, Entry, metadata_text, read_metadata

__all__ = ("TOMBSTONE", "decode_block", "decode_entry", "encode_entry", "encode_rows")

TOMBSTONE = b"\x00"
_HEADER = struct.Struct("<BqqHHH")
_FIELDS = np.dtype([("kind", "u1"), ("size", "<i8"), ("mtime", "<i8"), ("a", "<u2"), ("c", "<u2"), ("t", "<u2")])
assert _FIELDS.itemsize == _HEADER.size
_I64 = npt.NDArray[np.int64]


def encode_entry(entry: Entry) -> bytes:
    """The value of a staged entry.

    Raises: `Invalid` for text that is too long.
    """
    return _encode(
        entry.size, entry.mtime, entry.address, entry.checksum, entry.content_type, metadata_text(entry.metadata)
    )


def _encode(size: int, mtime: int, address: str, checksum: str, content_type: str, metadata: str) -> bytes:
    try:
        a, c, t, about = (text.encode() for text in (address, checksum, content_type, metadata))
        header = _HEADER.pack(1, size, mtime, len(a), len(c), len(t))
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise Invalid("an entry cannot be stored", kind="entry_invalid", reason=str(error)) from error
    return header + a + c + t + about


def encode_rows(batch: pa.RecordBatch) -> list[bytes]:
    """The values of rows with the columns of entries, or of changes."""
    names = ("size", "mtime", "address", "checksum", "content_type", "metadata")
    columns = [batch.column(name).to_pylist() for name in names]
    values = [_encode(*row) for row in zip(*columns, strict=True)]
    if "deleted" not in batch.schema.names:
        return values
    deleted = batch.column("deleted").to_pylist()
    return [TOMBSTONE if is_deleted else value for is_deleted, value in zip(deleted, values, strict=True)]


def decode_entry(path: str, value: bytes) -> Entry | None:
    """The entry that a row holds; None for a tombstone.

    Raises: `Corrupt`.
    """
    if value == TOMBSTONE:
        return None
    try:
        kind, size, mtime, a, c, t = _HEADER.unpack_from(value)
        at = _HEADER.size
        address, checksum = value[at : at + a].decode(), value[at + a : at + a + c].decode()
        content_type = value[at + a + c : at + a + c + t].decode()
        metadata = read_metadata(value[at + a + c + t :].decode())
        entry = Entry(path, address, size, mtime, checksum, content_type, metadata)
    except (struct.error, ValueError) as error:
        raise _damaged(path) from error
    if kind != 1:
        raise _damaged(path)
    return entry


def _damaged(path: str) -> Corrupt:
    return Corrupt("a staged entry cannot be read", kind="staged_damaged", path=path)


def decode_block(prefix: Prefix, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """Rows of one token as columns of changes, in their order.

    Raises: `Corrupt`.
    """
    count = len(values)
    lengths = np.fromiter(map(len, values), np.int64, count)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    data = np.frombuffer(b"".join(values), np.uint8)
    live = lengths > 1
    kinds = data[starts[:-1]] if count else np.zeros(0, np.uint8)
    if not np.array_equal(kinds == 1, live) or (lengths[live] < _FIELDS.itemsize).any():
        raise _damaged(repr(keys[0]))
    if not live.any():
        return _tombstones(_paths(prefix, keys))
    headers = np.zeros(count, _FIELDS)
    rows = starts[:-1][live]
    headers[live] = data[rows[:, None] + np.arange(_FIELDS.itemsize)].reshape(-1).view(_FIELDS)
    # the beginning of each part of each value, and the end of the last: one monotonic list of places
    offsets = np.empty((count, 5), np.int64)
    offsets[:, 0] = starts[:-1] + np.where(live, _FIELDS.itemsize, lengths)
    for at, name in enumerate(("a", "c", "t"), 1):
        offsets[:, at] = offsets[:, at - 1] + headers[name]
    offsets[:, 4] = starts[1:]
    if (offsets[:, 3] > offsets[:, 4]).any():
        raise _damaged(repr(keys[0]))
    address, checksum, content_type, metadata = (_slices(data, offsets, at) for at in range(4))
    columns = [
        _paths(prefix, keys), address, pa.array(headers["size"]), pa.array(headers["mtime"]), checksum, content_type,
        metadata, pa.array(~live),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def _tombstones(paths: pa.Array) -> pa.RecordBatch:
    count = len(paths)
    fills = [
        pa.repeat(pa.scalar(0 if field.type == pa.int64() else field.type == pa.bool_() or "", field.type), count)
        for field in list(CHANGES)[1:]
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays([paths, *fills], schema=CHANGES)


def _slices(data: npt.NDArray[np.uint8], offsets: _I64, column: int) -> pa.Array:
    """The part `column` of each value: every fifth slice of the whole, which is then packed."""
    count = len(offsets)
    ends = offsets.reshape(-1)[column:]
    pairs = np.empty(2 * count, np.int64)
    pairs[0::2], pairs[1::2] = ends[0::5][:count], ends[1::5][:count]
    return _every_other(data, pairs, pa.large_string()).cast(pa.string())


def _every_other(data: npt.NDArray[np.uint8], bounds: _I64, kind: pa.DataType) -> pa.Array:
    """The slices [bounds[0], bounds[1]), [bounds[2], bounds[3]) … of ascending bounds."""
    if len(bounds) == 0:
        return pa.array([], kind)
    whole = pa.Array.from_buffers(kind, len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, len(bounds) - 1, 2)))


def _paths(prefix: Prefix, keys: Sequence[bytes]) -> pa.Array:
    """The paths in keys of a token: what lies between the tag of a text and its last byte."""
    before = len(prefix.packed) + 1
    joined = b"".join(keys)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    bounds = np.empty(2 * len(keys), np.int64)
    bounds[0::2], bounds[1::2] = starts + before, starts + lengths - 1
    paths = _every_other(np.frombuffer(joined, np.uint8), bounds, pa.large_binary()).cast(pa.binary())
    data = paths.buffers()[2]
    if data is None or 1 not in np.frombuffer(data, np.uint8):
        return paths
    return pa.array([str(prefix.unpack(key)[0]).encode() for key in keys], pa.binary())  # a path with escaped bytes
