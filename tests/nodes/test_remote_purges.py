"""Purges of all refs, asked of a node: by a client, and on the page of a map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import millpond
from millpond.errors import Denied
from millpond.nodes.tokens import hash_token
from tests.nodes.following import caught_up, load, until
from tests.nodes.test_comparing import compared
from tests.nodes.test_console_proxy import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.client.pond import RemotePond
    from tests.nodes.conftest import ClusterHere, Served

RIGHTS = {
    "owner": {"admin": ["*", "repo:*"]},
    "admin-of-map": {"admin": ["m"], "write": ["repo:pond/fix-*"]},
}  # fmt: skip
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]
WHERE = "key = 'ann'"


def as_token(node: Served, name: str) -> RemotePond:
    return cast("RemotePond", millpond.open(node.url, client_token=name))


def fill(pond: Any) -> None:
    pond.create_map("m", kind="state", value="long", store="layers").load(
        [{"key": "ann", "value": 1}, {"key": "bob", "value": 2}]
    )
    pond.branch("fix-1", source="main").map("m").load([{"key": "carl", "value": 3}])


def test_it_needs_the_right_on_all_branches(serve: Callable[..., Served]) -> None:
    node = serve(server_tokens=TOKENS)
    fill(node.pond)
    with as_token(node, "admin-of-map") as pond:
        with pytest.raises(Denied):
            pond.map("m").delete(WHERE, now=True, branches=True)
        assert pond.map("m").get("ann") == 1
    with as_token(node, "owner") as pond:
        report = pond.map("m").delete(WHERE, now=True, branches=True)
    assert (report.purged, report.rows_removed) == (True, 1)
    assert [line.partition(":")[0] for line in report.changed] == ["branch fix-1", "the merge base of fix-1 and main"]
    assert [pond.map("m").get("ann") for pond in (node.pond, node.pond.branch("fix-1"))] == [None, None]


def test_the_page_of_a_key_purges_it_from_all_refs(serve: Callable[..., Served]) -> None:
    node = serve()
    fill(node.pond)
    visitor = Visitor(node, "someone")
    done = visitor.press("/console/maps/m?key=ann", "/console/maps/m/delete", typed="ann", purge="now, from all refs")
    assert done.status == 200
    assert "the merge base of fix-1 and main" in done.data.decode()
    assert [pond.map("m").get("ann") for pond in (node.pond, node.pond.branch("fix-1"))] == [None, None]


def test_nodes_agree_after_a_purge_of_one(cluster: ClusterHere) -> None:
    primary, replica, _ = cluster.nodes
    caught_up(replica, load(primary, "a", "b"))
    primary.node.copies.close()  # a replica that began late had one, which would stay for minutes
    purged = primary.pond.map("m")
    assert purged.delete("key = 'a'", now=True).rows_removed == 1
    until(lambda: purged.delete("key = 'a'", now=True).purged)  # who follows holds a part, or a snapshot, for a moment
    caught_up(replica, load(primary, "c"))
    assert compared(replica).error is None
    assert [node.pond.map("m").lookup(["a", "b", "c"]).to_pylist() for node in (primary, replica)] == [[None, 1, 1]] * 2
