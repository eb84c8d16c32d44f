"""Real Redis servers on free loopback ports: one, or a cluster. They end with the process that started them."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import redis

from millpond.clock import SystemClock
from tests.harness.cluster import free_port
from tests.rings.servers import shared

START_SECONDS = 60.0
CLOCK = SystemClock()
_NAMES = itertools.count()


def _free_port() -> int:
    """A free port whose cluster port, 10,000 above it, is free as well and given to no outgoing connection."""
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 10_000)):
            if port < 22_000:
                return port


@dataclass
class RedisServer:
    """A server that can be stopped, killed and started again on its port, with the same data."""

    options: tuple[str, ...] = ()
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="millpond-redis-")))
    port: int = field(default_factory=_free_port)
    process: subprocess.Popen[bytes] | None = None

    def url(self, place: str, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0#{place}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port)

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program, "Redis is missing: run `tools/setup redis`"
        command = [
            "setpriv", "--pdeathsig", "KILL", program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(self.folder), "--logfile", str(self.folder / "log"), "--daemonize", "no", *self.options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL)
        deadline = CLOCK.monotonic() + START_SECONDS
        with self.client() as client:
            while not _answers(client):
                assert self.process.poll() is None and CLOCK.monotonic() < deadline, self.log()
                threading.Event().wait(0.01)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-4000:] if path.exists() else "no log"

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def kill(self) -> None:
        """End it as a crash does."""
        self.stop(signal.SIGKILL)

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.AuthenticationError:
        return True
    except (redis.exceptions.ConnectionError, OSError):
        return False


@dataclass
class RedisCluster:
    """Primaries that share the slots, and as many replicas as a test asks for."""

    nodes: list[RedisServer]

    @staticmethod
    def start(primaries: int = 3, replicas: int = 0) -> RedisCluster:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
        nodes = [RedisServer(options) for _ in range(primaries + replicas)]
        cluster = RedisCluster(nodes)
        try:
            for node in nodes:
                node.start()
            cluster._join(primaries)
        except BaseException:
            cluster.remove()
            raise
        return cluster

    def _join(self, primaries: int) -> None:
        clients = [node.client() for node in self.nodes]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
        for number, client in enumerate(clients[:primaries]):
            first, stop = number * 16384 // primaries, (number + 1) * 16384 // primaries
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, stop - 1)
        _until(lambda: all(_state(client, b"cluster_known_nodes:%d" % len(clients)) for client in clients))
        for number, client in enumerate(clients[primaries:]):
            client.execute_command("CLUSTER REPLICATE", clients[number].execute_command("CLUSTER MYID"))
        _until(lambda: all(_state(client, b"cluster_state:ok") for client in clients))
        for client in clients[primaries:]:
            _until(lambda client=client: client.info("replication")["master_link_status"] == "up")
        for client in clients:
            client.close()

    def url(self, place: str) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis://{hosts}#{place}"

    def client(self) -> redis.RedisCluster:
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port)

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()


def _state(client: redis.Redis, line: bytes) -> bool:
    found = client.execute_command("CLUSTER INFO")
    return line in (found if isinstance(found, bytes) else str(found).encode()) or _has(found, line)


def _has(found: object, line: bytes) -> bool:
    name, _, value = line.decode().partition(":")
    return isinstance(found, dict) and str(found.get(name)) == value


def _until(true: object) -> None:
    assert callable(true)
    deadline = CLOCK.monotonic() + START_SECONDS
    while not true():
        assert CLOCK.monotonic() < deadline, "the cluster does not come together"
        threading.Event().wait(0.02)


def start_server(stack: ExitStack) -> RedisServer:
    """Start a server that is stopped with the stack; as workers get it."""
    found = RedisServer()
    stack.callback(found.remove)
    found.start()
    return replace(found, process=None)


def start_cluster(stack: ExitStack) -> RedisCluster:
    """Start a cluster that is stopped with the stack; as workers get it."""
    found = RedisCluster.start()
    stack.callback(found.remove)
    return RedisCluster([replace(node, process=None) for node in found.nodes])


@cache
def server() -> RedisServer:
    """The server that all tests share; one that is to be stopped is made by its test."""
    found: RedisServer = shared("redis")
    return found


@cache
def cluster() -> RedisCluster:
    """The cluster that all tests share."""
    found: RedisCluster = shared("redis_cluster")
    return found


def new_place() -> str:
    """A place that holds nothing yet."""
    return f"place-{os.getpid()}-{next(_NAMES)}"
