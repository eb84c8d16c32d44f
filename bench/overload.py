"""A node under more load than it can take: the time of single values beside it, and the node's memory.

* **64 scans** of a map of 2 M rows at once, again and again, as fast as they are read; beside them, 8 connections `get`
  single values, 10 a second each. A refused scan waits as `Retry-After` says, and tries again;
* **2,000 connections** that `get` one value a second each.

The machine runs node and clients. With two processors and nothing else to do, the goals are: 99 % of `get` below 200
ms, and the node below 1 GiB.

    PYTHONPATH=. python bench/overload.py            full size
    PYTHONPATH=. python bench/overload.py --quick    a tenth of the rows
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import millpond
from _results import Run
from tests.harness.cluster import Cluster

SCANS, GETTERS, CONNECTIONS = 64, 8, 2_000
HEAD = "Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Line:
    """One connection, kept: requests one after another, whose bodies are counted and thrown away."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, head: str, body: bytes = b"") -> tuple[int, int, float]:
        """Status, bytes of the answer, and seconds of `Retry-After`."""
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(f"{head} HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int((await self.reader.readline()).split()[1])
        length, chunked, patience = 0, False, 0.0
        while (line := (await self.reader.readline()).lower()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
            chunked = chunked or name == b"transfer-encoding"
            patience = float(value) if name == b"retry-after" else patience
        if not chunked:
            return status, len(await self.reader.readexactly(length)), patience
        size = 0
        while chunk := int(await self.reader.readline(), 16):
            left = chunk + 2
            while left:
                left -= len(await self.reader.read(min(left, 1 << 18)))
            size += chunk
        await self.reader.readline()
        return status, size, patience


async def scan_on(port: int, until: float, seen: Counter[int]) -> None:
    """Scan the whole map again and again."""
    line = Line(port)
    while time.perf_counter() < until:
        status, _, patience = await line.ask("POST /v1/maps/m/scan", b"{}")
        seen[status] += 1
        await asyncio.sleep(patience)


async def get_on(port: int, until: float, pause: float, seed: int, keys: int, seconds: list[float]) -> None:
    """Ask for one value after another, at a steady rate: a late answer delays no question that was due."""
    random, line = np.random.default_rng(seed), Line(port)
    due = time.perf_counter() + random.random() * pause
    while due < until:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        status, _, _ = await line.ask(f"GET /v1/maps/m/get?key=device-{random.integers(keys):08d}")
        assert status == 200, status
        seconds.append(time.perf_counter() - due)
        due += pause


async def most_memory(process: psutil.Process, until: float) -> int:
    """The most bytes that the process held, of its own: pages of mapped files are the system's cache."""
    most = 0
    while time.perf_counter() < until:
        with suppress(psutil.Error):
            info: Any = process.memory_info()
            most = max(most, info.rss - info.shared)
        await asyncio.sleep(0.05)
    return most


async def measure(
    run: Run, cluster: Cluster, keys: int, seconds: float, scans: int, getters: int, pause: float
) -> list[str]:
    """One row of the table."""
    node = cluster.nodes[0]
    assert node.process is not None
    until = time.perf_counter() + seconds
    times: list[float] = []
    seen: Counter[int] = Counter()
    process = psutil.Process(node.process.pid)
    before = sum(process.cpu_times()[:2])
    most, *_ = await asyncio.gather(
        most_memory(process, until),
        *(scan_on(node.port, until, seen) for _ in range(scans)),
        *(get_on(node.port, until, pause, seed, keys, times) for seed in range(getters)),
    )
    cpu = (sum(process.cpu_times()[:2]) - before) / len(times)
    median, late = np.percentile(np.array(times) * 1000, [50, 99])
    load = f"{scans} scans, {getters} connections" if scans else f"{getters:,} connections"
    run.note(f"get beside {load}", "Millpond", float(median) / 1000)
    run.note(f"get beside {load}, 99 %", "Millpond", float(late) / 1000)
    run.note(f"memory of the node, {load}", "Millpond", most, unit="B")
    return [
        load, f"{len(times) / seconds:,.0f}/s", f"{median:.1f} ms", f"{late:.0f} ms", f"{most >> 20} MiB",
        f"{seen[200]}, {seen[503]}" if scans else "", "" if scans else f"{cpu * 1000:.2f} ms",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0, help="the time of each load")
    chosen = parser.parse_args()
    run = Run("overload")
    keys, seconds = 200_000 if chosen.quick else 2_000_000, chosen.seconds
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * CONNECTIONS)), hard))
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 1) as cluster:
        with millpond.open(cluster.url) as pond:
            names = pa.array([f"device-{number:08d}" for number in range(keys)])
            pond.create_map("m", kind="state", value="long").load(pa.table({"key": names, "value": np.arange(keys)}))
            pond.merge()
            assert pond.map("m").get("device-00000007") == 7
        rows = [["load", "get", "median", "99 %", "the node's memory", "scans answered, refused", "CPU of a get"]]
        for scans, getters, pause in ((0, GETTERS, 0.1), (SCANS, GETTERS, 0.1), (0, CONNECTIONS, 1.0)):
            rows.append(asyncio.run(measure(run, cluster, keys, seconds, scans, getters, pause)))
    for number, row in enumerate(rows):
        print("| " + " | ".join(row) + " |")
        if number == 0:
            print("|" + "---|" * len(row))
    run.write(whole=not chosen.quick and seconds == 30, rows=keys)


if __name__ == "__main__":
    main()
