"""Rows kept as they are: tables `direct`, `hashed`, `overflow`, `ranges` and `widths` (`widths.py`) of one environment.

Every function takes the transaction first. Puts follow the map's rule: the later row wins, or with
`overwrite=False` the first one stays. What works on columns is imported by the methods that do: a question for one key
needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import lmdb

from millpond.arrays.longs import LONG_MAX, LONG_MIN, ascending, pack_long, stretches, unpack_long
from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.model.key_prefix import key_prefix
from millpond.maps.shard.cursors import Pair, backwards, between, prefixed
from millpond.maps.shard.range_widths import WIDTHS, delete_widths, put_widths
from millpond.maps.shard.tables import (
    CLASH_BYTES,
    DIRECT,
    HASHED,
    OVERFLOW,
    RANGES,
    direct_bytes_max,
    hash_prefix,
    plain_longs,
    row_tables,
    split_seed_value,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("PlainStore",)


class PlainStore:
    """The row tables of a shard whose scheme is `auto`, `direct` or `hash`, and of every ranged map."""

    def __init__(self, definition: MapDefinition) -> None:
        self.definition = definition
        self.plain = plain_longs(definition)
        self.names = row_tables(definition)
        self.direct_bytes_max = -1 if definition.scheme is Scheme.HASH else direct_bytes_max(definition)
        self.dbs: dict[str, Any] = {}

    def open_tables(self, env: lmdb.Environment, tx: lmdb.Transaction, create: bool) -> None:
        """Open the tables, with `create` making those that are missing."""
        for name in (*self.names, *(() if self.definition.kind.keyed else (WIDTHS,))):
            try:
                self.dbs[name] = env.open_db(name.encode(), txn=tx, dupsort=name == HASHED, create=create)
            except lmdb.NotFoundError:
                self.dbs.pop(name, None)

    def row_count(self, tx: lmdb.Transaction) -> int:
        """The number of rows of the map."""
        return sum(tx.stat(self.dbs[name])["entries"] for name in self.names if name in self.dbs)

    # -- one question ---------------------------------------------------------------------------------

    def _tables_of(self, tx: lmdb.Transaction, key: bytes) -> list[tuple[str, bytes]]:
        """`(table, prefix)` wherever rows of this key may lie."""
        if len(prefix := key_prefix(key)) - 1 <= self.direct_bytes_max:
            return [(DIRECT, prefix)] if DIRECT in self.dbs else []
        tables = [HASHED] if self.definition.scheme is Scheme.HASH else []
        if OVERFLOW in self.dbs and tx.stat(self.dbs[OVERFLOW])["entries"]:
            tables.append(OVERFLOW)
        return [(table, hash_prefix(self.definition, key, table)) for table in tables if table in self.dbs]

    def value_of(self, tx: lmdb.Transaction, key: bytes) -> bytes | None:
        """State: the value of the key."""
        for table, prefix in self._tables_of(tx, key):
            if table == DIRECT:
                return tx.get(prefix, db=self.dbs[DIRECT])
            for _, stored in self._clashing(tx, table, prefix):
                stored_key, encoded = split_seed_value(self.definition, stored)
                if stored_key == key:
                    return encoded
        return None

    def walks(self, tx: lmdb.Transaction, key: bytes, at: int) -> list[Iterator[tuple[int, bytes, bytes]]]:
        """`(time, rest of the address, value)` of the key's rows with time ≤ `at`, latest first, for each table."""
        return [self._descend(tx, table, prefix, key, at) for table, prefix in self._tables_of(tx, key)]

    def latest(self, tx: lmdb.Transaction, key: bytes, at: int) -> bytes | None:
        """Temporal state: the latest value with time ≤ `at`."""
        best: tuple[int, bytes] | None = None
        for table, prefix in self._tables_of(tx, key):
            if table == DIRECT:
                return self._latest_direct(tx, prefix, at)
            for time, _, value in self._descend(tx, table, prefix, key, at):
                if best is None or time > best[0]:
                    best = (time, value)
                break
        return best[1] if best else None

    def _latest_direct(self, tx: lmdb.Transaction, prefix: bytes, at: int) -> bytes | None:
        """One seek: the row at `bound`, or else the one before it, if that is of the same key."""
        cursor = tx.cursor(self.dbs[DIRECT])
        bound = prefix + pack_long(at, plain=False)
        positioned = cursor.set_range(bound)
        if not (positioned and cursor.key() == bound) and not (cursor.prev() if positioned else cursor.last()):
            return None
        return cursor.value() if cursor.key().startswith(prefix) else None

    def _descend(
        self, tx: lmdb.Transaction, table: str, prefix: bytes, key: bytes, at: int
    ) -> Iterator[tuple[int, bytes, bytes]]:
        cursor = tx.cursor(db=self.dbs[table])
        direct, width = table == DIRECT, len(prefix)
        plain = self.plain
        for highest, lowest in stretches(at, plain):
            bound = prefix + lowest
            for row, stored in backwards(cursor, prefix + highest + b"\xff" * 10):
                if row < bound:
                    break
                if not direct:
                    stored_key, stored = split_seed_value(self.definition, stored)
                    if stored_key != key:
                        continue
                yield unpack_long(row[width : width + 8], plain), row[width + 8 :], stored

    def _clashing(self, tx: lmdb.Transaction, table: str, base: bytes) -> Iterator[Pair]:
        """The rows of `hashed` or `overflow` with this hash and these times, whatever their key."""
        cursor = tx.cursor(db=self.dbs[table])
        if table == HASHED:
            if cursor.set_key(base):
                for stored in cursor.iternext_dup():
                    yield base, stored
        elif cursor.set_range(base):
            for row, stored in cursor.iternext():
                if row[:-CLASH_BYTES] != base:
                    return
                yield row, stored

    def range_value(self, tx: lmdb.Transaction, start: int, end: int, at: int | None) -> bytes | None:
        """The value of one range; temporal: the latest with time ≤ `at`."""
        prefix = pack_long(start, self.plain) + pack_long(end, self.plain)
        if at is None:
            return tx.get(prefix, db=self.dbs[RANGES])
        cursor = tx.cursor(db=self.dbs[RANGES])
        for highest, lowest in stretches(at, self.plain):
            for row, stored in backwards(cursor, prefix + highest):
                if row >= prefix + lowest:
                    return stored
                break
        return None

    # -- rows in bulk ---------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """The row tables there are."""
        return [name for name in self.names if name in self.dbs]

    def stream(
        self, tx: lmdb.Transaction, lower: int | None = None, upper: int | None = None,
        key_lower: bytes | None = None, key_upper: bytes | None = None,
    ) -> Iterator[tuple[str, Iterator[Pair]]]:  # fmt: skip
        """Rows of each table in its order; ranged maps between numbers, `direct` between keys (a superset)."""
        for name in self.names:
            if name not in self.dbs:
                continue
            cursor = tx.cursor(db=self.dbs[name])
            if name == RANGES and (lower is not None or upper is not None):
                least, most = LONG_MIN if lower is None else lower, LONG_MAX if upper is None else upper
                for first, last in ascending(least, most, self.plain):
                    yield name, between(cursor, first, last + b"\xff" * 17)
            elif name == DIRECT and (key_lower is not None or key_upper is not None):
                begin = b"" if key_lower is None else key_prefix(key_lower)
                end = None if key_upper is None else key_prefix(key_upper) + b"\xff" * 17
                yield name, between(cursor, begin, end)
            else:
                yield name, iter(cursor.iternext())

    def stream_keys(
        self, tx: lmdb.Transaction, keys: Iterable[bytes], since: int | None = None, until: int | None = None
    ) -> Iterator[tuple[str, Iterator[Pair]]]:
        """Rows of just these keys (ranged maps: of just these 16-byte ordered ranges), clashing ones filtered out.

        `since, until` bound the first time of a key's rows, both held.
        """
        pairs: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in self.names}
        for key in keys:
            if self.definition.kind.keyed:
                for table, prefix in self._tables_of(tx, key):
                    pairs[table].append((key, prefix))
            else:
                pairs[RANGES].append((key, key if not self.plain else _plain_range(key)))
        for name, of_table in pairs.items():
            if of_table:
                yield name, self._of_keys(tx, name, of_table, since, until)

    def _of_keys(
        self, tx: lmdb.Transaction, table: str, pairs: list[tuple[bytes, bytes]], since: int | None, until: int | None
    ) -> Iterator[Pair]:
        """The rows of keys at their prefixes, read as they are taken: a key may have millions."""
        cursor = tx.cursor(db=self.dbs[table])
        shared = self.definition.kind.keyed and table != DIRECT
        for key, prefix in pairs:
            rows = self._of_prefix(cursor, prefix, since, until)
            if shared:
                rows = (pair for pair in rows if split_seed_value(self.definition, pair[1])[0] == key)
            yield from rows

    def _of_prefix(self, cursor: lmdb.Cursor, prefix: bytes, since: int | None, until: int | None) -> Iterator[Pair]:
        if since is None and until is None:
            yield from prefixed(cursor, prefix)
            return
        least, most = LONG_MIN if since is None else since, LONG_MAX if until is None else until
        for first, last in ascending(least, most, self.plain):
            yield from between(cursor, prefix + first, prefix + last + b"\xff" * 17)

    # -- writing --------------------------------------------------------------------------------------

    def put_rows(self, tx: lmdb.Transaction, rows: pa.RecordBatch, overwrite: bool) -> None:
        """Put canonical rows, unique by address and in its order."""
        from millpond.arrays.byte_columns import to_list
        from millpond.maps.shard.layouts import encode_rows

        for table in encode_rows(self.definition, rows):
            pairs = zip(to_list(table.keys), to_list(table.values), strict=True)
            self.put_table(tx, table.table, pairs, overwrite)
        if not self.definition.kind.keyed:
            put_widths(tx, self.dbs[WIDTHS], rows)

    def put_table(self, tx: lmdb.Transaction, table: str, pairs: Iterable[Pair], overwrite: bool) -> None:
        """Put sorted rows of one table, as a part holds them."""
        if table == HASHED:
            self._put_hashed(tx, pairs, overwrite)
        elif table == OVERFLOW:
            self._put_overflow(tx, pairs, overwrite)
        else:
            tx.cursor(db=self.dbs[table]).putmulti(pairs, overwrite=overwrite)

    def _put_hashed(self, tx: lmdb.Transaction, pairs: Iterable[Pair], overwrite: bool) -> None:
        cursor = tx.cursor(db=self.dbs[HASHED])
        overflowing = bool(tx.stat(self.dbs[OVERFLOW])["entries"])
        for row, stored in pairs:
            if overflowing and self._held_in_overflow(tx, row, stored, overwrite):
                continue
            if cursor.put(row, stored, overwrite=False):
                continue
            same = self._same_key(cursor, row, stored)
            if same is None:
                cursor.put(row, stored)
            elif overwrite and same != stored:
                cursor.delete()
                cursor.put(row, stored)

    def _same_key(self, cursor: lmdb.Cursor, row: bytes, stored: bytes) -> bytes | None:
        """Stand on the duplicate row whose key is the key of `stored`, and give it; None when there is none."""
        key = split_seed_value(self.definition, stored)[0]
        if not cursor.set_key(row):
            return None
        while True:
            content = cursor.value()
            if split_seed_value(self.definition, content)[0] == key:
                return bytes(content)
            if not cursor.next_dup():
                return None

    def _held_in_overflow(self, tx: lmdb.Transaction, row: bytes, stored: bytes, overwrite: bool) -> bool:
        """True when `overflow` keeps this address; when the new row is to win, it is removed from there."""
        key = split_seed_value(self.definition, stored)[0]
        base = hash_prefix(self.definition, key, OVERFLOW) + row[self.definition.hash_bytes :]
        for row_key, value in self._clashing(tx, OVERFLOW, base):
            if split_seed_value(self.definition, value)[0] == key:
                if overwrite:
                    tx.delete(row_key, db=self.dbs[OVERFLOW])
                return not overwrite
        return False

    def _put_overflow(self, tx: lmdb.Transaction, pairs: Iterable[Pair], overwrite: bool) -> None:
        for row, stored in pairs:
            base = row[:-CLASH_BYTES]
            key = split_seed_value(self.definition, stored)[0]
            if self.definition.scheme is Scheme.HASH and self._held_in_hashed(tx, base, stored, overwrite):
                continue
            row_key, clashes = self._clash_key(tx, base, key)
            if overwrite or not clashes:
                tx.put(row_key, stored, db=self.dbs[OVERFLOW])

    def _clash_key(self, tx: lmdb.Transaction, base: bytes, key: bytes) -> tuple[bytes, bool]:
        """The table key for this address, and whether it is there already."""
        number = -1
        for row_key, value in self._clashing(tx, OVERFLOW, base):
            if split_seed_value(self.definition, value)[0] == key:
                return row_key, True
            number = int.from_bytes(row_key[-CLASH_BYTES:], "big")
        return base + (number + 1).to_bytes(CLASH_BYTES, "big"), False

    def _held_in_hashed(self, tx: lmdb.Transaction, base: bytes, stored: bytes, overwrite: bool) -> bool:
        key = split_seed_value(self.definition, stored)[0]
        row = hash_prefix(self.definition, key, HASHED) + base[8:]
        cursor = tx.cursor(db=self.dbs[HASHED])
        if self._same_key(cursor, row, stored) is None:
            return False
        if overwrite:
            cursor.delete()
        return not overwrite

    def delete_rows(self, tx: lmdb.Transaction, addresses: pa.RecordBatch) -> int:
        """Delete rows by the address columns of a canonical batch; how many there were."""
        from millpond.arrays.byte_columns import bytes_of, to_list
        from millpond.maps.model.address import address_bytes

        if not self.definition.kind.keyed:
            return self._delete_ranges(tx, addresses)
        keys = bytes_of(addresses.column("key")).to_arrow().to_pylist()
        rows = to_list(address_bytes(self.definition, addresses))
        return sum(self._delete_keyed(tx, key, row) for key, row in zip(keys, rows, strict=True))

    def _delete_keyed(self, tx: lmdb.Transaction, key: bytes, address: bytes) -> bool:
        longs = len(self.definition.kind.address) - 1
        tail = address[len(address) - 8 * longs :]
        if self.plain:
            packed = [unpack_long(tail[8 * n : 8 * n + 8], plain=False) for n in range(longs)]
            tail = b"".join(pack_long(number, plain=True) for number in packed)
        for table, prefix in self._tables_of(tx, key):
            if table == DIRECT:
                return bool(tx.delete(address, db=self.dbs[DIRECT]))
            for row_key, value in self._clashing(tx, table, prefix + tail):
                if split_seed_value(self.definition, value)[0] == key:
                    return bool(tx.delete(row_key, value if table == HASHED else b"", db=self.dbs[table]))
        return False

    def _delete_ranges(self, tx: lmdb.Transaction, addresses: pa.RecordBatch) -> int:
        from millpond.maps.model.address import long_column

        starts, ends = long_column(addresses, "key_start").tolist(), long_column(addresses, "key_end").tolist()
        times: list[int | None] = [None] * len(starts)
        if self.definition.kind is Kind.TEMPORAL_RANGED_STATE:
            times = long_column(addresses, "effective_time").tolist()
        count = 0
        for start, end, time in zip(starts, ends, times, strict=True):
            prefix = pack_long(start, self.plain) + pack_long(end, self.plain)
            row = prefix if time is None else prefix + pack_long(time, self.plain)
            count += bool(tx.delete(row, db=self.dbs[RANGES]))
        delete_widths(tx, self.dbs[WIDTHS], self.dbs[RANGES], starts, ends, plain=self.plain)
        return count


def _plain_range(ordered: bytes) -> bytes:
    start, end = (unpack_long(ordered[n : n + 8], plain=False) for n in (0, 8))
    return pack_long(start, plain=True) + pack_long(end, plain=True)
