"""Questions to a node over HTTP: 100,000 keys at once, and one key at a time.

Beside it, on the same machine, in the same run:
* Redis `MGET` in batches of 1,000 by redis-py, and again by a client that only counts the bytes of the replies, which
  is the least that any client can do;
* Redis `GET`, and a route of the same ASGI server that answers a constant.

    PYTHONPATH=. python bench/remote.py            a million keys
    PYTHONPATH=. python bench/remote.py --quick    a tenth of them
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis
import urllib3

import millpond
from _measure import Contest, note_contests, print_table, rounds
from _results import Run, program_version, version
from _servers import bare_server, redis_server
from tests.harness.cluster import Cluster, free_port

QUERIES = 100_000
BATCH = 1_000
SINGLES = 3_000
VALUE = 10_000_000
"""Values have eight digits, so that replies have a length that is known."""


def name_of(number: int) -> str:
    return f"device-{number:08d}"


def fill_redis(client: redis.Redis, keys: int) -> None:
    for first in range(0, keys, 10_000):
        client.mset({name_of(number): VALUE + number for number in range(first, min(first + 10_000, keys))})


def mget(client: redis.Redis, keys: list[str]) -> list[Any]:
    values: list[Any] = []
    for first in range(0, len(keys), BATCH):
        values += client.mget(keys[first : first + BATCH])
    return values


def commands_of(keys: list[str]) -> list[tuple[bytes, int]]:
    """MGET commands, and how many bytes each is answered with."""
    commands = []
    for first in range(0, len(keys), BATCH):
        some = [key.encode() for key in keys[first : first + BATCH]]
        words = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in (b"MGET", *some))
        commands.append((b"*%d\r\n" % (len(some) + 1) + words, len(b"*%d\r\n" % len(some)) + len(some) * 14))
    return commands


def mget_raw(link: socket.socket, keys: list[str]) -> None:
    """Commands are made, replies only read."""
    for command, size in commands_of(keys):
        link.sendall(command)
        while size:
            size -= len(link.recv(min(size, 1 << 16)))


def bench_bulk(pond: Any, client: redis.Redis, link: socket.socket, keys: int, quick: bool) -> Contest:
    contest = Contest(f"{QUERIES:,} keys at once", QUERIES)
    random = np.random.default_rng(3)
    numbers = random.integers(0, keys, QUERIES)
    names = [name_of(number) for number in numbers.tolist()]
    arrow = pa.array(names)

    def ask(some: Any) -> pa.Array:
        return pond.questions.lookup(pond.map("m").definition, some, via="remote")

    wanted = (numbers + VALUE).tolist()
    assert ask(arrow).to_pylist() == wanted
    assert [int(value) for value in mget(client, names)] == wanted
    mget_raw(link, names)
    for _ in rounds(quick):
        contest.run("Millpond, Arrow to Arrow", lambda: ask(arrow))
        contest.run("Millpond, list to list", lambda: ask(names).to_pylist())
        contest.run("Redis MGET by redis-py", lambda: mget(client, names))
        contest.run("Redis MGET, bytes only counted", lambda: mget_raw(link, names))
    return contest


def times_of(ask: Callable[[str], object], keys: list[str]) -> list[int]:
    times = []
    for key in keys:
        began = time.perf_counter_ns()
        ask(key)
        times.append(time.perf_counter_ns() - began)
    return times


def bench_single(run: Run, target: Any, client: redis.Redis, bare: str, keys: int, quick: bool) -> None:
    pool = urllib3.HTTPConnectionPool("127.0.0.1", int(bare.rpartition(":")[2]), maxsize=1)
    ways: dict[str, Callable[[str], object]] = {
        "RemoteMap.get": target.get,
        "a bare route of the ASGI server, by urllib3": lambda _key: pool.request("GET", "/bare").data,
        "a bare async route, by urllib3": lambda _key: pool.request("GET", "/bare_async").data,
        "Redis GET by redis-py": client.get,
    }
    random = np.random.default_rng(4)
    names = [name_of(number) for number in random.integers(0, keys, SINGLES).tolist()]
    taken: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    for ask in ways.values():
        times_of(ask, names[:300])
    assert target.get(names[0]) == int(names[0][-8:]) + VALUE
    for _ in rounds(quick):
        for way, ask in ways.items():
            taken[way].append(np.array(times_of(ask, names)))
    print("\n| one key | median | 99 % | against RemoteMap.get |")
    print("|---|---|---|---|")
    first = np.median([np.median(run) for run in taken["RemoteMap.get"]])
    for way, runs in taken.items():
        name = "Millpond" if way == "RemoteMap.get" else way
        run.note("one key", name, [float(np.median(one)) / 1e9 for one in runs])
        run.note("one key, 99 %", name, [float(np.percentile(one, 99)) / 1e9 for one in runs])
        median = np.median([np.median(run) for run in runs])
        late = np.median([np.percentile(run, 99) for run in runs])
        print(f"| {way} | {median / 1e3:.0f} µs | {late / 1e3:.0f} µs | {median / first:.2f}× |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys, three rounds")
    arguments = parser.parse_args()
    keys, run = 100_000 if arguments.quick else 1_000_000, Run("remote")
    with tempfile.TemporaryDirectory(prefix="millpond-remote-", dir=os.environ.get("BENCH_DIR")) as folder:
        os.environ["MILLPOND_CLIENT_CACHE"] = f"{folder}/cache"
        with (
            Cluster(Path(folder), 1) as cluster, redis_server(free_port()) as port, bare_server(free_port()) as bare,
        ):  # fmt: skip
            if port is None:
                raise SystemExit("this benchmark needs redis-server")
            pond: Any = millpond.open(cluster.url, client_synchronise=True)
            target = pond.create_map("m", kind="state", value="long")
            numbers = np.arange(keys)
            table = pa.table({"key": [name_of(number) for number in range(keys)], "value": numbers + VALUE})
            target.load(table)
            client = redis.Redis(port=port)
            fill_redis(client, keys)
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                contest = bench_bulk(pond, client, link, keys, arguments.quick)
            print_table([contest])
            note_contests(run, [contest])
            bench_single(run, target, client, f"http://127.0.0.1:{bare}", keys, arguments.quick)
            client.close()
            pond.close()
    rivals = {"Redis": program_version("redis-server", "--version"), "redis-py": version("redis")}
    run.write(rivals, whole=not arguments.quick, keys=keys)


if __name__ == "__main__":
    main()
