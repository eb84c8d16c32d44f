"""Alerts of nodes that replicate: rules go through the log, each node judges what it merges, the primary tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.maps.alerts.alerted import next_alerted
from tests.nodes.following import served_again, ticking, until
from tests.nodes.test_membership import ordered, run

if TYPE_CHECKING:
    from millpond.clock import ManualClock
    from tests.nodes.conftest import ClusterHere, Served

Serve = Callable[..., "Served"]


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


@pytest.fixture
def sales(cluster: ClusterHere) -> Iterator[Any]:
    with millpond.open(cluster.url, client_synchronise=True, client_attempts=1) as pond:
        yield pond.create_map("sales", kind="aggregate", value="orders long count", resolution="1 hour")


def orders(key: str, many: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"key": key, "time": f"2024-03-30T22:{minute:02}Z"} for minute in range(first, first + many)]


def alerts_at(node: Served) -> list[tuple[str, str]]:
    events = node.pond.events.read("millpond", "alerts/sales")
    return [(event.headers["rule"], event.headers["key"]) for event in events]


def quiet(node: Served) -> bool:
    """Nothing is left to be told at a node."""
    return not next_alerted(node.pond.space)


def test_the_primary_tells_each_crossing_once_and_others_learn_of_it(cluster: ClusterHere, sales: Any) -> None:
    sales.load(orders("before", 3))
    rule = sales.alerts.add("orders > 2", name="many")
    until(lambda: all(node.pond.map("sales").alerts.list() == (rule,) for node in cluster.nodes))
    for first in (0, 2, 4):
        sales.load(orders("a", 2, first))
    sales.load(orders("before", 1, 7))
    until(lambda: alerts_at(cluster[0]))
    until(lambda: all(map(quiet, cluster.nodes)))
    assert [alerts_at(node) for node in cluster.nodes] == [[("many", "a")], [], []]
    sales.alerts.remove("many")
    sales.load(orders("b", 5))
    until(lambda: not any(node.pond.map("sales").alerts.list() for node in cluster.nodes))
    assert all(map(quiet, cluster.nodes))


def test_who_becomes_the_primary_tells_what_the_one_before_did_not(
    cluster: ClusterHere, sales: Any, serve: Serve
) -> None:
    sales.alerts.add("orders > 2", name="many")
    sales.load(orders("a", 3))
    until(lambda: alerts_at(cluster[0]) and all(map(quiet, cluster.nodes)))
    cluster[0].pond.tell_alerts = lambda: None  # as if it ended before
    sales.load(orders("b", 3))
    until(lambda: not any(map(quiet, cluster.nodes)))
    cluster[0].close()
    ordered("promote", cluster.urls[1], "--without-primary", "--pond", cluster.urls[2])
    until(lambda: alerts_at(cluster[1]))
    run("remove", cluster.urls[0], "--lost", "--pond", cluster.urls[1])
    sales.load(orders("c", 3))
    until(lambda: len(alerts_at(cluster[1])) > 1)
    back = served_again(serve, cluster, 0)
    run("add", cluster.urls[0], "--pond", cluster.urls[1])
    back.wait_ready()
    nodes = (back, *cluster.nodes[1:])
    until(lambda: all(map(quiet, nodes)))
    assert [alerts_at(node) for node in nodes] == [[("many", "a")], [("many", "b"), ("many", "c")], []]
