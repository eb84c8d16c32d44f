"""Storage nodes as they are in life: one process each, on loopback ports, to be killed and cut off.

    with Cluster(folder, proxies=True) as cluster:
        pond = millpond.open(cluster.url)
        cluster.kill_at(1, "merge.part_put")      # node 1 dies there, whenever it comes by
        pond.map("m").load(…)
        cluster.wait_dead(1)
        cluster.start(1)

Node 0 is the primary; change `order` and start nodes anew, and another one is. With `proxies`, everybody reaches a node
through a `FaultyProxy`: the addresses in `nodes` are those of the proxies. What a node says goes to
`<folder>/node0.log`, and into the message of what fails here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from millpond.testing.faults import KILL_FILE, STEPS_LOG
from tests.harness.faulty_proxy import FaultyProxy
from tests.harness.served import CLOCK_FILE

__all__ = ("INTERVALS", "Answer", "Cluster", "Place", "ServedNode", "free_port", "wait_for")

ROOT = Path(__file__).parents[2]
READY_SECONDS = 90.0
LOG_LINES_SHOWN = 60

INTERVALS = {
    "merge": "100ms", "replicate": "200ms", "condense": "1h", "retain": "1h", "compact": "1h", "snapshot": "1h",
}  # fmt: skip
QUICK: dict[str, Any] = {
    "server_grpc_port": "off",
    "nodes_intervals": INTERVALS,
    "client_min_time_to_keep_snapshots": "0s",
    "client_read_timeout": "30s",
}
"""Intervals for people who wait for what happens, and maintenance only when it is asked for."""


def free_port() -> int:
    """A port of the loopback that nobody listens on, below those that outgoing connections are given.

    It is above 15,002, where Spark Connect listens unless it is told otherwise.
    """
    for attempt in range(1000):
        port = 16_000 + (os.getpid() * 131 + time.monotonic_ns() // 1000 + attempt * 17) % 14_000
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def _toml(value: object) -> str:
    """A value in the words of TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)


def wait_for(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Ask again and again until it is so.

    Raises: `AssertionError` saying what was waited for.
    """
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, understood."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a node: `folder` holds its data, `space` is the network namespace of its process."""

    folder: Path | None = None
    host: str = "127.0.0.1"
    space: str | None = None


class ServedNode:
    """One node: its folder, its ports, and its process when there is one."""

    def __init__(self, folder: Path, number: int, place: Place, *, proxied: bool) -> None:
        self.number = number
        self.place = place
        self.folder = place.folder or folder / f"node{number}"
        self.log = folder / f"node{number}.log"
        self.config = folder / f"node{number}.toml"
        self.steps = folder / f"node{number}.steps"
        self.kill_file = folder / f"node{number}.kill"
        self.clock_file = folder / f"node{number}.clock"
        self.port = free_port()
        self.proxy = FaultyProxy(self.port, port=free_port()) if proxied else None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL for other nodes and clients: through its proxy, if it has one."""
        return self.proxy.url if self.proxy else self.direct_url

    @property
    def direct_url(self) -> str:
        """The URL of the node itself, past any proxy."""
        return f"http://{self.place.host}:{self.port}"

    @property
    def runs(self) -> bool:
        """True when its process is alive."""
        return self.process is not None and self.process.poll() is None

    def tail(self) -> str:
        """The last it said."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return f"--- {self.log.name}\n" + "\n".join(lines[-LOG_LINES_SHOWN:])


class Cluster:
    """Some nodes of one pond. As a context manager it starts them all, and leaves no process behind."""

    def __init__(
        self, folder: Path, count: int = 3, *, proxies: bool = False, settings: Mapping[str, object] | None = None,
        places: Mapping[int, Place] | None = None, armed: bool = True, spare: int = 0,
    ) -> None:  # fmt: skip
        """`settings` as of `load_settings`, for all nodes; `places` for those that are not on the loopback.

        `spare`: so many nodes more are no members; they are started by their numbers, to be added.
        Not `armed`: nodes for measuring, which record no steps, cannot be killed at one, and have no clock of a test.
        """
        self.armed = armed
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Nodes for measuring look for what waits as often as those of users do.
        looks = {} if armed else {"nodes_intervals": {**INTERVALS, "merge": "1s"}}
        self.settings = {**QUICK, **looks, **(settings or {})}
        chosen = places or {}
        self.nodes = [
            ServedNode(folder, number, chosen.get(number, Place()), proxied=proxies) for number in range(count + spare)
        ]
        self.order = list(range(count))
        self._pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=5, read=120))

    @property
    def urls(self) -> list[str]:
        """The addresses of all nodes, the primary's first."""
        return [self.nodes[number].url for number in self.order]

    @property
    def url(self) -> str:
        """The place that `millpond.open` takes."""
        return ",".join(self.urls)

    def start(self, *numbers: int, wait: bool = True, kill_at: str | None = None) -> None:
        """Start these nodes (none given: all members), and wait until they are ready; `kill_at` is armed at once."""
        chosen = [self.nodes[number] for number in numbers or sorted(self.order)]
        for node in chosen:
            assert not node.runs, f"node {node.number} runs"
            node.kill_file.unlink(missing_ok=True)
            if kill_at is not None:
                node.kill_file.write_text(kill_at, encoding="ascii")
            self._start(node)
        if wait:
            for node in chosen:
                self.wait_ready(node.number)

    def _start(self, node: ServedNode) -> None:
        nodes = [*self.urls, *([] if node.url in self.urls else [node.url])]
        settings = {**self.settings, "server_data": str(node.folder), "server_host": node.place.host,
                "server_port": node.port, "server_url": node.url, "nodes_urls": nodes}  # fmt: skip
        node.config.write_text(
            "".join(f"{name.replace('_', '.', 1)} = {_toml(value)}\n" for name, value in settings.items())
        )
        env = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
        env |= {
            "MILLPOND_CONFIG": str(node.config), "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, [env.get("PYTHONPATH")]))),
        }  # fmt: skip
        if self.armed:
            env |= {
                STEPS_LOG: str(node.steps),
                KILL_FILE: str(node.kill_file),
                CLOCK_FILE: str(node.clock_file),
            }
        within = ["ip", "netns", "exec", node.place.space] if node.place.space else []
        with node.log.open("ab") as log:
            log.write(b"=== start\n")
            log.flush()
            node.process = subprocess.Popen(
                [*within, sys.executable, "-m", "tests.harness.served", "serve"],
                cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_ready(self, number: int, seconds: float = READY_SECONDS) -> None:
        """Wait until a node says that it is ready.

        Raises: `AssertionError` with its log when it ended instead, or takes too long.
        """
        node = self.nodes[number]

        def ready() -> bool:
            assert node.runs, f"node {number} ended while it started\n{node.tail()}"
            with suppress(urllib3.exceptions.HTTPError):
                return self.ask(number, "GET", "/readyz").status == 200
            return False

        try:
            wait_for(ready, f"node {number} to be ready", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{node.tail()}") from None

    def kill(self, number: int) -> None:
        """SIGKILL, as a crash."""
        process = self.nodes[number].process
        assert process is not None
        process.kill()
        process.wait()

    def stop(self, number: int) -> int:
        """End a node as an operator does; its exit code."""
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler says where every thread is
            process.wait()
            raise AssertionError(f"node {number} does not stop\n{self.nodes[number].tail()}") from None

    def kill_at(self, number: int, step: str, nth: int = 1) -> None:
        """Let a running node die at the nth such step from now on; starting it anew forgets that."""
        file = self.nodes[number].kill_file
        draft = file.with_suffix(".draft")
        draft.write_text(f"{step}:{nth}", encoding="ascii")
        draft.rename(file)

    def wait_dead(self, number: int, seconds: float = 60.0) -> None:
        """Wait until a node has died of the ordered kill.

        Raises: `AssertionError` with its log when it lives on, or ended otherwise.
        """
        node = self.nodes[number]
        try:
            wait_for(lambda: not node.runs, f"node {number} to die", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{node.tail()}") from None
        code = node.process.returncode if node.process else None
        assert code == -signal.SIGKILL, f"node {number} ended with {code}\n{node.tail()}"

    def shift_clock(self, number: int, ms: int) -> None:
        """Let a node's clock be wrong by so much, at once."""
        self.nodes[number].clock_file.write_text(str(ms), encoding="ascii")

    def ask(
        self, number: int, method: str, path: str, *, body: bytes | Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """Ask one node itself, not through its proxy.

        Raises: `urllib3.exceptions.HTTPError` when it cannot be reached.
        """
        fields = {**(headers or {})}
        if token := self.settings.get("client_token"):
            fields["Authorization"] = f"Bearer {token}"
        if isinstance(body, Mapping):
            body, fields["Content-Type"] = json.dumps(body).encode(), "application/json"
        response = self._pool.request(method, self.nodes[number].direct_url + path, body=body, headers=fields)
        return Answer(response.status, dict(response.headers), response.data)

    def tails(self) -> str:
        """The last that every node said."""
        return "\n".join(node.tail() for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.tails())
        self.close()

    def close(self) -> None:
        """End every node and every proxy."""
        for node in self.nodes:
            if node.process is not None and node.runs:
                node.process.kill()
                node.process.wait()
            if node.proxy is not None:
                node.proxy.close()
        self._pool.clear()
