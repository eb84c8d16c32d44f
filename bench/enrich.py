"""Enriching events in Spark, two cores: as-of lookups in a map, written to nowhere.

The rivals, over the same events from the same Parquet files:
* a `mapInArrow` that hands rows through: what any trip through Python costs that carries whole rows;
* a broadcast join with one plain row for each key, which knows nothing of time: Spark's best case;
* our own `partition="key"`, which shuffles the events so that each task maps only its share of the snapshot;
* Spark's own `ASOF JOIN … MATCH_CONDITION` with the states, which are Parquet files.

The last one's answers are compared with ours. Then a stream of small files is enriched in both ways, and each
micro-batch counts.

    python bench/enrich.py            5 M events, 1 M keys with 10 rows each
    python bench/enrich.py --quick    a tenth of it
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import millpond
from _measure import Contest, note_contests, print_table, rounds
from _results import Run, version
from millpond import spark as mp
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.maps.snapshots.snapshot import Snapshot

ROWS_PER_KEY = 10
START_MS = 1_600_000_000_000
STEP_MS = 60_000
FILES = 4
ASOF_JOIN = "ASOF JOIN"
GOALS = {"mapInArrow, rows passed through": 0.85, "broadcast join, no times": 1.0, ASOF_JOIN: 5.0}
BATCHES, BATCH_EVENTS, BATCH_GOAL = 6, 10_000, 20.0


def names(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar("device-"), digits, "")


def instants(millis: np.ndarray) -> pa.Array:
    # Whole microseconds, which is what Spark would write.
    return pa.array(millis * 1000, pa.timestamp("us", tz="UTC"))


def write_states(folder: Path, keys: int) -> None:
    """Ten states of every key, as Parquet; and one plain row for each key."""
    draw = np.random.default_rng(1)
    for number in range(ROWS_PER_KEY):
        times = START_MS + STEP_MS * number + draw.integers(0, STEP_MS, keys)
        table = pa.table({"key": names(np.arange(keys)), "effective_time": instants(times), "value": draw.random(keys)})
        (folder / "states").mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, folder / "states" / f"{number}.parquet")
    plain = pa.table({"key": names(np.arange(keys)), "value": draw.random(keys)})
    parquet.write_table(plain, folder / "plain.parquet")


def write_events(folder: Path, keys: int, count: int) -> None:
    """Events of random keys, known and (one in twenty) unknown, at random times."""
    draw = np.random.default_rng(2)
    (folder / "events").mkdir(parents=True)
    for number in range(FILES):
        size = count // FILES
        table = pa.table({
            "id": np.arange(number * size, (number + 1) * size),
            "key": names(draw.integers(0, keys + keys // 20, size)),
            "at": instants(START_MS + draw.integers(0, STEP_MS * ROWS_PER_KEY, size)),
            "amount": draw.random(size),
            "kind": pa.array(np.array(["view", "click", "buy"])[draw.integers(0, 3, size)]),
        })  # fmt: skip
        parquet.write_table(table, folder / "events" / f"{number}.parquet")


def load_states(folder: Path) -> None:
    with millpond.open(folder / "pond") as pond:
        states = pond.create_map("states", kind="temporal_state", value="double")
        for file in sorted((folder / "states").iterdir()):
            states.load(parquet.read_table(file))
        states.freeze()


def pass_through(events: DataFrame) -> DataFrame:
    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return events.mapInArrow(through, events.schema)


AS_OF = """
    select e.*, s.value from {events} e left asof join states s match_condition (e.at >= s.effective_time)
    on e.key = s.key
"""


def ways(session: SparkSession, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    """The measured ways: planning the query is a part of it, as a user would feel it."""
    events = session.read.parquet(str(folder / "events"))
    events.createOrReplaceTempView("events")
    session.read.parquet(str(folder / "states")).createOrReplaceTempView("states")
    plain = session.read.parquet(str(folder / "plain.parquet"))
    return {
        "Millpond": lambda: mp.enrich(
            events, pond=folder / "pond", map="states", key="key", at="at", into="value"
        ),
        "Millpond, partition=\"key\"": lambda: mp.enrich(
            events, pond=folder / "pond", map="states", key="key", at="at", into="value", partition="key", partitions=8
        ),
        "mapInArrow, rows passed through": lambda: pass_through(events),
        "broadcast join, no times": lambda: events.join(sf.broadcast(plain), "key", "left"),
        ASOF_JOIN: lambda: session.sql(AS_OF.format(events="events")),
    }  # fmt: skip


def run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def total(frame: DataFrame) -> tuple[int, float]:
    counted, summed = frame.select(sf.count("value"), sf.sum("value")).collect()[0]
    return counted, round(summed, 3)


def print_shares(folder: Path, count: int) -> None:
    """The bytes that a task maps: of all rows, and of its share of them."""
    with millpond.open(folder / "pond") as pond, pond.map("states").snapshot() as whole:
        total, objects, manifest = whole.mapped_bytes, pond.map("states").objects, whole.manifest
        mapped = []
        for number in range(count):
            with Snapshot.open(objects, manifest, share=HashShare(number, count)) as share:
                mapped.append(share.mapped_bytes)
    print(f"a task maps {total >> 20} MiB; with partition='key', 1 of {count}: at most {max(mapped) >> 20} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, three rounds")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    root = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=os.environ.get("BENCH_DIR")))
    run, events, keys = Run("enrich"), 5_000_000 // scale, 1_000_000 // scale
    try:
        contests = measure(root, events, keys, arguments.quick)
        print_table(contests)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    note_contests(run, contests)
    run.write(
        {"Spark": version("pyspark")}, whole=not arguments.quick, events=events, keys=keys, rows_per_key=ROWS_PER_KEY
    )


def measure(root: Path, events: int, keys: int, quick: bool) -> list[Contest]:
    write_events(root, keys, events)
    write_states(root, keys)
    load_states(root)
    session = mp.start("local[2]", app="bench", memory="4g", settings={
        "spark.local.dir": str(root / "local"), "spark.sql.join.asofJoin.enabled": "true",
    })  # fmt: skip
    contest = Contest("enrich", events, f"{keys * ROWS_PER_KEY / 1e6:g} M states")
    measured = ways(session, root)
    assert total(measured["Millpond"]()) == total(measured[ASOF_JOIN]())
    for way in measured.values():
        run(way())
    for _ in rounds(quick):
        for name, way in measured.items():
            contest.run(name, lambda way=way: run(way()))
    streamed = by_batches(session, root, keys)
    session.stop()
    print_shares(root, 8)
    for name in measured:
        if name in GOALS:
            ratio = contest.median(name) / contest.median("Millpond")
            print(f"{name}: {ratio:.2f}× (wanted: at least {GOALS[name]}×)")
    ratio = streamed.median(ASOF_JOIN) / streamed.median("Millpond")
    print(f"{ASOF_JOIN}, a micro-batch: {ratio:.2f}× (wanted: at least {BATCH_GOAL}×)")
    return [contest, streamed]


def by_batches(session: SparkSession, folder: Path, keys: int) -> Contest:
    """The seconds of a micro-batch of a stream, but for the first, which plans and opens."""
    first = parquet.read_table(folder / "events" / "0.parquet")
    (folder / "batches").mkdir()
    for number in range(BATCHES):
        some = first.slice(number * BATCH_EVENTS, BATCH_EVENTS)
        parquet.write_table(some, folder / "batches" / f"{number}.parquet")
    schema = session.read.parquet(str(folder / "batches")).schema

    def stream() -> DataFrame:
        return session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "batches"))

    def joined() -> DataFrame:
        stream().createOrReplaceTempView("arriving")
        return session.sql(AS_OF.format(events="arriving"))

    measured = {
        "Millpond": lambda: mp.enrich(stream(), pond=folder / "pond", map="states", key="key", at="at", into="value"),
        ASOF_JOIN: joined,
    }
    contest = Contest("micro-batch", BATCH_EVENTS, f"{keys * ROWS_PER_KEY / 1e6:g} M states")
    for name, frame in measured.items():
        query = frame().writeStream.format("noop").trigger(availableNow=True).option(
            "checkpointLocation", str(folder / f"checkpoint {name}")
        ).start()  # fmt: skip
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        contest.seconds[name] = [batch.durationMs["triggerExecution"] / 1000 for batch in batches[1:]]
    return contest


if __name__ == "__main__":
    main()
