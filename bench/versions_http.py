"""Versions over HTTP: one call at a time by 1, 4 and 16 clients, as clients of lakeFS make them.

Clients are processes with one kept connection each; they share the machine with the server. Writes are synced before
they are answered. Beside it a route of the same server that does nothing (`healthcheck`), a bare commit of LMDB on
the same disk, and what lakeFS 1.84 answered on such a machine: as it is installed, and with its batching of reads
turned off.

    python bench/versions_http.py                            2,000 calls a figure
    python bench/versions_http.py --calls 400 --only lmdb    fewer, and one of the two tables

The first table has the rows of repositories in LMDB, the second in a PostgreSQL that the benchmark starts, or in the
one at `MILLPOND_BENCH_POSTGRES=postgresql://user@server:5432/database#name`: a new name for each run.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lmdb
import psutil

import millpond
from _results import Run, counted
from _servers import postgres_server, postgres_version, wait_port
from millpond.clock import SystemClock
from millpond.nodes.tokens import TokenFile, draw_access_key, draw_token

CLIENTS = (1, 4, 16)
NOTHING = "a route that does nothing"
Calls = Callable[["Connection", int], int]


@dataclass
class Connection:
    """A kept connection: a request, then its whole answer."""

    port: int
    pair: tuple[str, str]
    _socket: socket.socket | None = None
    _file: Any = field(default=None, repr=False)

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        """The status and the body of an answer."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=300)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._file = self._socket.makefile("rb")
        login = base64.b64encode(":".join(self.pair).encode()).decode()
        head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n"
        if method != "GET":
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self._socket.sendall(head.encode() + b"\r\n" + body)
        status = int(self._file.readline().split()[1])
        length, chunked = 0, False
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
            chunked = chunked or (name == b"transfer-encoding" and b"chunked" in value)
        return status, self._chunks() if chunked else self._file.read(0 if status == 204 else length)

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._file.readline(), 16):
            parts.append(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return b"".join(parts)


@dataclass(frozen=True)
class Task:
    """One call, again and again; lakeFS' figures by the number of clients, as installed and without batching."""

    name: str
    call: Calls
    theirs: tuple[str, str]
    wanted: str = ""
    share: float = 1.0


def tasks(repository: str) -> list[Task]:
    """The calls that are measured, in this order."""
    base = f"/repositories/{repository}"

    def path(number: int) -> str:
        return quote(f"stage/{number % 97:02d}/file-{number:07d}.parquet", safe="")

    def stage(connection: Connection, number: int) -> int:
        entry = {"physical_address": f"s3://bucket/{number}", "checksum": f"{number:032x}", "size_bytes": number}
        where = f"{base}/branches/main/objects?path={path(number)}"
        return connection.ask("PUT", where, json.dumps(entry).encode())[0]

    def upload(connection: Connection, number: int) -> int:
        where = f"{base}/branches/main/objects?path=up{path(number)}"
        return connection.ask("POST", where, b"x" * 200, "application/octet-stream")[0]

    def delete_many(connection: Connection, number: int) -> int:
        names = [f"nothing/{number}/{place}" for place in range(1_000)]
        return connection.ask("POST", f"{base}/branches/main/objects/delete", json.dumps({"paths": names}).encode())[0]

    def get(of: str) -> Calls:
        return lambda connection, number: connection.ask("GET", of.format(path=path(number), number=number))[0]

    return [
        Task(NOTHING, get("/healthcheck"), ("11.3 k / 16.3 k / 16.3 k", "12.7 k / – / –")),
        Task("stage an entry", stage, ("127 / 459 / 2,099", "2,413 / – / 2,900"), "≥ 1,500 / – / ≥ 3,000"),
        Task("stat, staged", get(base + "/refs/main/objects/stat?path={path}"),
             ("242 / 955 / 3,465", "4,065 / – / 3,700"), "≥ 2,000 / – / ≥ 4,000"),
        Task("upload 200 B", upload, ("87 / 326 / 1,293", "2,064 / – / –")),
        Task("get 200 B", get(base + "/refs/main/objects?path=up{path}"),
             ("248 / 873 / 3,428", "3,623 / 3,256 / 5,506")),
        Task("page of 1,000, staged", get(base + "/refs/main/objects/ls?amount=1000"),
             ("52 / 100 / –", "–"), "≥ 200", 0.05),
        Task("delete 1,000 paths a call", delete_many, ("24–34 k paths", "–"), "≥ 100 calls", 0.02),
        Task("create a branch", create_branch(base), ("– / 276 / –", "– / 3,840 / –"), "", 0.25),
    ]  # fmt: skip


def create_branch(base: str) -> Calls:
    """Branches with names of their own."""

    def call(connection: Connection, number: int) -> int:
        name = f"b{os.getpid()}-{number}"
        return connection.ask("POST", f"{base}/branches", json.dumps({"name": name, "source": "main"}).encode())[0]

    return call


# -- clients ----------------------------------------------------------------------------------------------


def drive(
    port: int, pair: tuple[str, str], call: Calls, numbers: Sequence[int], clients: int
) -> tuple[float, Counter[int]]:  # fmt: skip
    """Calls a second of several clients together, and the statuses."""
    context = multiprocessing.get_context("fork")
    answers, start = context.SimpleQueue(), context.Event()

    def work(mine: Sequence[int]) -> None:
        connection = Connection(port, pair)
        connection.ask("GET", "/healthcheck")
        start.wait()
        began = time.perf_counter()
        statuses = Counter(call(connection, number) for number in mine)
        answers.put((began, time.perf_counter(), statuses))

    workers = [context.Process(target=work, args=(numbers[client::clients],)) for client in range(clients)]
    for worker in workers:
        worker.start()
    time.sleep(0.2)
    start.set()
    found = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    elapsed = max(end for _, end, _ in found) - min(began for began, _, _ in found)
    return len(numbers) / elapsed, sum((statuses for _, _, statuses in found), Counter())


def race(port: int, pair: tuple[str, str], repository: str, clients: int, seconds: float) -> tuple[float, Counter[str]]:
    """Clients that put and commit on one branch; commits a second that were answered, and the answers."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work(client: int) -> None:
        connection, statuses = Connection(port, pair), Counter[str]()
        until, number = time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            number += 1
            where = f"/repositories/{repository}/branches/main"
            connection.ask("POST", f"{where}/objects?path={client}%2F{number}", b"1", "application/octet-stream")
            status, body = connection.ask("POST", f"{where}/commits", b'{"message": "race"}')
            statuses["no changes" if b"no changes" in body else str(status)] += 1
        answers.put(statuses)

    workers = [context.Process(target=work, args=(client,)) for client in range(clients)]
    for worker in workers:
        worker.start()
    statuses = sum((answers.get() for _ in workers), Counter[str]())
    for worker in workers:
        worker.join()
    check_race(Connection(port, pair), repository, statuses["201"])
    return (statuses["201"] + statuses["no changes"]) / seconds, statuses


def check_race(connection: Connection, repository: str, commits: int) -> None:
    """Count the commits of a race in the log, behind the repository's first.

    Raises: `RuntimeError` when one that was answered is not there.
    """
    found, after, more = set[str](), "", True
    while more:
        _, body = connection.ask("GET", f"/repositories/{repository}/refs/main/commits?amount=1000&after={after}")
        page = json.loads(body)
        found |= {commit["id"] for commit in page["results"]}
        after, more = page["pagination"]["next_offset"], page["pagination"]["has_more"]
    if len(found) - 1 != commits:
        raise RuntimeError(f"{commits} commits were answered, {len(found) - 1} are in the log")


# -- the server -------------------------------------------------------------------------------------------


@contextmanager
def serve(folder: Path, **settings: Any) -> Iterator[tuple[int, tuple[str, str], psutil.Process]]:
    """A node in a process of its own: its port, a pair that may do everything, and the process."""
    clock = SystemClock()
    millpond.open(folder, **settings).close()
    pair = draw_access_key(clock), draw_token(clock)
    TokenFile(folder).add("bench", pair[1], {"admin": ("*",)}, access_key=pair[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", "serve", "--data", str(folder), "--port", str(port)],
        env={**os.environ, "MILLPOND_VERSIONS_SOURCES": "s3://bucket/"}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_port(port, process)
        yield port, pair, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def database() -> Iterator[str | None]:
    """The URL of a space in PostgreSQL: the one that is given, else one in a server of its own."""
    given = os.environ.get("MILLPOND_BENCH_POSTGRES")
    if given:
        yield given
        return
    with postgres_server() as url:
        yield None if url is None else f"{url}#bench"


def bare_commit(folder: Path) -> float:
    """The seconds of a commit of one row by LMDB, synced, on the same disk."""
    with lmdb.open(str(folder), map_size=1 << 28) as environment:
        seconds = []
        for number in range(500):
            began = time.perf_counter()
            with environment.begin(write=True) as tx:
                tx.put(f"stage/{number % 97:02d}/{number:07d}".encode(), b"x" * 100)
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def cited(text: str, place: int) -> float | None:
    """The figure of lakeFS for the first, second or third number of clients; None where there is none.

    >>> cited("11.3 k / – / 2,099", 0), cited("11.3 k / – / 2,099", 1), cited("11.3 k / – / 2,099", 2)
    (11300.0, None, 2099.0)
    """
    cells = text.split(" / ")
    if len(cells) != len(CLIENTS) or cells[place] == "–":
        return None
    number, _, thousand = cells[place].replace(",", "").partition(" ")
    return float(number) * (1_000 if thousand else 1)


def measure(run: Run, store: str, calls: int, **settings: Any) -> None:
    """One table."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder) / "pond", **settings) as (port, pair, process):
        ask = Connection(port, pair).ask
        for number in range(len(CLIENTS) + 1):
            body = {"name": f"bench-{number}", "storage_namespace": f"local://bytes-{number}", "default_branch": "main"}
            status, answer = ask("POST", "/repositories", json.dumps(body).encode())
            if status != 201:
                raise RuntimeError(f"{status} {answer!r}")
        print(
            "| calls a second, 1 / 4 / 16 clients | Millpond | ms of processor a call | lakeFS | no batching | wanted |"
        )
        print("|---|---|---|---|---|---|")
        for task in tasks("bench-0"):
            rates, spent, count = [], [], max(16, int(calls * task.share))
            drive(port, pair, task.call, range(8), 1)  # the first page of a process loads numba, 0.3 s
            for clients in CLIENTS:
                before = process.cpu_times()
                rate, statuses = drive(port, pair, task.call, range(count), clients)
                after = process.cpu_times()
                spent.append(1e3 * (after.user + after.system - before.user - before.system) / count)
                rates.append(rate)
                size = counted(clients, "client")
                run.note(task.name, f"Millpond, {store}", rate, unit="/s", size=size)
                if store == "LMDB" and (theirs := cited(task.theirs[0], len(rates) - 1)) is not None:
                    run.cite(task.name, "lakeFS", theirs, unit="/s", size=size)
                run.note(f"{task.name}, processor", f"Millpond, {store}", spent[-1] / 1e3, size=size)
                if bad := {status: n for status, n in statuses.items() if status >= 400}:
                    print(f"{task.name}: {bad}", file=sys.stderr)
            cells = [
                task.name, " / ".join(f"{rate:,.0f}" for rate in rates), " / ".join(f"{ms:.2f}" for ms in spent),
                *task.theirs, task.wanted,
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |")
            if task.name == NOTHING:  # beside the writes, for a disk is busy at one time and idle at another
                commit, call = bare_commit(Path(folder) / "bare"), 1 / rates[0]
        said = []
        for number, clients in enumerate(CLIENTS, 1):
            rate, outcomes = race(port, pair, f"bench-{number}", clients, 4.0 if calls > 500 else 1.0)
            said.append(f"{rate:,.0f}")
            run.note(
                "put and commit on one branch", f"Millpond, {store}", rate, unit="/s", size=counted(clients, "client")
            )
            print(f"put and commit, {clients} clients: {dict(outcomes)}", file=sys.stderr)
        theirs = "34 / 37 / 42, up to 41 % answer 500 | –"
        print(f"| put and commit on one branch | {' / '.join(said)} | | {theirs} | rising, no 5xx |")
        print(f"\na bare commit of LMDB, synced: {1e3 * commit:.2f} ms. With a call that does nothing, one client can")
        print(f"stage {1 / (commit + call):,.0f} entries a second at most")
        print(f"\nmemory of the server at the end: {process.memory_info().rss / (1 << 20):,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000, help="calls a figure")
    parser.add_argument("--only", choices=("lmdb", "postgres"))
    options, run = parser.parse_args(), Run("versions_http")
    if options.only != "postgres":
        print("rows of repositories in LMDB\n")
        measure(run, "LMDB", options.calls)
    if options.only != "lmdb":
        with database() as url, tempfile.TemporaryDirectory() as folder:
            if url is None:
                print("PostgreSQL is missing: `make postgres` installs it", file=sys.stderr)
                return
            print("\nrows of repositories in PostgreSQL\n")
            measure(run, "PostgreSQL", options.calls, versions_space=url, versions_objects=folder)
    run.write({"PostgreSQL": postgres_version(), "lakeFS": "1.84"}, whole=options.only is None, calls=options.calls)


if __name__ == "__main__":
    main()
