"""Shared by tests of nodes that follow each other: loads at the primary, and waits for the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.client.transport import Connection
from millpond.clock import ManualClock
from millpond.nodes.replication.log_agreement import Agreement, agreement
from millpond.nodes.replication.peer import Peer

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served

TICK_SECONDS = 0.01
SECONDS = 600.0
"""Of the nodes' clock, which passes quickly."""


def rows(*keys: str, value: int = 1) -> pa.Table:
    return pa.table({"key": list(keys), "value": [value] * len(keys)})


def load(node: Served, *keys: str, value: int = 1) -> int:
    """Load into map `m` of the primary; the position of the load."""
    pond = node.pond
    if "m" not in [pond_map.name for pond_map in pond.maps()]:
        pond.create_map("m", kind="state", value="long")
    return pond.map("m").load(rows(*keys, value=value)).position


def caught_up(node: Served, position: int) -> None:
    node.while_time_passes(lambda: node.node.follower.pull(position, SECONDS))
    node.while_time_passes(lambda: node.pond.log.wait_applied(position, timeout=SECONDS))


@contextmanager
def ticking(clock: ManualClock, *, times: int = 1) -> Iterator[None]:
    """Let the time of a manual clock pass, so many times as fast as a wall clock's."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            clock.advance(round(TICK_SECONDS * 1000) * times)

    thread = threading.Thread(target=tick, name="clock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def until(true: Callable[[], object]) -> None:
    """Wait until something is true, while the clock ticks or other processes work."""
    pause = threading.Event()
    while not true():
        pause.wait(TICK_SECONDS)


def compared(*nodes: Served, seconds: float = SECONDS) -> Agreement:
    clock = nodes[0].clock
    peers = [Peer(Connection(served.url, served.node.settings, clock=clock)) for served in nodes]
    return nodes[0].while_time_passes(lambda: agreement(peers, clock, seconds=seconds))


def served_again(serve: Callable[..., Served], cluster: ClusterHere, number: int, folder: Path | None = None) -> Served:
    """A node that was closed, started anew, perhaps from another folder."""
    settings = cluster[number].node.settings
    return serve(
        server_port=settings.server.port,
        nodes_urls=list(settings.nodes.urls),
        server_data=str(folder or settings.server.data),
        nodes_write_to=settings.nodes.write_to,
        nodes_lag_limit=settings.nodes.lag_limit,
    )
