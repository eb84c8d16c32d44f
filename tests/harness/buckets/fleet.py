"""Nodes on one bucket in processes of their own, and who of them is killed when."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.s3_server import S3Server

__all__ = ("Fleet", "strikes_of")


def strikes_of(seed: int, ports: Sequence[int], count: int) -> Iterator[dict[int, bool]]:
    """The nodes that are killed together, one of them is left; those that lose their folder are true."""
    chance = Random(seed)
    for _ in range(count):
        yield {port: chance.random() < 0.5 for port in chance.sample(ports, chance.randint(1, len(ports) - 1))}


class Fleet:
    """Nodes in processes of their own, each with a folder of its own for copies."""

    def __init__(self, server: S3Server, url: str, folder: Path, count: int = 3) -> None:
        self.environment = {**os.environ, **server.environment, "MILLPOND_MAPS_STORE": "auto"}
        self.url, self.folder, self.ports = url, folder, free_ports(count)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports)

    def start(self, port: int) -> None:
        command = [
            sys.executable, "-m", "millpond", "serve", "--data", self.url, "--port", str(port), "--grpc-port", "off",
            "--set", f"client.cache={self.folder / str(port)}", "--json",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["role"] == "equal"
        self.processes[port] = process

    def kill(self, port: int, *, empty: bool) -> None:
        process = self.processes.pop(port)
        with process:  # closes its pipe, and waits
            process.send_signal(signal.SIGKILL)
        if empty:
            shutil.rmtree(self.folder / str(port), ignore_errors=True)

    def close(self) -> None:
        for port in list(self.processes):
            self.kill(port, empty=False)
