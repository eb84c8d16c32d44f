"""The data of a part, with which its file begins: sorted tables, written in one go, and summed on the way.

Rows of clashing keys lie under one key of table `hashed`: LMDB itself writes those files, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lmdb
import xxhash

from millpond.arrays.byte_columns import run_ends, to_list
from millpond.maps.shard.layouts import TableRows
from millpond.maps.shard.tables import HASHED
from millpond.stores.files import checksum_file
from millpond.stores.lmdb.bulk_write import BulkTable, write_environment
from millpond.stores.lmdb.environment import open_environment

__all__ = ("write_data",)


def write_data(file: Path, tables: Sequence[TableRows]) -> tuple[int, str]:
    """Write the tables into a new file, which is not synced; its bytes and their checksum.

    Raises: `OSError` when the disk is full.
    """
    if any(table.table == HASHED and not run_ends(table.keys).all() for table in tables):
        _write_rows(file, tables)
        return file.stat().st_size, checksum_file(file)
    summed = xxhash.xxh3_128()
    with file.open("xb") as target:

        def put(chunk: memoryview) -> None:
            summed.update(chunk)
            target.write(chunk)

        size = write_environment([_bulk(table) for table in tables], put)
    return size, summed.hexdigest()


def _bulk(rows: TableRows) -> BulkTable:
    keys, values = rows.keys, rows.values
    return BulkTable(rows.table, keys.offsets, keys.data, values.offsets, values.data, rows.table == HASHED)


def _write_rows(file: Path, tables: Sequence[TableRows]) -> None:
    size = sum(len(table.keys.data) + len(table.values.data) + 64 * len(table.keys) for table in tables)
    map_bytes = 2 * size + (32 << 20)
    while True:
        try:
            return _put_rows(file, tables, map_bytes)
        except lmdb.MapFullError:
            map_bytes *= 2
            file.unlink()


def _put_rows(file: Path, tables: Sequence[TableRows], map_bytes: int) -> None:
    env = open_environment(
        lambda: lmdb.open(
            str(file), subdir=False, map_size=map_bytes, max_dbs=8, sync=False, metasync=False, lock=False
        )
    )
    try:
        for table in tables:
            db = env.open_db(table.table.encode(), dupsort=table.table == HASHED)
            with env.begin(write=True, db=db) as tx:
                tx.cursor().putmulti(zip(to_list(table.keys), to_list(table.values), strict=True), append=True)
    except lmdb.DiskError as error:
        raise OSError(28, str(error)) from error
    finally:
        env.close()
