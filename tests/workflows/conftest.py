"""A real `millpond serve` process that serves workflows, and programs that use it with the client as installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import grpc
import pytest

pytest.importorskip("littlehorse")

from google.protobuf.message import Message
from littlehorse.model import service_pb2_grpc

from tests.ports import free_ports
from tests.rings.forked import Command
from tests.workflows.heard import Heard

PROGRAM = Path(__file__).with_name("program.py")
SECONDS = 90


class WorkflowServer:
    """A server process on ports of its own, which may be killed and begun anew."""

    def __init__(self, folder: Path, store: str = "pond", *options: str) -> None:
        """`options` are more words of `millpond serve`."""
        self.folder, self.store, self.options = folder, store, options
        self.data = str(folder)
        self.settings: dict[str, str] = {}
        self.run_by: tuple[str, ...] = ()
        """The words of a command that is `millpond` with more."""
        [self.port] = free_ports(1)
        self.process: Command | None = None

    @property
    def grpc_port(self) -> int:
        """The port of gRPC."""
        return self.port + 1

    def start(self) -> None:
        """Begin to serve; it returns when the server is ready."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
        environment["MILLPOND_WORKFLOWS_STORE"] = self.store
        words = ["serve", "--data", self.data, "--port", str(self.port), "--json", *self.options]
        self.process = Command([*self.run_by, *words], env=environment | self.settings, cwd=self.folder.parent)
        ready = json.loads(self.process.stdout.readline() or "{}")
        if ready.get("grpc_port") != self.grpc_port:
            self.end(signal.SIGKILL)
        assert ready.get("grpc_port") == self.grpc_port

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.communicate(timeout=SECONDS)
            self.process = None

    @contextmanager
    def stub(self, *metadata: tuple[str, str]) -> Iterator[Any]:
        """The client's own stub."""
        del metadata
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            yield service_pb2_grpc.LittleHorseStub(channel)

    def environment(self) -> dict[str, str]:
        """The settings of the client."""
        return {**os.environ, "LHC_API_HOST": "127.0.0.1", "LHC_API_PORT": str(self.grpc_port)}

    def program(self, *words: str, output: IO[str] | None = None) -> subprocess.Popen[str]:
        """A program that runs beside the test."""
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *words], env=self.environment(), text=True, stdout=output, stderr=output
        )


@pytest.fixture
def workflow_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkflowServer]:
    """A server that wants no tokens; a parameter is the name of the store of its runs."""
    server = WorkflowServer(tmp_path / "pond", getattr(request, "param", "pond"))
    server.start()
    yield server
    server.end()


def code_of(call: Any, request: Message, **options: Any) -> tuple[grpc.StatusCode, str]:
    """The status and the words with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=SECONDS, **options)
    return caught.value.code(), caught.value.details()


@pytest.fixture(autouse=True)
def _process(process: None) -> None:
    """Tests of this folder may start processes and open sockets."""


@pytest.fixture
def heard() -> Iterator[Heard]:
    """A server that hears posts."""
    made = Heard()
    yield made
    made.close()
