"""Lists for a collector of garbage that runs elsewhere: the commits with their state, and the staged addresses.

    scratch/<ms>-<id>/commits.csv        commit_id,expired,metarange_id
    scratch/<ms>-<id>/staged.parquet     physical_address, creation_date: seconds since 1970, or 0

Invariants:
* What was staged when the list began is in it, whatever is committed or compacted meanwhile, or in a commit of the
  other list, made before or later.
* The files go with a collection of garbage, after the grace time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.ranges import open_range
from millpond.versions.collect import Marked, staged_addresses
from millpond.versions.objects.uploads import is_full_address, time_of
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.commit_ranges import SCRATCH

__all__ = ("COMMITS", "STAGED", "list_commits", "list_staged", "run_folder")

COMMITS, STAGED = "commits.csv", "staged.parquet"
_MEMORY_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_SCHEMA = pa.schema([("physical_address", pa.string()), ("creation_date", pa.int64())])


def run_folder(run_id: str) -> str:
    """The folder of a list, among the ranges."""
    return f"{SCRATCH}/{run_id}"


def _run_id(context: RepositoryContext) -> str:
    return f"{context.clock.now_ms():012x}-{context.clock.random_id()}"


def list_commits(context: RepositoryContext) -> str:
    """Write the commits, expired or active by the rules of retention; the id of the run.

    Raises: `Unavailable` when the place is full.
    """
    state = Marked.read(context)
    active = state.active(context.seconds())
    run_id = _run_id(context)
    with tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES) as file:
        file.write(b"commit_id,expired,metarange_id\n")
        for id_, commit in sorted(state.commits.items()):
            file.write(f"{id_},{str(id_ not in active).lower()},{commit.tree}\n".encode())
        _store(context, f"{run_folder(run_id)}/{COMMITS}", file)
    return run_id


def list_staged(context: RepositoryContext) -> tuple[str, int]:
    """Write the addresses of what is staged on all branches; the id of the run, and their number: of none is no file.

    Raises: `Unavailable` when the place is full.
    """
    run_id, count = _run_id(context), 0
    with tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES) as file:
        with pq.ParquetWriter(file, _SCHEMA, compression="gzip") as writer:
            for addresses in _staged(context):
                names = [name for name in addresses.to_pylist() if name and not is_full_address(name)]
                times = [(time_of(name) or 0) // 1000 for name in names]
                writer.write_batch(pa.record_batch([names, times], schema=_SCHEMA))
                count += len(names)
        if count:
            _store(context, f"{run_folder(run_id)}/{STAGED}", file)
    return run_id, count


def _staged(context: RepositoryContext) -> Iterator[pa.Array]:
    """The addresses that layers name; of branches that moved while they were read, once more."""
    for trees, branches in Marked.read(context).looks(context):
        for tree in sorted(trees):
            for entry in context.index(tree).entries:
                yield open_range(context.ranges, entry).column("address")
        yield from staged_addresses(context, branches)


def _store(context: RepositoryContext, name: str, file: IO[bytes]) -> None:
    file.seek(0)
    context.ranges.inner.put_stream(name, iter(lambda: file.read(_CHUNK_BYTES), b""))  # type: ignore[attr-defined]
