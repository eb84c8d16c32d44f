"""Nodes are compared, map by map, and what differs is repaired; by hand and from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.client.transport import Connection
from millpond.clock import ManualClock
from millpond.errors import Denied, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.nodes.replication.local_peer import LocalPeer
from millpond.nodes.replication.log_agreement import agreement
from millpond.nodes.replication.peer import Peer
from millpond.pond import open_pond
from millpond.testing.passing_time import while_time_passes
from tests.nodes.acted import Stage
from tests.nodes.following import SECONDS, caught_up

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(4, of="file")


# -- by the answers alone -----------------------------------------------------------------------------


class Answers:
    """A node with prepared answers, the last one for ever."""

    def __init__(self, url: str, maps: dict[str, list[Any]], position: int = 5) -> None:
        self.url, self._maps, self._position = url, maps, position
        self.requests: list[tuple[str, int]] = []

    def node(self) -> dict[str, Any]:
        return {"position": self._position}

    def maps(self) -> list[dict[str, Any]]:
        return [{"name": name} for name in self._maps]

    def digest(self, name: str, position: int, seconds: float) -> dict[str, Any]:
        self.requests.append((name, position))
        if name not in self._maps:
            raise NotFound("no such map", kind="map_not_found", map=name)
        answers = self._maps[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(zip(("position", "entry", "rows", "digest"), answer, strict=True))


def states(*nodes: Answers, seconds: float = 0.0) -> dict[tuple[str, str], str]:
    clock = ManualClock()
    found = while_time_passes(clock, lambda: agreement(list(nodes), clock, seconds=seconds))
    return {(finding.map, finding.node): finding.state for finding in found.findings}


def slow(position: int) -> Unavailable:
    return Unavailable("not everything has been merged yet", kind="merge_slow", position=position)


def test_equal_digests_agree() -> None:
    one, two = Answers("one", {"m": [(5, 3, 10, "aa")]}), Answers("two", {"m": [(9, 4, 10, "aa")]})
    assert states(one, two) == {("m", "one"): "agrees", ("m", "two"): "agrees"}
    assert two.requests == [("m", 5)]


def test_different_digests_differ_once_both_have_applied_the_same() -> None:
    one = Answers("one", {"m": [(5, 3, 10, "aa")]})
    for other in ((5, 3, 11, "aa"), (5, 3, 10, "bb"), (7, 2, 10, "bb")):
        assert states(one, Answers("two", {"m": [other]}))["m", "two"] == "differs"


def test_a_node_that_is_ahead_is_compared_when_the_primary_is_there() -> None:
    one = Answers("one", {"m": [(5, 3, 10, "aa"), (8, 8, 12, "cc")]})
    two = Answers("two", {"m": [(8, 8, 12, "cc")]})
    assert states(one, two, seconds=5.0)["m", "two"] == "agrees"
    assert one.requests == [("m", 5), ("m", 8)]


def test_a_node_that_stays_behind_is_reported_with_its_lag() -> None:
    one, two = Answers("one", {"m": [(5, 3, 10, "aa")]}), Answers("two", {"m": [slow(2)]})
    clock = ManualClock()
    [_, finding] = while_time_passes(clock, lambda: agreement([one, two], clock, seconds=30.0)).findings
    assert (finding.state, finding.behind, finding.position) == ("behind", 3, 2)
    assert len(two.requests) > 1
    catching_up = Answers("two", {"m": [slow(2), slow(4), (5, 3, 10, "aa")]})
    assert states(one, catching_up, seconds=5.0)["m", "two"] == "agrees"


def test_maps_that_cannot_be_compared_are_reported() -> None:
    one = Answers("one", {"m": [(5, 3, 10, "aa")]})
    gone = Unavailable("the node cannot be reached", kind="node_unreachable", node="two")
    assert states(one, Answers("two", {"m": [gone]}), seconds=5.0)["m", "two"] == "unreachable"
    denied = Denied("the token does not carry this right", kind="right_missing")
    assert states(one, Answers("two", {"m": [denied]}), seconds=5.0)["m", "two"] == "unreachable"


def test_maps_that_only_one_node_has() -> None:
    one = Answers("one", {"m": [(5, 3, 10, "aa")]})
    two = Answers("two", {"other": [(5, 3, 10, "aa")]})
    assert states(one, two) == {("m", "one"): "agrees", ("m", "two"): "missing", ("other", "two"): "differs"}


# -- one node's own answer ----------------------------------------------------------------------------


def test_rows_in_the_middle_of_maintenance_are_not_reported(tmp_path: Path) -> None:
    with open_pond(tmp_path) as pond:
        local_peer = LocalPeer(pond, ManualClock(), "http://local")
        filled(pond)
        before = local_peer.digest("t")
        digests: list[dict[str, Any]] = []
        refused: list[str] = []

        def ask(step: str) -> None:
            if step == "condense.batch_committed":
                try:
                    digests.append(local_peer.digest("t"))
                except Unavailable as error:
                    refused.append(error.kind)

        with listening(ask):
            pond.map("t").condense("2000-01-01T00:00Z")
        assert not digests
        assert set(refused) == {"merge_slow"}
        after = local_peer.digest("t", pond.log.position()[0])
        assert after["entry"] == pond.log.position()[0]
        assert (before["rows"], after["rows"]) == (300, 3)


def filled(pond: Any) -> None:
    keys = [key for key in "abc" for _ in range(100)]
    times = pa.array(list(range(100)) * 3).cast(pa.timestamp("ms", tz="UTC"))
    pond.create_map("t", kind="temporal_state", value="long")
    pond.map("t").load(pa.table({"key": keys, "effective_time": times, "value": [1] * 300}))


# -- in a cluster -------------------------------------------------------------------------------------


def load(cluster: ClusterHere, *keys: str, name: str = "m") -> int:
    pond = cluster[0].pond
    if name not in [pond_map.name for pond_map in pond.maps()]:
        pond.create_map(name, kind="state", value="long")
    position = pond.map(name).load(pa.table({"key": list(keys), "value": [1] * len(keys)})).position
    for node in cluster.nodes:
        caught_up(node, position)
    return position


def lose_a_row(node: Served, name: str = "m") -> None:
    """Remove a row behind the node's back, which must never happen and which nothing reports."""
    shard = node.pond.map(name).shard
    rows = next(shard.read_rows())
    shard.change(lambda tx: shard.delete_rows(tx, rows.slice(0, 1)), None)


def shell(clock: ManualClock, *words: str, code: int = 0) -> str:
    run = CliRunner().invoke
    done = while_time_passes(clock, lambda: run(app, list(words), prog_name="millpond"))
    assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_map_that_differs_is_found_and_repaired(cluster: ClusterHere) -> None:
    load(cluster, "a", "b", "c")
    load(cluster, "x", name="n")
    report = json.loads(shell(cluster[0].clock, "verify", "--pond", cluster[1].url, "--json"))
    assert report["agreement"]["agrees"]
    assert len(report["agreement"]["findings"]) == 6
    assert report["problems"] == []
    lose_a_row(cluster[2])
    report = json.loads(shell(cluster[0].clock, "verify", "--pond", cluster.url, "--wait", "5", "--json", code=1))
    differing = [finding for finding in report["agreement"]["findings"] if finding["state"] != "agrees"]
    assert [(finding["map"], finding["node"], finding["state"], finding["rows"]) for finding in differing] == [
        ("m", cluster[2].url, "differs", 2)
    ]
    assert "differs" in shell(cluster[0].clock, "verify", "--pond", cluster.url, "--wait", "5", code=1)
    report = json.loads(shell(cluster[0].clock, "repair", cluster[2].url, "--json"))
    assert [f"cloned map m from {cluster[0].url}" in line for line in report["done"]] == [True]
    assert "all nodes agree" in shell(cluster[0].clock, "verify", "--pond", cluster.url)
    assert "nothing was to be done" in shell(cluster[0].clock, "repair", cluster[2].url)
    load(cluster, "d")
    assert json.loads(shell(cluster[0].clock, "verify", "--pond", cluster.url, "--json"))["agreement"]["agrees"]


def test_a_shard_that_cannot_be_read_is_replaced(cluster: ClusterHere) -> None:
    load(cluster, *(f"key number {number}" for number in range(5000)))
    broken = cluster[1]
    folder = broken.pond.map("m").shard.folder
    file = folder / (folder / "current").read_text().strip() / "data.mdb"
    with file.open("r+b") as pages:
        for page in range(2, file.stat().st_size // 4096 - 8):
            pages.seek(4096 * page + 8)
            pages.write(b"\xff" * 8)  # what a page says of itself: it is none that LMDB knows
    report = json.loads(shell(cluster[0].clock, "verify", "--pond", cluster.url, "--wait", "5", "--json", code=1))
    assert any(broken.url in problem for problem in report["problems"])
    assert [finding["node"] for finding in report["agreement"]["findings"] if finding["state"] == "damaged"] == [
        broken.url
    ]
    assert "cloned map m" in shell(broken.clock, "repair", broken.url)
    assert "all nodes agree" in shell(cluster[0].clock, "verify", "--pond", cluster.url)
    load(cluster, "after")
    assert broken.pond.map("m").get("after") == 1


def test_a_primary_is_repaired_from_a_replica(cluster: ClusterHere) -> None:
    load(cluster, "a", "b", "c")
    lose_a_row(cluster[0])
    report = json.loads(shell(cluster[0].clock, "verify", "--pond", cluster.url, "--wait", "5", "--json", code=1))
    differing = [finding["node"] for finding in report["agreement"]["findings"] if finding["state"] == "differs"]
    assert sorted(differing) == sorted(cluster.urls[1:])
    assert "cloned map m" in shell(cluster[0].clock, "repair", cluster[0].url, "--from", cluster[1].url, "--yes")
    assert "all nodes agree" in shell(cluster[0].clock, "verify", "--pond", cluster.url)


def test_no_node_is_repaired_without_a_request(cluster: ClusterHere) -> None:
    done = CliRunner().invoke(app, ["repair", cluster[0].url, "--from", cluster[1].url], input="n\n")
    assert done.exit_code == 1
    assert "is thrown away" in done.stderr
    assert cluster[0].get("/v1/repair").json()["state"] == "never"


def test_a_repair_that_cannot_be_made_says_why(cluster: ClusterHere) -> None:
    load(cluster, "a")
    done = CliRunner().invoke(app, ["repair", cluster[1].url, "--from", cluster[1].url, "--yes"])
    assert done.exit_code == 5
    assert "cannot be repaired from itself" in done.stderr
    cluster[0].close()
    done = CliRunner().invoke(app, ["repair", cluster[1].url])
    assert done.exit_code == 7
    assert "cannot be reached" in done.stderr


def test_a_node_is_repaired_from_its_own_nodes_only(cluster: ClusterHere) -> None:
    """Others are not connected to: they would get the token of the node, and say what it holds."""
    load(cluster, "a")
    port = urlsplit(cluster[0].url).port
    with Stage() as stranger:
        own = [cluster[0].url.replace("127.0.0.1", "localhost"), f"http://127.0.0.1:{port}@{stranger.url[7:]}"]
        for source in (stranger.url, f"{stranger.url}/", *own, "nowhere", ""):
            for _ in range(2):
                answer = cluster[1].post("/v1/repair", {"source": source})
                assert (answer.status, answer.json()["kind"]) == (400, "node_unknown"), source
        assert stranger.requests == []
    assert cluster[1].get("/v1/repair").json()["state"] == "never"


def test_a_node_that_is_down_is_reported(cluster: ClusterHere) -> None:
    load(cluster, "a")
    cluster[2].close()
    report = json.loads(shell(cluster[0].clock, "verify", "--pond", cluster[0].url, "--wait", "3", "--json", code=1))
    assert {(finding["node"], finding["state"]) for finding in report["agreement"]["findings"]} == {
        (cluster[0].url, "agrees"), (cluster[1].url, "agrees"), (cluster[2].url, "unreachable"),
    }  # fmt: skip
    assert any(cluster[2].url in problem for problem in report["problems"])


def test_a_cluster_that_is_written_to_is_compared_all_the_same(cluster: ClusterHere) -> None:
    load(cluster, "a")
    more = iter(range(1000))
    nodes = [Peer(Connection(served.url, served.node.settings)) for served in cluster.nodes]
    status_of = nodes[0].node

    def meanwhile() -> dict[str, Any]:
        status = status_of()
        for _ in range(3):
            cluster[0].pond.map("m").load(pa.table({"key": [f"k{next(more)}"], "value": [1]}))
        return status

    nodes[0].node = meanwhile  # type: ignore[method-assign]
    clock = cluster[0].clock
    found = while_time_passes(clock, lambda: agreement(nodes, clock, seconds=SECONDS))
    assert found.ok, found.to_dict()


def test_a_node_that_is_alone_is_compared_with_nobody(node: Served) -> None:
    report = json.loads(shell(node.clock, "verify", "--pond", node.url, "--json"))
    assert report["problems"] == []
    assert "agreement" not in report
