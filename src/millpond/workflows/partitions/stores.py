"""The store of a partition on this machine: what is here goes on, else the newest checkpoint is put in its place.

    FOLDER/NUMBER             RocksDB; it never waits for the disk, for the log is durable and leads there again
    FOLDER/NUMBER.new         a store that is being made of a checkpoint

Invariants:
* a store that is opened is whole: one that was made of a checkpoint gets its name when all rows are there;
* the log has every entry behind the store's position; if neither the store here nor a checkpoint is so near, it is an
  error, and nothing is skipped.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from millpond.errors import Conflict, NotFound
from millpond.kernel.steps import step
from millpond.workflows.partitions.followed import read_cursor

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.stores.rocksdb.space import RocksSpace
    from millpond.workflows.logs import CommandLog
    from millpond.workflows.partitions.checkpoints import Checkpoints

__all__ = ("ENTRIES_BEHIND_MAX", "open_store")

ENTRIES_BEHIND_MAX = 10_000
"""A store that is further behind the newest checkpoint is replaced by it: that is quicker than to apply the log."""


def open_store(folder: Path, number: int, log: CommandLog, checkpoints: Checkpoints) -> RocksSpace:
    """The store of a partition, from which the log can be followed.

    Raises:
        Conflict: kind `log_other`: the store is ahead of the log, so the log is another one.
        NotFound: kind `log_trimmed`: the log begins behind the store and all checkpoints.
        Corrupt: the newest checkpoints are damaged.
        Unavailable: the log, the checkpoints or the folder cannot be reached.
    """
    path, end = folder / f"{number}", log.end(number)
    newest = max(checkpoints.positions(number), default=0)
    space = _rocks_space(path, durable=False)
    position = _position(space)
    if position > end or newest > end:
        space.close()
        raise Conflict(
            "the store is ahead of its log", kind="log_other", partition=number, store=max(position, newest), log=end,
            hint="the topic was made anew: move the folder and the checkpoints away, or name another topic",
        )  # fmt: skip
    if position < newest - ENTRIES_BEHIND_MAX or not _reaches(log, number, position):
        space.close()
        space = _restored(path, number, checkpoints)
        if not _reaches(log, number, _position(space)):
            space.close()
            raise NotFound(
                "the log no longer reaches back to the newest checkpoint", kind="log_trimmed", partition=number,
                checkpoint=newest, hint="name the place of checkpoints that all processes use",
            )  # fmt: skip
    return space


def _restored(path: Path, number: int, checkpoints: Checkpoints) -> RocksSpace:
    new = path.with_name(f"{number}.new")
    shutil.rmtree(new, ignore_errors=True)
    space = _rocks_space(new, durable=True)
    checkpoints.restore(number, space)
    space.close()
    step("workflows.restored")
    shutil.rmtree(path, ignore_errors=True)
    step("workflows.replacing")
    new.rename(path)
    return _rocks_space(path, durable=False)


def _rocks_space(path: Path, *, durable: bool) -> RocksSpace:
    from millpond.stores.rocksdb.space import RocksSpace  # of an extra, which a pond in a folder does without

    return RocksSpace(path, durable=durable)


def _position(space: RocksSpace) -> int:
    with space.read() as tx:
        return read_cursor(tx).position


def _reaches(log: CommandLog, number: int, position: int) -> bool:
    try:
        log.follow(number, position).close()
    except NotFound:
        return False
    return True
