"""Three nodes are drained, stopped and started again, one after another, under a writer and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from tests.nodes.following import compared, rows, served_again, ticking, until
from tests.nodes.traffic import Traffic

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


@pytest.mark.sample(1, of="faults of nodes")
@pytest.mark.parametrize("write_to", ["all", "majority"])
def test_a_rolling_restart_loses_nothing_and_answers_nothing_wrong(
    write_to: str, cluster_of: Callable[..., ClusterHere], serve: Callable[..., Served]
) -> None:
    cluster = cluster_of(nodes_write_to=write_to, nodes_lag_limit="2s")
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        pond.create_map("m", kind="state", value="long").load(rows("a", value=0))
    traffic = Traffic(cluster.url, reads_stop=write_to == "majority")
    nodes = list(cluster.nodes)
    with traffic:
        for number in range(3):
            traffic.goes_on()
            nodes[number].post("/v1/nodes/drain", {"draining": True})
            until(lambda number=number: nodes[number].get("/v1/nodes/drain").json()["safe"])
            nodes[number].close()
            nodes[number] = served_again(serve, cluster, number)
            nodes[number].wait_ready()
        traffic.goes_on()
    assert not traffic.faults
    assert compared(*nodes).ok
    assert {node.pond.map("m").get("a") for node in nodes} <= {traffic.acknowledged, traffic.tried}
