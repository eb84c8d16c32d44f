"""The token of a client goes to the nodes that its user named, also after the list of nodes has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import ClusterHere
from tests.nodes.following import rows, ticking
from tests.nodes.test_membership import run
from tests.ports import free_ports

if TYPE_CHECKING:
    from millpond.nodes.tokens import Caller
    from tests.nodes.conftest import Served

Serve = Callable[..., "Served"]
RIGHTS: dict[str, dict[str, list[str]]] = {"owner": {"admin": ["*"]}, "client": {"admin": ["m"]}}
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


@pytest.fixture
def apart(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> ClusterHere:
    """Three nodes on two hosts, by their names: the second and the third are on another one than the first."""
    ports = free_ports(3)
    urls = [f"http://{host}:{port}" for host, port in zip(("127.0.0.1", "localhost", "localhost"), ports, strict=True)]
    monkeypatch.setenv("MILLPOND_CLIENT_TOKEN", "owner")  # of the commands
    made = ClusterHere(
        [
            serve(server_port=port, server_url=url, nodes_urls=urls, server_tokens=TOKENS, client_token="owner")
            for port, url in zip(ports, urls, strict=True)
        ]
    )
    for node in made.nodes:
        node.wait_ready()
    return made


def shown_to(node: Served, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The tokens that a node is shown from now on."""
    shown: list[str | None] = []
    caller = node.node.tokens.caller

    def noted(secret: str | None) -> Caller:
        shown.append(secret)
        return caller(secret)

    monkeypatch.setattr(node.node.tokens, "caller", noted)
    return shown


def test_maps_are_made_and_merged_without_the_nodes_that_may_not_be_asked(
    apart: ClusterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls for every node leave those out; they follow the log, and the primary makes them merge a load."""
    run("remove", apart.urls[2], "--pond", apart.url)  # so that the list of nodes is not that of the settings
    run("add", apart.urls[2], "--pond", ",".join(apart.urls[:2]))
    for node in apart.nodes:
        node.wait_ready()
    shown = [shown_to(node, monkeypatch) for node in apart.nodes]
    with millpond.open(apart[0].url, client_token="client", client_synchronise=True) as pond:
        target = pond.create_map("m", kind="state", value="long")
        target.load(rows("a", value=7))
        pond.alter_map("m", overwrite=False)
        pond.merge()
        target.compact()
        assert pond.map("m").get("a") == 7
        pond.drop_map("m")
    assert "client" in shown[0]
    assert all("client" not in tokens for tokens in shown[1:])


@pytest.mark.parametrize("primary", [0, 1])
def test_a_token_is_withheld_from_nodes_that_were_not_named(
    apart: ClusterHere, monkeypatch: pytest.MonkeyPatch, primary: int
) -> None:
    """A load needs them all the same: they fetch its parts, and the primary says when they have it."""
    apart[0].pond.create_map("m", kind="state", value="long")
    run("remove", apart.urls[2], "--pond", apart.url)
    run("add", apart.urls[2], "--pond", ",".join(apart.urls[:2]))
    if primary:
        run("promote", apart.urls[primary], "--pond", apart.url)
    for node in apart.nodes:
        node.wait_ready()
    named, others = ([apart[0]], apart.nodes[1:]) if not primary else (apart.nodes[1:], [apart[0]])
    shown = {node.url: shown_to(node, monkeypatch) for node in apart.nodes}
    with millpond.open(named[0].url, client_token="client", client_synchronise=True) as pond:
        pond.map("m").load(rows("a", value=7))
        assert pond.map("m").get("a") == 7
    for node in apart.nodes:
        answer = node.get("/v1/maps/m/get?key=a", headers={"Authorization": "Bearer owner"})
        assert (answer.status, answer.json().get("value")) == (200, 7), node.url
    assert "client" in shown[named[0].url]
    assert all("client" not in shown[node.url] for node in others)
