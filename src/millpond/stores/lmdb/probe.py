"""Reading a whole LMDB file through, in a process of its own.

LMDB trusts its file: on a page that is not what it should be it may abort the process, and on a file cut short the
system kills it. So whoever doubts a file asks here, where only a child dies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from millpond.errors import Corrupt

__all__ = ("MAIN", "read_through", "refuse_truncated")

MAIN = ""
"""The name under which the rows of the unnamed table are counted."""

_PROBE = """
import json, sys, lmdb

TABLES_MAX = 64

def count(transaction, table):
    rows, size, before = 0, 0, b""
    for key, value in transaction.cursor(db=table):
        if key < before:
            sys.exit("keys are out of order")
        rows, size, before = rows + 1, size + len(value), key
    if rows != transaction.stat(table)["entries"]:
        sys.exit("rows are missing")
    return rows

def opened(path):
    try:
        return lmdb.open(path, readonly=True, max_dbs=TABLES_MAX)
    except lmdb.Error:
        # A sealed file, or a file system that is read-only, has no place for a lock.
        return lmdb.open(path, readonly=True, max_dbs=TABLES_MAX, lock=False)

def tables_of(environment, main):
    with environment.begin() as transaction:
        few = transaction.stat(main)["entries"] <= TABLES_MAX
        names = [key for key, _ in transaction.cursor(db=main) if b"\\0" not in key] if few else []
    for name in names:
        try:
            yield name, environment.open_db(name, create=False)
        except (lmdb.IncompatibleError, lmdb.NotFoundError):
            pass  # a row like any other

with opened(sys.argv[1]) as environment:
    main = environment.open_db(None)
    tables = dict(tables_of(environment, main))
    with environment.begin() as transaction:
        counts = {"": count(transaction, main)}
        counts |= {name.decode(): count(transaction, table) for name, table in tables.items()}
print(json.dumps(counts))
"""


def read_through(folder: Path) -> dict[str, int]:
    """The number of rows of each table, by name, counted by reading every page.

    Raises:
        Corrupt: a row cannot be read, or rows are out of order or missing. The file is named.
    """
    import subprocess  # few processes read a file through

    command = [sys.executable, "-c", _PROBE, str(folder)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        raise Corrupt(
            "the file cannot be read through",
            kind="space_damaged",
            hint="restore it from a copy",
            file=folder / "data.mdb",
            reason=lines[-1] if lines else f"the reading process ended with {child.returncode}",
        )
    counts: dict[str, int] = json.loads(child.stdout)
    return counts


def refuse_truncated(folder: Path, bytes_wanted: int) -> None:
    """Refuse a file that lost its end; `bytes_wanted` is how long its own meta page says it is.

    A file may be shorter than that when its last pages were free before they were ever written. So a short file is
    read through once.

    Raises:
        Corrupt: rows cannot be read.
    """
    file = folder / "data.mdb"
    size = file.stat().st_size
    if size >= bytes_wanted:
        return
    try:
        read_through(folder)
    except Corrupt as error:
        raise Corrupt(
            "the file lost its end",
            kind="space_truncated",
            hint="restore it from a copy",
            file=file,
            bytes=size,
            told=bytes_wanted,
        ) from error
