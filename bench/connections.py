"""Single values for 2,000 connections that stay open: the time of a `get` at a rate, and of a bare route beside it.

* **at a rate** (open loop): each connection sends a request every so often, whatever became of the one before; the time
  of an answer counts from the moment at which its request was due. A connection that is late sends as soon as it can;
* **as fast as they can** (closed loop): each connection sends the next request when it has the answer. Then the time of
  an answer is the number of connections divided by the rate, and says nothing else.

The bare route is `/healthz` of the same node: the same server, connections and generator, with next to no work behind.
The generator is one process with an event loop, and shares the machine with the node: *ours* is its processor time.

    PYTHONPATH=. python bench/connections.py            12 s a line
    PYTHONPATH=. python bench/connections.py --quick    3 s a line
    PYTHONPATH=. python bench/connections.py --readers  a node with reading processes against one without, nothing else
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import uvloop

import millpond
from _readers import compare_readers
from _results import Run
from tests.harness.cluster import Cluster

CONNECTIONS, KEYS = 2_000, 200_000
RATES = (500, 1_000, 2_000, 0)
"""Requests a second of all connections together; 0: as fast as they can."""
WARM_SECONDS = 2.0


class Getter(asyncio.Protocol):
    """One connection that stays open."""

    def __init__(self, path: str, seed: int, pause: float, seconds: list[float]) -> None:
        self._path, self._pause, self._seconds = path, pause, seconds
        self._key = seed
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._due = self.until = 0.0
        self._buffer = b""
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def begin(self, first: float, until: float) -> None:
        """Send the first request at a time, and the last before another."""
        self._due, self.until = first, until
        self._loop.call_later(first - time.perf_counter(), self._send)

    def close(self) -> None:
        """Close the connection, also while a response is awaited."""
        self._busy = False
        self._transport.close()

    def _send(self) -> None:
        if self._transport.is_closing():
            return  # the line is over; this request was due after it
        self._busy = True
        self._key = (self._key * 1_103_515_245 + 12_345) % (1 << 31)
        path = self._path.replace("KEY", f"device-{self._key % KEYS:08d}")
        self._transport.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, parted, body = self._buffer.partition(b"\r\n\r\n")
        if not parted or len(body) < _length(head):
            return
        assert head.startswith(b"HTTP/1.1 200"), head
        self._buffer, self._busy = b"", False
        now = time.perf_counter()  # the loop's own clock is in milliseconds
        self._seconds.append(now - self._due)
        self._due = self._due + self._pause if self._pause else now
        if self._due < self.until:
            if self._due <= now:
                self._send()
            else:
                self._loop.call_later(self._due - now, self._send)

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self._busy, f"the connection was lost: {exc}"


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def measure(
    run: Run, port: int, process: psutil.Process, path: str, rate: int, seconds: float
) -> list[str]:  # fmt: skip
    """A line of the table."""
    loop = asyncio.get_running_loop()
    pause = CONNECTIONS / rate if rate else 0.0
    times: list[float] = []
    getters: list[Getter] = []
    for seed in range(CONNECTIONS):
        _, getter = await loop.create_connection(lambda seed=seed: Getter(path, seed, pause, times), "127.0.0.1", port)  # type: ignore[misc]
        getters.append(getter)
    begin = time.perf_counter() + 0.5
    for number, getter in enumerate(getters):
        getter.begin(begin + number / CONNECTIONS * (pause or 1.0), begin + WARM_SECONDS + seconds)
    await asyncio.sleep(begin + WARM_SECONDS - time.perf_counter())
    times.clear()
    node, ours, began = sum(process.cpu_times()[:2]), time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    count, took = len(times), time.perf_counter() - began
    node, ours = sum(process.cpu_times()[:2]) - node, time.process_time() - ours
    found = np.percentile(np.array(times[:count]) * 1000, [50, 99, 99.9])
    await asyncio.sleep(1.0)
    for getter in getters:
        getter.close()
    await asyncio.sleep(0.2)
    task = f"{rate:,} a second" if rate else "as fast as they can"
    way = "Millpond, get" if "KEY" in path else "a bare route of the same server"
    run.note(f"{task}, median", way, float(found[0]) / 1000)
    run.note(f"{task}, 99 %", way, float(found[1]) / 1000)
    run.note(f"{task}, answered", way, count / took, unit="/s")
    run.note(f"{task}, processor of the node", way, node / count)
    return [
        "get" if "KEY" in path else "bare", f"{rate:,}/s" if rate else "as fast as they can", f"{count / took:,.0f}/s",
        *(f"{value:.1f} ms" for value in found), f"{1000 * node / count:.3f} ms", f"{1000 * ours / count:.3f} ms",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rates", type=int, nargs="*", default=RATES)
    parser.add_argument("--readers", action="store_true")
    chosen = parser.parse_args()
    if chosen.readers:
        compare_readers(chosen.quick)
        return
    run, seconds = Run("connections"), 3.0 if chosen.quick else 12.0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * CONNECTIONS)), hard))
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 1, armed=False) as cluster:
        with millpond.open(cluster.url) as pond:
            names = pa.array([f"device-{number:08d}" for number in range(KEYS)])
            pond.create_map("m", kind="state", value="long").load(pa.table({"key": names, "value": np.arange(KEYS)}))
            pond.merge()
            assert pond.map("m").get("device-00000007") == 7
        node = cluster.nodes[0]
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        head = ("route", "wanted", "answered", "median", "99 %", "99.9 %", "the node's processor", "ours")
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        for rate in chosen.rates:
            for path in ("/v1/maps/m/get?key=KEY", "/healthz"):
                line = uvloop.run(measure(run, node.port, process, path, rate, seconds))
                print("| " + " | ".join(line) + " |", flush=True)
    run.write(whole=not chosen.quick and tuple(chosen.rates) == RATES, connections=CONNECTIONS, keys=KEYS)


if __name__ == "__main__":
    main()
