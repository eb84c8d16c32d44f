"""Rows with their keys and values interned: the tables of scheme `lookup`.

| table | key | value |
|---|---|---|
| `key_ids` | xxh3_64 of the key (8 bytes) · clash number (2) | id (8) · KEY |
| `keys` | id (8) | KEY |
| `value_ids` | xxh3_64 of `<VALUE_TYPE><VALUE>` (8) · clash number (2) | id (8) · `<VALUE_TYPE><VALUE>` |
| `values` | id (8) | `<VALUE_TYPE><VALUE>` |
| `rows` | key id (8), or start · end; then each time, sign bit flipped | value id (8), sessions: empty |
| `widths` | as in `plain_store` | |

Ids have a fixed width, so no key is a prefix of another. Ids count up.
Ids that no row uses any more are found and forgotten by maintenance (`sweep.py`), after it deleted rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lmdb

from millpond.arrays.key_hash import hash_key
from millpond.arrays.longs import pack_long, unpack_long
from millpond.deferred import np, pa
from millpond.errors import Corrupt
from millpond.maps.model.definition import MapDefinition
from millpond.maps.shard.cursors import Pair, backwards, between, delete_pairs, prefixed
from millpond.maps.shard.range_widths import WIDTHS, delete_widths, put_widths
from millpond.maps.shard.tables import CLASH_BYTES

__all__ = ("InternedStore", "TokenTable")

ROWS = "rows"


class TokenTable:
    """Byte strings and their ids: each string is stored once."""

    def __init__(self, ids: str, texts: str, bits: int) -> None:
        self.ids_name, self.texts_name, self.bits = ids, texts, bits
        self.ids: Any = None
        self.texts: Any = None

    def find(self, tx: lmdb.Transaction, text: bytes) -> bytes | None:
        """The id of a string, or None."""
        return self._row_of(tx, text)[1]

    def _row_of(self, tx: lmdb.Transaction, text: bytes) -> tuple[bytes, bytes | None]:
        base = hash_key(text, bits=self.bits).to_bytes(8, "big")
        cursor, number = tx.cursor(db=self.ids), -1
        if cursor.set_range(base):
            for key, value in cursor.iternext():
                if key[:-CLASH_BYTES] != base:
                    break
                if value[8:] == text:
                    return key, value[:8]
                number = int.from_bytes(key[-CLASH_BYTES:], "big")
        return base + (number + 1).to_bytes(CLASH_BYTES, "big"), None

    def intern(self, tx: lmdb.Transaction, text: bytes) -> bytes:
        """The id of a string, made when it is new."""
        key, token = self._row_of(tx, text)
        if token is not None:
            return token
        fresh = (self.last_id(tx) + 1).to_bytes(8, "big")
        tx.put(key, fresh + text, db=self.ids)
        tx.put(fresh, text, db=self.texts)
        return fresh

    def intern_all(self, tx: lmdb.Transaction, texts: list[bytes]) -> list[bytes]:
        """The ids of many strings, each distinct one looked up once."""
        tokens = {text: self.intern(tx, text) for text in dict.fromkeys(texts)}
        return [tokens[text] for text in texts]

    def text(self, tx: lmdb.Transaction, token: bytes) -> bytes:
        """The string of an id.

        Raises: `Corrupt` when a row names an id that is not there.
        """
        text = tx.get(token, db=self.texts)
        if text is None:
            raise self._without_text(token)
        return text

    def texts_of(self, tx: lmdb.Transaction, tokens: list[bytes]) -> list[bytes]:
        """The strings of many ids, each distinct one read once.

        Raises: `Corrupt` when a row names an id that is not there.
        """
        distinct = list(dict.fromkeys(tokens))
        texts: dict[bytes, bytes] = dict(tx.cursor(db=self.texts).getmulti(distinct)) if distinct else {}
        try:
            return [texts[token] for token in tokens]
        except KeyError as missing:
            raise self._without_text(missing.args[0]) from None

    def _without_text(self, token: bytes) -> Corrupt:
        return Corrupt("an interned id has no text", kind="interned_id", table=self.texts_name, id=token.hex())

    def last_id(self, tx: lmdb.Transaction) -> int:
        """The greatest id there is; 0 when there is none."""
        cursor = tx.cursor(db=self.texts)
        return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def forget(self, tx: lmdb.Transaction, tokens: list[bytes]) -> None:
        """Forget the strings of these ids."""
        from millpond.arrays.xxh3 import hash_keys

        hashes = hash_keys(pa.array(self.texts_of(tx, tokens), pa.binary()), bits=self.bits)
        cursor = tx.cursor(db=self.ids)
        keys = []
        for number in np.argsort(hashes, kind="stable").tolist():
            base = int(hashes[number]).to_bytes(8, "big")
            keys += [key for key, value in prefixed(cursor, base) if value[:8] == tokens[number]]
        delete_pairs(tx, self.ids, keys)
        delete_pairs(tx, self.texts, tokens)


class InternedStore:
    """The row tables of a shard whose scheme is `lookup`."""

    def __init__(self, definition: MapDefinition) -> None:
        self.definition = definition
        self.keys = TokenTable("key_ids", "keys", definition.hash_bits)
        self.values = TokenTable("value_ids", "values", definition.hash_bits)
        self.dbs: dict[str, Any] = {}

    def open_tables(self, env: lmdb.Environment, tx: lmdb.Transaction, create: bool) -> None:
        """Open the tables, with `create` making those that are missing."""
        names = [ROWS, "value_ids", "values"]
        names += ["key_ids", "keys"] if self.definition.kind.keyed else [WIDTHS]
        for name in names:
            try:
                self.dbs[name] = env.open_db(name.encode(), txn=tx, create=create)
            except lmdb.NotFoundError:
                self.dbs.pop(name, None)
        for table in (self.keys, self.values):
            table.ids, table.texts = self.dbs.get(table.ids_name), self.dbs.get(table.texts_name)

    def row_count(self, tx: lmdb.Transaction) -> int:
        """The number of rows of the map."""
        return int(tx.stat(self.dbs[ROWS])["entries"]) if ROWS in self.dbs else 0

    # -- one question ---------------------------------------------------------------------------------

    def value_of(self, tx: lmdb.Transaction, key: bytes) -> bytes | None:
        """State: the value of the key."""
        token = self._key_id(tx, key)
        return None if token is None else self._value(tx, tx.get(token, db=self.dbs[ROWS]))

    def _key_id(self, tx: lmdb.Transaction, key: bytes) -> bytes | None:
        return self.keys.find(tx, key) if ROWS in self.dbs else None

    def _value(self, tx: lmdb.Transaction, token: bytes | None) -> bytes | None:
        return None if token is None else self.values.text(tx, token)

    def latest(self, tx: lmdb.Transaction, key: bytes, at: int) -> bytes | None:
        """Temporal state: the latest value with time ≤ `at`."""
        for walk in self.walks(tx, key, at):
            for _, _, value in walk:
                return self._value(tx, value)
        return None

    def walks(self, tx: lmdb.Transaction, key: bytes, at: int) -> list[Iterator[tuple[int, bytes, bytes]]]:
        """`(time, rest of the address, value id)` of the key's rows with time ≤ `at`, latest first: in one table."""
        token = self._key_id(tx, key)
        return [] if token is None else [self._times(tx, token, at)]

    def _times(self, tx: lmdb.Transaction, token: bytes, at: int) -> Iterator[tuple[int, bytes, bytes]]:
        for row, value in self._descend(tx, token, at):
            yield unpack_long(row[8:16], plain=False), row[16:], value

    def _descend(self, tx: lmdb.Transaction, prefix: bytes, at: int) -> Iterator[Pair]:
        for row, value in backwards(tx.cursor(db=self.dbs[ROWS]), prefix + pack_long(at, plain=False) + b"\xff" * 9):
            if not row.startswith(prefix):
                return
            yield row, value

    def range_value(self, tx: lmdb.Transaction, start: int, end: int, at: int | None) -> bytes | None:
        """The value of one range; temporal: the latest with time ≤ `at`."""
        prefix = pack_long(start, plain=False) + pack_long(end, plain=False)
        if at is None:
            return self._value(tx, tx.get(prefix, db=self.dbs[ROWS]))
        for _, value in self._descend(tx, prefix, at):
            return self._value(tx, value)
        return None

    # -- rows in bulk ---------------------------------------------------------------------------------

    def stream(
        self, tx: lmdb.Transaction, lower: int | None = None, upper: int | None = None,
        key_lower: bytes | None = None, key_upper: bytes | None = None,
    ) -> Iterator[tuple[str, Iterator[Pair]]]:  # fmt: skip
        """All rows, ranged maps between two starts; key bounds do not narrow interned rows."""
        if ROWS not in self.dbs:
            return
        first = b"" if lower is None or self.definition.kind.keyed else pack_long(lower, plain=False)
        last = None if upper is None else pack_long(upper, plain=False) + b"\xff" * 17
        yield ROWS, between(tx.cursor(db=self.dbs[ROWS]), first, None if self.definition.kind.keyed else last)

    def stream_keys(
        self, tx: lmdb.Transaction, keys: Iterable[bytes], since: int | None = None, until: int | None = None
    ) -> Iterator[tuple[str, Iterator[Pair]]]:
        if ROWS not in self.dbs:
            return
        yield ROWS, self._of_keys(tx, keys, since, until)

    def _of_keys(
        self, tx: lmdb.Transaction, keys: Iterable[bytes], since: int | None, until: int | None
    ) -> Iterator[Pair]:
        cursor = tx.cursor(db=self.dbs[ROWS])
        for key in keys:
            prefix = self._key_id(tx, key) if self.definition.kind.keyed else key
            if prefix is None:
                continue
            last = prefix + (b"" if until is None else pack_long(until, plain=False)) + b"\xff" * 17
            if cursor.set_range(prefix + (b"" if since is None else pack_long(since, plain=False))):
                for row, value in cursor.iternext():
                    if row > last:
                        break
                    yield row, value

    def decode(self, tx: lmdb.Transaction, rows: list[bytes], values: list[bytes]) -> pa.RecordBatch:
        """Canonical rows from rows of the table."""
        from millpond.arrays.byte_columns import bytes_of
        from millpond.maps.model.columns import canonical_schema
        from millpond.maps.model.values import decode_values

        keyed, kind = self.definition.kind.keyed, self.definition.kind
        columns: list[pa.Array] = []
        if keyed:
            columns.append(pa.array(self.keys.texts_of(tx, [row[:8] for row in rows]), pa.binary()))
        columns += [
            pa.array([unpack_long(row[at : at + 8], plain=False) for row in rows], pa.int64())
            for at in range(8 if keyed else 0, 8 * len(kind.address), 8)
        ]
        if kind.valued:
            encoded = pa.array(self.values.texts_of(tx, values), pa.binary())
            columns.append(decode_values(bytes_of(encoded), self.definition.value))
        return pa.RecordBatch.from_arrays(columns, schema=canonical_schema(self.definition))

    # -- writing --------------------------------------------------------------------------------------

    def put_rows(self, tx: lmdb.Transaction, rows: pa.RecordBatch, overwrite: bool) -> None:
        """Put canonical rows, unique by address."""
        from millpond.arrays.byte_columns import to_list
        from millpond.maps.model.values import encode_values

        keys = self._row_keys(tx, rows, make=True)
        values = [b""] * rows.num_rows
        if self.definition.kind.valued:
            values = self.values.intern_all(tx, to_list(encode_values(rows.column("value"), self.definition.value)))
        pairs = sorted(zip(keys, values, strict=True))
        tx.cursor(db=self.dbs[ROWS]).putmulti(pairs, overwrite=overwrite)
        if not self.definition.kind.keyed:
            put_widths(tx, self.dbs[WIDTHS], rows)

    def _row_keys(self, tx: lmdb.Transaction, rows: pa.RecordBatch, *, make: bool) -> list[bytes]:
        from millpond.maps.model.address import times_of

        longs = [column.tolist() for column in times_of(self.definition, rows)]
        tails = [b"".join(pack_long(number, plain=False) for number in address) for address in zip(*longs, strict=True)]
        tails = tails or [b""] * rows.num_rows
        if not self.definition.kind.keyed:
            return tails
        texts = rows.column("key").to_pylist()
        tokens = self.keys.intern_all(tx, texts) if make else [self.keys.find(tx, text) or b"" for text in texts]
        return [token + tail for token, tail in zip(tokens, tails, strict=True)]

    def delete_rows(self, tx: lmdb.Transaction, addresses: pa.RecordBatch) -> int:
        """Delete rows by the address columns of a canonical batch; how many there were."""
        from millpond.maps.model.address import long_column

        count = 0
        for row in self._row_keys(tx, addresses, make=False):
            count += bool(row and tx.delete(row, db=self.dbs[ROWS]))
        if not self.definition.kind.keyed:
            starts, ends = (long_column(addresses, name).tolist() for name in ("key_start", "key_end"))
            delete_widths(tx, self.dbs[WIDTHS], self.dbs[ROWS], starts, ends, plain=False)
        return count
