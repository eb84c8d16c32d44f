"""`millpond node promote`, `add` and `remove` on nodes that serve: the list changes, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import ManualClock
from millpond.errors import MillpondError
from millpond.maps.log.node_list import NodeList
from millpond.nodes.membership.fence import Word
from tests.nodes.conftest import ClusterHere
from tests.nodes.following import compared, rows, served_again, ticking, until
from tests.ports import free_ports

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(2, of="file")

Serve = Callable[..., "Served"]


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


def run(*words: str, refused: bool = False) -> str:
    done = CliRunner().invoke(app, ["node", *words], prog_name="millpond", env={"COLUMNS": "300"})
    assert (done.exit_code != 0) == refused, f"{words} ended with {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def ordered(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json"))
    return found


def put(pond: Any, value: int) -> None:
    pond.create_map("m", kind="state", value="long", exist_ok=True)
    pond.map("m").load(rows("a", value=value))


def answer_of(node: Served) -> int | None:
    """The value that a node answers; None when it answers nothing."""
    answer = node.get("/v1/maps/m/get?key=a")
    assert answer.status in (200, 503), answer.json()
    return None if answer.status == 503 else int(answer.json()["value"])


def newcomer(serve: Serve, cluster: ClusterHere, **settings: Any) -> Served:
    """A node with an empty folder, whose settings name the nodes of the pond and itself."""
    [port] = free_ports(1)
    return serve(server_port=port, nodes_urls=[*cluster.urls, f"http://127.0.0.1:{port}"], **settings)


def test_what_stays_with_the_old_primary_is_said(cluster_of: Callable[..., ClusterHere]) -> None:
    cluster = cluster_of()
    assert "stay there" not in run("promote", cluster.urls[1], "--pond", cluster.url)
    cluster[1].node.pond.repositories.create("flights")
    said = run("promote", cluster.urls[0], "--pond", cluster.url)
    assert f"repositories in the folder of {cluster.urls[1]} stay there" in " ".join(said.split())
    said = run("remove", cluster.urls[1], "--pond", cluster.url)
    assert f"repositories in the folder of {cluster.urls[1]} stay there" in " ".join(said.split())


@pytest.mark.parametrize("write_to", ["all", "majority"])
def test_another_node_becomes_the_primary(write_to: str, cluster_of: Callable[..., ClusterHere], serve: Serve) -> None:
    cluster = cluster_of(nodes_write_to=write_to, nodes_lag_limit="2s")
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        put(pond, 1)
        found = ordered("promote", cluster.urls[1], "--pond", cluster.urls[0])
        assert found == {
            "epoch": 1, "nodes": [cluster.urls[1], cluster.urls[2], cluster.urls[0]], "changed": True,
            "pending": found["pending"],
        }  # fmt: skip
        put(pond, 2)  # the same client
    assert [node.node.role for node in cluster.nodes] == ["replica", "primary", "replica"]
    refused = cluster[0].post("/v1/maps", {"name": "n", "kind": "state"})
    assert (refused.status, refused.json()["values"]["primary"]) == (421, cluster.urls[1])
    until(lambda: [answer_of(node) for node in cluster.nodes] == [2, 2, 2])
    assert not ordered("promote", cluster.urls[1], "--pond", cluster.urls[2])["changed"]
    cluster[1].close()
    again = served_again(serve, cluster, 1)
    again.wait_ready()
    assert again.node.role == "primary", "the list outlives a restart, and the settings' order does not count"
    assert not again.get("/v1/node").json()["settings_differ"]
    with millpond.open(cluster.urls[0], client_synchronise=True) as pond:
        put(pond, 3)
    assert compared(again, cluster[0], cluster[2]).ok


@pytest.mark.parametrize("write_to", ["all", "majority"])
def test_a_node_is_added_and_removed(write_to: str, cluster_of: Callable[..., ClusterHere], serve: Serve) -> None:
    cluster = cluster_of(nodes_write_to=write_to, nodes_lag_limit="2s")
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        put(pond, 1)
        new = newcomer(serve, cluster, nodes_write_to=write_to, nodes_lag_limit="2s")
        until(lambda: any("it is no member" in reason for reason in new.node.reasons()))
        assert answer_of(new) is None
        found = ordered("add", new.url, "--pond", cluster.urls[0])
        assert found["nodes"] == [*cluster.urls, new.url]
        new.wait_ready()
        assert answer_of(new) == 1
        put(pond, 2)
        assert answer_of(new) == 2, "a load waits for it"
        assert cluster[1].get("/v1/node").json()["settings_differ"]
        run("remove", new.url, "--pond", cluster.urls[1])
        put(pond, 3)
        assert answer_of(new) is None
        assert any("no member" in reason for reason in new.node.reasons())
        new.close()
        put(pond, 4)
        assert not ordered("remove", new.url, "--pond", cluster.urls[1])["changed"]
    assert [answer_of(node) for node in cluster.nodes] == [4, 4, 4]
    assert cluster[0].get("/v1/node").json()["epoch"] == 3


def test_a_node_that_was_removed_is_added_again(cluster: ClusterHere, serve: Serve) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        put(pond, 1)
        run("remove", cluster.urls[2], "--pond", cluster.url)
        put(pond, 2)
        assert answer_of(cluster[2]) is None
        cluster[2].close()
        put(pond, 3)
        again = served_again(serve, cluster, 2)
        assert answer_of(again) is None
        run("add", cluster.urls[2], "--pond", cluster.urls[0])
        again.wait_ready()
        put(pond, 4)
        assert answer_of(again) == 4


def test_a_lost_node_is_removed_because_a_person_says_so(cluster: ClusterHere, serve: Serve) -> None:
    with millpond.open(cluster.url, client_synchronise=True, client_attempts=1) as pond:
        put(pond, 1)
        cluster[2].close()
        cluster[0].node.clock.advance(60_000)  # type: ignore[attr-defined]
        assert "has not reported" in run("remove", cluster.urls[2], "--pond", cluster.url, refused=True)
        with pytest.raises(MillpondError):
            put(pond, 2)
        run("remove", cluster.urls[2], "--lost", "--pond", cluster.url)
        put(pond, 2)
        back = served_again(serve, cluster, 2)
        assert answer_of(back) is None
        until(lambda: any("no member" in reason for reason in back.node.reasons()))
        assert answer_of(back) is None


def test_a_node_whose_lease_is_over_is_removed_although_it_cannot_be_reached(
    cluster_of: Callable[..., ClusterHere], serve: Serve, clock: ManualClock
) -> None:
    """It answers nothing without a lease, so nobody need say that it is lost."""
    settings = {"nodes_write_to": "majority", "nodes_lag_limit": "2s"}
    cluster = cluster_of(**settings)
    with millpond.open(cluster.url, client_synchronise=True, client_attempts=1) as pond:
        put(pond, 1)
        cluster[2].close()
        position = cluster[0].pond.log.position()[0]
        due = cluster[0].node.follower.soundness.leases.due(cluster.urls[2], position + 1)
        assert ordered("remove", cluster.urls[2], "--pond", cluster.url)["nodes"] == cluster.urls[:2]
        assert clock.monotonic() >= due, "not before the lease was over"
        put(pond, 2)
        assert [answer_of(node) for node in cluster.nodes[:2]] == [2, 2]
        back = served_again(serve, cluster, 2)
        until(lambda: any("no member" in reason for reason in back.node.reasons()))
        assert answer_of(back) is None


def test_the_primary_is_lost_and_most_nodes_agree_on_another(cluster: ClusterHere, serve: Serve) -> None:
    with millpond.open(cluster.url, client_synchronise=True, client_attempts=1) as pond:
        put(pond, 1)
        assert "the primary answers" in run("promote", cluster.urls[1], "--without-primary", refused=True)
        cluster[0].close()
        found = ordered("promote", cluster.urls[1], "--without-primary", "--pond", cluster.urls[2])
        assert found["nodes"] == [cluster.urls[1], cluster.urls[2], cluster.urls[0]]
        until(lambda: cluster[1].node.follower.soundness.appends())
        run("remove", cluster.urls[0], "--lost", "--pond", cluster.urls[1])
        put(pond, 2)
    back = served_again(serve, cluster, 0)
    until(lambda: back.node.role == "replica")
    assert back.post("/v1/maps", {"name": "n", "kind": "state"}).status == 421
    run("add", cluster.urls[0], "--pond", cluster.urls[1])
    back.wait_ready()
    assert answer_of(back) == 2


def test_one_of_three_cannot_make_itself_the_primary(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        put(pond, 1)
    cluster[0].close()
    cluster[2].close()
    assert "most nodes do not agree" in run("promote", cluster.urls[1], "--without-primary", refused=True)
    assert cluster[1].node.follower.members.fence.promise.epoch == 0, "a look changes nothing"


def test_a_node_with_a_shorter_log_does_not_become_the_primary(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url, client_synchronise=True, client_attempts=1) as pond:
        put(pond, 1)
        cluster[1].node.scheduler.pause("replicate")
        cluster[0].pond.map("m").load(rows("a", value=2))
        until(lambda: cluster[2].pond.map("m").get("a") == 2)
    cluster[0].close()
    refusal = run("promote", cluster.urls[1], "--without-primary", refused=True)
    assert "another node has a longer log" in refusal
    assert cluster.urls[2] in refusal
    run("promote", cluster.urls[2], "--without-primary")


def test_orders_that_make_no_sense_are_refused(cluster: ClusterHere) -> None:
    assert "cannot be removed" in run("remove", cluster.urls[0], refused=True)
    assert "no other node of the pond" in run("promote", "http://127.0.0.1:1", "--pond", cluster.url, refused=True)
    assert "has not reported" in run("add", "http://127.0.0.1:1", "--no-wait", "--pond", cluster.url, refused=True)
    answer = cluster[0].post("/v1/nodes/add", {"url": "ftp://x"})
    assert answer.status == 400
    audit = (cluster[0].pond.folder / "audit.jsonl").read_text().splitlines()
    assert {json.loads(line)["path"] for line in audit} >= {"/v1/nodes/add", "/v1/nodes/remove", "/v1/nodes/promote"}


def test_a_load_for_another_list_is_refused(cluster: ClusterHere) -> None:
    """A program that does not know that the list changed would not wait for the right nodes."""
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        put(pond, 1)
    run("promote", cluster.urls[1], "--pond", cluster.url)
    body = {"load_id": "x", "parts": ["0" * 32]}
    refused = cluster[1].post("/v1/loads", body)
    assert (refused.status, refused.json()["kind"]) == (409, "nodes_changed")
    assert cluster[1].post("/v1/loads", body | {"epoch": 1}).status == 404


def test_a_node_that_is_to_be_the_primary_asks_for_a_moment(cluster: ClusterHere) -> None:
    """It has heard of the list that names it, and has not entered it."""
    until(lambda: cluster[1].node.answers)
    fence = cluster[1].node.follower.members.fence
    nodes = NodeList(0, tuple(cluster.urls)).promoted(cluster.urls[1])
    cluster[1].node.scheduler.pause("replicate")
    cluster[1].node.follower.survey.stop()
    cluster[0].node.follower.survey.stop()
    fence.hear(cluster.urls[0], Word(nodes))
    refused = cluster[1].post("/v1/maps", {"name": "n", "kind": "state"})
    assert (refused.status, refused.json()["kind"]) == (503, "node_not_ready")
