"""Loading: sealing a part, and merging it into a large shard; `scale.py --only load` has whole loads by Spark.

The rivals:
* a part against LMDB's own `putmulti(append=True)` of the same bytes, which were encoded and sorted beforehand;
* a merge against a cursor that puts the part's rows, already sorted, into a shard of the same rows.

    python bench/load.py            1 M rows into 10 M
    python bench/load.py --quick    a tenth of it
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa

from _measure import Contest, note_contests, print_table, rounds
from _results import Run, version
from millpond.maps.loads.merge import Arrived, merge_loads
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.parts.part import PartFile, PartWriter
from millpond.maps.shard.shard import Shard

ROWS_PER_KEY = 10
APPEND, PUTS = "LMDB putmulti of sorted bytes", "LMDB cursor puts of sorted rows"


def definition(scheme: Scheme) -> MapDefinition:
    return MapDefinition(
        name="bench", kind=Kind.TEMPORAL_STATE, incarnation="0" * 16, value=parse_value_type("double"), scheme=scheme
    )


def rows_of(shape: MapDefinition, keys: int, count: int, seed: int) -> pa.RecordBatch:
    """`count` rows of random keys and times, in no order."""
    random = np.random.default_rng(seed)
    number = random.integers(0, keys, count)
    text = np.char.add("device-", np.char.zfill(np.arange(keys).astype("U8"), 8)).astype("S15")
    key = pa.array(text[number].tolist(), pa.binary())
    time = pa.array(random.integers(0, 1 << 40, count))
    return pa.RecordBatch.from_arrays([key, time, pa.array(random.random(count))], schema=canonical_schema(shape))


def write_part(shape: MapDefinition, rows: pa.RecordBatch, folder: Path) -> PartFile:
    writer = PartWriter(shape, folder)
    writer.write(rows)
    (part,) = writer.finish()
    return part


def tables_of(part: PartFile) -> dict[str, list[tuple[bytes, bytes]]]:
    """The content of a part, as the pairs that LMDB is given."""
    with lmdb.open(str(part.file), subdir=False, readonly=True, lock=False, max_dbs=8) as env:
        tables = {}
        for name in part.manifest.tables:
            table = env.open_db(name.encode(), create=False)
            with env.begin(db=table) as tx:
                tables[name] = list(tx.cursor())
    return tables


def append_raw(folder: Path, tables: dict[str, list[tuple[bytes, bytes]]]) -> None:
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 32, max_dbs=8, sync=False, lock=False) as env:
        for name, pairs in tables.items():
            table = env.open_db(name.encode(), dupsort=name == "hashed")
            with env.begin(write=True, db=table) as tx:
                tx.cursor().putmulti(pairs, append=True)
        env.sync(True)


def merge_raw(env: lmdb.Environment, part: PartFile) -> None:
    with lmdb.open(str(part.file), subdir=False, readonly=True, lock=False, max_dbs=8) as source:
        for name in part.manifest.tables:
            into = env.open_db(name.encode(), dupsort=name == "hashed")
            table = source.open_db(name.encode(), create=False)
            with source.begin(db=table) as reading, env.begin(write=True, db=into) as tx:
                tx.cursor().putmulti(reading.cursor().iternext())


def bench_parts(root: Path, scheme: Scheme, count: int, quick: bool) -> Contest:
    contest = Contest(f"seal a part, scheme {scheme}", count, f"{count:,} rows")
    shape = definition(scheme)
    rows = rows_of(shape, count // ROWS_PER_KEY, count, 1)
    write_part(shape, rows.slice(0, 1000), root / "warm")
    pairs = tables_of(write_part(shape, rows, root / "part"))
    for number in rounds(quick):
        contest.run("Millpond", lambda n=number: write_part(shape, rows, root / f"part{n}"))
        contest.run(APPEND, lambda n=number: append_raw(root / f"raw{n}", pairs))
        shutil.rmtree(root / f"part{number}")
        shutil.rmtree(root / f"raw{number}")
    return contest


def bench_merge(root: Path, scheme: Scheme, count: int, into: int, quick: bool) -> Contest:
    contest = Contest(f"merge, scheme {scheme}", count, f"{count:,} rows into {into:,}")
    shape = definition(scheme)
    keys = into // ROWS_PER_KEY
    ours, theirs = Shard(root / "ours", shape), Shard(root / "theirs", shape)
    step = min(into, 2_000_000)
    for number in range(into // step):
        rows = rows_of(shape, keys, step, 100 + number)
        for shard in (ours, theirs):
            part = write_part(shape, rows, root / "parts" / f"base{number}")
            with shard.exclusive():
                merge_loads(shard, [Arrived(number + 1, 0, shape.overwrite, (part,))])
            shutil.rmtree(root / "parts")
    theirs.close()
    env = lmdb.open(str(root / "theirs" / "000001"), map_size=1 << 34, max_dbs=16)
    for number in rounds(quick):
        part = write_part(shape, rows_of(shape, keys, count, 200 + number), root / "parts" / f"new{number}")
        load = into // step + number + 1
        with ours.exclusive():
            contest.run("Millpond", lambda p=part, n=load: merge_loads(ours, [Arrived(n, 0, shape.overwrite, (p,))]))
        contest.run(PUTS, lambda p=part: merge_raw(env, p))
        shutil.rmtree(root / "parts")
    env.close()
    ours.close()
    return contest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, three rounds")
    parser.add_argument("--only", choices=("parts", "merge"), help="just one of the two")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    root = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=os.environ.get("BENCH_DIR")))
    contests, run = [], Run("load")
    try:
        for scheme in (Scheme.AUTO, Scheme.HASH):
            place = root / str(scheme)
            if arguments.only in (None, "parts"):
                contests.append(bench_parts(place / "parts", scheme, 1_000_000 // scale, arguments.quick))
            if arguments.only in (None, "merge"):
                rows, into = 1_000_000 // scale, 10_000_000 // scale
                contests.append(bench_merge(place / "merge", scheme, rows, into, arguments.quick))
            shutil.rmtree(place, ignore_errors=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print_table(contests)
    note_contests(run, contests)
    run.write({"py-lmdb": version("lmdb")}, whole=not (arguments.quick or arguments.only))


if __name__ == "__main__":
    main()
