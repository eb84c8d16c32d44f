"""Resources: a test needs what its fixtures stand for besides its own process, and its ring follows from that.

A test without a resource is of the ring `unit`: no process, no socket, no JVM, and little processor time. An audit hook
of the interpreter holds it to that. A test that starts a process by hand says so with the fixture `process`, and the
parameter that stands for a driver names its server with a mark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from dataclasses import dataclass

import pytest

__all__ = ("RESOURCES", "Resources")

RESOURCES: dict[str, str] = {
    "process": "starts processes or opens sockets of its own",
    "processor": "takes more processor time than a unit test may",
    "spark": "a JVM with Spark",
    "node": "nodes that are served in this process",
    "cluster": "three nodes of one pond",
    "served": "a `millpond serve` process",
    "s3": "an S3 server",
    "redis": "a Redis server",
    "redis_cluster": "a Redis Cluster",
    "postgres": "a PostgreSQL server",
    "kafka": "a Kafka broker",
}
FIXTURES: dict[str, str] = {
    "process": "process",
    "processor": "processor",
    "browser": "process",
    "spark": "spark",
    "spark_process": "spark",
    "serve": "node",
    "cluster_of": "cluster",
    "server": "served",
    "open_server": "served",
    "workflow_server": "served",
    "s3_server": "s3",
    "redis_server": "redis",
    "redis_cluster": "redis_cluster",
    "postgres_server": "postgres",
    "kafka_server": "kafka",
}
_PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
_SOCKETS = frozenset({"socket.bind", "socket.connect"})


@dataclass(eq=False)
class Resources:
    """The plugin: it marks tests by their resources, and holds those that have none to having none."""

    unit: str | None = None
    """The unit test that is run now."""

    def __post_init__(self) -> None:
        owner = os.getpid()

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if self.unit is None or os.getpid() != owner:
                return
            if event in _PROCESSES or event in _SOCKETS or event == "time.sleep":
                raise AssertionError(
                    f"a unit test does {event}{arguments!r:.100}: use the fixture of what it needs "
                    f"({', '.join(FIXTURES)}), and it is no unit test"
                )

        sys.addaudithook(hook)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            names = set(getattr(item, "fixturenames", ()))
            resources = {resource for fixture, resource in FIXTURES.items() if fixture in names}
            resources |= {marker.name for marker in item.iter_markers() if marker.name in RESOURCES}
            for resource in sorted(resources):
                item.add_marker(resource)
            if not resources and item.get_closest_marker("full") is None:
                item.add_marker("unit")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.unit = item.nodeid if item.get_closest_marker("unit") else None
        try:
            return (yield)
        finally:
            self.unit = None
