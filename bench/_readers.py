"""Single values a second of a node without and with reading processes, and a second of its processors' time.

The client is as cheap as can be: one process, connections that stay open, one prepared request, answers counted and not
parsed. It shares the machine with the node, so the gets a second of two readers on two processors say little; gets a
second of processor time say what a reading process costs, and the ratio what would be won with processors to spare.
The two nodes take turns.

`python bench/connections.py --readers` runs it: 5 turns of 4 s each, with `--quick` 2 turns of 2 s each.
"""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

import millpond

__all__ = ("compare_readers",)

CONNECTIONS, KEYS, WARM_SECONDS = 32, 100_000, 1.0
COUNTS = (0, 2)


@contextmanager
def node(folder: Path, readers: int) -> Iterator[tuple[str, psutil.Process]]:
    """A node with a filled map: its address and its process."""
    command = [sys.executable, "-m", "millpond", "serve", "--port", "0", "--grpc-port", "off", "--json"]
    folder.mkdir()
    started = subprocess.Popen(
        [*command, "--set", f"server.readers={readers}"], cwd=folder, text=True, stdout=subprocess.PIPE
    )
    try:
        assert started.stdout is not None
        url: str = json.loads(started.stdout.readline())["url"]
        with millpond.open(url, client_synchronise=True) as pond:
            rows = [{"key": f"device-{key:08d}", "value": key} for key in range(KEYS)]
            pond.create_map("state", kind="state", value="long").load(rows)
        yield url, psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait()


def processor_seconds(process: psutil.Process) -> float:
    """Of a process and its children."""
    every = [part.cpu_times() for part in (process, *process.children(recursive=True))]
    return sum(times.user + times.system for times in every)


def gets(url: str, seconds: float) -> int:
    """The answers that so many connections get, each asking again when it was answered."""
    host, port = url.removeprefix("http://").split(":")
    request = b"GET /v1/maps/state/get?key=device-00000007 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    count, due = 0, time.perf_counter() + seconds
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(CONNECTIONS)]
        ready = stack.enter_context(select.epoll())
        of = {connection.fileno(): connection for connection in connections}
        for number, connection in of.items():
            ready.register(number, select.EPOLLIN)
            connection.sendall(request)
        while time.perf_counter() < due:
            for number, _ in ready.poll(1.0):
                answer = of[number].recv(1 << 16)
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"an answer was {answer!r}")
                while not answer.endswith(b"}"):  # the body is one small object of JSON
                    answer += of[number].recv(1 << 16)
                count += 1
                of[number].sendall(request)
    return count


def compare_readers(quick: bool) -> None:
    """Print the rates of both nodes, and their ratios."""
    turns, seconds = (2, 2.0) if quick else (5, 4.0)
    rates: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        nodes = {count: stack.enter_context(node(Path(folder) / str(count), count)) for count in COUNTS}
        for url, _ in nodes.values():
            gets(url, WARM_SECONDS)
        for _ in range(turns):
            for count, (url, process) in nodes.items():
                worked, began = processor_seconds(process), time.perf_counter()
                answered = gets(url, seconds)
                taken, worked = time.perf_counter() - began, processor_seconds(process) - worked
                rates[count].append((answered / taken, answered / worked))
    machine = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, {CONNECTIONS} connections, medians of {turns} turns")
    medians = {count: [statistics.median(column) for column in zip(*rates[count], strict=True)] for count in COUNTS}
    for count, (rate, per_processor) in medians.items():
        print(f"readers = {count}: {rate:8,.0f} gets/s  {per_processor:8,.0f} gets per processor second of the node")
    (one, one_processor), (two, two_processor) = (medians[count] for count in COUNTS)
    print(f"ratio:       {two / one:8.2f}         {two_processor / one_processor:8.2f}")
