"""Freezing again after a small change, and fetching what is new: both against doing it in full.

    python bench/freeze.py [--quick] [--keys N] [--rows N] [--runs N] [--kind KIND …]

Each run touches 1 % of the keys, drawn anew: for a map of keys the worst case, for their hashes lie everywhere. Then it
measures, each the median of the runs:

* **refreeze**: `Map.freeze()`, from the merged shard to the snapshot that counts; against a full freeze of that shard.
* **fetched**: the bytes a reader transfers who has the snapshot from before; against one who has nothing.
* what a store without ranges does after every change, in the same run: a compact copy of the LMDB file, and all rows
  written to Parquet.

Small changes go into layers on top, and every now and then a layer has grown so much that it is merged into the one
under it. The last lines show that run: a change of 20 % of the keys, which rewrites the base.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millpond
from _measure import Contest, rounds
from _results import Run, version
from millpond import ranges
from millpond.maps.map import Map
from millpond.maps.snapshots.freeze import SnapshotManifest, freeze
from millpond.maps.snapshots.manifest import manifest_name
from millpond.maps.snapshots.section_list import interval_files
from millpond.stores.files import sync
from millpond.stores.objects import Objects, open_objects

KINDS = ("temporal_state", "ranged_state")
REWRITE = "refreeze after 20 %"
WAYS = {
    "refreeze": "Millpond, refreeze", REWRITE: f"Millpond, {REWRITE}", "full freeze": "Millpond, full freeze",
    "LMDB copy": "LMDB, a compact copy", "Parquet": "Parquet, written whole",
}  # fmt: skip


@dataclass
class Measured(Contest):
    """The runs of one map: seconds, and the bytes a reader then lacks, by what was done."""

    bytes: dict[str, list[int]] = field(default_factory=dict)

    def count(self, what: str, size: int) -> None:
        """Note how many bytes it was this time."""
        self.bytes.setdefault(what, []).append(size)

    def fetched(self, what: str) -> int:
        """The median of the runs, in bytes."""
        return int(statistics.median(self.bytes[what]))


def rows_of(kind: str, chosen: np.ndarray, rows: int, from_time: int) -> pa.Table:
    """`rows` rows for each chosen number: keys with times, or ranges without."""
    values = np.random.default_rng(from_time).integers(0, 10**6, len(chosen) * rows)
    if kind == "ranged_state":
        return pa.table({"key_start": chosen * 100, "key_end": chosen * 100 + 99, "value": values[: len(chosen)]})
    names = pa.array([f"product-{number:08d}" for number in chosen.tolist()])
    return pa.table(
        {
            "key": names.take(pa.array(np.repeat(np.arange(len(chosen)), rows))),
            "effective_time": np.tile(np.arange(from_time, from_time + rows) * 1000, len(chosen)),
            "value": values,
        }
    )


def fetch_snapshot(source: Objects, target: Objects, manifest: SnapshotManifest) -> int:
    """Bring a snapshot to another place; the bytes that travelled."""
    travelled = sum(ranges.fetch(source, target, layer.index).bytes for layer in manifest.layers)
    for name in itertools.chain(interval_files(target, manifest), [manifest_name(manifest.id)]):
        if not target.exists(name):
            data = source.get(name)
            target.put(name, data)
            travelled += data.size
    return travelled


def freeze_in_full(held: Map, scratch: Path) -> None:
    with held.shard.view() as view:
        freeze(
            open_objects(scratch), held.definition, view.read_rows(), shard_version=view.version, created_ms=0
        )  # fmt: skip


def write_parquet(held: Map, path: Path) -> None:
    with held.scan() as reader, pq.ParquetWriter(path, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def copy_environment(held: Map, target: Path) -> None:
    """The copy a store ships whose snapshot is its file: read whole, written whole, without free pages."""
    target.mkdir()
    with held.shard.view() as view:
        assert view.generation.env is not None
        view.generation.env.handle.copy(str(target), compact=True)
    sync(target / "data.mdb")


def measure(held: Map, keys: int, rows: int, runs: int, scratch: Path) -> Measured:
    found = Measured("freeze", keys * rows)
    kind = str(held.kind)
    whole = 2_000_000 // rows
    for start in range(0, keys, whole):
        held.load(rows_of(kind, np.arange(start, min(start + whole, keys)), rows, 0))
    held.freeze()
    reader = open_objects(scratch / "reader")
    fetch_snapshot(held.objects, reader, held.freeze())
    for run in range(runs):
        chosen = np.sort(np.random.default_rng(run).choice(keys, keys // 100, replace=False))
        held.load(rows_of(kind, chosen, 1, rows + run))
        found.run("refreeze", held.freeze)
        found.count("refreeze", fetch_snapshot(held.objects, reader, held.freeze()))
        measure_in_full(held, found, scratch / "full")
    chosen = np.sort(np.random.default_rng(runs).choice(keys, keys // 5, replace=False))
    held.load(rows_of(kind, chosen, 1, rows + runs))
    found.run(REWRITE, held.freeze)
    found.count(REWRITE, fetch_snapshot(held.objects, reader, held.freeze()))
    return found


def measure_in_full(held: Map, found: Measured, scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    found.run("full freeze", lambda: freeze_in_full(held, scratch / "frozen"))
    found.count("full freeze", folder_bytes(scratch / "frozen"))
    found.run("LMDB copy", lambda: copy_environment(held, scratch / "copy"))
    found.count("LMDB copy", folder_bytes(scratch / "copy"))
    found.run("Parquet", lambda: write_parquet(held, scratch / "rows.parquet"))
    found.count("Parquet", (scratch / "rows.parquet").stat().st_size)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def print_table(kind: str, keys: int, rows: int, found: Measured) -> None:
    rows = 1 if kind == "ranged_state" else rows
    print(f"\n{kind}: {keys:,} keys, {keys * rows:,} rows; 1 % of the keys touched\n")
    print("| what | seconds | against a full freeze | bytes a reader fetches | against all of it |")
    print("|---|---:|---:|---:|---:|")
    for what in ("full freeze", "refreeze", REWRITE, "LMDB copy", "Parquet"):
        faster = found.median("full freeze") / found.median(what)
        smaller = found.fetched("full freeze") / found.fetched(what)
        print(f"| {what} | {found.median(what):.3f} | {faster:.1f}× | {found.fetched(what):,} | {smaller:.1f}× less |")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="100,000 keys of 5 rows")
    parser.add_argument("--keys", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--kind", choices=KINDS, action="append")
    arguments = parser.parse_args()
    keys = arguments.keys or (100_000 if arguments.quick else 1_000_000)
    rows = arguments.rows or (5 if arguments.quick else 10)
    run = Run("freeze")
    for kind in arguments.kind or KINDS:
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
            compile_first(kind, Path(scratch) / "first")
            with millpond.open(Path(scratch) / "pond") as pond:
                held = pond.create_map("prices", kind=kind, value="long")
                runs = arguments.runs or len(rounds(arguments.quick))
                found = measure(held, keys, rows, runs, Path(scratch))
                print_table(kind, keys, rows, found)
            for what, way in WAYS.items():
                run.note(kind, way, found.seconds[what])
                run.note(f"{kind}, to fetch", way, found.bytes[what], unit="B")
    whole = not any((arguments.quick, arguments.keys, arguments.rows, arguments.kind))
    run.write({"py-lmdb": version("lmdb"), "PyArrow": version("pyarrow")}, whole=whole, keys=keys, rows_per_key=rows)


def compile_first(kind: str, scratch: Path) -> None:
    """Compile every kernel over a small map, so that no run pays for it."""
    with millpond.open(scratch / "pond") as pond:
        measure(pond.create_map("small", kind=kind, value="long"), 1000, 2, 1, scratch)


if __name__ == "__main__":
    main()
