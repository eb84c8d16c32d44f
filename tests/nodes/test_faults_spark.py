"""A Spark job that writes to a cluster of which a node dies meanwhile: it fails and is run again, or ends well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from millpond.testing.cluster import wait_for
from tests.nodes.fault_story import Story, told_story
from tests.spark.conftest import spark as spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = 200_000
REPLICA = 2


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with told_story(tmp_path_factory.mktemp("job")) as opened:
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
    position = story.settle()
    loads = [
        each for each in story.cluster.ask(0, "GET", "/v1/log?after=0").json()["entries"] if each["kind"] == "load"
    ]
    assert position
    assert len(loads) == 1
    rows = {story.cluster.ask(number, "GET", "/v1/maps/job").json()["rows"] for number in range(3)}
    assert rows == {ROWS}
    digests = {story.cluster.ask(number, "GET", "/v1/maps/job/digest").json()["digest"] for number in range(3)}
    assert len(digests) == 1


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
