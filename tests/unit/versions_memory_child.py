"""Many entries imported, listed, staged, compared, committed and merged by a process under a limit of memory.

    python versions_memory_child.py FOLDER ENTRIES CACHE_BYTES LIMIT_BYTES

The limit holds for the memory that the process allocates after it did the same with a few entries. No answer is
collected in a list: the count of its rows and the sum of their hashes are those of the entries as they were made.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.arrays.xxh3 import hash_keys
from millpond.clock import ManualClock
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.objects import FolderObjects
from millpond.stores.objects.sources import open_source
from millpond.versions.imports.locations import TableLocation
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository

BLOCK = 1 << 15
MALLOC = {
    "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}  # fmt: skip
"""An allocator that gives back what it does not need and begins with nothing, so that a limit counts what is used.

Arrow's own has a GiB in advance, of which no limit would tell any more."""
Answer = tuple[int, int]


def block(numbers: np.ndarray[Any, Any], seed: int) -> pa.RecordBatch:
    """Entries by their numbers, in the order of their paths; another seed is other content."""
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 9, "0")
    random = np.random.default_rng((seed, int(numbers[0]), len(numbers))).integers(10**15, 10**16, len(numbers))
    path = pc.binary_join_element_wise("big/part-", digits, ".parquet", "")
    address = pc.binary_join_element_wise("s3://bucket/import/part-", digits, ".parquet", "")
    return pa.record_batch(
        {
            "path": path, "address": address, "size": pa.array(numbers % 1_000_003), "mtime": pa.array(numbers // 100),
            "checksum": pc.binary_join_element_wise(
                pa.array(random).cast(pa.string()), pa.array(random).cast(pa.string()), ""
            ),
        }
    )  # fmt: skip


def blocks(count: int, step: int = 1, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Every so many of the entries, a block at a time."""
    for start in range(0, count, BLOCK * step):
        yield block(np.arange(start, min(start + BLOCK * step, count), step), seed)


def answer(columns: Iterable[tuple[pa.Array, pa.Array]]) -> Answer:
    """The number of paths, and the sum of the hashes of paths and checksums."""
    count = total = 0
    for paths, checksums in columns:
        count += len(paths)
        for column in (paths, checksums):
            total += int(hash_keys(column.cast(pa.string())).sum(dtype=np.uint64))
    return count, total % (1 << 64)


def of_blocks(found: Iterable[pa.RecordBatch]) -> Answer:
    return answer((batch.column("path"), batch.column("checksum")) for batch in found)


def of_entries(found: Iterable[pa.RecordBatch]) -> Answer:
    return answer((batch.column("key"), batch.column("checksum")) for batch in found)


def of_differences(found: Iterable[pa.RecordBatch]) -> Answer:
    return answer((batch.column("path"), batch.column("right_checksum")) for batch in found)


def changed(count: int, step: int, seed: int) -> Iterator[pa.RecordBatch]:
    """All entries, every so many of them with another content."""
    for whole, some in zip(blocks(count), blocks_beside(count, step, seed), strict=True):
        numbers = np.arange(whole.num_rows)
        numbers[::step] = np.arange(some.num_rows) + whole.num_rows
        yield pa.concat_batches([whole, some]).take(pa.array(numbers))


def blocks_beside(count: int, step: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The changed entries of each block of `blocks(count)`; the block's size is a multiple of the step."""
    for start in range(0, count, BLOCK):
        yield block(np.arange(start, min(start + BLOCK, count), step), seed)


def work(repository: Repository, folder: Path, count: int, *, whole: bool) -> None:
    """All acts, or without merges and rows in no order; each answer compared."""
    main = repository.branch("main")
    with pq.ParquetWriter(folder / "table.parquet", block(np.arange(1), 0).schema) as writer:
        for rows in blocks(count):
            writer.write_batch(rows, row_group_size=BLOCK)
    main.imports.commit([TableLocation((folder / "table.parquet").as_uri())])
    (folder / "table.parquet").unlink()
    assert of_entries(main.entries()) == of_blocks(blocks(count)), "an import"
    for name, step, seed in (("eighth", 8, 1), ("other", 16, 2))[: 2 if whole else 1]:
        branch = repository.create_branch(name, "main")
        expected = of_blocks(blocks_beside(count, step, seed))
        assert branch.staging.push(blocks_beside(count, step, seed)) == expected[0]
        assert of_differences(branch.staging.uncommitted()) == expected, "what is staged"
        branch.commit(name)
        assert of_differences(repository.diff_rows("main", name)) == expected, "a difference"
    eighth = repository.branch("eighth")
    assert of_entries(eighth.entries()) == of_blocks(changed(count, 8, 1)), "a commit"
    if not whole:
        return
    eighth.merge("other", strategy="dest-wins")
    assert of_entries(eighth.entries()) == of_blocks(changed(count, 8, 1)), "a merge"
    branch = repository.create_branch("unordered", "main")
    starts = range(0, count, BLOCK * 16)
    branch.staging.stage(block(np.arange(start, min(start + BLOCK, count)), 0) for start in reversed(starts))
    assert branch.diff().results == (), "what is staged is what there is"


def memory(process: int | str = "self") -> dict[str, int]:
    """Bytes that a process has allocated, and the most that was in memory."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) << 10 for name in ("VmData", "VmHWM")}


def main() -> None:
    threading.stack_size(1 << 20)  # stacks count, used or not
    folder = Path(sys.argv[1])
    count, cache_bytes, limit = map(int, sys.argv[2:])
    space = LmdbSpace(folder / "space")
    repositories = Repositories(
        space, ManualClock(1_700_000_000_000), lambda where: FolderObjects(folder / where.removeprefix("local://")),
        open_source=lambda root: open_source(root, folder, {}), ranges_bytes_max=cache_bytes,
    )  # fmt: skip
    work(repositories.create("small"), folder, 3 * BLOCK, whole=True)
    before = memory()
    if limit:
        most = before["VmData"] + limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    work(repositories.create("large"), folder, count, whole=count > 5_000_000)
    print(json.dumps({"before": before, "after": memory()}))


if __name__ == "__main__":
    main()
