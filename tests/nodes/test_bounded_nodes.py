"""Nodes under a limit of memory take, merge, freeze, send and copy a map that is larger."""

from __future__ import annotations

import resource
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import millpond
from millpond.arrays.malloc import TRIM_BYTES
from tests.harness.cluster import Cluster, wait_for
from tests.unit.bounded_memory_child import rows
from tests.unit.versions_memory_child import MALLOC, memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_BYTES = (96 << 20) + TRIM_BYTES
"""A node keeps some of the memory that it does not need."""
STACK_BYTES = 1 << 20
ROWS = 240_000
SECONDS = 120.0


def limit(cluster: Cluster, number: int, data_bytes: int = 0) -> int:
    """Let a node allocate no more than it has now, or so much, and `LIMIT_BYTES`; how much that is without them."""
    process = cluster.nodes[number].process
    assert process is not None
    there = data_bytes or memory(process.pid)["VmData"]
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (there + LIMIT_BYTES, there + LIMIT_BYTES))
    return there


def digest(cluster: Cluster, number: int, name: str, position: int) -> Any:
    """The rows of a map at a node, and what they are, at a position of the log."""
    answer = cluster.ask(number, "GET", f"/v1/maps/{name}/digest?position={position}")
    assert answer.status == 200, answer.body
    found = answer.json()
    return found["rows"], found["digest"]


def snapshot(cluster: Cluster, number: int, name: str) -> Any:
    """The layers of a node's snapshot of a map."""
    answer = cluster.ask(number, "GET", f"/v1/maps/{name}/snapshot?fresh=true")
    assert answer.status == 200, answer.body
    return answer.json()["layers"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that count what they use: stacks of threads count as a whole, used or not."""
    for name, value in MALLOC.items():
        monkeypatch.setenv(name, value)
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_STACK, before)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("counted")
def test_a_node_under_a_limit_catches_up_with_a_load_that_is_larger(tmp_path: Path) -> None:
    """It was off while the load was entered, and gets its parts from the other nodes."""
    settings = {"maps_memory_max": "16MiB", "nodes_write_to": "majority"}
    with Cluster(tmp_path, 3, settings=settings, armed=False) as cluster, millpond.open(cluster.url) as pond:
        for name in ("small", "large"):
            pond.create_map(name, kind="temporal_state", value="string")
        position = pond.map("small").load(rows(np.arange(1_000))).position
        digest(cluster, 2, "small", position)
        snapshot(cluster, 2, "small")
        base = limit(cluster, 2)
        cluster.stop(2)
        position = pond.map("large").load(rows(np.arange(ROWS))).position
        wanted = digest(cluster, 0, "large", position), snapshot(cluster, 0, "large")
        limit(cluster, 0)
        cluster.start(2, wait=False)
        limit(cluster, 2, base)
        cluster.wait_ready(2)
        wait_for(lambda: digest(cluster, 2, "large", position) == wanted[0], "the rows", SECONDS)
        assert wanted[0][0] == ROWS


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("counted")
def test_a_map_larger_than_memory_comes_to_nodes_under_a_limit(tmp_path: Path) -> None:
    """As parts that are sent, and to a node that lost its disk as a copy."""
    settings = {"maps_memory_max": "16MiB"}
    with Cluster(tmp_path, 2, settings=settings, armed=False) as cluster, millpond.open(cluster.url) as pond:
        for name in ("small", "large"):
            pond.create_map(name, kind="temporal_state", value="string")
        position = pond.map("small").load(rows(np.arange(1_000))).position
        for number in (0, 1):
            digest(cluster, number, "small", position)
            snapshot(cluster, number, "small")
        base = limit(cluster, 1)
        position = pond.map("large").load(rows(np.arange(ROWS))).position
        wanted = digest(cluster, 0, "large", position), snapshot(cluster, 0, "large")
        assert (digest(cluster, 1, "large", position), snapshot(cluster, 1, "large")) == wanted
        assert wanted[0][0] == ROWS
        cluster.stop(1)
        shutil.rmtree(cluster.nodes[1].folder)
        cluster.start(1, wait=False)
        limit(cluster, 1, base)
        limit(cluster, 0)
        cluster.wait_ready(1)
        wait_for(lambda: digest(cluster, 1, "large", position) == wanted[0], "the copy", SECONDS)
        assert snapshot(cluster, 1, "large") == wanted[1]
