"""`millpond node status` and `node drain`, and clocks that differ."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import ManualClock
from tests.nodes.following import caught_up, load, rows, served_again, ticking, until

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(2, of="file")


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="millpond", env={"COLUMNS": "300"})
    assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_status_of_all_nodes(cluster: ClusterHere) -> None:
    position = load(cluster[0], "a")
    for node in cluster.nodes:
        caught_up(node, position)
    found = [json.loads(line) for line in run("node", "status", "--pond", cluster.url, "--json").splitlines()]
    assert [(row["node"], row["role"], row["ready"], row["position"], row["lag"], row["why not"]) for row in found] == [
        (cluster.urls[0], "primary", True, position, 0, None),
        (cluster.urls[1], "replica", True, position, 0, None),
        (cluster.urls[2], "replica", True, position, 0, None),
    ]
    assert {row["version"] for row in found} == {cluster[0].get("/v1/node").json()["version"]}
    cluster[2].close()
    table = run("node", "status", "--pond", cluster.url, code=11)
    assert "it cannot be reached" in table
    assert "primary" in table


def test_a_drained_node_takes_no_work_and_its_clients_go_on(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        pond.create_map("m", kind="state", value="long").load(rows("a", value=1))
        assert "safe to stop" in run("node", "drain", cluster.urls[0])
        assert cluster[0].get("/v1/maps/m/get?key=a").status == 503
        assert cluster[0].post("/v1/maps", {"name": "n", "kind": "state"}).status == 503
        assert "it is drained" in cluster[0].get("/readyz").json()["reasons"]
        assert pond.map("m").get("a") == 1
        assert "takes work again" in run("node", "drain", cluster.urls[0], "--undo")
        pond.map("m").load(rows("a", value=2))
        assert pond.map("m").get("a") == 2


def test_a_drained_node_ends_what_runs(cluster: ClusterHere) -> None:
    """Loads run while a replica is drained: those that began are acknowledged, the others are refused and repeated."""
    loaded: list[int] = []
    over = threading.Event()

    def write() -> None:
        with millpond.open(cluster.url, client_synchronise=True, client_attempts=50) as pond:
            made = pond.create_map("m", kind="state", value="long")
            while not over.is_set():
                made.load(rows("a", value=len(loaded)))
                loaded.append(len(loaded))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: len(loaded) > 2)
        cluster[1].post("/v1/nodes/drain", {"draining": True})
        until(lambda: cluster[1].get("/v1/nodes/drain").json()["safe"])
        state = cluster[1].get("/v1/nodes/drain").json()
        assert (state["requests"], state["uploads"]) == (0, 0)
        cluster[1].post("/v1/nodes/drain", {"draining": False})
        before = len(loaded)
        until(lambda: len(loaded) > before)
    finally:
        over.set()
        writer.join(60)
    assert {node.pond.map("m").get("a") for node in cluster.nodes} == {len(loaded) - 1}


@pytest.mark.settings(nodes_lag_limit="5s")
def test_a_replica_whose_clock_differs_answers_nothing(cluster: ClusterHere, serve: Callable[..., Served]) -> None:
    cluster[2].close()
    settings = cluster[2].node.settings
    wrong = ManualClock(now=cluster[0].node.clock.now_ms() + 60_000)
    late = serve(
        server_port=settings.server.port,
        nodes_urls=list(settings.nodes.urls),
        server_data=settings.server.data,
        nodes_lag_limit="5s",
        clock=wrong,
    )
    until(lambda: (wrong.advance(20), any("its clock differs" in reason for reason in late.node.reasons()))[1])
    assert late.get("/v1/maps").status == 503
    assert cluster[0].get("/v1/maps").status == 200, "most others agree with the primary"
    assert "clock_skew_seconds{" in cluster[0].get("/metrics").body.decode()
    wrong.now -= 60_000
    until(lambda: (wrong.advance(300), late.node.answers)[1])


def test_one_url_is_enough(cluster: ClusterHere, serve: Callable[..., Served]) -> None:
    cluster[1].close()
    served_again(serve, cluster, 1).wait_ready()
    assert len(run("node", "status", "--pond", cluster.urls[2], "--json").splitlines()) == 3
