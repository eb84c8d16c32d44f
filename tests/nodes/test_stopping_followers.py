"""A node that stops while it waits for another: what it waits for is broken off, and nothing works on a closed pond."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from millpond.client.stopping import Interrupt
from millpond.errors import Unavailable
from millpond.kernel.worker import wait_ended
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.nodes.conftest import Served
from tests.nodes.following import SECONDS, caught_up, load
from tests.ports import free_ports

PATIENT = {"client_read_timeout": "1h", "nodes_intervals": {"replicate": "1h"}, "limits": {"shutdown_seconds": 1}}


class Pair:
    """A primary, and a replica that reaches it over a proxy that a test can hold up."""

    def __init__(self, serve: Callable[..., Served], proxy: FaultyProxy, port: int) -> None:
        own, other = f"http://127.0.0.1:{proxy.port}", f"http://127.0.0.1:{free_ports(1)[0]}"
        self.proxy, self.nodes = proxy, [own, other]
        self.primary = serve(server_port=port, server_url=own, nodes_urls=self.nodes)
        self._serve = serve

    def replica(self) -> Served:
        url = self.nodes[1]
        return self._serve(server_port=int(url.rpartition(":")[2]), server_url=url, nodes_urls=self.nodes, **PATIENT)

    def hold(self, match: bytes, after: int = 0) -> Trouble:
        return self.proxy.trouble(Trouble("hold", match=match, after=after, down=True))


@pytest.fixture
def pair(serve: Callable[..., Served]) -> Iterator[Pair]:
    [port] = free_ports(1)
    with FaultyProxy(port) as proxy:
        yield Pair(serve, proxy, port)


def at_work(*names: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]


@pytest.mark.parametrize(
    ("match", "after"),
    [(b"GET /v1/log?", 0), (b"GET /v1/parts/", 0), (b"GET /v1/parts/", 400)],
    ids=["a question", "a download that has not begun", "half a download"],
)
def test_a_follower_that_waits_for_the_other_end_stops_and_starts(pair: Pair, match: bytes, after: int) -> None:
    load(pair.primary, "a")
    replica = pair.replica()
    caught_up(replica, pair.primary.pond.log.position()[0])
    follower = replica.node.follower
    follower.stop()
    trouble = pair.hold(match, after)
    position = load(pair.primary, "b")
    follower.start()
    assert trouble.struck.wait(60)
    assert follower._worker.alive
    follower.stop()
    assert not follower._worker.alive
    assert follower.status().state == "stopped"
    assert replica.pond.log.position()[0] == position - 1
    with pytest.raises(Unavailable, match="does not pull"):
        follower.pull(position, SECONDS)
    pair.proxy.mend()
    follower.start()
    caught_up(replica, position)


def test_a_node_that_is_cloning_stops(pair: Pair) -> None:
    load(pair.primary, "a")
    pair.primary.pond.log.wait_applied(pair.primary.pond.log.position()[0])
    trouble = pair.hold(b"GET /v1/maps/m/shard", 100)
    replica = pair.replica()
    assert trouble.struck.wait(60)
    replica.close()
    assert pair.primary.node.follower.status().state == "following"


@pytest.mark.parametrize("ask", ["/v1/repair", "/v1/jobs/compare/run"])
def test_a_node_that_repairs_or_compares_stops(pair: Pair, ask: str) -> None:
    load(pair.primary, "a")
    replica = pair.replica()
    caught_up(replica, pair.primary.pond.log.position()[0])
    trouble = pair.hold(b"GET /v1/maps/m/digest")
    thread = threading.Thread(target=replica.post, args=(ask, {}), daemon=True)
    thread.start()
    assert trouble.struck.wait(60)
    replica.close()
    pair.primary.until(lambda: not at_work("repairs"))


def test_an_interrupt_breaks_what_waits_and_refuses_what_comes() -> None:
    near, far = socket.socketpair()
    interrupt = Interrupt()
    interrupt.watch(near)
    read: list[bytes] = []
    reading = threading.Thread(target=lambda: read.append(near.recv(1)))
    reading.start()
    interrupt.set()
    wait_ended(reading, "the reader")
    assert read == [b""]
    with pytest.raises(ConnectionAbortedError):
        interrupt.watch(far)
    interrupt.clear()
    interrupt.watch(far)
    near.close()
    far.close()
