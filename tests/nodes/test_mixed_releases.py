"""Nodes of two releases work together; nodes of releases further apart refuse each other, and say why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import ManualClock
from millpond.json_forms import plain
from millpond.nodes.replication.status import PROTOCOL
from tests.nodes.following import rows, ticking, until

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere

pytestmark = pytest.mark.sample(1, of="file")


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


def speak(cluster: ClusterHere, number: int, protocol: int) -> None:
    """Let a node speak as one of another release, from its next exchanges with its peers on."""
    cluster[number].node.follower.survey.protocol = protocol
    cluster[number].node.follower.survey.ask_all()


def heard_protocol(cluster: ClusterHere, number: int) -> int | None:
    """The protocol that the primary has heard of a node last."""
    heard = cluster[0].node.follower.survey.heard(cluster.urls[number])
    return heard and heard.status.protocol


@pytest.mark.parametrize("apart", [-1, 1])
def test_a_node_of_the_release_before_or_after_works_with_the_others(cluster: ClusterHere, apart: int) -> None:
    speak(cluster, 2, PROTOCOL + apart)
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        pond.create_map("m", kind="state", value="long").load(rows("a", value=1))
    assert [node.get("/v1/maps/m/get?key=a").json()["value"] for node in cluster.nodes] == [1, 1, 1]
    assert [node.get("/v1/node").json()["protocol"] for node in cluster.nodes] == [PROTOCOL, PROTOCOL, PROTOCOL + apart]


@pytest.mark.parametrize("apart", [-2, 2])
def test_a_node_of_a_release_two_apart_is_refused(cluster: ClusterHere, apart: int) -> None:
    """Of two releases before, or after: it makes no difference which of them is the old one."""
    for number in (0, 1):
        speak(cluster, number, PROTOCOL + 2 if apart < 0 else PROTOCOL)
    speak(cluster, 2, PROTOCOL if apart < 0 else PROTOCOL + 2)
    until(lambda: not cluster[2].node.answers)
    reason = "; ".join(cluster[2].get("/readyz").json()["reasons"])
    assert "the releases of two nodes are too far apart" in reason
    assert "one release at a time" in reason
    assert cluster[0].get("/readyz").status == cluster[1].get("/readyz").status == 200
    speak(cluster, 2, PROTOCOL + 1)
    until(lambda: cluster[2].node.answers)


def test_the_list_of_nodes_is_not_changed_before_all_understand_it(cluster: ClusterHere) -> None:
    speak(cluster, 2, PROTOCOL - 1)
    until(lambda: heard_protocol(cluster, 2) == PROTOCOL - 1)  # words of before may still be on their way
    done = CliRunner().invoke(app, ["node", "promote", cluster.urls[1], "--pond", cluster.url], prog_name="millpond")
    assert done.exit_code != 0
    assert "does not understand this change" in done.stderr
    assert cluster[0].get("/v1/node").json()["epoch"] == 0


def test_a_status_without_a_protocol_is_one_of_the_first_release(cluster: ClusterHere) -> None:
    status = plain(cluster[1].node.follower.soundness.own_status())
    for field in ("protocol", "epoch", "leaving", "promised", "level"):
        del status[field]

    def heard_as_the_first() -> bool:  # until the node itself speaks again, at any moment
        assert cluster[0].post("/v1/nodes/status", status).status == 200
        heard = cluster[0].node.follower.survey.heard(cluster.urls[1])
        return heard is not None and heard.status.protocol == 1

    until(heard_as_the_first)
