"""Nodes for tests: in this process, on free loopback ports, each served by uvicorn in a thread.

def test_it(node):                        # one node, alone
    node.url, node.pond, node.get("/v1/node").json()

@pytest.mark.settings(client_read_timeout="1s", limits={"threads": 2})
def test_limits(node): …                  # with settings

def test_all(cluster):                    # three nodes, the first is the primary
    cluster.urls, cluster[0].pond, cluster.url

def test_by_hand(serve):                  # as many as one wants
    first = serve(server_port=0, server_data=…)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import urllib3

from millpond.clock import ManualClock
from millpond.nodes.limits import NodeLimits
from millpond.nodes.node import Node
from millpond.pond import Pond
from millpond.server.run import Service
from millpond.settings import load_settings
from millpond.testing.passing_time import until, while_time_passes
from tests.ports import free_ports

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "settings(**settings): of the `node` or `cluster` of this test")


QUICK: dict[str, Any] = {
    "server_grpc_port": "off",
    "nodes_intervals": {"merge": "100ms", "replicate": "200ms"},
    "client_read_timeout": "20s",
}


@dataclass(frozen=True)
class Answer:
    """The response of a node."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


BEGIN = 1_767_225_600_000
"""2026-01-01, the time of day at which tests begin."""


class Served:
    """A node that is served in this process, on a clock that stands still until its test lets time pass."""

    def __init__(
        self, clock: ManualClock, limits: Mapping[str, float] | None = None, *, without_peers: bool = False,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.clock = clock
        settings["nodes_intervals"] = {**QUICK["nodes_intervals"], **settings.get("nodes_intervals", {})}
        lower = NodeLimits(**{"shutdown_seconds": 2, **(limits or {})})
        self.service = Service(load_settings(**{**QUICK, **settings}), clock=clock, limits=lower)
        self.node.follower.soundness.readiness.without_peers = without_peers
        self.pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=5, read=60))
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="served-node", daemon=True)
        self._thread.start()
        assert self._ready.wait(30), "the node did not start"
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            with self.service:
                self.service.run(self._ready.set)
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    @property
    def node(self) -> Node:
        return self.service.node

    @property
    def pond(self) -> Pond:
        return self.node.pond

    @property
    def url(self) -> str:
        return self.node.url

    def request(self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask; a body that is no bytes is sent as JSON."""
        sent_headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body, sent_headers = json.dumps(body).encode(), {"Content-Type": "application/json", **sent_headers}
        got = self.pool.request(method, self.url + path, body=body, headers=sent_headers)
        return Answer(got.status, got.headers, got.data)

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", path, body=body, **options)

    def put(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("PUT", path, body=body, **options)

    def delete(self, path: str, **options: Any) -> Answer:
        return self.request("DELETE", path, **options)

    def wait_ready(self) -> None:
        """Let time pass until the node says that it is ready."""
        self.until(lambda: not self.node.reasons())

    def until(self, true: Callable[[], object]) -> None:
        """Let time pass until something is true."""
        until(self.clock, true)

    def while_time_passes(self, act: Callable[[], T]) -> T:
        """Do something that may need time to pass; its result."""
        return while_time_passes(self.clock, act)

    def close(self) -> None:
        """Stop as SIGTERM does; the folder may be served again then."""
        self.service.stop()
        self.until(lambda: not self._thread.is_alive())
        self.pool.clear()


class ClusterHere:
    """Some nodes of one pond; the first is the primary."""

    def __init__(self, nodes: list[Served]) -> None:
        self.nodes = nodes

    def __getitem__(self, number: int) -> Served:
        return self.nodes[number]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """The address that `millpond.open` takes."""
        return ",".join(self.urls)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of all nodes of a test."""
    return ManualClock(BEGIN)


@pytest.fixture
def serve(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """Serve nodes with settings and `limits`; all are closed at the end. Each has a fresh folder by default."""
    monkeypatch.chdir(tmp_path)  # no millpond.toml of whoever runs the tests
    made: list[Served] = []

    def start(**settings: Any) -> Served:
        options = {"clock": clock, "server_data": str(tmp_path / f"served{len(made)}"), "server_port": 0, **settings}
        made.append(Served(**options))
        return made[-1]

    yield start
    for served in reversed(made):
        served.close()


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("settings")
    return {} if marker is None else dict(marker.kwargs)


@pytest.fixture
def node(request: pytest.FixtureRequest, serve: Callable[..., Served]) -> Served:
    """One node that is alone."""
    return serve(**_marked(request))


@pytest.fixture
def cluster_of(serve: Callable[..., Served]) -> Callable[..., ClusterHere]:
    """Three nodes of one pond, with settings."""

    def start(**settings: Any) -> ClusterHere:
        ports = free_ports(3)
        nodes = [f"http://127.0.0.1:{port}" for port in ports]
        made = ClusterHere([serve(server_port=port, nodes_urls=nodes, **settings) for port in ports])
        for served in made.nodes:
            served.wait_ready()
        return made

    return start


@pytest.fixture
def cluster(request: pytest.FixtureRequest, cluster_of: Callable[..., ClusterHere]) -> ClusterHere:
    """Three nodes of one pond."""
    return cluster_of(**_marked(request))


@pytest.fixture(autouse=True)
def _process(process: None) -> None:
    """Tests of this folder may start processes and open sockets."""
