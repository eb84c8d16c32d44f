"""A record batch that is larger than memory may hold: put together in files without a name, and mapped.

Batches are appended; each column grows in files of its own, one for each buffer. The kernel keeps in memory what it has
room for, and what is written is read where it lies. The files go with the last who reads them.

Invariant: the batch holds the rows that were appended, in their order, as `canonical` lays them out.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as is_type

from millpond.errors import Invalid
from millpond.ranges.canonical import canonical
from millpond.stores.files import disk_errors

__all__ = ("ScratchBatch", "joined", "scratch_buffer")

_OFFSET_MAX = 0x7FFF_FFFF
_PACKED_AT_ONCE = 1 << 20  # flags; a multiple of 8


def scratch_buffer(folder: Path, size: int) -> pa.Buffer:
    """So many bytes of a file without a name, to be written.

    Raises: `Unavailable` when the disk is full.
    """
    # The file may be closed at the end, for a mapping keeps its own hold of it.
    with ExitStack() as files:
        growing = _Growing(_Scratch(folder, files))
        growing.reserve(size)
        return growing.finish()


@dataclass(frozen=True, slots=True)
class _Scratch:
    """The folder of files, and who closes them."""

    folder: Path
    files: ExitStack


class ScratchBatch:
    """Rows that come batch by batch and make one batch, in files in a folder. A context manager."""

    def __init__(self, schema: pa.Schema, folder: Path) -> None:
        self.schema, self._files = schema, ExitStack()
        self._columns = [_column(field.type, _Scratch(folder, self._files)) for field in schema]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def append(self, batch: pa.RecordBatch) -> None:
        """Go on with these rows.

        Raises: `Unavailable` when the disk is full; `Invalid`, kind `group_large`.
        """
        batch = canonical(batch, self.schema)
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.append(array)

    def finish(self) -> pa.RecordBatch:
        """All rows, lying in the files."""
        return pa.RecordBatch.from_arrays([column.finish() for column in self._columns], schema=self.schema)


class _Growing:
    """One buffer, in a file."""

    def __init__(self, scratch: _Scratch) -> None:
        self._folder = scratch.folder
        with disk_errors(scratch.folder):
            # Without a name, so that it goes with the process, however that ends.
            file = tempfile.TemporaryFile(dir=scratch.folder, prefix="scratch-")  # noqa: SIM115
        self._file = scratch.files.enter_context(file)
        self.size = 0

    def append(self, data: Any) -> None:
        """Go on with these bytes."""
        with disk_errors(self._folder):
            self.size += self._file.write(memoryview(data).cast("B"))

    def reserve(self, size: int) -> None:
        """Make room for so many bytes, which are zeros, behind those that are there."""
        with disk_errors(self._folder):
            # The disk is asked for the blocks now. A hole would take them when the mapping is written, and a full disk
            # would then be a signal that ends the process.
            os.posix_fallocate(self._file.fileno(), self.size, size)
            self.size += size

    def finish(self) -> pa.Buffer:
        """The bytes, mapped, so that they can be changed; nothing can be appended any more."""
        with disk_errors(self._folder):
            # A mapping sees the file, and nothing of what still waits in this object.
            self._file.flush()
            # The system maps no empty file.
            return pa.py_buffer(mmap.mmap(self._file.fileno(), self.size) if self.size else b"")


class _Flags:
    """Bits, kept as bytes while they come: where one begins depends on those before it."""

    def __init__(self, scratch: _Scratch) -> None:
        self._scratch, self._growing = scratch, _Growing(scratch)
        self.unset = 0

    def append(self, flags: Any) -> None:
        self.unset += len(flags) - int(np.count_nonzero(flags))
        self._growing.append(flags.view(np.uint8))

    def finish(self) -> pa.Buffer:
        packed = _Growing(self._scratch)
        flags = np.frombuffer(self._growing.finish(), np.uint8)
        # Each piece but the last fills its bytes, so they can be put behind each other.
        for start in range(0, len(flags), _PACKED_AT_ONCE):
            packed.append(np.packbits(flags[start : start + _PACKED_AT_ONCE], bitorder="little"))
        return packed.finish()


class _Column:
    """A column of values of fixed width, or of none: the frame of the others."""

    def __init__(self, kind: pa.DataType, scratch: _Scratch) -> None:
        self.kind, self.count = kind, 0
        # Of columns without a null, too: whether one comes is known only at the end.
        self._valid = _Flags(scratch)
        self._buffers: list[_Growing | _Flags] = []
        self._children: list[_Column] = []
        self._begin(scratch)

    def _begin(self, scratch: _Scratch) -> None:
        if not is_type.is_null(self.kind):
            self._buffers = [_Growing(scratch)]

    def append(self, array: pa.Array) -> None:
        """Go on with a canonical column."""
        if not len(array):
            return
        self.count += len(array)
        if not is_type.is_null(self.kind):
            # A batch without nulls has no bitmap, and its rows have places in that of the whole.
            bitmap = array.buffers()[0] if array.null_count else None
            self._valid.append(np.ones(len(array), np.bool_) if bitmap is None else _unpacked(bitmap, len(array)))
        self._append(array)

    def _append(self, array: pa.Array) -> None:
        for growing in self._buffers:
            growing.append(array.buffers()[1])

    def finish(self) -> pa.Array:
        if is_type.is_null(self.kind) or not self.count:
            return pa.nulls(self.count, self.kind) if self.count else pa.array([], self.kind)
        bitmap = self._valid.finish() if self._valid.unset else None
        buffers = [bitmap, *(buffer.finish() for buffer in self._buffers)]
        children = [child.finish() for child in self._children]
        return pa.Array.from_buffers(self.kind, self.count, buffers, self._valid.unset, children=children)


class _Booleans(_Column):
    def _begin(self, scratch: _Scratch) -> None:
        self._buffers = [_Flags(scratch)]

    def _append(self, array: pa.Array) -> None:
        self._buffers[0].append(_unpacked(array.buffers()[1], len(array)))


class _Structs(_Column):
    def _begin(self, scratch: _Scratch) -> None:
        self._children = [_column(field.type, scratch) for field in self.kind]

    def _append(self, array: pa.Array) -> None:
        for number, child in enumerate(self._children):
            child.append(array.field(number))


class _FixedLists(_Column):
    def _begin(self, scratch: _Scratch) -> None:
        self._children = [_column(self.kind.value_type, scratch)]

    def _append(self, array: pa.Array) -> None:
        self._children[0].append(array.values)


class _Sequences(_Column):
    """Texts, bytes and lists: offsets, and what they are over."""

    def _begin(self, scratch: _Scratch) -> None:
        wide = (pa.large_binary(), pa.large_string())
        self._offset = np.int64 if self.kind in wide or is_type.is_large_list(self.kind) else np.int32
        self._last = 0
        self._offsets = _Growing(scratch)
        self._offsets.append(np.zeros(1, self._offset))
        self._buffers = [self._offsets]
        if self.kind.num_fields:
            self._children = [_column(self.kind.value_type, scratch)]
        else:
            self._buffers.append(_Growing(scratch))

    def _append(self, array: pa.Array) -> None:
        # Without the first, which is the last of those before.
        offsets = np.frombuffer(array.buffers()[1], self._offset, len(array) + 1)[1:]
        last = self._last + int(offsets[-1])
        # In the integers of Python: a sum in 32 bits wraps, and offsets that do lead to other rows.
        if self._offset is np.int32 and last > _OFFSET_MAX:
            raise Invalid(
                "one range cannot hold so much", kind="group_large", size=last, most=_OFFSET_MAX,
                hint="the values of one key may have 2 GiB in a snapshot; read this map with get and scan",
            )  # fmt: skip
        self._offsets.append(np.add(offsets, self._last, dtype=self._offset))
        self._last = last
        for child in self._children:
            child.append(array.values)
        for growing in self._buffers[1:]:
            growing.append(array.buffers()[2] or b"")


def _column(kind: pa.DataType, scratch: _Scratch) -> _Column:
    if is_type.is_boolean(kind):
        return _Booleans(kind, scratch)
    if is_type.is_struct(kind):
        return _Structs(kind, scratch)
    if is_type.is_fixed_size_list(kind):
        return _FixedLists(kind, scratch)
    sequences = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
    if kind in sequences or is_type.is_list(kind) or is_type.is_large_list(kind):
        return _Sequences(kind, scratch)
    return _Column(kind, scratch)


def _unpacked(bits: pa.Buffer, count: int) -> Any:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").view(np.bool_)


def joined(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches as one, lying in files in a folder."""
    with ScratchBatch(schema, folder) as whole:
        for batch in batches:
            whole.append(batch)
        return whole.finish()
