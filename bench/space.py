"""Durable writes of a space by 1, 2, 4 and 8 threads: each puts one row of a hundred bytes, answered after its sync.

Beside it, in the same run, on the same disk:
* SQLite in WAL mode with `synchronous=FULL`, a connection for each thread: a transaction and a sync for each write;
* bare py-lmdb with the same syncs: a transaction and a sync for each write;
* bare py-lmdb by one thread that has the rows of all threads and commits them together: no queue can be faster.

    python bench/space.py            three seconds for each figure, five rounds
    python bench/space.py --quick    a second, three rounds
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from _results import Run, counted, version
from millpond.kernel.space import Transaction
from millpond.stores.lmdb.space import LmdbSpace

THREADS = (1, 2, 4, 8)
VALUE = b"v" * 100
KEYS = 10_000

Write = Callable[[bytes], None]


@contextmanager
def millpond_space(folder: Path) -> Iterator[Callable[[], Write]]:
    space = LmdbSpace(folder)

    def write(key: bytes) -> None:
        def change(tx: Transaction) -> None:
            tx.put(key, VALUE)

        space.write(change)

    yield lambda: write
    space.close()


@contextmanager
def bare_lmdb(folder: Path) -> Iterator[Callable[[], Write]]:
    environment = lmdb.open(str(folder), map_size=1 << 30)

    def write(key: bytes) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(key, VALUE)

    yield lambda: write
    environment.close()


@contextmanager
def sqlite(folder: Path) -> Iterator[Callable[[], Write]]:
    folder.mkdir()
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(folder / "db", isolation_level=None, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        opened.append(connection)
        return connection

    connect().execute("CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def writer() -> Write:
        connection = connect()

        def write(key: bytes) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, VALUE))
            connection.execute("COMMIT")

        return write

    yield writer
    for connection in opened:
        connection.close()


def ceiling(folder: Path, rows: int, seconds: float) -> float:
    """Rows a second of one thread that commits so many rows together, from as many places as there are threads."""
    environment = lmdb.open(str(folder), map_size=1 << 30)
    began, commits = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        with environment.begin(write=True) as transaction:
            for number in range(rows):
                transaction.put(_key(number, commits), VALUE)
        commits += 1
    elapsed = time.perf_counter() - began
    environment.close()
    return commits * rows / elapsed


def _key(thread: int, count: int) -> bytes:
    return b"%02d-%06d" % (thread, count % KEYS)


WAYS = {"Millpond": millpond_space, "SQLite, WAL, FULL": sqlite, "bare LMDB": bare_lmdb}


def measure(writer: Callable[[], Write], threads: int, seconds: float) -> tuple[float, float]:
    """Writes a second, and the median seconds of one."""
    stop = threading.Event()
    taken: list[list[float]] = [[] for _ in range(threads)]

    def work(number: int) -> None:
        write, mine = writer(), taken[number]
        while not stop.is_set():
            began = time.perf_counter()
            write(_key(number, len(mine)))
            mine.append(time.perf_counter() - began)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - began
    every = [sample for mine in taken for sample in mine]
    return len(every) / elapsed, statistics.median(every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick, run = parser.parse_args().quick, Run("space")
    seconds = 1.0 if quick else 3.0
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    together: dict[int, list[float]] = {threads: [] for threads in THREADS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3 if quick else 5):
            for threads in THREADS:
                for way, opened in WAYS.items():
                    with opened(Path(folder) / f"{turn}-{threads}-{list(WAYS).index(way)}") as writer:
                        rates_and_latencies = measure(writer, threads, seconds)
                    found.setdefault((way, threads), []).append(rates_and_latencies)
                together[threads].append(ceiling(Path(folder) / f"{turn}-{threads}-together", threads, seconds))
            print(f"round {turn + 1}", file=sys.stderr)
    for (way, threads), rates_and_latencies in found.items():
        run.note(
            "durable writes", way, [rate for rate, _ in rates_and_latencies], unit="/s", size=counted(threads, "thread")
        )
        run.note("one write", way, [latency for _, latency in rates_and_latencies], size=counted(threads, "thread"))
    for threads, whole in together.items():
        run.note("durable writes", "bare LMDB, one thread for all", whole, unit="/s", size=counted(threads, "thread"))
    run.write({"SQLite": sqlite3.sqlite_version, "py-lmdb": version("lmdb")}, whole=not quick)
    rates = {
        key: statistics.median(rate for rate, _ in rates_and_latencies) for key, rates_and_latencies in found.items()
    }
    latencies = {
        key: statistics.median(latency for _, latency in rates_and_latencies)
        for key, rates_and_latencies in found.items()
    }
    print("| threads | way | durable writes a second | median of one | of one thread's | ours is faster by |")
    print("|---|---|---|---|---|---|")
    for threads in THREADS:
        for way in WAYS:
            rate = rates[way, threads]
            print(
                f"| {threads} | {way} | {rate:,.0f} | {latencies[way, threads] * 1e3:.2f} ms "
                f"| {rate / rates[way, 1]:.1f}× | {rates['Millpond', threads] / rate:.1f}× |"
            )
        rate, of_one = statistics.median(together[threads]), statistics.median(together[1])
        share = rates["Millpond", threads] / rate
        print(f"| {threads} | bare LMDB, one thread for all | {rate:,.0f} | | {rate / of_one:.1f}× | {share:.1f}× |")


if __name__ == "__main__":
    main()
