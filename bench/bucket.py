"""A pond in a bucket of a local S3 server, beside the bare requests of the same sizes: times, and counted requests.

* 64 threads with small loads into 8 maps: loads a second, beside one put after another of as many bytes
* cold: opening a pond of 100 maps; `get` of one key, of an absent one, and a lookup of 1,000, with the bytes that
  each fetches; then others, when the index is there; beside one bare GET
* warm: lookups of 1,000 keys from the cache, beside a pond in a folder
* idle: the requests of an open pond that nobody asks, and of one that is asked all the time
* cost: requests and dollars a month for three workloads, by what a load and a reader were counted to send

Counts carry over to other servers; times are those of this machine.

    python bench/bucket.py            10 M rows
    python bench/bucket.py --quick    200,000 rows, 8 maps
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import millpond
from millpond.stores.objects import open_objects
from tests.harness.buckets.requests import counted_requests, fetched_bytes
from tests.s3_server import S3Server, start_server

WRITERS, MAPS_WRITTEN, LOOKUP_KEYS, TRIES = 64, 8, 1_000, 9
PRICES = {"PUT": 5e-6, "LIST": 5e-6, "GET": 0.4e-6, "HEAD": 0.4e-6, "DELETE": 0.0}
"""Dollars a request, as Amazon published them for S3 Standard in us-east-1."""
MONTH_SECONDS = 30 * 86_400


def keys(count: int) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar("device-"), digits, "")


def timed(act: Callable[[], Any]) -> float:
    """The seconds that an act takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def say(what: str, seconds: float | None, counts: Counter[str] | None = None, more: str = "") -> None:
    """Print one line: the time, the requests."""
    requests = "" if counts is None else ", ".join(f"{count:g} {verb}" for verb, count in sorted(counts.items())) or "0"
    print(f"{what:48} {'' if seconds is None else f'{1000 * seconds:10.1f} ms'}  {requests:32} {more}", flush=True)


def opened(url: str, cache: Path, **settings: Any) -> Any:
    return millpond.open(url, cache=cache, **settings)


def writers(url: str, folder: Path, loads: int) -> Counter[str]:
    """Small loads by many threads; the requests of one load."""
    with opened(url, folder / "writers") as pond:
        maps = [
            pond.create_map(f"w{number}", kind="state", value="long", exist_ok=True) for number in range(MAPS_WRITTEN)
        ]
        taken: list[float] = []

        def work(writer: int) -> None:
            for number in range(loads):
                row = {"key": f"k{writer}-{number}", "value": writer}
                taken.append(timed(lambda row=row: maps[writer % MAPS_WRITTEN].load([row])))

        threads = [threading.Thread(target=work, args=(writer,)) for writer in range(WRITERS)]
        with counted_requests() as counts:
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            elapsed = time.perf_counter() - began
        there = sum(opened_map.info()["rows"] for opened_map in maps)
        assert there == WRITERS * loads, f"{there} rows of {WRITERS * loads} loads"
    one = Counter({verb: round(count / len(taken), 2) for verb, count in counts.items()})
    say(f"load, {WRITERS} threads, p50", statistics.median(taken), one, f"{len(taken) / elapsed:.0f} loads a second")
    return one


def cold(url: str, folder: Path, rows: int) -> None:
    """The requests of a reader with an empty cache."""
    questions = {
        "cold get": lambda reader: reader.get(f"device-{rows // 2:08}"),
        "cold get of an absent key": lambda reader: reader.get("nobody"),
        f"cold lookup of {LOOKUP_KEYS:,} keys": lambda reader: reader.lookup(keys(LOOKUP_KEYS)),
    }
    for number, (what, question) in enumerate(questions.items()):
        with counted_requests() as counts, fetched_bytes() as sizes:
            began = time.perf_counter()
            pond = opened(url, folder / f"cold-{number}", max_staleness=60)
            if not number:
                say("cold open", time.perf_counter() - began, counts)
            reader = pond.map("m")
            counts.clear()
            sizes.clear()
            seconds = timed(lambda question=question, reader=reader: question(reader))
            say(what, seconds, counts, f"{sum(sizes):,} bytes")
            counts.clear()
            say(f"{what}, again", timed(lambda question=question, reader=reader: question(reader)), counts)
            if not number:
                later(reader, rows, counts, sizes)
        pond.close()


def later(reader: Any, rows: int, counts: Counter[str], sizes: list[int]) -> None:
    """The requests of a reader that has the index: for keys far from each other, and for absent ones."""
    names = {
        "get of another key": [f"device-{number:08}" for number in range(rows // 5, rows // 5 + TRIES)],
        "get of an absent key": [f"nobody-{number}" for number in range(TRIES)],
    }
    for what, those in names.items():
        counts.clear()
        sizes.clear()
        samples = [timed(lambda name=name: reader.get(name)) for name in those]
        one = Counter({verb: round(count / TRIES, 2) for verb, count in counts.items()})
        say(f"{what}, cold, p50", statistics.median(samples), one, f"{sum(sizes) // TRIES:,} bytes")


def bare(url: str, size: int) -> None:
    """Requests of the client alone, of the size of a range file."""
    objects, data = open_objects(f"{url}-bare"), os.urandom(size)
    objects.put("one", data)
    say(f"bare PUT of {size:,} bytes", statistics.median(timed(lambda: objects.put("one", data)) for _ in range(TRIES)))
    say(f"bare GET of {size:,} bytes", statistics.median(timed(lambda: objects.get("one")) for _ in range(TRIES)))


def warm(url: str, folder: Path, rows: int) -> None:
    """Lookups from the cache, beside a folder."""
    questions = keys(rows).take(pa.array(np.random.default_rng(1).integers(0, rows, LOOKUP_KEYS)))
    for what, place in (("bucket", url), ("folder", str(folder / "pond"))):
        with ExitStack() as stack:
            settings = {"cache": folder / "warm", "max_staleness": 60} if what == "bucket" else {}
            pond = stack.enter_context(millpond.open(place, **settings))
            reader = pond.map("m")
            reader.snapshot().lookup(questions)
            counts = stack.enter_context(counted_requests())
            samples = [timed(lambda reader=reader: reader.lookup(questions)) for _ in range(50)]
            say(f"warm lookup of {LOOKUP_KEYS:,} keys, {what}", statistics.median(samples), counts)


def idle(url: str, folder: Path, seconds: float) -> Counter[str]:
    """The requests a second of a pond that is open, and of one that is asked all the time."""
    with opened(url, folder / "warm") as pond:
        reader = pond.map("m")
        reader.get("device-00000001")
        with counted_requests() as counts:
            time.sleep(seconds)
            say(f"open for {seconds:g} s, and not asked", None, counts)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                reader.get("device-00000001")
            say(f"asked for {seconds:g} s", None, counts)
    return Counter({verb: count / seconds for verb, count in counts.items()})


def cost(load: Counter[str], reading: Counter[str]) -> None:
    """The bill of a month."""
    workloads = {
        "a load each night, one reader an hour a day": (30, 30 * 3600),
        "a micro-batch every 10 s, four readers": (MONTH_SECONDS // 10, 4 * MONTH_SECONDS),
        "100 small loads a minute, four readers": (100 * MONTH_SECONDS // 60, 4 * MONTH_SECONDS),
    }
    for what, (loads, seconds) in workloads.items():
        requests = {verb: load[verb] * loads + reading[verb] * seconds for verb in PRICES}
        dollars = sum(PRICES[verb] * count for verb, count in requests.items())
        shown = ", ".join(f"{count:,.0f} {verb}" for verb, count in requests.items() if count)
        print(f"{what:48} {dollars:10.2f} $ a month  {shown}")


def fill(url: str, folder: Path, rows: int, maps: int) -> int:
    """A map of many rows, in the bucket and in a folder, and many small ones; the bytes of a range file."""
    table = pa.table({"key": keys(rows), "value": np.arange(rows)})
    with opened(url, folder / "filling") as pond, millpond.open(folder / "pond") as beside:
        for place in (pond, beside):
            place.create_map("m", kind="state", value="long", store="layers").load(table)
        for number in range(maps):
            pond.create_map(f"s{number}", kind="state", value="long").load([{"key": "a", "value": number}])
        pond.space.write_checkpoint()
        return int(statistics.median(info.size for info in pond.map("m").objects.list("ranges")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows, maps, loads, seconds = (200_000, 8, 2, 3.0) if quick else (10_000_000, 100, 20, 20.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server: S3Server = start_server(stack)
        os.environ.update(server.environment)
        url = f"{server.make_bucket('bench')}/pond"
        size = fill(url, folder, rows, maps)
        bare(url, size)
        cold(url, folder, rows)
        warm(url, folder, rows)
        reading = idle(url, folder, seconds)
        cost(writers(url, folder, loads), reading)


if __name__ == "__main__":
    main()
