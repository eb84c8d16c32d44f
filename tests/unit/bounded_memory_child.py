"""One operation on a map, by a process under a limit of memory.

    python -m tests.unit.bounded_memory_child POND OPERATION LIMIT_BYTES

The limit holds for the memory that the process allocates after it did the same with a small map; 0 is no limit. The
result is printed as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import millpond
from millpond.maps.parts.part import PartWriter
from millpond.maps.shard.check import check_shard
from millpond.maps.shard.digest import digest_of_view
from millpond.memory_bound import MEMORY_LEAST
from tests.unit.versions_memory_child import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.maps.map import Map
    from millpond.maps.snapshots.snapshot import Snapshot

DAY = 86_400_000


def rows(numbers: np.ndarray[Any, Any], seed: int = 0) -> pa.Table:
    """Rows of 1 KB: four times a key, a day apart, of which the second and the fourth confirm the one before."""
    times = pa.array(numbers % 4 * DAY, pa.timestamp("ms", "UTC"))
    values = pc.utf8_lpad(pa.array(numbers // 2 + seed).cast(pa.string()), 1_000, "x")
    keys = pc.binary_join_element_wise("a key ", pa.array(numbers // 4).cast(pa.string()), "")
    return pa.table({"key": keys, "time": times, "value": values})


def rows_of_one_key(count: int, first: int = 0) -> pa.Table:
    """Rows of 1 KB, a second apart."""
    numbers = np.arange(first, first + count)
    values = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 1_000, "x")
    times = pa.array(numbers * 1_000, pa.timestamp("ms", "UTC"))
    return pa.table({"key": pa.repeat("the key", count), "time": times, "value": values})


def ranges(numbers: np.ndarray[Any, Any], seed: int = 0) -> pa.Table:
    """Ranges of which each tenth holds the nine that follow; of these tenths every other lies within all before it."""
    ten, place = np.divmod(numbers, 10)
    start = ten * 1_000 + place * 100
    last = np.where(place, start + 99, np.where(ten % 2, start + 999, (1 << 40) - start))
    return pa.table({"key_start": start, "key_end": last, "value": numbers + seed})


def digest(target: Map) -> Any:
    """The digest of the rows as they are."""
    with target.shard.view() as view:
        return str(digest_of_view(view))


def verify(target: Map) -> Any:
    """The problems of a shard of which each row is read."""
    reports = list(check_shard(target.shard, last_load=1 << 40, full=True))
    return [
        sum(report.checked for report in reports),
        [str(problem) for report in reports for problem in report.problems],
    ]


def merge(target: Map) -> Any:
    """The digest after a twentieth of the rows was loaded anew."""
    count = target.info()["rows"]
    target.load(rows(np.arange(0, count, 20), seed=1))
    return digest(target)


def condense(target: Map) -> Any:
    """The rows that go, and the digest of those that stay."""
    return [target.condense(before="1970-01-05T00:00Z").rows_removed, digest(target)]


def retain(target: Map) -> Any:
    """The rows that go, and the digest of those that stay."""
    return [target.retain(before="1970-01-03T00:00Z").rows_removed, digest(target)]


def compact(target: Map) -> Any:
    """The digest of the rows in their new file."""
    target.compact()
    return digest(target)


def freeze(target: Map) -> Any:
    """The index of each layer."""
    return [layer.index for layer in target.freeze().layers]


def refreeze(target: Map) -> Any:
    """The index of each layer, after a freeze and a load."""
    target.freeze()
    target.load(rows(np.arange(0, target.info()["rows"], 20), seed=1))
    return freeze(target)


def sections(target: Map) -> Any:
    """The index of each layer and the list of sections, of a map of ranges before and after some have changed."""
    first = target.freeze()
    count = target.info()["rows"]
    target.load(ranges(np.arange(count // 2, count // 2 + 1_000), seed=1))
    second = target.freeze()
    return [[[layer.index for layer in made.layers], made.sections] for made in (first, second)]


def one_key(target: Map) -> Any:
    """The index of each layer, after a freeze and one more row."""
    target.freeze()
    target.load(rows_of_one_key(1, first=target.info()["rows"]))
    return freeze(target)


def seal(target: Map) -> Any:
    """The parts of all rows, as a task of Spark seals them."""
    with tempfile.TemporaryDirectory(dir=target.shard.folder) as folder:
        writer = PartWriter(target.definition, Path(folder) / "parts", memory_max=MEMORY_LEAST)
        for batch in target.shard.read_rows():
            writer.write(batch)
        return [part.manifest.id for part in writer.finish()]


def subset(target: Map) -> Any:
    """The snapshot of nearly all keys."""
    return index_of(target.snapshot(keys=("a key 1", None)))


def window(target: Map) -> Any:
    """The snapshot of the later half of the times."""
    return index_of(target.snapshot(window=("1970-01-03T00:00Z", None)))


def index_of(snapshot: Snapshot) -> Any:
    """The index of each layer."""
    with snapshot:
        return [layer.index for layer in snapshot.manifest.layers]


OPERATIONS: dict[str, Callable[[Map], Any]] = {
    "digest": digest, "verify": verify, "merge": merge, "condense": condense, "retain": retain, "compact": compact,
    "freeze": freeze, "refreeze": refreeze, "one_key": one_key, "sections": sections, "seal": seal, "subset": subset,
    "window": window,
}  # fmt: skip


def main() -> None:
    threading.stack_size(1 << 20)  # stacks count, used or not
    folder, name, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with millpond.open(folder, maps_memory_max=MEMORY_LEAST, events_reports=False) as pond:
        OPERATIONS[name](pond.map("small"))
        if limit:
            most = memory()["VmData"] + limit
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        found = OPERATIONS[name](pond.map("single" if name == "one_key" else "large"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
