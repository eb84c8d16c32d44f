"""Three nodes are drained, stopped and started again, one after another, under a writer and readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Unavailable
from tests.nodes.following import compared, rows, served_again, ticking, until

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


class Traffic:
    """A writer that loads ever larger numbers, and readers that never see a number fall below what was acknowledged."""

    def __init__(self, url: str, *, reads_stop: bool) -> None:
        """`reads_stop`: while the primary is away for long, no node may answer."""
        self.url, self.reads_stop = url, reads_stop
        self.tried = self.acknowledged = self.answers = 0
        self.faults: list[str] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=act) for act in (self.write, self.read, self.read)]

    def write(self) -> None:
        with millpond.open(self.url, synchronise=True, send_part_attempts=1, send_part_retry_delay="50ms") as pond:
            loaded = pond.map("m")
            while not self.over.is_set():
                self.tried = self.acknowledged + 1
                try:
                    loaded.load(rows("a", value=self.tried))
                except Unavailable:
                    self.over.wait(0.05)  # it is loaded again
                except Exception as error:
                    self.faults.append(repr(error))
                    return
                else:
                    self.acknowledged = self.tried

    def read(self) -> None:
        with millpond.open(self.url, send_part_retry_delay="50ms", send_part_attempts=20) as pond:
            read = pond.map("m")
            while not self.over.is_set():
                least = self.acknowledged
                try:
                    value = read.get("a")
                except Exception as error:
                    if self.reads_stop and isinstance(error, Unavailable):
                        continue
                    self.faults.append(repr(error))
                    return
                if not least <= value <= self.tried:
                    self.faults.append(f"{value} is not between {least} and {self.tried}")
                self.answers += 1

    def goes_on(self) -> None:
        """Wait for one more load, begun from now on, and one more answer."""
        loads, answers = self.acknowledged + 1, self.answers
        until(lambda: self.faults or (self.acknowledged > loads and self.answers > answers))
        assert not self.faults


@pytest.mark.parametrize("write_to", ["all", "majority"])
def test_a_rolling_restart_loses_nothing_and_answers_nothing_wrong(
    write_to: str, cluster_of: Callable[..., ClusterHere], serve: Callable[..., Served]
) -> None:
    cluster = cluster_of(write_to=write_to, lag_limit="2s")
    with millpond.open(cluster.url, synchronise=True) as pond:
        pond.create_map("m", kind="state", value="long").load(rows("a", value=0))
    traffic = Traffic(cluster.url, reads_stop=write_to == "majority")
    for thread in traffic.threads:
        thread.start()
    nodes = list(cluster.nodes)
    try:
        for number in range(3):
            traffic.goes_on()
            nodes[number].post("/v1/nodes/drain", {"draining": True})
            until(lambda number=number: nodes[number].get("/v1/nodes/drain").json()["safe"])
            nodes[number].close()
            nodes[number] = served_again(serve, cluster, number)
            nodes[number].wait_ready()
        traffic.goes_on()
    finally:
        traffic.over.set()
        for thread in traffic.threads:
            thread.join()
    assert not traffic.faults
    assert compared(*nodes).ok
    assert {node.pond.map("m").get("a") for node in nodes} <= {traffic.acknowledged, traffic.tried}
