"""The last time each row was put: kept beside the rows, for maps that retain or condense by update time.

Table `updated`: the row's address (`address.py`; beyond 480 bytes its first 464 and its xxh3_128) → UTC
milliseconds as 8 bytes. The rows' own layout stays as published. Only maps that ask for it keep it (`tracks_updates`):
`condense_by` is `update_time`, or `retain` is set, and either `retain_by` is `update_time` or the kind has no time of
its own. A row older than the setting has no entry and counts as updated when the setting was made (`since`).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import lmdb
import xxhash

from millpond.deferred import np
from millpond.maps.model.store_limits import tracks_updates
from millpond.maps.shard.cursors import delete_pairs

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from millpond.maps.model.definition import MapDefinition

__all__ = ("UpdateTimes", "tracks_updates")

UPDATED = "updated"
ADDRESS_BYTES_MAX = 480
_SINCE = b"updates_since"


class UpdateTimes:
    """The `updated` table of one shard."""

    def __init__(self, definition: MapDefinition) -> None:
        self.definition = definition
        self._db: Any = None
        self._info: Any = None

    def open_tables(self, env: lmdb.Environment, tx: lmdb.Transaction, create: bool) -> None:
        """Open the table where the settings ask for it."""
        if not tracks_updates(self.definition):
            self._db = None
            return
        try:
            self._db = env.open_db(UPDATED.encode(), txn=tx, create=create)
            self._info = env.open_db(b"info", txn=tx, create=create)
        except lmdb.NotFoundError:
            self._db = None

    def _row_keys(self, rows: pa.RecordBatch) -> list[bytes]:
        from millpond.arrays.byte_columns import to_list
        from millpond.maps.model.address import address_bytes

        addresses = address_bytes(self.definition, rows)
        row_keys = to_list(addresses)
        for row in np.flatnonzero(addresses.lengths > ADDRESS_BYTES_MAX).tolist():
            row_keys[row] = row_keys[row][:464] + xxhash.xxh3_128_digest(row_keys[row])
        return row_keys

    def put(self, tx: lmdb.Transaction, rows: pa.RecordBatch, now_ms: int, overwrite: bool) -> None:
        """Note that these rows were put now; rows that stay as they were keep their time."""
        packed = now_ms.to_bytes(8, "big", signed=True)
        since = tx.get(_SINCE, db=self._info)
        if since is None or int.from_bytes(since, "big", signed=True) > now_ms:
            # A part that is put back in its place may be older than what came after it.
            tx.put(_SINCE, packed, db=self._info)
        row_keys = sorted(self._row_keys(rows))
        tx.cursor(db=self._db).putmulti(((key, packed) for key in row_keys), overwrite=overwrite)

    def put_times(self, tx: lmdb.Transaction, rows: pa.RecordBatch, times: list[int]) -> None:
        """Note when each of these rows was put."""
        packed = np.array(times, ">i8").tobytes()
        pairs = zip(self._row_keys(rows), (packed[at : at + 8] for at in range(0, len(packed), 8)), strict=True)
        tx.cursor(db=self._db).putmulti(sorted(pairs))

    def delete(self, tx: lmdb.Transaction, rows: pa.RecordBatch) -> None:
        """Forget rows that are deleted."""
        delete_pairs(tx, self._db, sorted(self._row_keys(rows)))

    def since(self, tx: lmdb.Transaction, now_ms: int) -> int:
        """The beginning of update times, UTC milliseconds; now when they are not kept yet."""
        row = None if self._db is None else tx.get(_SINCE, db=self._info)
        return now_ms if row is None else int.from_bytes(row, "big", signed=True)

    def times(self, tx: lmdb.Transaction, rows: pa.RecordBatch, now_ms: int) -> npt.NDArray[np.int64]:
        """The update time of each row, UTC milliseconds."""
        since = self.since(tx, now_ms)
        if self._db is None:
            return np.full(rows.num_rows, since, np.int64)
        row_keys = self._row_keys(rows)
        times: dict[bytes, bytes] = dict(tx.cursor(db=self._db).getmulti(row_keys)) if row_keys else {}
        packed = b"".join(map(times.get, row_keys, repeat(since.to_bytes(8, "big", signed=True))))
        return np.frombuffer(packed, ">i8").astype(np.int64)
