"""A Spark job that writes to a cluster of which a node dies meanwhile: it fails and is run again, or ends well.

Either way each row is there once, on every node, and the log holds the load once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.harness.cluster import wait_for
from tests.harness.cluster_audit import fetch_json
from tests.nodes.fault_story import Story, running_story
from tests.spark.conftest import spark as spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.usefixtures("spark_process"), pytest.mark.full]
ROWS = 200_000
ROWS_OF_A_STEP = 20_000
TRIES = 4
PRIMARY, REPLICA = 0, 2
# Where a node dies of a load, in the order it comes by.
STEPS = ("receive.began", "receive.here", "load.received", "load.committed", "merge.part_taken",
         "shard.changed_uncommitted", "merge.part_put", "shard.changed", "merge.dequeued")  # fmt: skip
WHEN_MERGED = ((True, STEPS), (False, ("load.committed", "merge.part_put")))
DEATHS = [(number, step, merged) for merged, steps in WHEN_MERGED for step in steps for number in (PRIMARY, REPLICA)]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("job")) as opened:
        yield opened


def test_a_job_ends_well_or_is_run_again_while_a_replica_dies(spark: SparkSession, story: Story) -> None:
    """Kills come while parts are uploaded; the job's retries, or the job done again, bring each row once."""
    story.create("job")
    frame = spark.range(ROWS, numPartitions=6).selectExpr("concat('k', id) as key", "id * 2 as value")
    writer = frame.write.format("millpond").option("pond", story.cluster.url).option("map", "job").mode("append")
    for number in range(3):
        if not (failed := _killed_meanwhile(story, writer.save, number)):
            break
        assert story.cluster.urls[REPLICA] in failed, failed
    if failed:
        writer.save()
    assert story.deaths[REPLICA]
    story.put("job", [((f"k{number}",), 2 * number) for number in range(ROWS)])
    story.check(full=False)
    assert loads_of(story, "job") == 1


def loads_of(story: Story, name: str) -> int:
    """The number of loads of a map in the log."""
    entries = fetch_json(story.cluster, 0, "/v1/log", after=0)["entries"]
    return sum(entry["kind"] == "load" and name in entry["maps"] for entry in entries)


@pytest.mark.parametrize(("number", "step", "synchronise"), DEATHS)
def test_a_job_ends_well_or_is_run_again_when_a_node_dies_at_a_step(
    spark: SparkSession, story: Story, number: int, step: str, synchronise: bool
) -> None:
    """The one who runs the job starts the dead node, and runs the job again when it failed."""
    story.world.clear()
    name = f"{step.replace('.', '_')}_{number}_{synchronise}".lower()
    story.create(name)
    frame = spark.range(ROWS_OF_A_STEP, numPartitions=3).selectExpr("concat('k', id) as key", "id * 3 as value")
    writer = frame.write.format("millpond").option("pond", story.cluster.url).option("map", name)
    writer = writer.option("synchronise", str(synchronise).lower()).mode("append")
    story.cluster.kill_at(number, step)
    before = story.deaths[number]
    failed: list[str] = []
    while error := _failed(story, writer.save):
        failed.append(error)
        assert len(failed) < TRIES, failed
    assert all(story.cluster.urls[number] in error for error in failed), failed
    story.put(name, [((f"k{row}",), 3 * row) for row in range(ROWS_OF_A_STEP)])
    if story.deaths[number] == before:
        story.cluster.wait_dead(number)
    story.revive()
    story.check(full=False)
    assert loads_of(story, name) == 1


def _failed(story: Story, save: Callable[[], object]) -> str:
    """Save; what failed. Nodes that died of it are started."""
    try:
        save()
    except PySparkException as error:
        story.revive()
        return str(error)
    return ""


def _killed_meanwhile(story: Story, save: Callable[[], object], number: int) -> str:
    """Save while the replica is killed; what failed."""
    ended = threading.Event()
    killer = threading.Thread(target=_kill_and_revive, args=(story, ended), name=f"killer {number}")
    killer.start()
    try:
        save()
    except PySparkException as error:
        return str(error)
    finally:
        ended.set()
        killer.join()
        story.revive()
    return ""


def _kill_and_revive(story: Story, ended: threading.Event) -> None:
    """Kill the replica once it is sent something, and start it again a little later."""
    story.cluster.kill_at(REPLICA, "receive.written")
    node = story.cluster.nodes[REPLICA]
    wait_for(lambda: not node.runs or ended.is_set(), "the replica to be sent something", 120)
    if not node.runs:
        ended.wait(1.0)
        story.revive()
