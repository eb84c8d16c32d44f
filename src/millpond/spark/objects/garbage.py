"""Garbage collection as a job: executors read ranges and list objects; the driver plans, and looks again at the end.

    driver      commits, branches, tags ─ ranges of active trees ─ hashes of what is staged
    executors   ranges ─ hashes of addresses ┐
    executors   folders of `data/` ─ names ──┴ anti-join ─ what nothing needs ─ deleted, or reported

Invariants:
* The rules, the grace time and the outcome are those of `Repository.collect`.
* What executors delete was older than the grace time when the job began, and named by nothing then or since.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millpond.arrays.xxh3 import hash_keys
from millpond.ranges import CachedObjects, RangeEntry, open_range
from millpond.spark.locations import PondLike, location_of
from millpond.spark.objects.opening import open_repository
from millpond.stores.objects import ObjectInfo, ObjectStore
from millpond.times.durations import parse_duration
from millpond.versions.collect import (
    GRACE_MS,
    Garbage,
    address_hashes,
    checked_grace,
    collect,
    old_objects,
    staged_addresses,
)
from millpond.versions.objects.uploads import DATA
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.branches import BranchRecord

__all__ = ("collect_garbage",)

RANGES_A_TASK = 64
RANGES_HERE = 16
"""So many ranges the driver reads itself: fewer cost less than a job."""
PIECES_MAX = 64
NAMES_A_BLOCK = 1_000
NAMES_SHOWN = 1_000
_Hashes: TypeAlias = "npt.NDArray[np.uint64]"
_HASH, _FILES = "hash long", "name string, size long, hash long"


def collect_garbage(
    session: SparkSession, repository: str, *, pond: PondLike | None = None, grace: str | int = GRACE_MS,
    dry_run: bool = False, report: str | None = None,
) -> Garbage:  # fmt: skip
    """Delete objects, ranges and indexes that nothing needs, or, with `dry_run`, count them.

    `grace` (`24h`, or milliseconds): what is younger stays. `report`: a path that Spark can write, for the names and
    sizes of the objects, as Parquet.

    Raises: as `Repository.collect`; `Invalid` for a pond on nodes, or a duration that is none or too short.
    """
    grace_ms = checked_grace(parse_duration(grace) if isinstance(grace, str) else grace)
    with open_repository(pond, location_of(pond, session), repository) as opened_repository:
        work = _SparkWork(session, opened_repository.context, report)
        return collect(opened_repository.context, grace_ms=grace_ms, dry_run=dry_run, work=work)


class _SparkWork:
    """The work of a collection on executors."""

    def __init__(self, session: SparkSession, context: RepositoryContext, report: str | None) -> None:
        self._session, self._context, self._report = session, context, report
        self._seen: set[str] = set()
        self._needed: list[DataFrame] = []
        self._here: list[_Hashes] = [np.zeros(0, np.uint64)]

    def mark(self, trees: set[str], branches: dict[str, BranchRecord]) -> None:
        """Plan the reading of ranges; note what is staged, which only the driver can read."""
        entries = self._entries(trees)
        if len(entries) <= RANGES_HERE:
            for entry in entries:
                self._note(
                    address_hashes(self._context.namespace, open_range(self._context.ranges, entry).column("address"))
                )
        else:
            tasks = -(-len(entries) // RANGES_A_TASK)
            ranges = pa.table({
                "id": [entry.id for entry in entries], "first": [entry.first for entry in entries],
                "last": [entry.last for entry in entries], "count": [entry.count for entry in entries],
                "size": [entry.size for entry in entries],
            })  # fmt: skip
            read = _range_hashes(self._context.ranges, self._context.namespace)
            frame = self._session.createDataFrame(ranges.to_pandas()).repartition(tasks)
            # held, so that what is read of the ranges is of the time of marking
            self._needed.append(frame.mapInArrow(read, _HASH).localCheckpoint())
        for addresses in staged_addresses(self._context, branches):
            self._note(address_hashes(self._context.namespace, addresses))

    def _note(self, hashes: _Hashes) -> None:
        """Note what the driver read itself: eight bytes each."""
        self._here.append(np.unique(hashes))
        if len(self._here) > PIECES_MAX:
            self._here = [np.unique(np.concatenate(self._here))]

    def _entries(self, trees: set[str]) -> list[RangeEntry]:
        entries = {entry.id: entry for tree in sorted(trees) for entry in self._context.index(tree).entries}
        fresh = [entry for id_, entry in entries.items() if id_ not in self._seen]
        self._seen |= entries.keys()
        return fresh

    def sweep(self, before: int, uploads: Container[str], garbage: Garbage, check: Callable[[], None]) -> None:
        """List on the executors, join, and delete there what is left."""
        data = self._context.data
        folders = [(folder,) for folder in data.level(DATA).prefixes]
        if not folders:
            return
        listed = self._session.createDataFrame(folders, "folder string").repartition(len(folders))
        unreferenced = listed.mapInArrow(_old_names(data, before, uploads), _FILES)
        here = pa.table({"hash": np.unique(np.concatenate(self._here)).view(np.int64)})
        needed = self._session.createDataFrame(here.to_pandas(), _HASH)
        for frame in self._needed:
            needed = needed.unionByName(frame)
        unneeded = unreferenced.join(needed, "hash", "left_anti").select("name", "size").localCheckpoint()
        total = unneeded.selectExpr("count(*) objects", "coalesce(sum(size), 0) bytes").first()
        assert total is not None
        garbage.objects += int(total["objects"])
        garbage.object_bytes += int(total["bytes"])
        for row in unneeded.orderBy("name").limit(NAMES_SHOWN).collect():
            garbage.add(row["name"])
        if self._report is not None:
            unneeded.write.mode("overwrite").parquet(self._report)
        if not garbage.dry_run:
            check()
            unneeded.mapInArrow(_deleted(data), "deleted long").agg({"deleted": "sum"}).collect()


def _range_hashes(
    ranges: CachedObjects, namespace: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                entry = RangeEntry(row["id"], row["first"], row["last"], row["count"], row["size"])
                hashes = np.unique(address_hashes(namespace, open_range(ranges, entry).column("address")))
                yield pa.record_batch({"hash": hashes.view(np.int64)})

    return read


def _old_names(
    data: ObjectStore, before: int, uploads: Container[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in batch.column("folder").to_pylist():
                yield from _blocks(old_objects(data.list(folder.rstrip("/"), prefix=folder), before, uploads))

    return names


def _blocks(infos: Iterator[ObjectInfo]) -> Iterator[pa.RecordBatch]:
    while block := list(islice(infos, NAMES_A_BLOCK)):
        names = pa.array([info.name for info in block], pa.string())
        sizes = pa.array([info.size for info in block], pa.int64())
        yield pa.record_batch({"name": names, "size": sizes, "hash": hash_keys(names).view(np.int64)})


def _deleted(data: ObjectStore) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def delete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = batch.column("name").to_pylist()
            for start in range(0, len(names), NAMES_A_BLOCK):
                data.delete(*names[start : start + NAMES_A_BLOCK])
            yield pa.record_batch({"deleted": pa.array([len(names)], pa.int64())})

    return delete
