"""Loads that most nodes are enough for: none is lost, and a node that lags answers nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.nodes.replication.answer_leases import AnswerLeases
from tests.nodes.following import rows, served_again, ticking, until

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(2, of="file")

Serve = Callable[..., "Served"]
MAJORITY = {"nodes_write_to": "majority", "nodes_lag_limit": "1500ms"}
majority = pytest.mark.settings(**MAJORITY)


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


def synchronised(cluster: ClusterHere, value: int) -> None:
    with millpond.open(cluster.url, client_synchronise=True, client_attempts=2) as pond:
        pond.create_map("m", kind="state", value="long", exist_ok=True)
        pond.map("m").load(rows("a", value=value))


def answer_of(node: Served) -> int | None:
    """The value that a node answers; None when it answers nothing."""
    answer = node.get("/v1/maps/m/get?key=a")
    assert answer.status in (200, 503), answer.json()
    return None if answer.status == 503 else int(answer.json()["value"])


@majority
def test_a_load_goes_on_without_a_node_that_is_down_and_it_answers_when_it_has_the_load(
    cluster: ClusterHere, serve: Serve
) -> None:
    synchronised(cluster, 1)
    cluster[2].close()
    synchronised(cluster, 2)
    synchronised(cluster, 3)
    back = served_again(serve, cluster, 2)
    assert answer_of(back) in (None, 3)
    until(lambda: answer_of(back) == 3)


@majority
def test_a_node_that_lags_answers_nothing_once_a_load_is_acknowledged(cluster: ClusterHere) -> None:
    """It runs and hears everybody, but enters nothing."""
    synchronised(cluster, 1)
    assert [answer_of(node) for node in cluster.nodes] == [1, 1, 1]
    cluster[2].node.scheduler.pause("replicate")
    synchronised(cluster, 2)
    assert [answer_of(node) for node in cluster.nodes] == [2, 2, None]
    assert "lags" in cluster[2].get("/readyz").json()["reasons"][0]
    cluster[2].node.scheduler.resume("replicate")
    until(lambda: answer_of(cluster[2]) == 2)


@majority
def test_a_replica_that_is_stopped_in_the_midst_of_loads_loses_none(cluster: ClusterHere, serve: Serve) -> None:
    synchronised(cluster, 1)
    loaded: list[int] = []

    def load() -> None:
        for value in range(2, 8):
            synchronised(cluster, value)
            loaded.append(value)

    loader = threading.Thread(target=load)
    loader.start()
    until(lambda: loaded)
    cluster[1].close()
    loader.join(120)
    assert loaded == list(range(2, 8))
    back = served_again(serve, cluster, 1)
    until(lambda: answer_of(back) == 7)


@majority
def test_most_nodes_are_needed(cluster: ClusterHere) -> None:
    synchronised(cluster, 1)
    cluster[1].close()
    cluster[2].close()
    with pytest.raises(Unavailable) as caught:
        synchronised(cluster, 2)
    assert caught.value.kind in ("load_not_everywhere", "node_not_ready")
    until(lambda: answer_of(cluster[0]) is None)


@majority
def test_a_primary_starts_again_with_most_nodes(cluster: ClusterHere, serve: Serve) -> None:
    synchronised(cluster, 1)
    cluster[2].close()
    cluster[0].close()
    again = served_again(serve, cluster, 0)
    until(lambda: answer_of(again) == 1)
    synchronised(cluster, 2)
    assert answer_of(again) == 2


def test_a_replica_stops_before_the_primary_counts_on_it() -> None:
    clock = ManualClock()
    replica, primary = AnswerLeases(clock, 10, majority=True), AnswerLeases(clock, 10, majority=True)
    assert not replica.held()
    sent = clock.monotonic()
    clock.advance(3_000)
    assert primary.grant("r", 5, own=5)
    replica.extend(sent)
    assert replica.held()
    primary.require(6)
    assert not primary.grant("r", 5, own=6)
    assert primary.due("r", 6) == 3 + 11
    clock.advance(6_999)
    assert replica.held()
    clock.advance(1)
    assert not replica.held()
    assert clock.monotonic() < primary.due("r", 6)
    primary.hear("r", 6)
    assert primary.due("r", 6) == clock.monotonic()
    assert primary.grant("r", 6, own=6)


def test_a_primary_that_starts_grants_nothing_to_a_replica_that_lacks_what_it_has() -> None:
    clock = ManualClock()
    primary = AnswerLeases(clock, 10, majority=True)
    assert not primary.grant("r", 4, own=5)
    assert primary.due("r", 5) == 11
