"""Changes a second of a pond in a bucket: with its head there, and in PostgreSQL.

* 64 threads of one process with small loads into 8 maps, whose files go to the bucket in both cases
* 64 threads of 8 processes, each of whose changes is one row: what the heads themselves take

    python bench/bucket_head.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import millpond
from tests import postgres_server
from tests.s3_server import start_server

WRITERS, MAPS, PROCESSES = 64, 8, 8


def together(act: Any, count: int) -> tuple[float, list[float]]:
    """The seconds of threads with numbers that act side by side, and those of their acts."""
    taken: list[float] = []
    threads = [threading.Thread(target=act, args=(number, taken)) for number in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, taken


def loads(url: str, cache: Path, acts: int) -> None:
    """Small loads of one process; the first of a map is not counted."""
    with millpond.open(url, cache=cache) as pond:
        maps = [pond.create_map(f"m{number}", kind="state", value="long") for number in range(MAPS)]
        for made in maps:
            made.load([{"key": "first", "value": 0}])

        def work(writer: int, taken: list[float]) -> None:
            for number in range(acts):
                began = time.perf_counter()
                maps[writer % MAPS].load([{"key": f"k{writer}-{number}", "value": writer}])
                taken.append(time.perf_counter() - began)

        elapsed, taken = together(work, WRITERS)
        there = sum(made.info()["rows"] for made in maps)
        assert there == WRITERS * acts + MAPS, f"{there} rows"
    say("loads, 64 threads of a process", len(taken), elapsed, taken)


def say(what: str, count: int, elapsed: float, taken: list[float]) -> None:
    """Print one line."""
    p50 = 1000 * statistics.median(taken)
    print(f"    {what:34} {count / elapsed:8.0f} a second   p50 {p50:8.1f} ms", flush=True)


def rows(url: str, cache: Path, acts: int) -> None:
    """Changes of one row, of threads of several processes."""
    order = [sys.executable, __file__, "--child", url, str(cache), str(acts)]
    children = [subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    for child in children:
        assert child.stdout and child.stdout.readline() == b"ready\n"
    began, taken = time.perf_counter(), []
    for child in children:
        assert child.stdin
        child.stdin.write(b"go\n")
        child.stdin.flush()
    for child in children:
        taken += json.loads(child.communicate()[0])
    say("rows, 64 threads of 8 processes", len(taken), time.perf_counter() - began, taken)


def child(url: str, cache: str, acts: int) -> None:
    """One of the processes."""
    with millpond.open(url, cache=cache, create=False) as pond:
        assert isinstance(pond, millpond.Pond)
        space = pond.space

        def work(writer: int, taken: list[float]) -> None:
            key = f"bench/{os.getpid()}/{writer}".encode()
            for number in range(acts):
                began = time.perf_counter()
                space.write(lambda tx, number=number: tx.put(key, b"%d" % number))  # type: ignore[misc]
                taken.append(time.perf_counter() - began)

        print("ready", flush=True)
        sys.stdin.readline()
        taken = together(work, WRITERS // PROCESSES)[1]
        print(json.dumps(taken), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    acts = 2 if parser.parse_args().quick else 20
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3, database = start_server(stack), postgres_server.start_server(stack)
        os.environ.update(s3.environment, PGPASSWORD=database.password)
        bucket = s3.make_bucket("bench")
        millpond.open(f"{bucket}/warm", cache=folder / "warm").close()
        for what, space in (("head in the bucket", ""), ("head in PostgreSQL", database.url())):
            print(what, flush=True)
            url = f"{bucket}/{what.rpartition(' ')[2].lower()}"
            millpond.open(url, cache=folder / "made", space=space).close()
            loads(url, folder / "loads", acts)
            rows(url, folder / "rows", 10 * acts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
