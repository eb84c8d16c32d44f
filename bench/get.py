"""One key at a time: the first `get` after opening a pond, and the median of many, each timed alone.

Beside it, on the same rows in the same process:
* py-lmdb: a read transaction and a seek for each question, the value decoded with `struct`; what LMDB itself costs;
* Redis, when `redis-server` is installed: GET over a Unix socket, state kind only, the reply read but not decoded.

Then small batches: `Map.lookup`, which proves first that its snapshot is up to date, against `lookup` of that snapshot.

The first get is taken in new processes: opening the pond, finding the map and answering, without the imports.

    python bench/get.py            10 M rows of a temporal map, 1 M of each other kind
    python bench/get.py --quick    a tenth of it
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import millpond
from _results import Run, counted, program_version, version
from millpond.maps.model.columns import INSTANT

ROWS_PER_KEY = 10
STEP_MS = 1_000
WAYS = {"Map.get": "Millpond", "py-lmdb": "LMDB, transaction and seek", "Redis GET": "Redis GET, Unix socket"}
QUESTIONS = 50_000
BATCHES = (1, 10, 100, 1_000)
BATCHES_PER_WAY = 7_000
FIRST_GET = """
import sys, time
import millpond, millpond.pond
began = time.perf_counter()
pond = millpond.open(sys.argv[1])
found = pond.map("temporal_state").get(sys.argv[2], at=5_500)
print(time.perf_counter() - began)
assert found is not None
pond.close()
"""

Question = tuple[Any, ...]


def names(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar("device-"), digits, "")


def fill(folder: Path, keys: int) -> None:
    """A pond with a map of each kind; the temporal one has ten rows a key."""
    numbers = np.arange(keys)
    every, times = np.repeat(numbers, ROWS_PER_KEY), np.tile(np.arange(ROWS_PER_KEY) * STEP_MS, keys)
    with millpond.open(folder) as pond:
        temporal = pond.create_map("temporal_state", kind="temporal_state", value="long")
        instants = pa.array(times, pa.int64()).cast(INSTANT)
        temporal.load(pa.table({"key": names(every), "effective_time": instants, "value": every + times}))
        state = pond.create_map("state", kind="state", value="long")
        state.load(pa.table({"key": names(numbers), "value": numbers}))
        ranged = pond.create_map("ranged_state", kind="ranged_state", value="long")
        ranged.load(pa.table({"key_start": numbers * 10, "key_end": numbers * 10 + 8, "value": numbers}))
        session = pond.create_map("session", kind="session")
        start, end = (pa.array(numbers % 7 * STEP_MS + more, pa.int64()).cast(INSTANT) for more in (0, STEP_MS))
        session.load(pa.table({"key": names(numbers), "start": start, "end": end}))


def question_times(ask: Callable[..., Any], questions: Sequence[Question]) -> list[int]:
    """The time of each question, in nanoseconds."""
    times = []
    for question in questions:
        began = time.perf_counter_ns()
        ask(*question)
        times.append(time.perf_counter_ns() - began)
    return times


@contextmanager
def plain_lmdb(folder: Path, keys: int) -> Iterator[Callable[[str, int], int | None]]:
    """The temporal rows as anybody would lay them out: key, a zero byte and the time; a long as the value."""
    env = lmdb.open(str(folder), map_size=1 << 36, sync=False)
    pack, unpack = struct.Struct(">q").pack, struct.Struct(">q").unpack
    with env.begin(write=True) as tx:
        rows = (
            (b"device-%08d\0" % key + pack(n * STEP_MS), pack(key + n * STEP_MS))
            for key in range(keys)
            for n in range(ROWS_PER_KEY)
        )
        tx.cursor().putmulti(rows, append=True)

    def ask(key: str, at: int) -> int | None:
        prefix = key.encode() + b"\0"
        bound = prefix + pack(at)
        with env.begin() as tx:
            cursor = tx.cursor()
            found = cursor.set_range(bound)
            if not (found and cursor.key() == bound) and not (cursor.prev() if found else cursor.last()):
                return None
            return int(unpack(cursor.value())[0]) if cursor.key().startswith(prefix) else None

    yield ask
    env.close()


@contextmanager
def redis(folder: Path, keys: int) -> Iterator[Callable[[str], bytes] | None]:
    """A server of our own with the state rows; None when there is none to start."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    place = str(folder / "redis.sock")
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", place, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL
    )
    try:
        link = connected(place)
        replies = link.makefile("rb")
        for first in range(0, keys, 10_000):
            some = range(first, min(first + 10_000, keys))
            link.sendall(b"".join(command(b"SET", b"device-%08d" % key, struct.pack(">q", key)) for key in some))
            for _ in some:
                replies.readline()

        def ask(key: str) -> bytes:
            link.sendall(command(b"GET", key.encode()))
            return replies.read(int(replies.readline()[1:]) + 2)

        yield ask
        link.close()
    finally:
        server.terminate()
        server.wait()


def connected(place: str) -> socket.socket:
    for _ in range(100):
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(place)
        except OSError:
            link.close()
            time.sleep(0.05)
        else:
            return link
    raise RuntimeError("redis-server did not start")


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def first_gets(folder: Path, key: str) -> list[float]:
    times = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_GET, str(folder), key], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    quick = parser.parse_args().quick
    keys, run = 100_000 if quick else 1_000_000, Run("get")
    numbers = np.random.default_rng(1).integers(0, keys, QUESTIONS).tolist()
    with tempfile.TemporaryDirectory(prefix="millpond-get-") as root:
        folder = Path(root)
        fill(folder / "pond", keys)
        first = first_gets(folder / "pond", f"device-{keys // 3:08d}")
        with millpond.open(folder / "pond") as pond:
            taken = measure(pond, folder, keys, numbers)
            print_gets(taken, first)
            note_gets(run, taken, first)
            print_batches(run, pond.map("temporal_state"), numbers)
    rivals = {"py-lmdb": version("lmdb"), "Redis": program_version("redis-server", "--version")}
    run.write(rivals, whole=not quick, keys=keys, rows_per_key=ROWS_PER_KEY)


def measure(pond: millpond.Pond, folder: Path, keys: int, numbers: list[int]) -> dict[tuple[str, str], list[list[int]]]:
    """For each map and way, the times of five rounds: all ways in turn, so that the machine's moods hit all alike."""
    timed = [(f"device-{number:08d}", 5_500) for number in numbers]
    plain = [(key,) for key, _ in timed]
    sessions = [(f"device-{number:08d}", number % 7 * STEP_MS + 500) for number in numbers]
    (folder / "plain").mkdir()
    with plain_lmdb(folder / "plain", keys) as seek, redis(folder, keys) as fetch:
        ways: dict[tuple[str, str], tuple[Callable[..., Any], Sequence[Question]]] = {
            ("temporal_state", "Map.get"): (pond.map("temporal_state").get, timed),
            ("temporal_state", "py-lmdb"): (seek, timed),
            ("state", "Map.get"): (pond.map("state").get, plain),
            ("ranged_state", "Map.get"): (pond.map("ranged_state").get, [(number * 10 + 3,) for number in numbers]),
            ("session", "Map.get"): (pond.map("session").get, sessions),
        }
        if fetch is not None:
            ways["state", "Redis GET"] = (fetch, plain)
        for (name, way), (ask, questions) in ways.items():  # warm up, and see that there are answers
            assert all(ask(*question) is not None for question in questions[:1_000]), (name, way)
        taken: dict[tuple[str, str], list[list[int]]] = {place: [] for place in ways}
        for _ in range(5):
            for place, (ask, questions) in ways.items():
                taken[place].append(question_times(ask, questions))
        return taken


def print_gets(taken: dict[tuple[str, str], list[list[int]]], first: list[float]) -> None:
    print(f"first get after opening: {statistics.median(first) * 1e3:.1f} ms (goal: 50 ms)\n")
    print("| map            | way       | median   | 99 %     | against Map.get |")
    print("|----------------|-----------|----------|----------|-----------------|")
    for (name, way), rounds in sorted(taken.items()):
        ours = statistics.median(np.median(times) for times in taken[name, "Map.get"])
        median = statistics.median(np.median(times) for times in rounds)
        slowest = statistics.median(np.percentile(times, 99) for times in rounds)
        print(f"| {name:14} | {way:9} | {median / 1e3:5.1f} µs | {slowest / 1e3:5.1f} µs | {median / ours:14.2f}× |")


def note_gets(run: Run, taken: dict[tuple[str, str], list[list[int]]], first: list[float]) -> None:
    run.note("first get after opening", "Millpond", first)
    for (name, way), rounds in taken.items():
        run.note(name, WAYS[way], [float(np.median(times)) / 1e9 for times in rounds])
        run.note(f"{name}, 99 %", WAYS[way], [float(np.percentile(times, 99)) / 1e9 for times in rounds])


def print_batches(run: Run, target: millpond.Map, numbers: list[int]) -> None:
    """An unchanged map and its open snapshot, in turn."""
    snapshot = target.snapshot()
    print("\n| keys in a batch | Map.lookup | Snapshot.lookup | ratio (goal: at most 1.5) |")
    print("|-----------------|------------|-----------------|--------------------------|")
    for size in BATCHES:
        wanted = [(names(np.array(numbers[start : start + size])), 5_500) for start in range(0, BATCHES_PER_WAY, 7)]
        taken: dict[str, list[int]] = {"map": [], "snapshot": []}
        for _ in range(10):
            taken["map"] += question_times(target.lookup, wanted)
            taken["snapshot"] += question_times(snapshot.lookup, wanted)
        for way, times in taken.items():
            run.note(f"lookup of {counted(size, 'key')}", f"Millpond, {way}", float(np.median(times)) / 1e9)
        ours, least = (float(np.median(times)) / 1e3 for times in taken.values())
        print(f"| {size:15} | {ours:7.1f} µs | {least:12.1f} µs | {ours / least:24.2f} |")


if __name__ == "__main__":
    main()
