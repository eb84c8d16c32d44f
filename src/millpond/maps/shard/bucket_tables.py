"""The tables of an aggregate's shard: as those of other maps, with rows that are added to those that are there.

All rows are in the buckets that are shown: those of whole wide buckets before the time that the shard is rolled up to,
in these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import lmdb

from millpond.errors import Corrupt
from millpond.json_forms import FormError, parse_list
from millpond.maps.model.aggregation import RolledUp
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.tables import ADDED, ALERTED, DIRECT, LMDB_BYTES_MAX, OVERFLOW, split_seed_value

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.maps.model.definition import MapDefinition

__all__ = ("BucketStore", "add_rows", "is_added", "note_added", "shown_as", "value_at", "values_at")


class BucketStore(PlainStore):
    """The row tables of a shard whose rows combine, and the notes of what was added once more, and of alerts."""

    def open_tables(self, env: lmdb.Environment, tx: lmdb.Transaction, create: bool) -> None:
        """Open the tables, with `create` making those that are missing."""
        super().open_tables(env, tx, create)
        for name in (ADDED, ALERTED):
            try:
                self.dbs[name] = env.open_db(name.encode(), txn=tx, create=create)
            except lmdb.NotFoundError:
                self.dbs.pop(name, None)


def shown_as(definition: MapDefinition, row: bytes | None) -> MapDefinition:
    """A definition rolled up as a row of table `info` says; None: as not at all.

    Raises: `Corrupt`.
    """
    assert definition.aggregation is not None, "an aggregate has one"
    try:
        parts = () if row is None else tuple(RolledUp(**part) for part in parse_list(row))
    except (FormError, TypeError) as error:
        raise Corrupt(
            "it cannot be read how far the map is rolled up", kind="shard_damaged", map=definition.name, reason=error,
            hint="restore the folder from a copy, or drop the map and load it again",
        ) from error  # fmt: skip
    return replace(definition, aggregation=replace(definition.aggregation, rolled_up=parts))


def value_at(store: BucketStore, tx: lmdb.Transaction, key: bytes, time: int) -> bytes | None:
    """The value of the key's row of this very time."""
    for table, pairs in store.stream_keys(tx, [key], time, time):
        for _, stored in pairs:
            return stored if table == DIRECT else split_seed_value(store.definition, stored)[1]
    return None


def note_added(store: BucketStore, tx: lmdb.Transaction, part: str, load: int) -> bool:
    """Note that a part is added though its load was absorbed; False when it is noted already."""
    return bool(tx.put(f"{part} {load}".encode(), b"", db=store.dbs[ADDED], overwrite=False))


def is_added(store: BucketStore, tx: lmdb.Transaction, part: str, load: int) -> bool:
    """True when it is noted that a part was added though its load was absorbed."""
    return ADDED in store.dbs and tx.get(f"{part} {load}".encode(), db=store.dbs[ADDED]) is not None


def add_rows(store: BucketStore, tx: lmdb.Transaction, definition: MapDefinition, rows: pa.RecordBatch) -> None:
    """Combine rows of buckets, unique by address, with those that are there; the definition is rolled up as these are.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    from millpond.maps.shard.added import added_to, in_shown_buckets  # a question needs no arrays

    rows = in_shown_buckets(definition, rows)
    store.put_rows(tx, added_to(definition, values_at(store, tx, rows), rows), overwrite=True)


def values_at(store: BucketStore, tx: lmdb.Transaction, rows: pa.RecordBatch) -> Sequence[bytes | None]:
    """The values at the addresses of rows."""
    from millpond.arrays.byte_columns import to_list
    from millpond.maps.model.address import address_bytes

    direct: dict[bytes, bytes] = {}
    addresses = to_list(address_bytes(store.definition, rows))
    if not store.plain:
        short = [address for address in addresses if len(address) <= LMDB_BYTES_MAX]
        direct = dict(tx.cursor(db=store.dbs[DIRECT]).getmulti(short))
        if not tx.stat(store.dbs[OVERFLOW])["entries"]:
            return [direct.get(address) for address in addresses]
    keys, times = rows.column("key").to_pylist(), rows.column("time").to_pylist()
    return [
        direct.get(address) or value_at(store, tx, key, time)
        for address, key, time in zip(addresses, keys, times, strict=True)
    ]
