"""A replica notices that it holds other rows than its primary, says so, and queries nobody without need."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from millpond.errors import Closed
from millpond.nodes.jobs.scheduler import JobRun
from tests.nodes.following import SECONDS, caught_up, load

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served


def compared(node: Served) -> JobRun:
    last_run = node.while_time_passes(lambda: node.node.scheduler.run("compare")).last
    assert last_run is not None
    return last_run


def lose_a_row(node: Served, name: str = "m") -> None:
    """Remove a row behind the node's back, which must never happen and which nothing reports."""
    shard = node.pond.map(name).shard
    rows = next(shard.read_rows())
    shard.change(lambda tx: shard.delete_rows(tx, rows.slice(0, 1)), None)


def test_a_map_that_differs_is_reported_and_the_node_is_not_ready_until_it_is_mended(cluster: ClusterHere) -> None:
    primary, replica, other = cluster.nodes
    position = load(primary, "a", "b")
    primary.pond.create_map("n", kind="state", value="long")
    for node in cluster.nodes:
        caught_up(node, position + 1)
    assert compared(replica).numbers == {"maps": 2, "equal": 2, "behind": 0, "differing": 0}
    assert compared(replica).summary == "equal to the primary; nothing changed since"
    caught_up(replica, load(primary, "c"))
    lose_a_row(replica)
    run = compared(replica)
    assert "map m is not as the primary has it: its 2 rows are others" in str(run.error)
    assert f"millpond repair {replica.url}" in str(run.error)
    answer = replica.get("/readyz")
    assert answer.status == 503
    assert "map m is not as the primary has it" in str(answer.json()["reasons"])
    assert b"millpond_maps_differing 1.0" in replica.get("/metrics").body
    assert other.get("/readyz").status == 200
    assert replica.post("/v1/repair", {}).status == 202
    replica.until(lambda: replica.get("/v1/repair").json()["state"] != "running")
    assert replica.get("/v1/repair").json()["state"] == "done"
    assert replica.get("/readyz").status == 200
    assert compared(replica).error is None


def test_a_map_that_is_behind_does_not_differ(cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.nodes.replication.compare.MAP_SECONDS", 0.2)
    primary, replica, _ = cluster.nodes
    caught_up(replica, load(primary, "a"))
    replica.node.scheduler.pause("merge")
    position = load(primary, "b")
    replica.while_time_passes(lambda: replica.node.follower.pull(position, SECONDS))
    run = compared(replica)
    assert run.error is None
    assert run.numbers == {"maps": 1, "equal": 0, "behind": 1, "differing": 0}
    assert replica.get("/readyz").status == 200


def test_a_primary_that_is_away_is_reported(cluster: ClusterHere) -> None:
    primary, replica, _ = cluster.nodes
    caught_up(replica, load(primary, "a"))
    primary.close()
    assert primary.url in str(compared(replica).error)
    assert replica.get("/readyz").status == 200


def test_a_node_that_stops_begins_no_repair(node: Served) -> None:
    node.node.repairs.stop()
    with pytest.raises(Closed, match="stopping"):
        node.node.repairs.begin()


def test_many_may_ask_at_once_whether_a_node_is_ready(node: Served) -> None:
    go = threading.Barrier(4)

    def ask(_: int) -> list[str]:
        go.wait(10)
        return [reason for _ in range(200) for reason in node.node.reasons()]

    with ThreadPoolExecutor(4) as pool:
        assert [reason for reasons in pool.map(ask, range(4)) for reason in reasons] == []
