"""The rivals of `bench/versions.py`: rows encoded beforehand for LMDB and SQLite, whole states rewritten by DuckDB."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import lmdb
import pyarrow as pa

__all__ = ("bare_lmdb", "encoded_rows", "merge_by_sql", "rewrite_by_sql", "sqlite_rows")


def encoded_rows(table: pa.Table) -> list[tuple[bytes, bytes]]:
    """The rows as keys and values, encoded beforehand, in order."""
    columns = [table[name].to_pylist() for name in ("path", "address", "size", "checksum")]
    return sorted(
        (name.encode(), f"{address}\0{size}\0{checksum}".encode())
        for name, address, size, checksum in zip(*columns, strict=True)
    )


@contextmanager
def bare_lmdb(folder: Path) -> Iterator[lmdb.Environment]:
    """An environment of LMDB, synced."""
    environment = lmdb.open(str(folder), map_size=4 << 30)
    yield environment
    environment.close()


def sqlite_rows(folder: Path, rows: list[tuple[bytes, bytes]]) -> sqlite3.Connection:
    """A table of SQLite with these rows, synced."""
    connection = sqlite3.connect(folder / "db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
    connection.execute("COMMIT")
    return connection


def rewrite_by_sql(base: pa.Table, changes: pa.Table, folder: Path) -> None:
    """The state after changes, by SQL, into a file."""
    connection = duckdb.connect()
    connection.register("base", base)
    connection.register("changes", changes)
    connection.execute(
        "COPY (SELECT * FROM base ANTI JOIN changes USING (path) UNION ALL SELECT * FROM changes ORDER BY path) "
        f"TO '{folder}/out.parquet' (COMPRESSION zstd)"
    )


def merge_by_sql(base: pa.Table, ours: pa.Table, theirs: pa.Table, folder: Path) -> None:
    """The merge by SQL: each side whole, as a merge finds it, then key by key."""
    connection = duckdb.connect()
    connection.register("base", base)
    for name, side in (("o", ours), ("t", theirs)):
        connection.register("side", side)
        connection.execute(
            f"CREATE TABLE {name} AS SELECT * FROM base ANTI JOIN side USING (path) UNION ALL SELECT * FROM side"
        )
    changed = "t.checksum IS DISTINCT FROM b.checksum"
    chosen = ", ".join(
        f"CASE WHEN {changed} THEN t.{name} ELSE o.{name} END {name}"
        for name in ("address", "size", "mtime", "checksum")
    )
    connection.execute(
        f"COPY (SELECT path, {chosen} "
        "FROM o FULL JOIN t USING (path) LEFT JOIN base b USING (path) ORDER BY path) "
        f"TO '{folder}/out.parquet' (COMPRESSION zstd)"
    )
