"""Reading and changing the rows of a space inside one transaction of PostgreSQL.

A scan reads pages by the primary key, each from behind the last key. The first is small, for most scans end soon; each
following one is twice as large, up to a limit of rows and one of bytes. It needs no cursor on the server: all pages
are of the transaction's one moment.

Invariants:
* The first error of the server is remembered: after it the transaction holds nothing that could be committed.
* `Changing` answers from what it changed, whether or not that was stored already; so a scan that began before sees it.
* Rows are stored in the order of their keys, so that two writers seldom wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from millpond.kernel.keys import KeyRange
from millpond.kernel.overlay import Overlay
from millpond.kernel.page import behind
from millpond.kernel.space import transaction_over
from millpond.stores.postgres.errors import translated

__all__ = ("Changing", "Moment")

PAGE_ROWS_FIRST = 16
PAGE_ROWS_MAX = 4096
PAGE_BYTES_MAX = 4 << 20
"""About: a page has as many rows as would fit, were they as long as those of the page before."""

STORED_BYTES_MAX = 16 << 20
STORED_ROWS_MAX = 10_000
LOOKUP_KEYS_MAX = 1000

_GET = "SELECT value FROM millpond_space WHERE space = %s AND key = %b"
_GET_MANY = "SELECT key, value FROM millpond_space WHERE space = %s AND key = ANY(%b)"
_GET_TOGETHER = """
    SELECT 0, key, value FROM millpond_space WHERE space = %s AND key = ANY(%b)
    UNION ALL SELECT place::int, last.key, NULL
    FROM unnest(%b::bytea[], %b::bytea[]) WITH ORDINALITY AS span(start, stop, place), LATERAL (
        SELECT key FROM millpond_space WHERE space = %s AND key >= start AND key < stop ORDER BY key DESC LIMIT 1
    ) AS last
"""
_PUT = """
    INSERT INTO millpond_space (space, key, value) SELECT %s, * FROM unnest(%b::bytea[], %b::bytea[])
    ON CONFLICT (space, key) DO UPDATE SET value = excluded.value
"""
_DELETE = "DELETE FROM millpond_space WHERE space = %s AND key = ANY(%b)"


class Moment:
    """A `ReadTransaction` of the server, at whose first error it fails."""

    def __init__(self, connection: psycopg.Connection, space: str) -> None:
        self._connection, self.space = connection, space
        self.failure: psycopg.Error | None = None
        self._over = False

    def end(self) -> None:
        """Refuse every use from now on: the connection will serve others."""
        self._over = True

    def run(self, statement: str, *values: object) -> psycopg.Cursor[Any]:
        """A statement about the rows of the space, whose name is its first value."""
        if self._over:
            raise transaction_over()
        try:
            return self._connection.execute(statement.encode(), (self.space, *values), binary=True)
        except psycopg.Error as error:
            self.failure = self.failure or error
            raise translated(error, self.space) from error

    def get(self, key: bytes) -> bytes | None:
        row = self.run(_GET, key).fetchone()
        return None if row is None else row[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: dict[bytes, bytes] = {}
        for start in range(0, len(keys), LOOKUP_KEYS_MAX):
            values.update(self.run(_GET_MANY, list(keys[start : start + LOOKUP_KEYS_MAX])).fetchall())
        return [values.get(key) for key in keys]

    def get_together(
        self, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> tuple[dict[bytes, bytes], list[bytes | None]]:
        """The rows at some keys, and the last key of each range, which has a stop: by one statement."""
        starts, stops = [keys.start for keys in ranges], [keys.stop for keys in ranges]
        rows, last = dict[bytes, bytes](), list[bytes | None]([None] * len(ranges))
        for at, key, value in self.run(_GET_TOGETHER, list(keys), starts, stops, self.space):
            if at:
                last[at - 1] = key
            else:
                rows[key] = value
        return rows, last

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._rows("key, value", keys, reverse)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        return (row[0] for row in self._rows("key", keys, reverse))

    def _rows(self, columns: str, keys: KeyRange, reverse: bool) -> Iterator[Any]:
        size = PAGE_ROWS_FIRST
        while True:
            where, values = _within(keys)
            order = "DESC" if reverse else "ASC"
            select = f"SELECT {columns} FROM millpond_space WHERE {where} ORDER BY key {order} LIMIT {size}"
            rows = self.run(select, *values).fetchall()
            yield from rows
            if len(rows) < size:
                return
            keys = behind(keys, rows[-1][0], reverse=reverse)
            size = _next_size(rows)


class Changing(Overlay):
    """An overlay of a moment that stores its changes in the same transaction."""

    def __init__(self, moment: Moment) -> None:
        super().__init__(moment)
        self._moment = moment
        self._unstored: dict[bytes, bytes | None] = {}
        self.changed = False

    def store(self) -> None:
        """Bring the server what it does not have yet."""
        changes, self._unstored = sorted(self._unstored.items()), {}
        deleted = [key for key, value in changes if value is None]
        for start in range(0, len(deleted), STORED_ROWS_MAX):
            self._moment.run(_DELETE, deleted[start : start + STORED_ROWS_MAX])
        for rows in _batches([(key, value) for key, value in changes if value is not None]):
            self._moment.run(_PUT, [key for key, _ in rows], [value for _, value in rows])

    def delete_range(self, keys: KeyRange, limit: int | None = None) -> int:
        self._refuse_over()
        self.store()
        where, values = _within(keys)
        if limit is not None:
            first = f"SELECT key FROM millpond_space WHERE {where} ORDER BY key LIMIT {int(limit)}"
            where, values = f"space = %s AND key IN ({first})", (self._moment.space, *values)
        deleted = self._moment.run(f"DELETE FROM millpond_space WHERE {where} RETURNING key", *values)
        gone = [key for (key,) in deleted.fetchall()]
        for key in gone:  # for scans that have read them already
            self._change(key, None)
        self._unstored.clear()
        return len(gone)

    def _change(self, key: bytes, value: bytes | None) -> None:
        super()._change(key, value)
        self._unstored[key] = value
        self.changed = True


def _within(keys: KeyRange) -> tuple[str, tuple[object, ...]]:
    if keys.stop is None:
        return "space = %s AND key >= %b", (keys.start,)
    return "space = %s AND key >= %b AND key < %b", (keys.start, keys.stop)


def _next_size(rows: Sequence[tuple[bytes, ...]]) -> int:
    """Rows of the page after a full one: twice as many, as far as they fit."""
    row_bytes = sum(len(part) for row in rows for part in row) // len(rows) + 1
    return max(1, min(2 * len(rows), PAGE_ROWS_MAX, PAGE_BYTES_MAX // row_bytes))


def _batches(rows: list[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows in lists that one statement can carry."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        if batch and (size + len(key) + len(value) > STORED_BYTES_MAX or len(batch) == STORED_ROWS_MAX):
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += len(key) + len(value)
    if batch:
        yield batch
