"""Maps in layers: loads, merges by key, lookups, branches and differences, each beside a rival and its goal.

    python bench/layers.py                       10 M rows
    python bench/layers.py --rows 1000000        another size
    python bench/layers.py --only merge,changes  some works; what they need is made before them
    python bench/layers.py --spark ENVIRONMENT/bin/python      beside Delta Lake on Spark, as in `merge_delta.py`

The rows are those of `scale.py`, in Parquet files. The rivals, in the same run:
* Delta Lake on Spark, whose loads and `MERGE` the goals speak of; it has the machine for itself meanwhile;
* Delta Lake without Spark, in Rust, where it is installed (`pip install deltalake`): it writes the same files as a
  table, merges by `MERGE`, appends, opens an older version, and answers a `get` by a query;
* DuckDB: a `get` by a query over the Parquet files; a difference by a full join of both states, and a merge by one of
  three, which it has in memory. Neither finds conflicts;
* one layer, for lookups in what folding leaves.
What no rival does, the output says.

Spark's loads are in `scale.py --only load`, questions as known in `known.py`, and enriching in `enrich.py`. Beside
the seconds stand those of the processor: on a machine that others use they say more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import dataset, parquet

import millpond
from _delta_merge import DELTA as DELTA_SPARK
from _results import Run, version
from _scale_stages import CHANGED, ROWS_PER_KEY, STEP_MS, input_files, instants, names, rows_of, table_of
from merge_delta import delta_seconds

try:
    import deltalake
except ImportError:
    deltalake = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from millpond import Map, Pond

QUESTIONS, GETS, RIVAL_GETS, SMALL = 1_000_000, 20_000, 5, 10
ON_SPARK, DELTA, DUCKDB, ONE_LAYER = "Delta Lake on Spark", "Delta Lake in Rust", "DuckDB", "one layer"
LOAD, MERGE = "load in one process", "merge 1 M rows"
ABSENT = {
    "make a branch": "Delta Lake has none: a shallow clone of a table is never merged back. lakeFS branches files",
    "merge of 1 % on both sides": "Delta Lake's MERGE takes rows that somebody kept apart, and knows no base; two sides"
    " that wrote one file are a conflict for lakeFS. So the rival is a join of three states",
    "one question of a million": "as-of joins stand in `lookup.py` and `enrich.py`",
}
SETTINGS: dict[str, Any] = {"kind": "temporal_state", "value": "double", "store": "layers"}


@dataclass
class Figures:
    """The seconds of each work and way, by the clock and of the processor; and the goals."""

    seconds: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    goals: dict[str, str] = field(default_factory=dict)

    def time(self, work: str, way: str, act: Callable[[], Any], things: int = 1) -> Any:
        """Do it, and note the seconds of one of `things`."""
        began, processor = time.perf_counter(), time.process_time()
        result = act()
        took = time.perf_counter() - began, time.process_time() - processor
        self.seconds.setdefault((work, way), []).append((took[0] / things, took[1] / things))
        return result

    def median(self, work: str, way: str, place: int = 0) -> float:
        """The median of the seconds of a work, or of those of the processor."""
        return statistics.median(took[place] for took in self.seconds[work, way])

    def print_table(self) -> None:
        """A line for each work and way."""
        print("| work | way | median | of the processor | ours is faster by | goal |\n|---|---|---|---|---|---|")
        for work, way in self.seconds:
            ratio = self.median(work, way) / self.median(work, "Millpond")
            shown = " | ".join(_shown(self.median(work, way, place)) for place in range(2))
            goal = self.goals.get(work, "") if way == "Millpond" else ""
            print(f"| {work} | {way} | {shown} | {ratio:.2f}× | {goal} |", flush=True)
        for work, why in ABSENT.items():
            if any(noted.startswith(work) for noted, _ in self.seconds):
                print(f"\nno rival by key, {work}: {why}.")

    def note(self, work: str, way: str, seconds: list[float]) -> None:
        """Note the seconds of another program by the clock: its processor time is not ours to read."""
        self.seconds.setdefault((work, way), []).extend((took, float("nan")) for took in seconds)


def _shown(seconds: float) -> str:
    if seconds != seconds:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


@dataclass(frozen=True)
class Place:
    """The folder of a run, the Parquet files, how many rows they have, and how often each work is done."""

    folder: Path
    input: Path
    rows: int
    rounds: int

    @property
    def table(self) -> str:
        """The table of Delta Lake."""
        return str(self.folder / "delta")

    def devices(self, pond: Pond) -> Map:
        """The map with all rows."""
        if "devices" not in {opened.name for opened in pond.maps()}:
            pond.create_map("devices", **SETTINGS)
            pond.load_files([str(self.input)], "devices")
        return pond.map("devices")

    def delta(self) -> Any:
        """The table with all rows; None without Delta Lake."""
        if deltalake is None:
            return None
        if not deltalake.DeltaTable.is_deltatable(self.table):
            deltalake.write_deltalake(self.table, _reader(self.input))
        return deltalake.DeltaTable(self.table)


def _reader(where: Path) -> pa.RecordBatchReader:
    return dataset.dataset(where).scanner().to_reader()


# -- works ------------------------------------------------------------------------------------------------


def load(figures: Figures, pond: Pond, place: Place) -> None:
    """One process, from Parquet files."""
    work = LOAD
    figures.goals[work] = f"≤ 0.5 of {ON_SPARK}"
    few = parquet.read_table(next(place.input.iterdir())).slice(0, 10_000)
    pond.create_map("warm", **SETTINGS).load(few)
    for number in range(place.rounds):
        pond.create_map("loaded", **SETTINGS)
        figures.time(work, "Millpond", lambda: pond.load_files([str(place.input)], "loaded"))
        assert pond.map("loaded").info()["rows"] == place.rows
        pond.drop_map("loaded")
        if deltalake is not None:
            table = f"{place.table}-{number}"
            figures.time(work, DELTA, partial(deltalake.write_deltalake, table, _reader(place.input)))


def merge(figures: Figures, pond: Pond, place: Place) -> None:
    """A million random rows, changed and new ones."""
    work = MERGE
    figures.goals[work] = f"≤ 0.6 s; ≥ 20× {ON_SPARK}"
    target = place.devices(pond)
    for seed in range(place.rounds):
        changed = rows_of(place.rows * 11 // 10, CHANGED, 1000 + seed)
        figures.time(work, "Millpond", partial(target.load, changed))
    if place.delta() is not None:
        # `MERGE` refuses two rows for one address.
        changed = changed.group_by(["key", "effective_time"], use_threads=False).aggregate([("value", "last")])
        changed = changed.rename_columns(["key", "effective_time", "value"])
        condition = "t.key = c.key and t.effective_time = c.effective_time"
        merging = place.delta().merge(changed, condition, source_alias="c", target_alias="t")
        figures.time(work, DELTA, merging.when_matched_update_all().when_not_matched_insert_all().execute)


def lookup(figures: Figures, pond: Pond, place: Place) -> None:
    """A million questions to the layers that loads and folding left, and to one."""
    work, random = "one question of a million", np.random.default_rng(7)
    figures.goals[work] = "≤ 110 ns at 10 M rows, 160 at 100 M; ≤ 1.3 of one layer"
    target = place.devices(pond)
    while len(target.freeze().layers) < 3:
        target.load(rows_of(place.rows, CHANGED, 2000 + len(target.freeze().layers)))
    keys = names(random.integers(0, place.rows // ROWS_PER_KEY, QUESTIONS))
    times = instants(random.integers(STEP_MS, (ROWS_PER_KEY + 1) * STEP_MS, QUESTIONS))
    print(f"layers: {[layer.groups for layer in target.freeze().layers]}", file=sys.stderr)
    for way in ("Millpond", ONE_LAYER):
        with target.snapshot() as snapshot:
            snapshot.lookup(keys[:1000], times[:1000])
            for _ in range(place.rounds + 2):
                figures.time(work, way, lambda snapshot=snapshot: snapshot.lookup(keys, times), QUESTIONS)
        target.compact()


def get(figures: Figures, pond: Pond, place: Place) -> None:
    """One key after the other."""
    work, random = "get", np.random.default_rng(8)
    figures.goals[work] = "≤ 15 µs"
    target = place.devices(pond)
    for key in names(random.integers(0, place.rows // ROWS_PER_KEY, GETS)).to_pylist():
        figures.time(work, "Millpond", lambda key=key: target.get(key, at="2024-01-01T00:00:00Z"))
    some = names(random.integers(0, place.rows // ROWS_PER_KEY, RIVAL_GETS)).to_pylist()
    with duckdb.connect(config={"threads": 1}) as connection:
        query = f"select max_by(value, effective_time) from '{place.input}/*.parquet' where key = ?"
        for key in some:
            said = figures.time(work, DUCKDB, lambda key=key: connection.execute(query, [key]).fetchone())
            assert place.rows >= 1_000_000 or said is not None
    if (table := place.delta()) is not None:
        for key in some:
            query = f"select max(value) from rows where key = '{key}'"
            figures.time(work, DELTA, lambda query=query: _rows_by(table, query))


def _rows_by(table: Any, query: str) -> Any:
    return deltalake.QueryBuilder().register("rows", table).execute(query).read_all()


def refs(figures: Figures, pond: Pond, place: Place) -> None:
    """A branch; the state at a ref; a small load with its commit."""
    branch, opened, commit = "make a branch", "open at a ref, and get", "commit of a small load"
    figures.goals |= {branch: "≤ 5 ms", opened: "≤ 10 ms", commit: "≤ 15 ms"}
    place.devices(pond)
    table = place.delta()
    for number in range(30):
        figures.time(branch, "Millpond", lambda number=number: pond.branch(f"b{number}", source="main"))
        small, on_branch = rows_of(place.rows, SMALL, 3000 + number), pond.branch(f"b{number}").map("devices")
        figures.time(commit, "Millpond", partial(on_branch.load, small))
        key = small["key"][0].as_py()
        figures.time(opened, "Millpond", lambda number=number, key=key: pond.at(f"b{number}~1").map("devices").get(
            key, at="2024-01-01T00:00:00Z"
        ))  # fmt: skip
        if table is not None:
            figures.time(commit, DELTA, partial(deltalake.write_deltalake, place.table, small, mode="append"))
            figures.time(opened, f"{DELTA}, without a get", partial(deltalake.DeltaTable, place.table, version=0))
    for number in range(30):
        pond.refs.delete_branch(f"b{number}")


def changes(figures: Figures, pond: Pond, place: Place) -> None:
    """The differences after one row of a hundred was changed, the merge of two such sides; random rows, neighbours."""
    place.devices(pond).compact()
    pond.refs.commit("main", allow_empty=True)
    count, random = place.rows // 100, np.random.default_rng(9)
    for way in ("random rows", "neighbours"):
        diff, merged = f"diff of 1 %, {way}", f"merge of 1 % on both sides, {way}"
        figures.goals |= {diff: "≤ 0.5 s at 10 M rows", merged: "≤ 1 s at 10 M rows"}
        for number in range(place.rounds):
            first = int(random.integers(0, place.rows - 4 * count))
            sides = (
                random.permutation(place.rows)[: 2 * count] if way == "random rows"
                else np.arange(first, first + 2 * count)
            ).reshape(2, count)  # fmt: skip
            name = f"{way.split()[0]}{number}"
            before = pond.map("devices").scan().read_all() if number == 0 else None
            branch = pond.branch(name, source="main")
            branch.map("devices").load(table_of(sides[0], random.random(count)))
            table = figures.time(diff, "Millpond", lambda name=name: pond.refs.diff("main", name, map="devices"))
            assert len(table) == count
            pond.map("devices").load(table_of(sides[1], random.random(count)))
            pond.refs.commit("main")
            if before is not None:
                theirs = branch.map("devices").scan().read_all()
                _by_duckdb(figures, diff, merged, before, pond.map("devices").scan().read_all(), theirs)
            figures.time(merged, "Millpond", branch.merge)
            pond.refs.delete_branch(name)


def _by_duckdb(figures: Figures, diff: str, merged: str, *states: pa.Table) -> None:
    """Of base, ours and theirs: the difference that theirs made, and what both come to."""
    with duckdb.connect(config={"threads": 2}) as connection:
        for name, table in zip(("base", "ours", "theirs"), states, strict=True):
            connection.register("given", table)
            connection.execute(f"create table {name} as select * from given")
        both = "base full join theirs using (key, effective_time)"
        query = f"select * from {both} where base.value is distinct from theirs.value"
        figures.time(diff, DUCKDB, lambda: connection.sql(query).to_arrow_table())
        outcome = "if(theirs.value is distinct from base.value, theirs.value, ours.value)"
        three = f"{both} full join ours using (key, effective_time)"
        query = f"create table merged as select key, effective_time, {outcome} as value from {three}"
        figures.time(merged, DUCKDB, lambda: connection.execute(query))


def on_spark(figures: Figures, place: Place, python: str) -> None:
    """The load and the `MERGE` of Delta Lake on Spark, in an environment of its own."""
    changed = place.folder / "changed"
    changed.mkdir()
    for seed in range(place.rounds):
        some = rows_of(place.rows * 11 // 10, CHANGED, 1000 + seed)
        some = some.group_by(["key", "effective_time"], use_threads=False).aggregate([("value", "last")])
        parquet.write_table(some.rename_columns(["key", "effective_time", "value"]), changed / f"{seed}.parquet")
    seconds = delta_seconds(place.folder / "spark", place.input, changed, python)
    figures.note(LOAD, ON_SPARK, seconds["load"])
    figures.note(MERGE, ON_SPARK, seconds["merge"])


WORKS: dict[str, Callable[[Figures, Pond, Place], None]] = {
    "load": load, "merge": merge, "lookup": lookup, "get": get, "refs": refs, "changes": changes,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", help=f"works, by commas: {', '.join(WORKS)}")
    parser.add_argument("--spark", metavar="PYTHON", help="of an environment with the pyspark of Delta Lake")
    parser.add_argument("--folder", type=Path, help="where the input lies; it is kept, and used again")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(WORKS)
    figures, run = Figures(), Run("layers")
    size = f"{given.rows / 1e6:g} M rows"
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=given.folder) as folder:
        source = input_files(given.folder or Path(folder), given.rows)
        place = Place(Path(folder), source, given.rows, 3 if given.rows <= 10_000_000 else 1)
        with millpond.open(Path(folder) / "pond") as pond:
            for work in wanted:
                WORKS[work](figures, pond, place)
        if given.spark and {"load", "merge"}.issubset(wanted):
            on_spark(figures, place, given.spark)
    figures.print_table()
    for (work, way), seconds in figures.seconds.items():
        run.note(work, way, [took[0] for took in seconds], size=size)
    rivals = {"DuckDB": version("duckdb")} | ({} if deltalake is None else {DELTA: version("deltalake")})
    rivals |= {ON_SPARK: DELTA_SPARK.rpartition(":")[2]} if given.spark else {}
    run.write(rivals, whole=given.only is None and len(rivals) == 3 and given.rows >= 10_000_000)


if __name__ == "__main__":
    main()
