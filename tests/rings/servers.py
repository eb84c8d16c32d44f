"""The real servers of a run, each started once, when a test first uses it, and shared by all workers.

    worker ── "redis" ──▶ keeper, a thread of the process that controls the run ── starts it, once ──▶ answer
                                    └── stops all when the run ends; a server ends with that process in any case

A worker gets a value that names the server: an address, a port, a folder.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

__all__ = ("Keeper", "shared")

_ADDRESS = "TEST_SERVERS"
STARTS = {
    "s3": "tests.s3_server:start_server",
    "redis": "tests.redis_servers:start_server",
    "redis_cluster": "tests.redis_servers:start_cluster",
    "postgres": "tests.postgres_server:start_server",
    "kafka": "tests.kafka_server:start_server",
    "clients": "tests.clients.conftest:start_server",
    "armada": "tests.armada.conftest:start_server",
    "commands": "tests.rings.forked:start_server",
    "daemons": "tests.rings.forked:start_daemons",
}
"""The function that starts each server; it leaves on a stack what stops it."""


def shared(name: str) -> Any:
    """The server of that name, started unless it is."""
    with Client(os.environ[_ADDRESS], "AF_UNIX") as connection:
        connection.send(name)
        answer = connection.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Keeper:
    """The plugin of the process that controls a run: it starts servers for whoever needs one."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._starts: dict[str, Future[object]] = {}
        # its threads stay until the run is over: a server ends with the thread that started it
        self._threads = ThreadPoolExecutor(len(STARTS), "servers")

    def pytest_configure(self) -> None:
        folder = self._stack.enter_context(TemporaryDirectory(prefix="millpond-servers-"))
        self._listener = Listener(f"{folder}/keeper", "AF_UNIX", backlog=16)
        os.environ[_ADDRESS] = f"{folder}/keeper"
        if "PYSPARK_PYTHON" not in os.environ:
            python = Path(folder, "python")
            python.write_text(import_module("tests.rings.forked").python_of_spark())
            python.chmod(0o700)
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(python)
        threading.Thread(target=self._run, name="servers", daemon=True).start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """A run of all tests needs all servers: they start while the tests are imported, on the other processor."""
        if config.args_source is config.ArgsSource.TESTPATHS and config.option.markexpr != "unit":
            for name in STARTS:
                self._begin(name)

    def pytest_unconfigure(self) -> None:
        self._listener.close()
        for start in self._starts.values():
            wait([start])
        self._stack.close()
        self._threads.shutdown()

    def _run(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # the run is over
            try:
                name = connection.recv()
            except EOFError:
                continue  # the worker has ended
            self._begin(name).add_done_callback(partial(_answer, connection))

    def _begin(self, name: str) -> Future[object]:
        if name not in self._starts:
            self._starts[name] = self._threads.submit(_start, name, self._stack)
        return self._starts[name]


def _start(name: str, stack: ExitStack) -> object:
    module, _, function = STARTS[name].partition(":")
    return getattr(import_module(module), function)(stack)


def _answer(connection: Connection, start: Future[object]) -> None:
    with connection:
        error = start.exception()
        connection.send(start.result() if error is None else RuntimeError(f"a server did not start: {error}"))
