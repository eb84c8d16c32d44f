"""SIGKILL at each step of a change of the list of nodes, under loads and reads, with nodes in processes of their own.

After each death the node is started and the order is given again. Nothing that was acknowledged is lost, no answer is
older than it, and the nodes agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from typer.testing import CliRunner
from urllib3.exceptions import HTTPError

import millpond
from millpond.cli.main import app
from tests.harness.cluster import Cluster, wait_for
from tests.harness.cluster_audit import fetch_json
from tests.nodes.following import rows
from tests.nodes.traffic import Traffic

pytestmark = pytest.mark.sample(1, of="faults of nodes")

SPARE = 3
SETTINGS = {"client_read_timeout": "5s", "nodes_lag_limit": "2s"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("members"), 3, settings=SETTINGS, spare=1) as made:
        with millpond.open(made.url, client_synchronise=True) as pond:
            pond.create_map("m", kind="state", value="long").load(rows("a", value=0))
        made.start(SPARE, wait=False)
        yield made


def order(cluster: Cluster, *words: str) -> bool:
    """Give an order; True when it succeeded."""
    done = CliRunner().invoke(app, ["node", *words, "--pond", cluster.url], prog_name="millpond")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code == 0


def facts(cluster: Cluster, number: int) -> dict[str, Any]:
    found: dict[str, Any] = fetch_json(cluster, number, "/v1/node")
    return found


def members(cluster: Cluster) -> list[int]:
    """The numbers of the nodes in the latest list, the primary first."""
    known = []
    for node in cluster.nodes:
        with suppress(HTTPError):
            known.append(facts(cluster, node.number))
    latest = max(known, key=lambda found: int(found["epoch"]))
    urls = [node.url for node in cluster.nodes]
    return [urls.index(url) for url in latest["nodes"]]


def started_again(cluster: Cluster, number: int) -> None:
    cluster.wait_dead(number)
    cluster.start(number, wait=False)
    wait_for(lambda: answers(cluster, number), f"node {number} to answer", 60)


def answers(cluster: Cluster, number: int) -> bool:
    with suppress(HTTPError):
        return cluster.ask(number, "GET", "/healthz").status == 200
    return False


def all_ready(cluster: Cluster) -> None:
    for number in members(cluster):
        cluster.wait_ready(number)


def check(cluster: Cluster, traffic: Traffic) -> None:
    """Hold every member against what was acknowledged."""
    assert not traffic.faults, traffic.faults
    all_ready(cluster)
    values = set()
    for number in members(cluster):
        answer = cluster.ask(number, "GET", "/v1/maps/m/get?key=a")
        values.add(answer.json()["value"])
    assert values <= {traffic.acknowledged, traffic.tried}
    done = CliRunner().invoke(app, ["verify", "--pond", cluster.url], prog_name="millpond")
    assert done.exit_code == 0, done.stdout
    roles = [facts(cluster, number)["role"] for number in members(cluster)]
    assert roles.count("primary") == 1


def repeated(cluster: Cluster, *words: str) -> None:
    wait_for(lambda: order(cluster, *words), f"{words} to succeed", 90)


def traffic_of(cluster: Cluster) -> Traffic:
    traffic = Traffic(cluster.url, reads_stop=False)
    with millpond.open(cluster.url) as pond:
        traffic.acknowledged = traffic.tried = pond.map("m").get("a")
    return traffic


def steps(*chosen: tuple[bool, str]) -> list[Any]:
    """The steps of an order; all but one are for the full form."""
    return [
        pytest.param(place, step, marks=() if step == "nodes.entered" else pytest.mark.full) for place, step in chosen
    ]


AT_THE_OLD = ("nodes.gate_closed", "nodes.level", "nodes.entered", "nodes.adopted", "nodes.followed")


@pytest.mark.parametrize(("at_new", "step"), steps(*[(False, step) for step in AT_THE_OLD], (True, "nodes.adopted")))
def test_a_node_dies_while_another_one_becomes_the_primary(cluster: Cluster, at_new: bool, step: str) -> None:
    all_ready(cluster)
    old, new, *_ = members(cluster)
    with traffic_of(cluster) as traffic:
        traffic.goes_on()
        victim = new if at_new else old
        cluster.kill_at(victim, step)
        order(cluster, "promote", cluster.nodes[new].url)
        started_again(cluster, victim)
        repeated(cluster, "promote", cluster.nodes[new].url)
        traffic.goes_on()
    check(cluster, traffic)
    assert members(cluster)[0] == new


@pytest.mark.full
@pytest.mark.parametrize(
    ("at_new", "step"), steps((False, "nodes.entered"), (False, "nodes.followed"), (True, "nodes.adopted"))
)
def test_a_node_dies_while_a_node_is_added_and_while_it_is_removed(cluster: Cluster, at_new: bool, step: str) -> None:
    all_ready(cluster)
    primary, *_ = members(cluster)
    [spare] = set(range(4)) - set(members(cluster))
    victim = spare if at_new else primary
    with traffic_of(cluster) as traffic:
        traffic.goes_on()
        url = cluster.nodes[spare].url
        cluster.kill_at(victim, step)
        wait_for(lambda: not cluster.nodes[victim].runs or order(cluster, "add", url), "the order to succeed", 90)
        started_again(cluster, victim)
        repeated(cluster, "add", url)
        traffic.goes_on()
        cluster.wait_ready(spare)
        cluster.kill_at(victim, "nodes.leaving" if step == "nodes.followed" else step)
        order(cluster, "remove", url)
        started_again(cluster, victim)
        repeated(cluster, "remove", url)
        traffic.goes_on()
    check(cluster, traffic)
    assert spare not in members(cluster)
    assert cluster.ask(spare, "GET", "/v1/maps/m/get?key=a").status == 503


@pytest.mark.parametrize(
    ("at_voter", "step"), steps((False, "nodes.promised"), (False, "promotion.promised"), (False, "nodes.entered"),
                                (True, "nodes.promised"), (True, "nodes.adopted")),
)  # fmt: skip
def test_a_node_dies_while_another_one_becomes_the_primary_without_the_old_one(
    cluster: Cluster, at_voter: bool, step: str
) -> None:
    all_ready(cluster)
    old, new, other = members(cluster)
    with traffic_of(cluster) as traffic:
        traffic.goes_on()
        cluster.kill(old)
        # What the old one entered last may be on one of them only.
        new, other = sorted((new, other), key=lambda number: -facts(cluster, number)["position"])
        victim = other if at_voter else new
        cluster.kill_at(victim, step)
        order(cluster, "promote", cluster.nodes[new].url, "--without-primary")
        started_again(cluster, victim)
        repeated(cluster, "promote", cluster.nodes[new].url, "--without-primary")
        repeated(cluster, "remove", cluster.nodes[old].url, "--lost")
        traffic.goes_on()
        cluster.start(old, wait=False)
        wait_for(lambda: knows(cluster, old), "the old primary to answer")
        if facts(cluster, old)["ready"] or not is_forked(cluster, old):
            repeated(cluster, "add", cluster.nodes[old].url)
        else:
            done = CliRunner().invoke(
                app, ["repair", cluster.nodes[old].url, "--from", cluster.nodes[new].url, "--yes"], prog_name="millpond"
            )
            assert done.exit_code == 0, done.stdout
            repeated(cluster, "add", cluster.nodes[old].url)
        traffic.goes_on()
    check(cluster, traffic)
    assert sorted(members(cluster)) == sorted((old, new, other))


def knows(cluster: Cluster, number: int) -> bool:
    """True when a node has heard that it is no member, or that its log is another one."""
    try:
        reasons = cluster.ask(number, "GET", "/readyz").json()["reasons"]
    except HTTPError:
        return False
    return any("no member" in reason for reason in reasons) or is_forked(cluster, number)


def is_forked(cluster: Cluster, number: int) -> bool:
    reasons = cluster.ask(number, "GET", "/readyz").json()["reasons"]
    return any("another one than its peer's" in reason for reason in reasons)
