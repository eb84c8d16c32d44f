"""`millpond node reset`: in the folder of a node that is stopped, the setting `nodes` counts again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from tests.nodes.conftest import ClusterHere
from tests.nodes.following import ticking
from tests.nodes.test_membership import answer_of, ordered, put, run
from tests.ports import free_ports

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

Serve = Callable[..., "Served"]


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


def test_a_node_goes_on_alone_after_a_disaster(cluster: ClusterHere, serve: Serve) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        put(pond, 1)
        run("remove", cluster.urls[2], "--pond", cluster.url)
        put(pond, 2)
    folder = cluster[1].node.settings.server.data
    epoch = cluster[1].get("/v1/node").json()["epoch"]
    assert epoch > 0
    refused = run("reset", str(folder), refused=True)
    assert "Traceback" not in refused, "the node serves its folder"
    assert cluster[1].get("/v1/node").json()["epoch"] == epoch
    for node in cluster.nodes:
        node.close()
    [port] = free_ports(1)
    alone = [f"http://127.0.0.1:{port}"]
    before = serve(server_port=port, nodes_urls=alone, server_data=folder)
    assert answer_of(before) is None, "the list of the log counts, and this address is not on it"
    before.close()
    assert ordered("reset", str(folder))["epoch"] == epoch + 1
    after = serve(server_port=port, nodes_urls=alone, server_data=folder)
    after.wait_ready()
    assert answer_of(after) == 2 and after.node.leads()
    with millpond.open(after.url, client_synchronise=True) as pond:
        put(pond, 3)
    assert answer_of(after) == 3


def test_what_the_setting_decides_already_stays(serve: Serve, tmp_path: Path) -> None:
    node = serve()
    node.pond.create_map("m", kind="state", value="long")
    folder, position = node.node.settings.server.data, node.pond.log.position()
    node.close()
    assert ordered("reset", str(folder))["epoch"] == 0
    with millpond.open(folder) as pond:
        assert pond.log.position() == position, "nothing was appended"
    assert "Traceback" not in run("reset", str(tmp_path / "missing"), refused=True)
    assert not (tmp_path / "missing").exists()
