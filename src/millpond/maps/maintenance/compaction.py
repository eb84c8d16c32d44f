"""Compacting: the rows of a shard written anew, in order, into the next generation of its file.

    shards/<map>/000001/    what readers read, and go on reading until they let go
    shards/<map>/000002/    every table appended in order: pages are full, none is free

The new generation counts once `current` names it, in one atomic act; a crash before that leaves a folder that nobody
reads, which the next compacting removes. The old file is unlinked after the switch: readers that still hold it keep
its bytes, and the disk gets them back when they let go.
"""

from __future__ import annotations

from pathlib import Path

import lmdb

from millpond.kernel.steps import step
from millpond.maps.shard.row_batches import gathered
from millpond.maps.shard.shard import Shard, generation_folder, read_generation
from millpond.stores.files import remove_tree, sync
from millpond.stores.lmdb.environment import open_environment
from millpond.stores.lmdb.errors import translated

__all__ = ("compact_shard",)

ROWS_PER_WRITE = 100_000
TABLES_MAX = 32
_PAGE_BYTES = 1 << 16


def compact_shard(shard: Shard) -> int:
    """Rewrite the file; how many generations were written. Call it while `shard.exclusive()`.

    Raises: `Unavailable` when the disk is full; the map is as it was.
    """
    with shard.view() as view:
        env = view.generation.env
        if view.tx is None or env is None:
            return 0
        number = int(read_generation(shard.folder) or 0)
        _remove_others(shard.folder, number)
        target = generation_folder(shard.folder, number + 1)
        try:
            _write_copy(view.tx, env.handle, target, shard.stats().bytes)
        except BaseException:
            remove_tree(target)
            raise
    step("compact.copied")
    shard.switch(number + 1)
    _remove_others(shard.folder, number + 1)
    step("compact.old_removed")
    return 1


def _remove_others(folder: Path, number: int) -> None:
    """Remove every generation but one, and what an interrupted removal left."""
    for other in folder.iterdir():
        unwanted = other.name.isdigit() and int(other.name) != number
        if other.is_dir() and (unwanted or other.name.endswith(".gone")):
            remove_tree(other)


def _write_copy(tx: lmdb.Transaction, source: lmdb.Environment, target: Path, size: int) -> None:
    target.mkdir(parents=True)
    try:
        # Nothing is synced until all is written: an unfinished copy is never read, so it needs no locks either.
        map_bytes = 2 * size + _PAGE_BYTES * 16
        with open_environment(
            lambda: lmdb.open(str(target), map_size=map_bytes, max_dbs=TABLES_MAX, sync=False, lock=False)
        ) as env:
            for name in [bytes(key) for key, _ in tx.cursor()]:
                _copy_table(tx, source, env, name)
            env.sync(True)
    except lmdb.Error as error:
        raise translated(error, target) from error
    sync(target)
    sync(target.parent)


def _copy_table(tx: lmdb.Transaction, source: lmdb.Environment, env: lmdb.Environment, name: bytes) -> None:
    table = source.open_db(name, txn=tx, create=False)
    copy = env.open_db(name, dupsort=bool(table.flags(tx)["dupsort"]))
    for keys, values in gathered(iter(tx.cursor(db=table)), ROWS_PER_WRITE):
        with env.begin(write=True) as writing:
            writing.cursor(db=copy).putmulti(zip(keys, values, strict=True), append=True)
    step("compact.table_copied")
