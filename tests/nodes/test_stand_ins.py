"""A job outlives the node that its snapshot was planned on: another one stands in that has the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.client.snapshots.pin import SnapshotPin
from millpond.client.snapshots.planned import open_pinned, pinned_rows, pinned_spans, plan_snapshot
from millpond.errors import Unavailable
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.client.pond import RemotePond
    from tests.nodes.conftest import ClusterHere

pytestmark = pytest.mark.sample(1, of="file")

KEYS = 100_000


@pytest.fixture
def remote(cluster: ClusterHere, tmp_path: Path) -> Iterator[RemotePond]:
    with millpond.open(cluster.url, client_synchronise=True, client_cache=str(tmp_path / "own")) as pond:
        pond.create_map("m", kind="state", value="long")
        yield pond


@pytest.fixture
def reading(tmp_path: Path) -> Settings:
    return load_settings(
        config=None,
        client_cache=str(tmp_path / "cache"),
    )


def put(remote: RemotePond, value: int, keys: int = KEYS) -> None:
    table = pa.table({"key": [f"k{key:05d}" for key in range(keys)], "value": pa.array([value] * keys, pa.int64())})
    remote.map("m").load(table, again=True)


def plan(cluster: ClusterHere, reading: Settings) -> tuple[SnapshotPin, str]:
    # The address of one node is enough.
    where, manifest = plan_snapshot(SnapshotPin((cluster[0].url,), "m"), settings=reading)
    return where, manifest.id


def test_another_node_keeps_the_same_rows_from_the_beginning(
    cluster: ClusterHere, remote: RemotePond, reading: Settings
) -> None:
    for number in range(3):
        put(remote, number, KEYS // 10**number)
        # Frozen at different times, a map lies in different layers on each node.
        cluster[number].get("/v1/maps/m/snapshot?fresh=1")
    where, planned = plan(cluster, reading)
    put(remote, 9)
    cluster[0].close()
    with open_pinned(where, planned, settings=reading) as snapshot:
        assert snapshot.lookup(["k00300", "k05000", "k50000"]).to_pylist() == [2, 1, 0]
        assert snapshot.manifest.id != planned
    # What is on this machine now needs no node.
    cluster[1].close()
    cluster[2].close()
    with pytest.raises(Unavailable):
        open_pinned(
            where,
            planned,
            settings=load_settings(config=None, client_cache=f"{reading.client.cache}-no"),
        )


def test_a_task_that_reads_a_piece_goes_on_elsewhere(
    cluster: ClusterHere, remote: RemotePond, reading: Settings
) -> None:
    put(remote, 1)
    put(remote, 2, 10)
    where, planned = plan(cluster, reading)
    spans = pinned_spans(where, planned, GroupSpan(), 1, settings=reading)
    assert len(spans) > 1
    batches = list(pinned_rows(where, planned, spans[0], settings=reading))
    cluster[0].close()
    for span in spans[1:]:
        batches += pinned_rows(where, planned, span, settings=reading)
    keys = [key for batch in batches for key in batch.column("key").to_pylist()]
    assert len(keys) == len(set(keys)) == KEYS
    assert (
        sum(batch.num_rows for span in spans for batch in pinned_rows(where, planned, span, settings=reading)) == KEYS
    )
    assert len(pinned_spans(where, planned, GroupSpan(), 1, settings=reading)) > 1


def test_when_all_others_have_moved_on_it_says_so(
    cluster: ClusterHere, remote: RemotePond, reading: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(remote, 1)
    monkeypatch.setattr("millpond.client.snapshots.planned._stand_in", lambda *_: "")  # no node was found in time
    where, planned = plan(cluster, reading)
    monkeypatch.undo()
    put(remote, 2)
    cluster[0].close()
    with pytest.raises(Unavailable, match="not as it was after that entry") as lost:
        open_pinned(where, planned, settings=reading)
    assert lost.value.kind == "snapshot_lost"


def test_what_shaped_a_map_is_reported_only_when_it_is_sure(cluster: ClusterHere, remote: RemotePond) -> None:
    put(remote, 1, 10)
    entry = remote.log.position()[0]
    other = remote.create_map("other", kind="state", value="long")
    other.load([{"key": "a", "value": 1}])

    def shaped() -> list[int]:
        return [served.node.local_peer.shaped("m", served.pond.map("m").shard.version) for served in cluster.nodes]

    assert shaped() == [entry] * 3
    remote.map("m").retain(before="2013-01-01T00:00Z")
    for node in cluster.nodes:
        node.pond.log.wait_applied(remote.log.position()[0], timeout=30)
    assert len(set(shaped())) == 1
    assert shaped()[0] > entry
    assert [served.node.local_peer.shaped("m", 0) for served in cluster.nodes] == [0] * 3
