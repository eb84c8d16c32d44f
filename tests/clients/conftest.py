"""A real `millpond serve` process, and clients of lakeFS that are connected to it, as they are installed.

    def test_it(sdk, repository):        # lakefs_sdk, and the name of a new repository
        sdk.branches_api.list_branches(repository)

One process serves all tests; each makes repositories of its own.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lakefs_sdk
import pytest
import urllib3
from lakefs_sdk.client import LakeFSClient

import millpond
from millpond.clock import SystemClock
from millpond.nodes.tokens import TokenFile, draw_access_key, draw_token
from millpond.versions.branch import Branch
from tests.rings.forked import Command, run
from tests.rings.servers import shared

_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """The answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A server process, and a pair that may do everything."""

    url: str
    folder: Path
    access_key: str
    secret: str
    pool: urllib3.PoolManager
    pond: millpond.Pond
    """The folder that it serves, opened by this process as well."""
    token: str = ""
    """A token for the routes of maps and for metrics."""

    def branch(self, repository: str, name: str = "main") -> Branch:
        """A branch, to stage what a test begins with."""
        return self.pond.repository(repository).branch(name)

    def call(
        self, method: str, path: str, body: Any = None, *, pair: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """Ask below `/api/v1`; a body that is no bytes is sent as JSON."""
        access_key, secret = pair or (self.access_key, self.secret)
        sent = {"Authorization": basic(access_key, secret), **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent = {"Content-Type": "application/json", **sent}
        found = self.pool.request(
            method, f"{self.url}/api/v1{path}", body=body, headers=sent, redirect=False, retries=False
        )
        return Answer(found.status, found.headers, found.data)

    def client(self, pair: tuple[str, str] | None = None) -> LakeFSClient:
        """A client of `lakefs_sdk`."""
        access_key, secret = pair or (self.access_key, self.secret)
        return LakeFSClient(lakefs_sdk.Configuration(host=f"{self.url}/api/v1", username=access_key, password=secret))

    def add_pair(self, name: str, **rights: tuple[str, ...]) -> tuple[str, str]:
        """Another pair: `add_pair("etl", write=("flights/fix-*",))`."""
        return add_pair(self.folder, name, **rights)

    def revoke(self, name: str) -> None:
        """Let a pair in no more."""
        TokenFile(self.folder).revoke(name)


def basic(access_key: str, secret: str) -> str:
    """The header of a pair."""
    return "Basic " + base64.b64encode(f"{access_key}:{secret}".encode()).decode()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}


def add_pair(folder: Path, name: str, **rights: tuple[str, ...]) -> tuple[str, str]:
    """Draw a pair: `add_pair(folder, "etl", write=("flights/fix-*",))`."""
    clock = SystemClock()
    secret, access_key = draw_token(clock), draw_access_key(clock)
    folder.mkdir(exist_ok=True)
    TokenFile(folder).add(name, secret, rights, access_key=access_key)
    return access_key, secret


def add_pair_by_command(folder: Path, name: str, *rights: str) -> tuple[str, str]:
    """Draw a pair as a user does."""
    done = run(["token", "add", "--versions", name, *rights, "--data", str(folder), "--json"], env=_environment())
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    return made["access_key"], made["token"]


@contextmanager
def serving(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A process that serves a folder, while the block runs; its address. `environment` is added to this process's."""
    words = ["serve", "--data", str(folder), "--port", "0", "--json", *arguments]
    process = Command(words, env={**_environment(), **(environment or {})})
    try:
        line = process.stdout.readline()
        yield json.loads(line)["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def start_server(stack: ExitStack) -> tuple[str, Path, str, str, str]:
    """Start a server that all workers share: its address, its folder, a pair that may do everything, and a token."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-clients-"))) / "pond"
    access_key, secret = add_pair_by_command(folder, "esti", "--admin", "*")
    url = stack.enter_context(serving(folder, environment={"MILLPOND_VERSIONS_SOURCES": "s3://elsewhere/"}))
    token = draw_token(SystemClock())
    TokenFile(folder).add("metrics", token, {"read": ("*",)})
    return url, folder, access_key, secret, token


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server with a pair that may do everything."""
    url, folder, access_key, secret, token = shared("clients")
    with urllib3.PoolManager(maxsize=16) as pool, millpond.open(str(folder)) as pond:
        yield Server(url, folder, access_key, secret, pool, pond, token)


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without any pair."""
    folder = tmp_path_factory.mktemp("clients") / "pond"
    with serving(folder) as url, urllib3.PoolManager(maxsize=16) as pool, millpond.open(str(folder)) as pond:
        yield Server(url, folder, "any", "thing", pool, pond)


@pytest.fixture(scope="session")
def sdk(server: Server) -> LakeFSClient:
    """A client of `lakefs_sdk`."""
    return server.client()


@pytest.fixture
def repository(sdk: LakeFSClient) -> str:
    """The name of a new repository."""
    name = f"repo-{os.getpid()}-{next(_NUMBERS)}"
    made = lakefs_sdk.RepositoryCreation(name=name, storage_namespace=f"local://{name}", default_branch="main")
    sdk.repositories_api.create_repository(made)
    return name


@pytest.fixture(autouse=True)
def _process(process: None) -> None:
    """Tests of this folder may start processes and open sockets."""
