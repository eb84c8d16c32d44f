"""A pond in a bucket of a local S3 server, beside the bare requests of the same sizes: times, and counted requests.

* 64 threads with small loads into 8 maps, and one: loads a second, beside one put after another of as many bytes
* cold: opening a pond of 100 maps, and a map with its index; then `get` of one key, of an absent one, and a lookup of
  1,000, with the bytes that they fetch; beside bare requests, as many and as large, side by side
* warm: `get`, and lookups of 1,000 keys from the cache, beside a pond in a folder
* Spark: a load, beside Spark writing the rows as Parquet and their files put into the bucket
* merge: 1 % of new and other rows, then lookups that see them; with `--lake` beside `MERGE` or upserts of Delta Lake,
  Iceberg, Paimon and Hudi by Spark, whose tables lie in a folder. All answers are compared
* idle: the requests of an open pond that nobody asks, and of one that is asked all the time
* cost: requests and dollars a month for three workloads, by what a load and a reader were counted to send

Counts carry over to other servers; times are those of this machine.

    python bench/bucket.py            10 M rows, in versitygw; published with all four of `--lake`
    python bench/bucket.py --short    200,000 rows, 8 maps
    python bench/bucket.py --server s3proxy    a put of 1 MB takes it four times the processor time
    python bench/bucket.py --lake delta=ENVIRONMENT/bin/python --lake iceberg=…    each with a Spark: `_lake_merge.py`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

import millpond
from _lake_merge import LAKES
from _results import OURS, Run, Unit, version
from millpond.stores.objects import open_objects
from millpond.stores.objects.at_once import AT_ONCE_MAX
from tests.harness.buckets.requests import counted_requests, fetched_bytes
from tests.s3_server import S3Server, start_server
from tests.versity_server import running

BARE, FOLDER, PARQUET = "bare requests", "Millpond, in a folder", "Parquet, and its files put"
"""The ways besides a pond in a bucket."""
WRITERS, MAPS_WRITTEN, LOOKUP_KEYS, TRIES, COLD_TRIES, SPARK_TRIES = 64, 8, 1_000, 9, 3, 3
BLOCK = 128 << 10
LOAD, MERGE, LOOKUP = "load by Spark", "merge of 1 %", f"cold lookup of {LOOKUP_KEYS:,} keys"
MERGED = f"{LOOKUP} after the merge"
PRICES = {"PUT": 5e-6, "LIST": 5e-6, "GET": 0.4e-6, "HEAD": 0.4e-6, "DELETE": 0.0}
"""Dollars a request, as Amazon published them for S3 Standard in us-east-1."""
MONTH_SECONDS = 30 * 86_400


def keys(count: int) -> pa.Array:
    return table_of(np.arange(count))["key"].combine_chunks()


def timed(act: Callable[[], Any]) -> float:
    """The seconds that an act takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Figures:
    """The measurements: printed at once, and noted as figures of the claim, those of a task together."""

    def __init__(self) -> None:
        self._run = Run("bucket")
        self._tasks: dict[str, list[Callable[[], None]]] = {}

    def _note(self, task: str, way: str, values: float | Sequence[float], unit: Unit = "s") -> None:
        self._tasks.setdefault(task, []).append(lambda: self._run.note(task, way, values, unit=unit))

    def write(self, rivals: dict[str, str], *, whole: bool, note: str, **sizes: int) -> None:
        """Write all that was noted."""
        for those in self._tasks.values():
            for note_it in those:
                note_it()
        self._run.write(rivals, whole=whole, note=note, **sizes)

    def note(
        self, task: str, seconds: float | Sequence[float], counts: Counter[str] | None = None, more: str = "", *,
        way: str = OURS,
    ) -> None:  # fmt: skip
        """Note the seconds of one way of doing a task, and its requests."""
        self._note(task, way, seconds)
        median = statistics.median(seconds) if isinstance(seconds, Sequence) else seconds
        self.say(task, way, f"{1000 * median:11.2f} ms", "" if counts is None else shown(counts), more)
        if counts:
            self._note(f"{task}, requests", way, sum(counts.values()), "requests")

    def rate(self, task: str, rate: float, *, unit: Unit = "/s") -> None:
        """Note things a second, or requests."""
        self._note(task, OURS, rate, unit)
        self.say(task, OURS, f"{rate:10.1f} {unit}")

    @staticmethod
    def say(task: str, way: str, *more: str) -> None:
        """Print one line."""
        print(f"{task:52} {way:28} {'  '.join(more)}", flush=True)


def shown(counts: Counter[str]) -> str:
    """Requests as text."""
    return ", ".join(f"{count:g} {verb}" for verb, count in sorted(counts.items())) or "0"


def opened(url: str, cache: Path, **settings: Any) -> Any:
    return millpond.open(url, cache=cache, **settings)


def writers(figures: Figures, url: str, folder: Path, loads: int, count: int = WRITERS) -> Counter[str]:
    """Small loads by many threads, or one; the requests of one load."""
    work = f"{count} threads" if count > 1 else "one thread"
    with opened(url, folder / "writers") as pond:
        maps = [pond.create_map(f"w{count}_{number}", kind="state", value="long") for number in range(MAPS_WRITTEN)]
        taken: list[float] = []

        def load(writer: int) -> None:
            for number in range(loads):
                row = {"key": f"k{writer}-{number}", "value": writer}
                taken.append(timed(lambda row=row: maps[writer % MAPS_WRITTEN].load([row])))

        threads = [threading.Thread(target=load, args=(writer,)) for writer in range(count)]
        with counted_requests() as counts:
            began, processor = time.perf_counter(), time.process_time()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            elapsed, processor = time.perf_counter() - began, time.process_time() - processor
        there = sum(opened_map.info()["rows"] for opened_map in maps)
        assert there == count * loads, f"{there} rows of {count * loads} loads"
    one = Counter({verb: round(number / len(taken), 2) for verb, number in counts.items()})
    figures.rate(f"small loads, {work}", len(taken) / elapsed)
    figures.note(f"a small load, {work}", taken, one)
    figures.note(f"a small load, {work}, processor", processor / len(taken))
    if count == 1:
        figures.note(f"a small load, {work}", bare(url, 2_000)[0], way="bare PUT of 2,000 bytes")
    return one


def cold(figures: Figures, url: str, folder: Path, rows: int, maps: int) -> None:
    """The requests of readers with an empty cache."""
    opening, first, lookups, side_by_side = [], [], [], []
    for number in range(COLD_TRIES):
        with counted_requests() as counts, fetched_bytes() as sizes:
            began, last = time.perf_counter(), number == COLD_TRIES - 1
            with opened(url, folder / f"cold-{number}", max_staleness=600) as pond:
                opening.append(time.perf_counter() - began)
                if last:
                    figures.note(f"cold open of a pond of {maps} maps", opening, counts, f"{sum(sizes):,} bytes")
                reader = pond.map("m")
                counts.clear()
                sizes.clear()
                first.append(timed(lambda reader=reader: reader.get(f"device-{rows // 2:08}")))
                if last:
                    figures.note("first get of a map, with its index", first, counts, f"{sum(sizes):,} bytes")
                    later(figures, reader, rows, counts, sizes)
                counts.clear()
                sizes.clear()
                questions = some_keys(rows, 2)
                lookups.append(timed(lambda reader=reader, questions=questions: reader.lookup(questions)))
                if last:
                    figures.note(LOOKUP, lookups, counts, f"{sum(sizes):,} bytes")
                side_by_side.append(requests_side_by_side(url, sizes))
    figures.note(LOOKUP, side_by_side, way=BARE)


def later(figures: Figures, reader: Any, rows: int, counts: Counter[str], sizes: list[int]) -> None:
    """The requests of a reader that has the index, for keys far from each other and for absent ones; in turn with a
    bare GET of as many bytes of the same files.
    """
    random, bucket = np.random.default_rng(3), reader.objects.bucket
    files = [info.name for info in bucket.list("ranges") if info.size > 2 * BLOCK]
    names = {
        "cold get": [f"device-{number:08}" for number in range(rows // 5, rows // 5 + 3 * TRIES)],
        "cold get of an absent key": [f"nobody-{number}" for number in range(3 * TRIES)],
    }
    for what, those in names.items():
        samples, alone, one, fetched = [], [], Counter[str](), 0
        for name in those:
            counts.clear()
            sizes.clear()
            samples.append(timed(lambda name=name: reader.get(name)))
            one, size = one + counts, sum(sizes)
            fetched += size
            start, file = int(random.integers(0, BLOCK)), files[random.integers(len(files))]
            if size:
                alone.append(timed(lambda: bucket.get_range(file, start, start + size)))  # noqa: B023
        rate = Counter({verb: round(count / len(those), 2) for verb, count in one.items()})
        figures.note(what, samples, rate, f"{fetched // len(those):,} bytes")
        if alone:
            figures.note(what, alone, way=BARE)


def requests_side_by_side(url: str, sizes: Sequence[int]) -> float:
    """The seconds of bare requests, as many and as large as a lookup needed."""
    objects, fetched = open_objects(f"{url}-bare"), list(sizes)
    objects.put("large", os.urandom(max(fetched, default=1)))
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        return timed(lambda: list(threads.map(lambda size: objects.get_range("large", 0, size), fetched)))


def bare(url: str, size: int) -> tuple[list[float], list[float]]:
    """The seconds of puts, and of gets, of the client alone."""
    objects, data = open_objects(f"{url}-bare"), os.urandom(size)
    puts = [timed(lambda: objects.put("one", data)) for _ in range(TRIES)]
    return puts, [timed(lambda: objects.get("one")) for _ in range(3 * TRIES)]


def some_keys(rows: int, seed: int) -> pa.Array:
    return keys(rows).take(pa.array(np.random.default_rng(seed).integers(0, rows, LOOKUP_KEYS)))


def warm(figures: Figures, url: str, folder: Path, rows: int) -> None:
    """Questions from the cache, beside a folder."""
    questions = some_keys(rows, 1)
    for way, place in ((OURS, url), (FOLDER, str(folder / "pond"))):
        with ExitStack() as stack:
            settings = {"cache": folder / "warm", "max_staleness": 600} if way == OURS else {}
            pond = stack.enter_context(millpond.open(place, **settings))
            reader = pond.map("m")
            reader.lookup(questions)
            names = [f"device-{number:08}" for number in range(TRIES)]
            for name in names:
                reader.get(name)
            counts = stack.enter_context(counted_requests())
            samples = [timed(lambda reader=reader: reader.lookup(questions)) for _ in range(50)]
            figures.note(f"lookup of {LOOKUP_KEYS:,} keys from the cache", samples, counts, way=way)
            samples = [timed(lambda reader=reader, name=name: reader.get(name)) for name in names * 10]
            figures.note("get from the cache", samples, counts, way=way)


def spark_load(figures: Figures, url: str, folder: Path, rows: int) -> None:
    """A load by Spark, beside Spark writing Parquet, whose files are then put into the bucket."""
    from millpond import spark as mp

    os.environ["XDG_CACHE_HOME"] = str(folder / "executors")  # of the tasks
    session = mp.start("local[2]", app="millpond bench", memory="4g")
    mp.register(session, pond=url)
    for number, some in enumerate(np.array_split(np.arange(rows), 8)):
        (folder / "input").mkdir(exist_ok=True)
        parquet.write_table(table_of(some), folder / "input" / f"{number}.parquet")
    frame = session.read.parquet(str(folder / "input"))
    objects, seconds, written = open_objects(f"{url}-parquet"), [], []
    with opened(url, folder / "driver") as pond, ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        for number in range(1 + SPARK_TRIES):
            target = pond.create_map(f"spark{number}", kind="state", value="long")
            with counted_requests() as counts:
                load = frame.write.format("millpond").option("map", target.name).mode("append")
                seconds.append(timed(load.save))
            assert target.info()["rows"] == rows
            output = folder / f"output{number}"
            took = timed(lambda output=output: frame.write.parquet(str(output)))
            files = list(output.glob("*.parquet"))
            put = timed(
                lambda files=files: list(threads.map(lambda file: objects.put(file.name, file.read_bytes()), files))
            )
            written.append(took + put)
    # The first has warmed both; the requests of the executors are not counted.
    figures.note(LOAD, seconds[1:], None, f"{rows / min(seconds):,.0f} rows a second; the driver: {shown(counts)}")
    figures.note(LOAD, written[1:], way=PARQUET)
    session.stop()


def table_of(numbers: np.ndarray, add: int = 0) -> pa.Table:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pa.table(
        {"key": pc.binary_join_element_wise(pa.scalar("device-"), digits, ""), "value": numbers + add}
    )  # fmt: skip


def merge(figures: Figures, url: str, folder: Path, rows: int, lakes: list[str]) -> None:
    """A hundredth of the rows, most with new values and some of new keys, merged; then looked up. `lakes` are the names
    of others, each with the Python of its environment.
    """
    numbers = np.unique(np.random.default_rng(5).integers(0, rows * 11 // 10, rows // 100))
    changed = table_of(numbers, rows)
    with opened(url, folder / "merging") as pond, counted_requests() as counts:
        target = pond.map("m")
        figures.note(MERGE, timed(lambda: target.load(changed)), counts, f"{len(numbers):,} rows")
    before = np.arange(rows)
    others = np.setdiff1d(before, numbers)
    wanted = np.concatenate([numbers[-LOOKUP_KEYS // 2 :], others[:: len(others) // LOOKUP_KEYS][: LOOKUP_KEYS // 2]])
    values = wanted + np.where(np.isin(wanted, numbers), rows, 0)
    keys_wanted = table_of(wanted).select(["key"])
    with opened(url, folder / "merged") as pond:
        found: list[pa.Array] = []
        figures.note(MERGED, timed(lambda: found.append(pond.map("m").lookup(keys_wanted["key"]))))
        assert found[0].to_pylist() == values.tolist()
        assert pond.map("m").info()["rows"] == len(others) + len(numbers)
    answers = [int(values.sum()), len(wanted), len(others) + len(numbers), int(others.sum() + (numbers + rows).sum())]
    for name, table in (("rows", table_of(before)), ("changed", changed), ("wanted", keys_wanted)):
        (folder / name).mkdir()
        parquet.write_table(table, folder / name / "0.parquet")
    for lake in lakes:
        merge_in_lake(figures, *lake.split("=", 1), folder, answers)


def merge_in_lake(figures: Figures, name: str, python: str, folder: Path, answers: list[int]) -> None:
    """The same in another format of tables; its answers must be ours."""
    script, places = Path(__file__).with_name("_lake_merge.py"), ("rows", "changed", "wanted", f"of-{name}")
    command = [python, str(script), name, *(str(folder / place) for place in places)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = {line["work"]: line for line in map(json.loads, filter(_is_json, done.stdout.splitlines()))}
    assert lines["answers"]["answers"] == answers, f"{name}: {lines['answers']} and not {answers}"
    for work, task in (("load", LOAD), ("merge", MERGE), ("lookup", MERGED)):
        figures.note(task, lines[work]["seconds"], way=LAKES[name].name)


def _is_json(line: str) -> bool:
    return line.startswith("{")  # jars print other lines


def idle(figures: Figures, url: str, folder: Path, seconds: float) -> Counter[str]:
    """The requests a second of a pond that is open, and of one that is asked all the time."""
    with opened(url, folder / "warm") as pond:
        reader = pond.map("m")
        reader.get("device-00000001")
        with counted_requests() as counts:
            time.sleep(seconds)
            figures.say(f"open for {seconds:g} s, and not asked", OURS, shown(counts))
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                reader.get("device-00000001")
    figures.rate("asked all the time, a second", sum(counts.values()) / seconds, unit="requests")
    return Counter({verb: count / seconds for verb, count in counts.items()})


def cost(alone: Counter[str], together: Counter[str], reading: Counter[str]) -> None:
    """The bill of a month, by the requests of loads one after another, and of many at once."""
    workloads = {
        "a load each night, one reader an hour a day": (alone, 30, 30 * 3600),
        "a micro-batch every 10 s, four readers": (alone, MONTH_SECONDS // 10, 4 * MONTH_SECONDS),
        "100 small loads a minute, four readers": (together, 100 * MONTH_SECONDS // 60, 4 * MONTH_SECONDS),
    }
    for what, (load, loads, seconds) in workloads.items():
        requests = {verb: load[verb] * loads + reading[verb] * seconds for verb in PRICES}
        dollars = sum(PRICES[verb] * count for verb, count in requests.items())
        shown = ", ".join(f"{count:,.0f} {verb}" for verb, count in requests.items() if count)
        print(f"{what:48} {dollars:10.2f} $ a month  {shown}")


def fill(url: str, folder: Path, rows: int, maps: int) -> None:
    """A map of many rows, in the bucket and in a folder, and many small ones."""
    table = table_of(np.arange(rows))
    with opened(url, folder / "filling") as pond, millpond.open(folder / "pond") as beside:
        for place in (pond, beside):
            place.create_map("m", kind="state", value="long", store="layers").load(table)
        for number in range(maps):
            pond.create_map(f"s{number}", kind="state", value="long").load([{"key": "a", "value": number}])
        pond.space.write_checkpoint()
        beside.map("m").get("device-00000001")  # what is compiled is compiled now


def started(stack: ExitStack, name: str, folder: Path) -> S3Server:
    """A local S3 server, which ends with the stack."""
    if name == "s3proxy":
        return start_server(stack)
    (folder / name).mkdir()
    return stack.enter_context(running(folder / name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument(
        "--lake", action="append", default=[], metavar="NAME=PYTHON",
        help=f"a rival of the merge ({', '.join(LAKES)}), and the Python of an environment with its pyspark",
    )  # fmt: skip
    parser.add_argument("--server", choices=("versitygw", "s3proxy"), default="versitygw", help="the S3 server")
    given = parser.parse_args()
    rows, maps, loads, seconds = (200_000, 8, 2, 3.0) if given.short else (10_000_000, 100, 10, 20.0)
    figures = Figures()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = started(stack, given.server, folder)
        os.environ.update(server.environment)
        url = f"{server.make_bucket('bench')}/pond"
        fill(url, folder, rows, maps)
        cold(figures, url, folder, rows, maps)
        warm(figures, url, folder, rows)
        reading = idle(figures, url, folder, seconds)
        together, alone = (
            writers(figures, url, folder, loads),
            writers(figures, url, folder, 10 * loads, 1),
        )
        spark_load(figures, url, folder, rows)
        merge(figures, url, folder, rows, given.lake)
        cost(alone, together, reading)
    lakes = {lake.partition("=")[0] for lake in given.lake}
    versions = {LAKES[name].name: LAKES[name].package.rpartition(":")[2] for name in sorted(lakes)}
    rivals = {"Spark": version("pyspark")} | versions
    whole = not given.short and given.server == "versitygw" and lakes == LAKES.keys()
    figures.write(rivals, whole=whole, rows=rows, maps=maps, note=f"The server: {given.server}, on the same machine.")


if __name__ == "__main__":
    main()
