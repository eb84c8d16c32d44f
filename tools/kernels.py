"""Writes src/millpond/arrays/kernels.txt, the kernels that `millpond warm` compiles: `make docs`.

python tools/kernels.py            prints the list
python tools/kernels.py --write    writes it

The list is what a run over every kind of map calls. It runs twice: with a full cache numba holds the types of those
kernels alone that were called from Python, and not of those that kernels call.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

import millpond
from millpond.arrays.compiled import KERNELS
from millpond.arrays.warming import spelled
from millpond.maps.loads.load import seal_data
from millpond.maps.shard.digest import digest_of_view
from millpond.maps.snapshots import finder

LIST = Path(__file__).parents[1] / "src" / "millpond" / "arrays" / "kernels.txt"

OPENING = """\
# Kernels that are called from Python, with the types of their arguments: what `millpond warm` compiles.
# Written by tools/kernels.py from a run over every kind of map.
"""
FEW, MANY = 3, 5_000  # more keys than `search.ORDER_MIN` are looked up in the order of their hashes
HOUR = 3_600_000


def kernels() -> str:
    """The whole list."""
    lines: list[str] = []
    for _ in ("fills the cache", "reads it"):
        done = subprocess.run([sys.executable, __file__, "--run"], check=True, capture_output=True, text=True)
        lines = done.stdout.splitlines()
    return OPENING + "\n".join(lines) + "\n"


def run() -> None:
    """Use maps and versions in every way, and print which kernels that took."""
    finder.JOINED_AFTER = 0  # layers are joined in memory after few questions
    for rows in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder, millpond.open(Path(folder) / "pond") as pond:
            use_maps(pond, rows)
            use_layers(pond, rows)
            use_aggregates(pond, rows)
            use_files(pond, Path(folder), rows)
            use_versions(pond, rows)
    called = {(*place, spelled(types)) for place, door in KERNELS.items() for types in door.signatures}
    for line in sorted(called):
        sys.stdout.write(" ".join(line) + "\n")


# -- what maps do -------------------------------------------------------------------------------------


def use_maps(pond: Any, rows: int) -> None:
    """Load, look up, scan and maintain a map of every kind."""
    for name, settings, table in maps_of(rows):
        made = pond.create_map(name, store="shard", **settings)
        made.load(table)
        keys = table["key"] if made.kind.keyed else table["key_start"]
        _look_up(made, keys, table)
        # Parts that this process did not seal for a load of its own are validated.
        parts, _ = seal_data(made.definition, table, Path(pond.folder) / "writer" / name, salt="handed over")
        pond.commit_load(parts)
        made.load(table.slice(0, 2), again=True)
        made.load(table.take(pa.array([1])), again=True)
        _look_up(made, keys, table)
        made.scan().read_all()
        made.scan([("key" if made.kind.keyed else "key_start", ">=", keys[0].as_py())]).read_all()
        if made.kind.timed:
            made.condense(before="2100-01-01T00:00Z")
            made.retain(before="1970-01-01T02:00Z")
        _look_up(made, keys, table)
        made.compact()
        with made.shard.view() as view:
            digest_of_view(view)


def use_layers(pond: Any, rows: int) -> None:
    """Load, correct, ask, branch, merge, condense and fold a layered map of every kind."""
    for name, settings, table in maps_of(rows):
        if ("scheme" in settings and name != "by_hash") or name in ("long", "undeclared"):
            continue
        settings.pop("scheme", None)
        keeps = {} if name == "ranged_struct" else {"overwrite": name != "state_double"}
        made = pond.create_map(f"{name}_layers", store="layers", **settings, **keeps)
        key = "key" if made.kind.keyed else "key_start"
        for loaded in (table, table.slice(0, 2), table.take(pa.array([1, 2]))):
            made.load(loaded, again=True)
        fix = pond.branch(f"{name}-fix", source="main")
        fix.map(made.name).load(table.slice(0, 1), again=True)
        made.load(table.slice(2, 1), again=True)
        fix.merge()
        _look_up(made, table[key], table)
        plain = table[key].combine_chunks()
        made.lookup(plain, HOUR, known_at=pa.array([pond.clock.now_ms()] * len(plain), pa.timestamp("ms", "UTC")))
        made.scan().read_all()
        made.scan([(key, ">=", plain[0].as_py())]).read_all()
        first = plain[0].as_py()
        made.delete(f"{key} = {first!r}")
        if made.kind.timed:
            made.condense(before="2100-01-01T00:00Z")
            made.retain(before="1970-01-01T02:00Z")
        made.compact()
        _look_up(made, table[key], table)


def use_aggregates(pond: Any, rows: int) -> None:
    """Load, ask, merge and fold an aggregate."""
    rules = "n long count, total double sum, low long min, last string latest"
    made = pond.create_map("aggregate", kind="aggregate", value=rules, resolution="1 hour")
    number = np.arange(rows)
    keys, times = pa.array([f"k{place * 7919 % rows}" for place in range(rows)]), pa.array(number % 50 * HOUR + number)
    moments = times.cast(pa.timestamp("ms", tz="UTC"))
    events = {"total": pa.array(number / 2), "low": pa.array(number), "last": keys}
    table = pa.table({"key": keys, "time": moments, **events})
    for loaded in (table, table.slice(0, 2), table.take(pa.array([1, 2]))):
        made.load(loaded, again=True)
        for query in (keys, keys.dictionary_encode(), keys.cast(pa.large_string())):
            made.lookup(query, moments)
            made.lookup(query, between=("1970-01-01T00:00Z", "1970-01-05T00:00Z"))
    known = [0, *[pond.clock.now_ms()] * (rows - 1)]
    made.lookup(keys, HOUR, known_at=pa.array(known, pa.timestamp("ms", "UTC")))
    made.scan("key = 'k1'").read_all()
    made.delete("key = 'k1'")
    made.retain(before="1970-01-01T02:00Z")
    made.compact()
    made.lookup(keys, moments)


def _look_up(made: Any, keys: pa.ChunkedArray, table: pa.Table) -> None:
    plain = keys.combine_chunks()
    texts = [plain.cast(pa.large_string()), plain.cast(pa.binary())] if made.kind.keyed else [plain.cast(pa.int32())]
    holes = pa.array([None, *plain.to_pylist()[1:]], plain.type)
    for query in (plain, plain.dictionary_encode(), holes, *texts):
        made.lookup(query)
    made.get(plain[0].as_py())
    column = next((table[name] for name in ("effective_time", "start") if name in table.column_names), None)
    if column is not None:
        made.lookup(plain, at=column)
    lower = plain[0].as_py()
    with made.snapshot(keys=[lower, None]) as subset:
        subset.lookup(plain.slice(0, 1), HOUR)
    if made.kind.timed:
        with made.snapshot(window=["1970-01-01T00:00Z", "2100-01-01T00:00Z"]) as subset:
            subset.lookup(plain, "1970-01-02T00:00Z")


def maps_of(rows: int) -> Iterator[tuple[str, dict[str, Any], pa.Table]]:
    """A map of every kind, value type and scheme: its name, its settings, its rows."""
    number = np.arange(rows)
    keys = pa.array([f"{'long key ' * (number % 20)}{number * 7919 % rows}" for number in range(rows)])
    times = pa.array(number % 50 * HOUR, pa.timestamp("ms", tz="UTC"))
    numbers = pa.array(number * 10 - rows)
    ranges = {"key_start": numbers, "key_end": pa.array(number * 10 - rows + np.where(number % 3 == 0, 25, 5))}
    values: dict[str, pa.Array] = {
        "long": pa.array(number), "double": pa.array(number / 3), "string": keys, "boolean": pa.array(number % 2 == 0),
        "timestamp": times, "binary": keys.cast(pa.binary()),
    }  # fmt: skip
    fields = "a long, b string, c boolean, d double, e timestamp, f binary"
    struct = dict(zip("abcdef", (values[kind] for kind in ("long", "string", "boolean", "double", "timestamp",
                                                           "binary")), strict=True))  # fmt: skip
    for kind, value in values.items():
        yield f"state_{kind}", {"kind": "state", "value": kind}, pa.table({"key": keys, "value": value})
    for scheme in ("hash", "lookup"):
        settings = {"kind": "temporal_state", "value": "long", "scheme": scheme}
        yield f"by_{scheme}", settings, pa.table({"key": keys, "effective_time": times, "value": numbers})
    for scheme in ("direct", "lookup"):
        settings = {"kind": "temporal_state", "value": fields, "scheme": scheme}
        yield f"struct_{scheme}", settings, pa.table({"key": keys, "effective_time": times} | struct)
    yield "ranged", {"kind": "ranged_state", "value": "string"}, pa.table(ranges | {"value": keys})
    timed = ranges | {"effective_time": times}
    yield "ranged_struct", {"kind": "temporal_ranged_state", "value": fields}, pa.table(timed | struct)
    long = [text * 3_000 for text in ("a", "b")]
    yield "long", {"kind": "state", "value": "string"}, pa.table({"key": ["a", "b"], "value": long})
    ends = pa.array(number % 50 * HOUR + HOUR * (1 + number % 3), times.type)
    yield "session", {"kind": "session"}, pa.table({"key": keys, "start": times, "end": ends})
    yield "undeclared", {"kind": "state"}, pa.table({"key": keys, "value": keys})


def use_files(pond: Any, folder: Path, rows: int) -> None:
    """Load text: times and numbers in CSV."""
    count = max(rows, 1_000)
    times = [f"2013-0{1 + number % 9}-08T18:{number % 60:02}:00Z" for number in range(count)]
    table = pa.table({"key": [str(number) for number in range(count)], "effective_time": times, "value": times})
    csv.write_csv(table, folder / "rows.csv")
    made = pond.create_map("texts", kind="temporal_state", value="timestamp")
    pond.load_files(folder / "rows.csv", "texts")
    made.lookup(table["key"], at=table["effective_time"])


# -- what versions do ---------------------------------------------------------------------------------


def use_versions(pond: Any, rows: int) -> None:
    """Stage, commit, read, compare and merge."""
    main = pond.repositories.create(f"rows-{rows}").branch("main")
    repository = pond.repository(f"rows-{rows}")
    paths = [f"{number % 7}/{number}" for number in range(rows)]
    main.staging.stage(pa.table({"path": paths, "checksum": paths}))
    main.put("other", b"1")
    main.commit()
    for name, chosen in (("ours", paths[:1]), ("theirs", paths[-1:])):
        branch = repository.create_branch(name, "main")
        branch.staging.stage(pa.table({"path": chosen, "checksum": [name] * len(chosen)}))
        branch.delete("other")
        branch.diff()
        branch.commit()
        list(repository.diff_rows("main", name))
    main.merge("ours")
    main.merge("theirs")
    repository.diff("main~1", "theirs")
    main.staging.delete_prefix("1/")
    main.list(delimiter="/")
    main.stat("0/0")
    main.staging.compact()
    main.diff()
    repository.collect()


def main() -> None:
    if "--run" in sys.argv[1:]:
        logging.basicConfig(level=logging.INFO)  # says on standard error when something is compiled
        run()
    elif "--write" in sys.argv[1:]:
        LIST.write_text(kernels(), encoding="utf-8")
    else:
        sys.stdout.write(kernels())


if __name__ == "__main__":
    main()
