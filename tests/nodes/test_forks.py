"""Diverged logs are reported, never followed, and made equal only by a decision."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.errors import Conflict
from tests.nodes.following import SECONDS, caught_up, compared, load, served_again

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(2, of="file")


def test_logs_that_diverged_are_reported_and_repaired(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, replica, other = cluster.nodes
    caught_up(replica, load(primary, "a"))
    replica.close()
    shutil.copytree(replica.node.settings.server.data, tmp_path / "alone")
    alone = serve(server_data=str(tmp_path / "alone"))
    load(alone, "mine", value=7)
    alone.close()
    position = load(primary, "b", value=8)
    back = served_again(serve, cluster, 1, tmp_path / "alone")
    back.until(lambda: back.node.follower.status().state == "forked")
    assert back.get("/readyz").status == 503
    with pytest.raises(Conflict, match="repair URL --from URL"):
        back.while_time_passes(lambda: back.node.follower.pull(position + 1, SECONDS))
    assert other.node.follower.soundness.fork is None
    failed = repaired(back)
    assert failed["state"] == "failed"
    assert failed["error"]["kind"] == "log_forked"
    assert back.pond.map("m").get("mine") == 7
    assert repaired(back, source=primary.url, over=True)["state"] == "done"
    assert back.pond.map("m").get("mine") is None
    assert back.pond.map("m").get("b") == 8
    assert back.node.follower.soundness.fork is None
    caught_up(back, load(primary, "c"))
    assert compared(primary, back, other).ok


def repaired(node: Served, **request: Any) -> Any:
    """Repair a node, and what came of it."""
    assert node.post("/v1/repair", request).status == 202
    node.until(lambda: node.get("/v1/repair").json()["state"] != "running")
    return node.get("/v1/repair").json()


def forked_copy(serve: Callable[..., Served], served: Served, place: Path, *keys: str) -> Path:
    """A copy of a closed node's folder in which something else happened."""
    shutil.copytree(served.node.settings.server.data, place)
    alone = serve(server_data=str(place))
    for key in keys:
        load(alone, key)
    alone.close()
    return place


def test_a_replica_that_went_its_own_way_does_not_stop_the_primary(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, replica, other = cluster.nodes
    caught_up(replica, load(primary, "a"))
    replica.close()
    back = served_again(serve, cluster, 1, forked_copy(serve, replica, tmp_path / "fork", "x", "y", "z"))
    load(primary, "b")
    back.until(lambda: back.node.follower.status().state == "forked")
    primary.until(lambda: primary.node.follower.status().error_kind == "log_forked")
    assert primary.node.follower.soundness.fork is None
    caught_up(other, load(primary, "c"))
    assert repaired(back, source=primary.url, over=True)["state"] == "done"
    assert compared(primary, back, other).ok
    primary.until(lambda: primary.node.follower.status().error is None)


def test_a_primary_that_starts_with_another_past_waits_for_a_decision(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, *replicas = cluster.nodes
    position = load(primary, "a")
    caught_up(replicas[0], position)
    primary.close()
    fork = forked_copy(serve, primary, tmp_path / "fork", "x")
    again = served_again(serve, cluster, 0)
    for key in "bc":
        position = load(again, key)
    caught_up(replicas[0], position)
    again.close()
    wrong = served_again(serve, cluster, 0, fork)
    wrong.until(lambda: wrong.node.started)
    assert wrong.get("/readyz").status == 503
    answer = wrong.post("/v1/maps", {"name": "new", "kind": "state"})
    assert (answer.status, answer.json()["kind"]) == (409, "log_forked")
    assert repaired(wrong, source=replicas[0].url, over=True)["state"] == "done"
    assert wrong.post("/v1/maps", {"name": "new", "kind": "state"}).status < 300
    position = load(wrong, "d")
    replicas[0].until(lambda: replicas[0].node.follower.soundness.fork is None)
    caught_up(replicas[0], position)
    assert compared(wrong, replicas[0]).ok
    assert wrong.pond.map("m").get("x") is None
    assert wrong.pond.map("m").get("c") == 1


def test_a_fork_is_not_decided_by_a_peer_that_goes_away(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, *replicas = cluster.nodes
    caught_up(replicas[0], load(primary, "a"))
    primary.close()
    fork = forked_copy(serve, primary, tmp_path / "fork", "x")
    again = served_again(serve, cluster, 0)
    position = [load(again, key) for key in "bc"][-1]
    caught_up(replicas[0], position)
    again.close()
    replicas[1].close()
    wrong = served_again(serve, cluster, 0, fork)
    wrong.until(lambda: wrong.node.started)
    replicas[0].close()
    follower = wrong.node.follower
    failures = follower._failures
    wrong.until(lambda: follower._failures > failures + 1 or follower.soundness.fork is None)
    assert wrong.get("/readyz").status == 503
    assert wrong.node.follower.status().state == "forked"


def test_no_maintenance_is_ordered_while_the_log_is_disputed(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, *replicas = cluster.nodes
    primary.pond.create_map("m", kind="state", value="long", retain="1d", retain_by="update_time")
    caught_up(replicas[0], load(primary, "a"))
    primary.close()
    fork = forked_copy(serve, primary, tmp_path / "fork", "x")
    again = served_again(serve, cluster, 0)
    caught_up(replicas[0], [load(again, key) for key in "bc"][-1])
    again.close()
    wrong = served_again(serve, cluster, 0, fork)
    wrong.until(lambda: wrong.node.started)
    before = wrong.pond.log.position()
    run = wrong.node.scheduler.run("retain")
    assert run.last is not None
    assert "this node's log is another one" in str(run.last.error)
    assert wrong.pond.log.position() == before


def test_a_pond_with_a_past_of_its_own_is_not_taken_over(serve: Callable[..., Served], cluster: ClusterHere) -> None:
    cluster[1].close()
    other = serve()
    load(other, "mine")
    other.close()
    load(cluster[0], "a")
    stranger = served_again(serve, cluster, 1, Path(other.node.settings.server.data))
    stranger.until(lambda: stranger.node.follower.status().state == "forked")
    assert stranger.node.follower.status().error_kind == "pond_other"
    assert stranger.pond.map("m").get("mine") == 1
