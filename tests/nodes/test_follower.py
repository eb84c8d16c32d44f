"""Replicas follow the primary's log: in order, after breaks, from whichever peer has what they need."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.nodes.replication.follower import Follower
from millpond.nodes.replication.peer import LogPage, Peer
from millpond.settings import load_settings
from millpond.testing.faults import flip_byte
from millpond.testing.passing_time import until
from tests.nodes.following import SECONDS, caught_up, compared, load, rows, served_again
from tests.ports import free_ports

if TYPE_CHECKING:
    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(2, of="file")


def test_everything_that_happens_to_maps_reaches_all_nodes(cluster: ClusterHere) -> None:
    primary, *replicas = cluster.nodes
    load(primary, "a", "b")
    pond = primary.pond
    pond.create_map("t", kind="temporal_state", value="double")
    times = pa.array([1, 2, 3]).cast(pa.timestamp("ms", tz="UTC"))
    pond.map("t").load(pa.table({"key": ["a"] * 3, "effective_time": times, "value": [1.0, 1.0, 2.0]}))
    pond.alter_map("m", overwrite=False)
    load(primary, "a", "c", value=2)
    pond.create_map("gone", kind="state", value="long").load(rows("x"))
    pond.drop_map("gone")
    position = pond.log.order_maintenance("t", "condense", 1_000_000).position
    for node in cluster.nodes:
        caught_up(node, position)
    assert compared(*cluster.nodes).ok
    for node in replicas:
        assert node.pond.log.position() == pond.log.position()
        assert node.pond.log.pond_id == pond.log.pond_id
        assert [pond_map.name for pond_map in node.pond.maps()] == ["m", "t"]
        assert [node.pond.map("m").get(key) for key in "abcd"] == [1, 1, 2, None]
        assert node.pond.map("t").shard.stats().rows == 2
        assert node.node.follower.status().behind == 0


def test_a_hundred_waiters_are_one_pull(cluster: ClusterHere) -> None:
    primary, replica, _ = cluster.nodes
    load(primary, "a")
    follower = replica.node.follower
    first = _Counting(follower.peers()[0].connection)
    follower.members.peers[0] = first
    caught_up(replica, primary.pond.log.position()[0])
    with ThreadPoolExecutor(100) as pool:
        requests_before = first.requests
        pending = [pool.submit(follower.pull, primary.pond.log.position()[0] + 1, SECONDS) for _ in range(100)]
        position = load(primary, "b")
        assert all(future.result() >= position for future in pending)
    assert first.requests - requests_before <= 10


class _Counting(Peer):
    """A peer that counts requests for its log."""

    requests = 0

    def log(self, after: int, *, limit: int = 1000, wait_seconds: float = 0) -> LogPage:
        self.requests += 1
        return super().log(after, limit=limit, wait_seconds=wait_seconds)


def test_a_node_that_was_down_replicates_without_help(cluster: ClusterHere, serve: Callable[..., Served]) -> None:
    caught_up(cluster[2], load(cluster[0], "a"))
    cluster[2].close()
    position = 0
    for number in range(5):
        position = load(cluster[0], f"k{number}", value=number)
    back = served_again(serve, cluster, 2)
    back.until(lambda: back.pond.log.position()[0] == position)
    caught_up(back, position)
    assert compared(cluster[0], cluster[1], back).ok
    assert back.node.follower.status().pulled == 5
    assert back.node.follower.status().clones == 0


def test_a_node_that_is_new_clones(cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path) -> None:
    position = 0
    for key in "abc":
        position = load(cluster[0], key)
    cluster[2].close()
    fresh = served_again(serve, cluster, 2, tmp_path / "fresh")
    fresh.until(lambda: fresh.node.follower.status().clones == 1)
    caught_up(fresh, position)
    assert fresh.node.follower.status().pulled == 0
    caught_up(fresh, load(cluster[0], "d"))
    assert compared(cluster[0], cluster[1], fresh).ok


def test_a_node_that_was_away_too_long_clones(cluster: ClusterHere, serve: Callable[..., Served]) -> None:
    load(cluster[0], "a")
    caught_up(cluster[1], 2)
    cluster[2].close()
    position = load(cluster[0], "b")
    for node in cluster.nodes[:2]:
        caught_up(node, position)
        node.pond.parts.expire(1 << 60)
    position = load(cluster[0], "c")
    back = served_again(serve, cluster, 2)
    back.until(lambda: back.node.follower.status().clones == 1)
    assert back.pond.log.position()[0] == position
    assert [back.pond.map("m").get(key) for key in "abc"] == [1, 1, 1]
    after = load(cluster[0], "d")
    caught_up(back, after)
    assert compared(cluster[0], cluster[1], back).ok


def test_a_part_comes_from_whoever_has_it_whole(cluster: ClusterHere) -> None:
    primary, replica, late = cluster.nodes
    late.node.follower.stop()
    position = load(primary, "a", "b")
    for node in (primary, replica):
        caught_up(node, position)
    [part] = primary.pond.parts.list(state="retained")
    file = primary.pond.parts.file(part.part)
    assert file is not None
    flip_byte(file, 5000)
    late.node.follower.start()
    caught_up(late, position)
    assert late.pond.map("m").get("b") == 1


def test_a_quarantined_part_comes_back_whole(cluster: ClusterHere) -> None:
    primary, replica, other = cluster.nodes
    primary.node.merger.stop()
    position = load_unmerged(primary, "a", "b")
    for node in (replica, other):
        caught_up(node, position)
    [part] = primary.pond.parts.list(state="queued")
    file = primary.pond.parts.file(part.part)
    assert file is not None
    flip_byte(file, 5000)
    primary.node.merger.start()
    primary.until(lambda: primary.node.follower.status().healed == 1)
    primary.until(lambda: primary.pond.map("m").get("b") == 1)
    assert not primary.pond.parts.list(state="quarantined")
    assert compared(*cluster.nodes).ok


def test_a_part_that_can_no_longer_be_put_in_its_place_is_healed_by_a_copy_of_the_map(cluster: ClusterHere) -> None:
    primary, replica, _ = cluster.nodes
    caught_up(replica, load(primary, "a"))
    # Of two rows with one key the first stays: what came later cannot just be merged once more.
    primary.pond.alter_map("m", overwrite=False)
    replica.node.merger.stop()
    load(primary, "b", value=2)
    position = load(primary, "b", "c", value=3)
    replica.while_time_passes(lambda: replica.node.follower.pull(position, SECONDS))
    damaged = replica.pond.parts.file(replica.pond.parts.list("m", "queued")[0].part)
    assert damaged is not None
    flip_byte(damaged, 5000)
    replica.node.merger.start()
    replica.until(lambda: replica.node.follower.status().healed == 1)
    assert [replica.pond.map("m").get(key) for key in "abc"] == [1, 2, 3]
    assert not replica.pond.parts.list(state="quarantined")
    assert compared(*cluster.nodes).ok


def load_unmerged(node: Served, *keys: str) -> int:
    """Load into `m` without waiting for the merge, which does not run."""
    if "m" not in [pond_map.name for pond_map in node.pond.maps()]:
        node.pond.create_map("m", kind="state", value="long")
    writer = node.pond.part_writer("m")
    writer.write(pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array([1] * len(keys))},
                                 schema=writer._schema))  # fmt: skip
    return node.pond.commit_load(writer.finish(), wait=False).position


def test_a_primary_that_lost_its_last_entries_gets_them_back(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, *replicas = cluster.nodes
    for node in cluster.nodes:
        caught_up(node, 0)
    load(primary, "a")
    primary.close()
    shutil.copytree(primary.node.settings.server.data, tmp_path / "older")
    again = served_again(serve, cluster, 0)
    position = load(again, "b")
    for node in replicas:
        caught_up(node, position)
    again.close()
    restored = served_again(serve, cluster, 0, tmp_path / "older")
    restored.until(lambda: restored.node.started)
    assert restored.pond.log.position()[0] == position
    after = load(restored, "c")
    for node in replicas:
        caught_up(node, after)
    assert compared(restored, *replicas).ok
    assert restored.pond.map("m").get("b") == 1


def test_a_primary_with_an_empty_folder_gets_all_of_it_back(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, *replicas = cluster.nodes
    position = load(primary, "a", "b")
    for node in replicas:
        caught_up(node, position)
    primary.close()
    fresh = served_again(serve, cluster, 0, tmp_path / "fresh")
    fresh.until(lambda: fresh.node.started)
    assert fresh.pond.log.position()[0] == position
    fresh.pond.log.wait_applied(position, timeout=SECONDS)
    assert compared(fresh, *replicas).ok


def test_a_paused_node_replicates_only_on_demand(cluster: ClusterHere) -> None:
    primary, replica, other = cluster.nodes
    caught_up(replica, load(primary, "a"))
    assert replica.post("/v1/jobs/replicate/pause").json()["paused"]
    replica.until(lambda: replica.node.follower.status().state == "held")
    before = replica.pond.log.position()
    position = load(primary, "b")
    caught_up(other, position)
    with pytest.raises(Unavailable) as raised:
        replica.while_time_passes(lambda: replica.node.follower.pull(position, SECONDS))
    assert raised.value.kind == "node_held"
    assert replica.pond.log.position() == before
    with millpond.open(cluster.url) as pond, pytest.raises(Unavailable, match="replication is paused"):
        pond.map("m").load(rows("c"))
    assert replica.pond.log.position() == before
    run = replica.node.scheduler.run("replicate")
    assert run.last is not None
    assert run.last.error is None
    assert replica.pond.log.position() == primary.pond.log.position()
    replica.until(lambda: replica.node.follower.status().state == "held")
    after = load(primary, "d")
    replica.post("/v1/jobs/replicate/resume")
    caught_up(replica, after)
    assert compared(*cluster.nodes).ok


def test_a_primary_that_is_held_asks_its_peers_before_it_takes_changes(
    cluster: ClusterHere, serve: Callable[..., Served], tmp_path: Path
) -> None:
    primary, *replicas = cluster.nodes
    primary.post("/v1/jobs/replicate/pause")
    caught_up(replicas[0], load(primary, "a"))
    primary.close()
    shutil.copytree(primary.node.settings.server.data, tmp_path / "older")
    again = served_again(serve, cluster, 0)
    position = load(again, "b")
    caught_up(replicas[0], position)
    again.close()
    restored = served_again(serve, cluster, 0, tmp_path / "older")
    restored.until(lambda: restored.node.started)
    assert restored.node.follower.pause.held
    assert restored.pond.log.position()[0] == position


def test_a_node_that_always_has_more_to_enter_is_looked_after_too(
    cluster: ClusterHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.nodes.replication.follower.REST_SECONDS_MAX", 0.0)
    primary, replica, _ = cluster.nodes
    follower = replica.node.follower
    caught_up(replica, load(primary, "a"))
    follower.stop()
    position = [load(primary, key) for key in "bcde"][-1]
    healed_at: list[int] = []

    def heal(*, again: bool = False) -> list[str]:
        healed_at.append(replica.pond.log.position()[0])
        return []

    monkeypatch.setattr(follower.healer, "heal", heal)
    follower.members.peers[0] = _PageByPage(follower.peers()[0].connection)
    follower.start()
    caught_up(replica, position)
    assert healed_at[0] < position


class _PageByPage(Peer):
    """A peer that tells one entry at a time."""

    def log(self, after: int, *, limit: int = 1, wait_seconds: float = 0) -> LogPage:
        return super().log(after, limit=1, wait_seconds=wait_seconds)


def test_what_was_copied_of_a_map_in_vain_goes_with_the_next_start(cluster: ClusterHere) -> None:
    replica = cluster[1]
    replica.node.follower.stop()
    left = replica.pond.folder / "recopied" / "m.0" / "data.mdb.1.partial"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    replica.node.follower.start()
    assert not left.exists()


def test_a_lost_connection_is_reported_and_mended(cluster: ClusterHere, serve: Callable[..., Served]) -> None:
    primary, replica, _ = cluster.nodes
    caught_up(replica, load(primary, "a"))
    primary.close()
    replica.until(lambda: replica.node.follower.status().state == "broken")
    status = replica.node.follower.status()
    assert status.error_kind == "node_unreachable"
    assert primary.url in str(status.error)
    with pytest.raises(Unavailable) as raised:
        replica.while_time_passes(lambda: replica.node.follower.pull(status.position + 1, SECONDS))
    assert raised.value.kind == "node_behind"
    assert "cannot be reached" in str(raised.value)
    back = served_again(serve, cluster, 0)
    caught_up(replica, load(back, "b"))
    assert replica.node.follower.status().state == "following"


def test_a_wait_that_is_too_short_is_an_error(cluster: ClusterHere) -> None:
    replica = cluster[1]
    answer = replica.while_time_passes(lambda: replica.post("/v1/log/replication", {"position": 1000, "timeout": 10}))
    assert answer.status == 503
    assert answer.json()["kind"] == "node_behind"
    position = load(cluster[0], "a")
    wanted = {"position": position, "applied": True, "timeout": SECONDS}
    answer = replica.while_time_passes(lambda: replica.post("/v1/log/replication", wanted))
    assert answer.json()["position"] >= position
    assert replica.pond.map("m").get("a") == 1


class _Uploads:
    """Parts that writers sent here."""

    def __init__(self) -> None:
        self.parts: dict[str, Path] = {}
        self.given: list[str] = []

    def uploaded(self, part_id: str) -> Path | None:
        if part_id in self.parts:
            self.given.append(part_id)
        return self.parts.get(part_id)


def test_parts_that_were_uploaded_here_are_not_fetched(cluster: ClusterHere, serve: Callable[..., Served]) -> None:
    primary, replica, _ = cluster.nodes
    caught_up(replica, load(primary, "before"))
    replica.node.follower.stop()
    position = load(primary, "a")
    primary.pond.log.wait_applied(position, timeout=SECONDS)
    [_, part] = primary.pond.parts.list(state="retained")
    source = primary.pond.parts.file(part.part)
    assert source is not None
    uploads = _Uploads()
    uploads.parts[part.part] = Path(shutil.copyfile(source, replica.pond.folder / "uploaded-part"))
    follower = Follower(replica.pond, replica.node.settings, uploads, replica.clock)
    follower.start()
    try:
        replica.while_time_passes(lambda: follower.pull(position, SECONDS))
    finally:
        follower.stop()
    assert uploads.given == [part.part]
    assert not (replica.pond.folder / "uploaded-part").exists()


def test_a_node_that_is_alone_has_nobody_to_ask(node: Served) -> None:
    position = load(node, "a")
    assert node.node.follower.pull(position, 0) == position
    assert node.node.follower.status().state == "alone"
    with pytest.raises(Unavailable, match="does not pull"):
        node.node.follower.pull(position + 1, 0)


# -- the log, as others read it -----------------------------------------------------------------------


def test_the_log_is_read_in_pages_and_waited_for(node: Served) -> None:
    for key in "abc":
        load(node, key)
    response = node.get("/v1/log?after=1&limit=2").json()
    assert [entry["position"] for entry in response["entries"]] == [2, 3]
    assert response["next"] == 3
    assert response["last"]["position"] == 4
    assert response["first"] == 1
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(node.get, "/v1/log?after=4&wait=20")
        load(node, "d")
        assert [entry["position"] for entry in pending.result().json()["entries"]] == [5]
    assert node.while_time_passes(lambda: node.get("/v1/log?after=5&wait=10")).json()["entries"] == []


def test_who_may_read_one_map_sees_nothing_of_others(node: Served) -> None:
    load(node, "a")
    other = node.pond.create_map("other", kind="state", value="long")
    for number in range(30):
        other.load(rows(f"x{number}"))
    load(node, "b")
    response = node.get("/v1/log?map=m&limit=2").json()
    assert [entry["position"] for entry in response["entries"]] == [1, 2]
    rest = node.get(f"/v1/log?map=M&limit=2&after={response['next']}").json()
    assert [entry["maps"] for entry in rest["entries"]] == [["m"]]
    assert "other" not in node.get("/v1/log?map=m").body.decode()
    assert rest["applied"] == rest["next"] == rest["last"]["position"]


def test_a_part_no_longer_retained_is_refused(node: Served) -> None:
    load(node, "a")
    node.pond.parts.expire(1 << 60)
    answer = node.get("/v1/log?after=0")
    assert answer.status == 404
    assert answer.json()["kind"] == "log_trimmed"
    assert answer.json()["values"]["first"] == 3


def test_settings_name_the_peers(tmp_path: Path) -> None:
    from millpond.pond import open_pond

    nodes = ["http://n1:7433/", "http://n2:7433", "http://n3:7433"]
    with open_pond(tmp_path) as pond:
        follower = Follower(
            pond, load_settings(server_url="http://n2:7433", nodes_urls=nodes), _Uploads(), ManualClock()
        )
    assert follower.role == "replica"
    assert [peer.url for peer in follower.peers()] == ["http://n1:7433", "http://n3:7433"]


def test_pauses_after_failures_double_on_the_node_s_own_clock(tmp_path: Path) -> None:
    """Nobody listens at the primary's address; no pause takes real time."""
    from millpond.pond import open_pond

    [port] = free_ports(1)
    nodes = [f"http://127.0.0.1:{port}", "http://n2:7433"]
    clock = ManualClock(share=0.0)
    with open_pond(tmp_path) as pond:
        settings = load_settings(server_url="http://n2:7433", nodes_urls=nodes, client_attempts=1)
        follower = Follower(pond, settings, _Uploads(), clock)
        follower.start()
        try:
            until(clock, lambda: follower._failures == 1)
            assert clock.passed_ms == 0
            for failures, pause in enumerate((200, 400, 800, 1600), 1):
                began = clock.now
                until(clock, lambda failures=failures: follower._failures > failures)
                assert follower._failures == failures + 1
                assert clock.now - began in (pause, pause + 1), "the clock has whole milliseconds"
            assert follower.status().state == "broken"
        finally:
            follower.stop()
