"""Ten thousand watchers of one node over HTTP, in one run: its memory, and the time of an event to each of them.

Connections that stay open follow job sets in turn; where the system allows a node fewer connections than that, the rest
of the watchers are those of connections that follow all of them. Once each has caught up, one event is appended to each
job set, some times over, and each watcher must get it: the time is that from before the first append to the line in the
watcher's hands. Then the ids that each watcher got are compared with those of the stream: none may be missing, and none
may come twice. The generator is one process with an event loop, and shares the machine with the node.

    PYTHONPATH=. python bench/watchers.py            10,000 watchers of 100 job sets, 5 events each
    PYTHONPATH=. python bench/watchers.py --quick    1,000 watchers
    PYTHONPATH=. python bench/watchers.py --short    a day of watches that readers cut, one a second: the node's memory
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import uvloop

import millpond
from _results import Run
from millpond.maps.shard.open_shards import connections_of_files
from millpond.nodes.limits import LIMITS
from tests.harness.cluster import Cluster

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond

JOB_SETS = 100
SPARE = 500
"""Connections for others, and files."""
SHORT = 86_400
"""Watches of a day, at one a second."""
AT_ONCE = 200
"""Connections that are being opened at a time."""
PAYLOAD = b'{"pod_name": "armada-01hf7yat-0", "node_name": "gke-pool-007", "pool": "default"}'


class Watcher(asyncio.Protocol):
    """A connection that follows some job sets."""

    def __init__(self, port: int, job_sets: Sequence[str], arrivals: list[float]) -> None:
        streams = [{"queue": "etl", "job_set": job_set} for job_set in job_sets]
        way, body = f"GET /v1/events?queue=etl&job_set={job_sets[0]}&follow=true", ""
        if len(job_sets) > 1:
            way, body = "POST /v1/events/watch", json.dumps({"streams": streams, "follow": True})
        head = f"{way} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}"
        self._arrivals, self._rest, self._last = arrivals, b"", b""
        self.ids: dict[str, list[str]] = {job_set: [] for job_set in job_sets}
        self._job_sets = list(job_sets)
        self.caught_up = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self._request.encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.begun.set()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._last = line or self._last
            found = json.loads(line) if line.startswith(b"{") else {}  # else it is the length of a chunk, or a head
            if "id" in found:
                self.ids[self._job_sets[found.get("stream", 0)]].append(found["id"])
                self._arrivals.append(now)
            elif "caught_up" in found:
                self.caught_up.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.caught_up.done():
            self.caught_up.set_exception(ConnectionError(f"the node closed the connection: {self._last!r}"))


def connections_max() -> int:
    """The connections for watchers that a node has for one address under this limit of files: half of them all."""
    return connections_of_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) // 2 - SPARE


async def opened(port: int, count: int, arrivals: list[float]) -> list[Watcher]:
    """Watchers that have caught up; `count` of them, where one of several job sets is several."""
    loop, watchers = asyncio.get_running_loop(), list[Watcher]()
    every = [f"set-{number}" for number in range(JOB_SETS)]
    lone = min(count, connections_max())
    lone -= (lone - count) % JOB_SETS
    whole = [[every[number % JOB_SETS]] for number in range(lone)] + [every] * ((count - lone) // JOB_SETS)
    print(f"{len(whole):,} connections: {lone:,} watch a job set, {len(whole) - lone:,} watch {JOB_SETS}")
    for start in range(0, len(whole), AT_ONCE):
        some = [Watcher(port, job_sets, arrivals) for job_sets in whole[start : start + AT_ONCE]]
        await asyncio.gather(*(loop.create_connection(lambda one=one: one, "127.0.0.1", port) for one in some))  # type: ignore[misc]
        async with asyncio.timeout(120):
            await asyncio.gather(*(one.caught_up for one in some))
        watchers += some
    return watchers


async def measure(run: Run, pond: RemotePond, port: int, process: psutil.Process, count: int, events: int) -> None:
    """Open the watchers, append, and see what each of them got."""
    arrivals: list[float] = []
    empty, began = process.memory_info().rss, time.perf_counter()
    watchers = await opened(port, count, arrivals)
    idle = process.memory_info().rss
    print(f"{count:,} watchers have caught up after {time.perf_counter() - began:.1f} s", flush=True)
    share = (idle - empty) / count / 1024
    print(f"memory of the node: {empty >> 20} MiB, with them {idle >> 20} MiB: {share:.1f} KiB each", flush=True)
    quiet, asleep = sum(process.cpu_times()[:2]), time.perf_counter()
    await asyncio.sleep(20.0)  # so that each hears that the node is alive
    quiet = (sum(process.cpu_times()[:2]) - quiet) / (time.perf_counter() - asleep)
    delays: list[float] = []
    busy = sum(process.cpu_times()[:2])
    for number in range(events):
        expected, appended = (number + 1) * count, time.perf_counter()
        for job_set in range(JOB_SETS):
            await asyncio.to_thread(pond.events.append, "etl", f"set-{job_set}", [PAYLOAD])
        async with asyncio.timeout(120):
            while len(arrivals) < expected:
                await asyncio.sleep(0.01)
        delays += [arrival - appended for arrival in arrivals[number * count :]]
    busy = (sum(process.cpu_times()[:2]) - busy) / (events * count)
    full = process.memory_info().rss
    for watcher in watchers:
        watcher.transport.close()
    await asyncio.sleep(2.0)  # a reader takes a place of a watcher
    stored = {f"set-{n}": [event.id for event in pond.events.read("etl", f"set-{n}")] for n in range(JOB_SETS)}
    wrong = sum(ids != stored[job_set] for watcher in watchers for job_set, ids in watcher.ids.items())
    assert not wrong, f"{wrong} watchers did not get exactly the events"
    found = np.percentile(np.array(delays), [50, 99, 100])
    print(f"{events * count:,} events reached {count:,} watchers, each once, in order")
    median, most, last = (f"{seconds:.3f} s" for seconds in found)
    print(f"from before the first of {JOB_SETS} appends: median {median}, 99 % {most}, last {last}")
    print(f"processor of the node: {busy * 1e6:.0f} µs a watcher and event; {100 * quiet:.1f} % while nothing happens")
    print(f"memory of the node afterwards: {full >> 20} MiB")
    way = "Millpond, over HTTP"
    run.note(f"memory of a watcher, {count:,} of them", way, (full - empty) / count, unit="B")
    run.note(f"an event to {count:,} watchers of {JOB_SETS} job sets, median", way, float(found[0]))
    run.note(f"an event to {count:,} watchers of {JOB_SETS} job sets, the last", way, float(found[2]))
    run.note("processor of the node, a watcher and event", way, busy)


async def measure_short(run: Run, pond: RemotePond, port: int, process: psutil.Process, count: int) -> None:
    """Begin watches and cut them: at once, when the answer begins, when they have caught up; see the memory grow."""
    await asyncio.to_thread(pond.events.append, "etl", "set-0", [PAYLOAD] * 200)
    loop, sizes = asyncio.get_running_loop(), list[int]()
    numbers = iter(range(count))

    async def cut_in_turn() -> None:
        for number in numbers:
            watcher = Watcher(port, [f"set-{number % JOB_SETS if number % 3 else 0}"], [])
            await loop.create_connection(lambda watcher=watcher: watcher, "127.0.0.1", port)  # type: ignore[misc]
            try:
                async with asyncio.timeout(60):
                    if number % 4 == 1:
                        await watcher.begun.wait()
                    elif number % 4:
                        await watcher.caught_up
            except TimeoutError:
                raise TimeoutError(f"watch {number} hears nothing") from None
            watcher.transport.abort()
            watcher.caught_up.cancel()
            if number % (count // 10) == 0:
                sizes.append(process.memory_info().rss)
                print(f"after {number:7,} watches: {sizes[-1] / 2**20:.1f} MiB", flush=True)

    async with asyncio.timeout(3_600):
        await asyncio.gather(*(cut_in_turn() for _ in range(16)))
    await asyncio.sleep(2.0)
    sizes.append(process.memory_info().rss)
    growth = (sizes[-1] - sizes[2]) / (0.8 * count)
    print(f"at last: {sizes[-1] / 2**20:.1f} MiB; {growth:.0f} B a watch over the last four fifths")
    run.note(
        "memory that a watch leaves behind, over four fifths of a day of them", "Millpond, over HTTP", growth, unit="B"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short", action="store_true")
    quick, short = (given := parser.parse_args()).quick, given.short
    count, events = (1_000, 5) if quick else (10_000, 5)
    run = Run("short_watches") if short else Run("watchers")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = {"server_max_request_memory": 2 * (count + SPARE) * LIMITS.connection_bytes}
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 1, armed=False, settings=settings) as cluster:
        node = cluster.nodes[0]
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        with millpond.open(cluster.url) as pond:
            if short:
                count = SHORT // 20 if quick else SHORT
                uvloop.run(measure_short(run, pond, node.port, process, count))  # type: ignore[arg-type]
            else:
                uvloop.run(measure(run, pond, node.port, process, count, events))  # type: ignore[arg-type]
    run.write(whole=not (quick or short), watchers=count, job_sets=JOB_SETS, events=0 if short else events)


if __name__ == "__main__":
    main()
