"""The keys that each change of a shard touched: the next freeze must read them again.

Table `touched`: the version, then the number of a piece, 8 and 4 bytes → an Arrow file of at most 65,536 rows with one
column `key`: keys, or 16-byte ordered ranges. One empty value, as piece 0, says that too much changed to list.

Invariants:
* the keys of a version are written in the transaction that makes the version: a crash leaves both or neither, and
  they cost no sync of their own;
* what is listed is bounded, in versions and in bytes. Older versions are dropped, and whoever needs one of them reads
  everything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import lmdb

from millpond.deferred import pa

__all__ = ("TOUCHED", "ChangedKeys")

TOUCHED = "touched"
KEYS_MAX = 5_000_000
VERSIONS_MAX = 1_000
BYTES_MAX = 128 << 20
_PIECE_KEYS = 65_536
_VERSION_KEY = struct.Struct(">QI")


class ChangedKeys:
    """The table of one generation of a shard."""

    def __init__(self) -> None:
        self._db: Any = None

    def open_tables(self, env: lmdb.Environment, tx: lmdb.Transaction, create: bool) -> None:
        """Open the table; with `create`, make it if it is missing."""
        try:
            self._db = env.open_db(TOUCHED.encode(), txn=tx, create=create)
        except lmdb.NotFoundError:
            self._db = None

    def write(self, tx: lmdb.Transaction, version: int, keys: pa.Array | None, *, forget: int = 0) -> None:
        """Note the keys that the change to `version` touches; None: everything. Those up to `forget` are dropped."""
        self._drop(tx, max(forget, version - VERSIONS_MAX))
        stat = tx.stat(self._db)
        pages = stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"]
        if keys is None or pages * stat["psize"] > BYTES_MAX:
            # Whoever needs an older version would come upon this one, and read everything.
            self._drop(tx, version)
            tx.put(_VERSION_KEY.pack(version, 0), b"", db=self._db)
            return
        for number, piece in enumerate(_pieces(keys)):
            tx.put(_VERSION_KEY.pack(version, number), piece, db=self._db)

    def since(self, tx: lmdb.Transaction | None, version: int, current: int) -> pa.Array | None:
        """The keys touched after `version` up to `current`; None when one is not listed, or everything was touched."""
        keys: list[pa.Array] = []
        expected = version + 1
        for number, piece in self._listed(tx, version):
            if number > expected or not piece:
                return None
            expected = number + 1
            keys += pa.ipc.open_file(piece).read_all().column("key").chunks
            if sum(map(len, keys)) > KEYS_MAX:
                return None
        if expected <= current:
            return None
        joined = pa.concat_arrays(keys) if keys else pa.array([], pa.binary())
        return joined.unique()

    def _listed(self, tx: lmdb.Transaction | None, after: int) -> Iterator[tuple[int, bytes]]:
        """The pieces of the versions after one, in order."""
        if tx is None or self._db is None:
            return
        cursor = tx.cursor(db=self._db)
        if cursor.set_range(_VERSION_KEY.pack(after + 1, 0)):
            for key, piece in cursor.iternext():
                yield _VERSION_KEY.unpack(key)[0], piece

    def _drop(self, tx: lmdb.Transaction, last: int) -> None:
        """Remove the keys of the versions up to one."""
        cursor = tx.cursor(db=self._db)
        while cursor.first() and _VERSION_KEY.unpack(cursor.key())[0] <= last:
            cursor.delete()


def _pieces(keys: pa.Array | pa.ChunkedArray) -> Iterator[bytes]:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    keys = keys.cast(pa.binary())
    for start in range(0, max(len(keys), 1), _PIECE_KEYS):  # one piece for no keys, too: the version is listed
        sink, piece = pa.BufferOutputStream(), pa.record_batch([keys.slice(start, _PIECE_KEYS)], names=["key"])
        with pa.ipc.new_file(sink, piece.schema) as writer:
            writer.write_batch(piece)
        yield sink.getvalue().to_pybytes()
