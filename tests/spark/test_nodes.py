"""Spark and a pond that lies on nodes: loads, reads, lookups and streams, as with a folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import millpond
from millpond import spark as mp
from millpond.nodes.tokens import hash_token
from millpond.spark.change_log import NodesLog
from millpond.spark.locations import Rights, SparkNodes
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import cluster as cluster
from tests.nodes.conftest import cluster_of as cluster_of
from tests.nodes.conftest import serve as serve
from tests.nodes.following import ticking
from tests.spark.test_changes import drained
from tests.spark.test_streams import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond.client.pond import RemotePond
    from millpond.clock import ManualClock
    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(1, of="file")


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


@pytest.fixture
def remote(cluster: ClusterHere) -> Iterator[RemotePond]:
    """The pond of three nodes, of which the first is named; the others are learnt of."""
    with millpond.open(cluster[0].url) as opened:
        yield opened


def written(frame: DataFrame, url: str, **options: object) -> None:
    parameters = {"pond": url, "map": "numbers", "synchronise": "true"} | {
        name: str(value) for name, value in options.items()
    }
    frame.write.format("millpond").options(**parameters).mode("append").save()


def everywhere(cluster: ClusterHere, key: str, at: str | None = None) -> list[Any]:
    return [node.pond.map("numbers").get(key, at=at) for node in cluster.nodes]


def uploads(cluster: ClusterHere) -> list[str]:
    """Parts that lie on nodes and were not entered."""
    return sorted(path.name for node in cluster.nodes for path in (node.pond.folder / "uploads").glob("[!.]*"))


def test_a_load_with_an_id_is_entered_once_on_nodes(
    spark: SparkSession, cluster: ClusterHere, remote: RemotePond
) -> None:
    remote.create_map("numbers", kind="state", value="long")
    frame = spark.range(0, 10, 1, 2).selectExpr("concat('k', id) as key", "id as value")
    first = mp.load(frame, remote, "numbers", load_id="run_0-1", synchronise=True)
    again = mp.load(frame, remote, "numbers", load_id="run_0-1", synchronise=True)
    assert (first.load, again.position) == ("run_0-1", first.position)
    loads = [entry.body["load"] for entry in remote.log.entries(0) if entry.kind == "load"]
    assert (loads, everywhere(cluster, "k3")) == (["run_0-1"], [3, 3, 3])


def test_a_map_on_nodes_is_loaded_read_and_queried(
    spark: SparkSession, cluster: ClusterHere, remote: RemotePond, tmp_path: Path
) -> None:
    remote.create_map("numbers", kind="temporal_state", value="long")
    frame = spark.range(0, 1_000, 1, 2).selectExpr(
        "concat('k', id % 500) as key", "timestamp_millis(1357000000000 + id) as effective_time", "id as value"
    )
    written(frame, cluster[0].url)
    assert everywhere(cluster, "k7", "2013-01-02T00:00Z") == [507] * 3
    result = mp.load(frame.limit(10).selectExpr("key", "effective_time", "value + 1 as value"), remote, "numbers")
    assert (result.rows, result.parts) == (10, 1)

    session = spark.newSession()
    mp.register(session, cluster[0].url)
    read = session.read.format("millpond").option("map", "numbers").option("where", "key = 'k7'").load()
    assert sorted(row.value for row in read.collect()) == [8, 507]
    events = session.sql("select 'k7' key, timestamp '2013-01-02' at union all select 'nobody', timestamp '2013-01-02'")
    enriched = mp.enrich(events, map="numbers", key="key", at="at", into="number")
    assert sorted(row.number or 0 for row in enriched.collect()) == [0, 507]
    enriched.createOrReplaceTempView("events")
    (row,) = session.sql("select get_state('numbers', key, at) n from events where key = 'k7'").collect()
    assert row.n == 507


def test_a_query_outlives_the_node_it_was_planned_on(
    spark: SparkSession, cluster: ClusterHere, remote: RemotePond
) -> None:
    remote.create_map("numbers", kind="state", value="long")
    frame = spark.range(0, 1_000, 1, 2).selectExpr("concat('k', id) as key", "id as value")
    written(frame, cluster.url, synchronise="true")
    enriched = mp.enrich(frame.select("key"), map="numbers", key="key", into="number", pond=cluster[0].url)
    written(frame.selectExpr("key", "value + 1 as value"), cluster.url, synchronise="true")
    cluster[0].close()
    assert sum(row.number for row in enriched.collect()) == sum(range(1_000))


def test_a_load_that_is_given_up_leaves_nothing_on_nodes(
    spark: SparkSession, cluster: ClusterHere, remote: RemotePond, tmp_path: Path
) -> None:
    remote.create_map("numbers", kind="state", value="long")
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id % 10 = 3, null, concat('k', id)) as key", "id as value")
    rejects = tmp_path / "rejects.jsonl"
    with pytest.raises(PySparkException, match="10 rows cannot be stored"):
        written(frame, cluster.url, rejects=rejects)
    assert everywhere(cluster, "k1") == [None] * 3
    assert uploads(cluster) == []
    assert len(rejects.read_text().splitlines()) == 10
    written(frame, cluster.url, rejects=rejects, max_rejects=10)
    assert everywhere(cluster, "k1") == [1] * 3
    assert json.loads(rejects.read_text().splitlines()[5])["source"] == "partition 1"


def test_a_query_begins_with_what_a_node_has_of_its_log(
    serve: Callable[..., Served], clock: ManualClock, tmp_path: Path
) -> None:
    """`earliest` is the oldest that is there: it asked for the first entry of all, which is trimmed one day."""
    with millpond.open(tmp_path / "pond") as pond:
        numbers = pond.create_map("numbers", kind="state", value="long", store="shard")
        for number in range(3):
            numbers.load({"key": ["a"], "value": [number]})
    log = NodesLog(SparkNodes(serve(server_data=str(tmp_path / "pond")).url, Rights()), "numbers", clock)
    assert 1 < log.first() <= log.applied() + 1
    log.close()


def test_a_token_goes_with_the_session_to_its_tasks(spark: SparkSession, serve: Callable[..., Served]) -> None:
    rights = {"writes": {"write": ["numbers"]}, "reads": {"read": ["numbers"]}, "rules": {"admin": ["*"]}}
    tokens = [{"name": name, "sha256": hash_token(name), "rights": granted} for name, granted in rights.items()]
    url = serve(server_tokens=tokens).url
    with millpond.open(url, client_token="rules") as pond:
        pond.create_map("numbers", kind="state", value="long")
    frame = spark.sql("select 'a' key, 1L value")

    def session(token: str) -> SparkSession:
        made = spark.newSession()
        made.conf.set("spark.millpond.token", token)
        mp.register(made, url)
        return made

    def rows(token: str) -> list[Any]:
        return session(token).read.format("millpond").option("map", "numbers").load().collect()

    reading, writing = session("reads"), session("writes")
    with pytest.raises(PySparkException, match=r"denied|right"):
        written(reading.createDataFrame(frame.toArrow()), url)
    written(writing.createDataFrame(frame.toArrow()), url)
    assert rows("reads") == [("a", 1)]
    assert reading.sql("select get_state('numbers', 'a') n").collect() == [(1,)]
    changes = reading.readStream.format("millpond").option("map", "numbers").load()
    assert changes.schema.names == ["key", "value"]
    with pytest.raises(PySparkException, match="token"):
        rows("nobody's")


def test_streams_into_nodes_and_out_of_them(
    spark: SparkSession, cluster: ClusterHere, remote: RemotePond, tmp_path: Path
) -> None:
    numbers = remote.create_map("numbers", kind="state", value="long")
    source = Source(spark, tmp_path / "source")
    source.add({"key": "a", "value": 1})
    source.add({"key": "a", "value": 2}, {"key": "b", "value": 2})

    def drain() -> None:
        parameters = {"pond": cluster[0].url, "map": "numbers", "synchronise": "true"}
        query = source.frame().writeStream.format("millpond").options(**parameters)
        query = query.option("checkpointLocation", str(tmp_path / "in")).trigger(availableNow=True)
        query.start().awaitTermination()

    drain()
    assert everywhere(cluster, "a") == [2] * 3
    changes = spark.readStream.format("millpond").option("pond", cluster.url).option("map", "numbers").load()
    assert drained(changes, tmp_path / "out") == [[("a", 1), ("a", 2), ("b", 2)]]

    numbers.load([{"key": "a", "value": -1}])
    for file in (tmp_path / "in" / "commits").glob("*1*"):
        file.unlink()  # and its checksum
    drain()
    assert everywhere(cluster, "a") == [-1] * 3, "the epoch did not win a second time"
    remote.merge()
    assert drained(changes, tmp_path / "out") == [[("a", -1)]]
    epochs = [entry.body["stream"] for entry in remote.log.entries(0) if entry.kind == "load" and entry.body["stream"]]
    assert [epoch for _, epoch in epochs] == [0, 1]


def test_a_stream_on_nodes_asks_the_newest_snapshot_at_each_micro_batch(
    spark: SparkSession, remote: RemotePond, tmp_path: Path
) -> None:
    remote.create_map("numbers", kind="state", value="long")
    source, answers = Source(spark, tmp_path / "source"), list[Any]()
    enriched = mp.enrich(source.frame("key string"), pond=remote, map="numbers", key="key")
    for value in (1, 2):
        rows = spark.createDataFrame([("a", value)], "key string, value long")
        mp.load(rows, remote, "numbers", synchronise=True)
        source.add({"key": "a"})
        query = enriched.writeStream.foreachBatch(lambda rows, _: answers.extend(map(tuple, rows.collect())))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
    assert answers == [("a", 1), ("a", 2)]
