"""Several `millpond serve` processes that share workflows by one broker, each of which may be killed and begun anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from littlehorse.model import service_pb2_grpc

from tests import kafka_server
from tests.ports import free_ports
from tests.rings.forked import Command
from tests.workflows.conftest import PROGRAM, SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("SharedServer", "shared_servers")


class SharedServer:
    """One process of several."""

    def __init__(self, folder: Path, log: str, checkpoints: Path | str, **more: str) -> None:
        """`more` are settings by the names of their variables."""
        self.folder, [self.port] = folder, free_ports(1)
        self.process: Command | None = None
        self.settings = {
            "MILLPOND_WORKFLOWS_LOG": log, "MILLPOND_WORKFLOWS_CHECKPOINTS": str(checkpoints),
            "MILLPOND_WORKFLOWS_PARTITIONS": "4", "MILLPOND_WORKFLOWS_CHECKPOINT_INTERVAL": "1s",
            "MILLPOND_WORKFLOWS_EVENTS": "on", **more,
        }  # fmt: skip

    @property
    def grpc_port(self) -> int:
        """The port of gRPC."""
        return self.port + 1

    @property
    def address(self) -> str:
        """The address by which the others know it."""
        return f"127.0.0.1:{self.grpc_port}"

    def start(self) -> None:
        """Begin to serve; it returns when the process takes calls."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
        words = ["serve", "--data", str(self.folder), "--port", str(self.port), "--json"]
        with self.folder.with_suffix(".log").open("a") as log:
            self.process = Command(words, env={**environment, **self.settings}, cwd=self.folder.parent, stderr=log)
        line = self.process.stdout.readline()
        assert line, self.folder.with_suffix(".log").read_text()
        assert json.loads(line)["grpc_port"] == self.grpc_port

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.communicate(timeout=SECONDS)
            self.process = None

    @contextmanager
    def stub(self) -> Iterator[Any]:
        """The client's own stub."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            yield service_pb2_grpc.LittleHorseStub(channel)

    def program(self, *words: str) -> subprocess.Popen[str]:
        """A program of the client that begins with this process."""
        environment = {**os.environ, "LHC_API_HOST": "127.0.0.1", "LHC_API_PORT": str(self.grpc_port)}
        return subprocess.Popen([sys.executable, str(PROGRAM), *words], env=environment, text=True)


@contextmanager
def shared_servers(folder: Path, count: int, **more: str) -> Iterator[list[SharedServer]]:
    """Some processes with a broker of their own; `more` are settings by the names of their variables."""
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_server.running(folder))
        servers = [
            SharedServer(folder / f"pond-{number}", f"kafka://{broker}/runs", folder / "checkpoints", **more)
            for number in range(count)
        ]
        for server in servers:
            stack.callback(server.end, signal.SIGKILL)
            server.start()
        yield servers
