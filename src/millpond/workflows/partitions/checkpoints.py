"""Checkpoints: all rows of a partition at a position of its log, as one object, so that the log need not reach further.

    NUMBER/POSITION.rows      "MPWC", then frames: 4 bytes of length, 16 bytes of XXH3, rows as an Arrow stream (zstd);
                              the last frame has no rows

Invariants:
* an object is whole, and says what one moment of the store was; a damaged one is not used, but the one before it;
* the newest `CHECKPOINTS_RETAINED` stay, and the log from the oldest of them on, so that losing one loses nothing;
* memory holds one frame, however large the store is.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from millpond.errors import Corrupt, NotFound
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.scans import put_rows
from millpond.workflows.partitions.followed import read_cursor

if TYPE_CHECKING:
    from millpond.kernel.space import Space
    from millpond.stores.objects import ObjectStore

__all__ = ("CHECKPOINTS_RETAINED", "Checkpoints")

CHECKPOINTS_RETAINED = 2
FRAME_BYTES = 4 << 20
_MAGIC = b"MPWC"
_HEAD = struct.Struct(">I16s")
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_LOG = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of all partitions, in one place of objects."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def positions(self, number: int) -> list[int]:
        """The positions of a partition's checkpoints, ascending."""
        names = (info.name for info in self._objects.list(f"{number}"))
        return sorted(int(name.rpartition("/")[2].removesuffix(".rows")) for name in names if name.endswith(".rows"))

    def save(self, number: int, space: Space) -> int:
        """Store a checkpoint and drop older ones; the position before which the log is needed no longer."""
        with space.read() as tx:
            position = read_cursor(tx).position
            self._objects.put_stream(_name(number, position), _frames(tx.scan(EVERYTHING)))
        positions = self.positions(number)
        self._objects.delete(*(_name(number, old) for old in positions[:-CHECKPOINTS_RETAINED]))
        # While there are fewer, the log is the only other way to the store: it is needed from its beginning on.
        return positions[-CHECKPOINTS_RETAINED] + 1 if len(positions) >= CHECKPOINTS_RETAINED else 1

    def replace(self, number: int, position: int, rows: Iterator[tuple[bytes, bytes]]) -> int:
        """Store rows, in the order of their keys, as the one checkpoint of a partition; the bytes of it."""
        self._objects.put_stream(_name(number, position), _frames(rows))
        self._objects.delete(*(_name(number, old) for old in self.positions(number) if old != position))
        return self._objects.size(_name(number, position))

    def restore(self, number: int, space: Space) -> int:
        """Put the rows of the newest checkpoint into an empty space; its position, 0 without one.

        Raises:
            Corrupt: none of them can be read.
        """
        damaged: Corrupt | None = None
        for position in reversed(self.positions(number)):
            try:
                self._check(number, position)
                for rows in self._rows(number, position):
                    space.write(lambda tx, rows=rows: put_rows(tx, rows))  # type: ignore[misc]
            except (Corrupt, NotFound) as error:
                _LOG.warning("checkpoint %s of partition %s is not used: %s", position, number, error)
                damaged = damaged or (error if isinstance(error, Corrupt) else None)
                space.write(lambda tx: tx.delete_range(EVERYTHING))  # it may have gone after some rows had come
            else:
                return position
        if damaged is not None:
            raise damaged
        return 0

    def _check(self, number: int, position: int) -> None:
        for _ in self._rows(number, position):
            pass

    def _rows(self, number: int, position: int) -> Iterator[list[tuple[bytes, bytes]]]:
        name, at = _name(number, position), len(_MAGIC)
        if self._objects.get_range(name, 0, at) != _MAGIC:
            raise _damaged(name, "it begins with other bytes")
        while True:
            head = self._objects.get_range(name, at, at + _HEAD.size)
            if len(head) < _HEAD.size:
                raise _damaged(name, "its end is missing")
            length, digest = _HEAD.unpack(head)
            data = self._objects.get_range(name, at + _HEAD.size, at + _HEAD.size + length)
            if len(data) != length or xxhash.xxh3_128_digest(data) != digest:
                raise _damaged(name, "a frame differs from its hash")
            table = pa.ipc.open_stream(data).read_all()
            if not table.num_rows:
                return
            yield list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
            at += _HEAD.size + length


def _frames(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
    yield _MAGIC
    gathered: list[tuple[bytes, bytes]] = []
    held = 0
    for key, value in rows:
        gathered.append((key, value))
        held += len(key) + len(value)
        if held >= FRAME_BYTES:
            yield _frame(gathered)
            gathered, held = [], 0
    if gathered:
        yield _frame(gathered)
    yield _frame([])


def _frame(rows: list[tuple[bytes, bytes]]) -> bytes:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    table = pa.table([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return _HEAD.pack(len(data), xxhash.xxh3_128_digest(data)) + data


def _name(number: int, position: int) -> str:
    return f"{number}/{position:020d}.rows"


def _damaged(name: str, reason: str) -> Corrupt:
    return Corrupt("a checkpoint is damaged", kind="checkpoint_damaged", name=name, reason=reason)
