"""Nodes that start on an empty disk, or on an old copy, answer nothing before they have what was acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import Unavailable
from tests.nodes.following import caught_up, rows, served_again

if TYPE_CHECKING:
    from tests.nodes.conftest import Answer, ClusterHere, Served

pytestmark = pytest.mark.sample(2, of="file")

Serve = Callable[..., "Served"]


def synchronised(cluster: ClusterHere, value: int) -> None:
    """Load a key through a client, which waits until every node has merged it."""

    def load() -> None:
        with millpond.open(cluster.url, client_synchronise=True) as pond:
            pond.create_map("m", kind="state", value="long", exist_ok=True)
            pond.map("m").load(rows("a", value=value))

    cluster[0].while_time_passes(load)


def question(node: Served) -> Answer:
    return node.get("/v1/maps/m/get?key=a")


def kind_of(answer: Answer) -> str:
    return str(answer.json().get("kind"))


def older_copy(cluster: ClusterHere, serve: Serve, number: int, place: Path) -> Served:
    """Copy a node's folder while it is closed, and start it again."""
    cluster[number].close()
    shutil.copytree(cluster[number].node.settings.server.data, place)
    again = served_again(serve, cluster, number)
    again.wait_ready()
    return again


def test_an_emptied_replica_answers_nothing_while_its_primary_is_away(
    cluster: ClusterHere, serve: Serve, tmp_path: Path
) -> None:
    synchronised(cluster, 1)
    for node in cluster.nodes:
        node.close()
    emptied = served_again(serve, cluster, 1, tmp_path / "fresh")
    answer = question(emptied)
    assert (answer.status, kind_of(answer)) == (503, "node_not_ready")
    assert cluster.urls[0] in answer.json()["values"]["reason"]
    assert emptied.get("/readyz").status == 503
    assert emptied.get("/v1/maps").status == 503


def test_a_client_goes_on_to_the_sound_node(cluster: ClusterHere, serve: Serve, tmp_path: Path) -> None:
    synchronised(cluster, 1)
    cluster[0].close()
    cluster[1].close()

    emptied = served_again(serve, cluster, 1, tmp_path / "fresh")
    emptied.node.scheduler.pause("replicate")  # it copies nothing meanwhile
    with millpond.open(",".join([cluster.urls[1], cluster.urls[2]]), client_attempts=1) as pond:
        assert pond.map("m").get("a") == 1
        assert pond.map("m").lookup(["a"]).to_pylist() == [1]
        assert len(pond.maps()) == 1


def test_a_replica_from_an_old_copy_takes_what_it_lacks_from_another_replica(
    cluster: ClusterHere, serve: Serve, tmp_path: Path
) -> None:
    synchronised(cluster, 1)
    older_copy(cluster, serve, 1, tmp_path / "older").close()
    again = served_again(serve, cluster, 1)
    again.wait_ready()
    synchronised(cluster, 2)
    again.close()
    cluster[0].close()
    old = served_again(serve, cluster, 1, tmp_path / "older")
    answer = question(old)
    assert answer.status == 503 or answer.json()["value"] == 2
    old.wait_ready()
    assert question(old).json()["value"] == 2


def test_a_primary_that_was_emptied_and_started_first_takes_nothing(
    cluster: ClusterHere, serve: Serve, tmp_path: Path
) -> None:
    synchronised(cluster, 1)
    for node in cluster.nodes:
        node.close()
    emptied = served_again(serve, cluster, 0, tmp_path / "fresh")
    created = emptied.post("/v1/maps", {"name": "m", "kind": "state"})
    assert (created.status, kind_of(created)) == (503, "node_not_ready")
    assert emptied.pond.log.position()[0] == 0
    replicas = [served_again(serve, cluster, number) for number in (1, 2)]
    for node in (emptied, *replicas):
        node.wait_ready()
        assert question(node).json()["value"] == 1
        assert node.node.follower.soundness.fork is None
    synchronised(cluster, 2)


def test_an_emptied_primary_takes_its_log_back_from_replicas_that_run(
    cluster: ClusterHere, serve: Serve, tmp_path: Path
) -> None:
    synchronised(cluster, 1)
    cluster[0].close()
    emptied = served_again(serve, cluster, 0, tmp_path / "fresh")
    emptied.wait_ready()
    synchronised(cluster, 2)
    assert question(emptied).json()["value"] == 2


def test_an_emptied_primary_does_not_say_of_a_part_that_its_map_is_missing(
    cluster: ClusterHere, serve: Serve, tmp_path: Path
) -> None:
    """A writer would believe it that the map was dropped."""
    synchronised(cluster, 1)
    for node in cluster.nodes:
        node.close()
    emptied = served_again(serve, cluster, 0, tmp_path / "fresh")
    part = {"Upload-Map": "m", "Upload-Checksum": "0" * 32, "Upload-Length": "1"}
    answer = emptied.put(f"/v1/parts/{'0' * 32}/upload", b"x", headers=part)
    assert (answer.status, kind_of(answer)) == (503, "node_not_ready")


def test_a_primary_enters_nothing_before_it_has_heard_all_replicas(
    cluster: ClusterHere, serve: Serve, tmp_path: Path
) -> None:
    synchronised(cluster, 1)
    cluster[0].close()
    cluster[2].close()
    again = served_again(serve, cluster, 0)
    again.until(lambda: question(again).status == 200)
    created = again.post("/v1/maps", {"name": "n", "kind": "state"})
    assert (created.status, kind_of(created)) == (503, "node_not_ready")
    assert cluster.urls[2] in created.json()["values"]["reason"]
    served_again(serve, cluster, 2)
    again.wait_ready()
    assert again.post("/v1/maps", {"name": "n", "kind": "state"}).status < 300


def test_a_node_that_says_so_serves_without_peers(cluster: ClusterHere, serve: Serve) -> None:
    synchronised(cluster, 1)
    for node in cluster.nodes:
        node.close()
    settings = cluster[1].node.settings
    alone = serve(
        server_port=settings.server.port,
        nodes_urls=list(settings.nodes.urls),
        server_data=settings.server.data,
        without_peers=True,
    )
    alone.wait_ready()
    assert question(alone).json()["value"] == 1


def test_what_a_node_confirmed_is_remembered_by_its_peers(cluster: ClusterHere, serve: Serve, tmp_path: Path) -> None:
    """Both replicas lose a load, one keeps the word of the other: neither answers, and the reason names the load."""
    synchronised(cluster, 1)
    cluster[2].until(lambda: cluster[2].node.follower.survey._confirmed.get(cluster.urls[1]) == 2)
    for node in cluster.nodes:
        node.close()
    forgetful = [served_again(serve, cluster, number, tmp_path / f"fresh{number}") for number in (0, 1)]
    witness = served_again(serve, cluster, 2)
    for node in forgetful:
        node.wait_ready()
        assert node.pond.log.position()[0] == 2
    witness.wait_ready()


def test_an_empty_node_is_no_source_of_a_repair(cluster: ClusterHere, serve: Serve, tmp_path: Path) -> None:
    synchronised(cluster, 1)
    cluster[0].close()
    cluster[2].close()
    emptied = served_again(serve, cluster, 2, tmp_path / "fresh")
    emptied.node.scheduler.pause("replicate")
    if emptied.pond.log.position()[0] == 0:
        cluster[1].post("/v1/repair", {"source": emptied.url, "over": True})
        cluster[1].until(lambda: cluster[1].get("/v1/repair").json()["state"] == "failed")
        assert cluster[1].get("/v1/repair").json()["error"]["kind"] == "repair_from_empty"
    assert question(cluster[1]).json()["value"] == 1


def test_a_load_waits_for_a_primary_that_starts(cluster: ClusterHere, serve: Serve) -> None:
    """A node that is not ready for a moment is asked again; one that stays so is an error that names the reason."""
    synchronised(cluster, 1)
    cluster[0].close()
    cluster[1].close()
    served_again(serve, cluster, 0)
    with millpond.open(cluster.url, client_attempts=1) as pond, pytest.raises(Unavailable) as caught:
        pond.create_map("n", kind="state", value="long")
    assert caught.value.kind == "node_not_ready"
    back = served_again(serve, cluster, 1)
    back.wait_ready()
    caught_up(back, 2)
    synchronised(cluster, 3)
