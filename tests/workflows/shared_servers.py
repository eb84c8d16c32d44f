"""Several `millpond serve` processes that share workflows by one broker, each of which may be killed and begun anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import grpc
from littlehorse.model import service_pb2_grpc

from millpond.workflows.logs.kafka import KafkaLog
from tests import kafka_server
from tests.ports import free_ports
from tests.rings.forked import Command
from tests.workflows.conftest import PROGRAM, SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("SharedServer", "shared_servers")

SAVING_OFTEN = Path(__file__).with_name("saving_often.py")


class SharedServer:
    """One process of several."""

    def __init__(
        self, folder: Path, log: str, checkpoints: Path | str, *, saving_often: bool = False, **more: str
    ) -> None:  # fmt: skip
        """`more` are settings by the names of their variables. With `saving_often` it makes checkpoints each second."""
        self.folder, self.saving_often, [self.port] = folder, saving_often, free_ports(1)
        self.process: Command | subprocess.Popen[str] | None = None
        self.settings = {
            "MILLPOND_WORKFLOWS_LOG": log, "MILLPOND_OBJECTS_PLACE": str(checkpoints),
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
            self.process = self._begun(words, environment | self.settings, log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.folder.with_suffix(".log").read_text()
        assert json.loads(line)["grpc_port"] == self.grpc_port

    def _begun(self, words: list[str], environment: dict[str, str], log: IO[str]) -> Command | subprocess.Popen[str]:
        if not self.saving_often:
            return Command(words, env=environment, cwd=self.folder.parent, stderr=log)
        return subprocess.Popen(
            [sys.executable, str(SAVING_OFTEN), *words], env=environment, cwd=self.folder.parent, text=True,
            stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip

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
def shared_servers(
    folder: Path, count: int, *, partitions: int = 4, saving_often: bool = False
) -> Iterator[list[SharedServer]]:
    """Some processes with a broker of their own, and the topic there with so many partitions of runs."""
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_server.running(folder))
        KafkaLog(broker, "runs", partitions=partitions + 1).close()  # one is for metadata
        log, checkpoints = f"kafka://{broker}/runs", folder / "checkpoints"
        servers = [
            SharedServer(folder / f"pond-{number}", log, checkpoints, saving_often=saving_often)
            for number in range(count)
        ]
        for server in servers:
            stack.callback(server.end, signal.SIGKILL)
            server.start()
        yield servers
