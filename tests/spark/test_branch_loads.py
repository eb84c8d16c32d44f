"""Loads by Spark on a branch: one commit, or nothing; once under their id, also when the driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import millpond
from millpond import spark as mp
from millpond.errors import Conflict, Invalid, NotFound
from millpond.testing.faults import KILL_AT, arm, occurrences
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.nodes.following import ticking
from tests.rings.sampling import drawn
from tests.spark.test_streams import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


DRIVER = """
import sys
from millpond.testing import faults
armed = faults.arm()
from millpond import spark as mp
session = mp.start("local[2]", app="branch-load", memory="512m")
frame = session.range(0, 300, 1, 3).selectExpr("concat('k', id) as key", "id as value")
mp.load(frame, sys.argv[1], "numbers", branch="fix", load_id="nightly-1")
"""


def counted(spark: SparkSession, first: int, last: int, sign: str = "") -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr("concat('k', id) as key", f"{sign}id as value")


def total(pond: Any) -> tuple[int, int]:
    rows = pond.map("numbers").scan().read_all()
    return rows.num_rows, sum(rows["value"].to_pylist())


class Place:
    """A pond, the text that names it, and the folder in which jobs put their parts."""

    def __init__(self, pond: Any, where: str, folder: Path, *, on_node: bool) -> None:
        self.pond, self.where, self.left = pond, where, folder / ("uploads" if on_node else "writer")
        pond.create_map("numbers", kind="state", value="long", store="layers")
        pond.map("numbers").load([{"key": "k0", "value": -1}])

    def left_behind(self) -> list[str]:
        """Files of jobs that are left where they put their parts."""
        return [path.name for path in self.left.glob("[!.]*")]


@pytest.fixture(params=["folder", pytest.param("node", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A pond in a folder, and one of a node."""
    if request.param == "folder":
        pond = request.getfixturevalue("pond")
        yield Place(pond, str(pond.folder), pond.folder, on_node=False)
        return
    served = request.getfixturevalue("serve")()
    with ticking(request.getfixturevalue("clock")), millpond.open(served.url) as opened:
        yield Place(opened, served.url, served.pond.folder, on_node=True)


def test_a_branch_is_read_and_asked(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    pond, source, answers = place.pond, Source(spark, tmp_path / "source"), list[Any]()
    fix = pond.branch("fix", source="main")
    reader = spark.read.format("millpond").options(pond=place.where, map="numbers")
    keys = spark.createDataFrame([("k0",), ("k7",)], "key string")
    enriched = mp.enrich(source.frame("key string"), pond=place.where, map="numbers", key="key", branch="fix")

    def values(**at: Any) -> list[Any]:
        return [row.numbers for row in mp.enrich(keys, map="numbers", key="key", **at).orderBy("key").collect()]

    for value in (7, 8):
        fix.map("numbers").load([{"key": "k7", "value": value}])
        source.add({"key": "k7"})
        query = enriched.writeStream.foreachBatch(lambda rows, _: answers.extend(map(tuple, rows.collect())))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
    assert answers == [("k7", 7), ("k7", 8)], "each micro-batch asks the branch as it is then"
    assert sorted(map(tuple, reader.option("branch", "fix").load().collect())) == [("k0", -1), ("k7", 8)]
    past = spark.read.format("millpond").options(pond=place.where, map="numbers", ref="fix~1")
    assert sorted(map(tuple, past.load().collect())) == [("k0", -1), ("k7", 7)]
    on_fix: list[dict[str, Any]] = [{"pond": place.where, "branch": "fix"}, {"pond": fix}, {"pond": pond.at("fix")}]
    assert [values(**at) for at in on_fix] == [[-1, 8]] * 3
    assert values(pond=place.where, ref="fix~1") == [-1, 7] and values(pond=pond) == [-1, None]
    assert values(pond=place.where, branch="fix", partition="key", partitions=2) == [-1, 8]
    assert values(pond=place.where, branch="fix", known_at="2999-01-01T00:00Z") == [-1, 8]
    _, first, *_ = pond.refs.log("fix")
    before = datetime.fromtimestamp((int(first.metadata["moment_ms"]) - 1) / 1000, UTC)
    assert values(pond=place.where, branch="fix", known_at=before) == [-1, None]


def test_a_frame_and_files_are_loaded_on_a_branch(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    pond = place.pond
    fix = pond.branch("fix", source="main")
    loaded = mp.load(counted(spark, 0, 300), pond, "numbers", branch="fix", load_id="a")
    assert (loaded.rows, loaded.commit) == (300, next(iter(pond.refs.log("fix"))).id)
    assert place.left_behind() == []
    again = mp.load(counted(spark, 0, 9), fix, "numbers", load_id="a")
    assert (again.rows, again.position, again.commit) == (300, loaded.position, loaded.commit)
    with pytest.raises(Conflict) as taken:
        mp.load(counted(spark, 0, 9), pond, "numbers", load_id="a")
    assert taken.value.kind == "load_taken"
    where = {"pond": place.where, "map": "numbers", "branch": "fix"}
    counted(spark, 250, 400, "-").write.format("millpond").options(**where).mode("append").save()
    assert total(fix) == (400, sum(range(250)) - sum(range(250, 400)))
    (tmp_path / "a.csv").write_text("key,value\nk400,7\nk401,none\n")
    files = mp.load(tmp_path / "a.csv", fix, "numbers", max_rejects=1, load_id="b")
    assert (files.rows, files.rejected) == (1, 1)
    assert spark.read.format("millpond").options(**where).load().count() == 401
    assert total(pond) == (1, -1), "nobody sees it on main"
    assert [commit.message.partition(" from ")[0] for commit in pond.refs.log("fix")][:3] == ["Load numbers"] * 3
    assert place.left_behind() == [] or place.where.startswith("http"), "parts that come again expire on nodes"
    fix.merge()
    assert total(pond)[0] == 401
    assert pond.map("numbers").get("k260") == -260


def test_loads_on_a_branch_that_cannot_be_are_refused_and_leave_nothing(spark: SparkSession, place: Place) -> None:
    pond = place.pond
    pond.branch("fix", source="main")
    frame = counted(spark, 0, 9)
    with pytest.raises(NotFound, match="branch"):
        mp.load(frame, pond, "numbers", branch="nothing")
    with pytest.raises(Invalid, match="only read"):
        mp.load(frame, pond.at("main"), "numbers")
    with pytest.raises(PySparkException, match="no number"):
        mp.load(frame.selectExpr("key", "value + raise_error('no number') as value"), pond, "numbers", branch="fix")
    assert len(list(pond.refs.log("fix"))) == len(list(pond.refs.log("main")))
    assert place.left_behind() == []


def test_each_epoch_of_a_stream_is_a_commit_of_the_branch_once(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    pond, source, checkpoint = place.pond, Source(spark, tmp_path / "source"), tmp_path / "checkpoint"
    fix = pond.branch("fix", source="main")
    options = {"pond": place.where, "map": "numbers", "branch": "fix", "checkpointLocation": str(checkpoint)}

    def drain(parts: int = 2) -> None:
        rows = source.frame().repartition(parts)
        query = rows.writeStream.format("millpond").options(**options).trigger(availableNow=True)
        query.start().awaitTermination()

    def forget() -> None:
        """As when the driver died between our commit and Spark's."""
        for file in (checkpoint / "commits").iterdir():
            file.unlink()

    def epochs() -> list[str]:
        return [commit.metadata["epoch"] for commit in pond.refs.log("fix") if "epoch" in commit.metadata]

    for value in (1, 2, 1):
        source.add({"key": "a", "value": value}, {"key": f"k{value}", "value": value})
    drain()
    assert epochs() == ["2", "1", "0"] and len(list(pond.refs.log("fix"))) == len(list(pond.refs.log("main"))) + 3
    assert fix.map("numbers").get("a") == 1, "what came before comes again, and wins again"
    assert total(pond) == (1, -1), "nobody sees it on main"
    fix.map("numbers").load([{"key": "a", "value": 7}])
    forget()
    drain(parts=3)
    assert epochs() == ["2", "1", "0"] and fix.map("numbers").get("a") == 7, "the epoch did not win a second time"
    assert place.left_behind() == [] or place.where.startswith("http"), "parts that come again expire on nodes"

    fix.merge()
    source.add({"key": "a", "value": 8})
    drain()
    assert epochs()[0] == "3" and (fix.map("numbers").get("a"), pond.map("numbers").get("a")) == (8, 7)

    pond.refs.delete_branch("fix")
    source.add({"key": "a", "value": 9})
    with pytest.raises(PySparkException, match=r"branch not found.*make it anew"):
        drain()
    pond.branch("fix", source="main")
    forget()
    drain()
    assert epochs() == ["4", "2", "1", "0"], "the merge brought the others, and the fourth went with the branch"
    assert fix.map("numbers").get("a") == 9

    squashed = pond.refs.merge("fix", squash=True, strategy="source-wins")
    pond.refs.delete_branch("fix")
    pond.branch("fix", source="main")
    fix.map("numbers").load([{"key": "a", "value": 10}])
    forget()
    drain()
    assert epochs() == ["2", "1", "0"] and '":4' in squashed.metadata["epochs"]
    assert fix.map("numbers").get("a") == 10, (
        "the squash brought it without its commit, and it did not win a second time"
    )


def test_a_query_that_feeds_a_branch_and_main_feeds_both_once(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    pond, source, dies = place.pond, Source(spark, tmp_path / "source"), [True, False]
    fix = pond.branch("fix", source="main")

    def feed(rows: DataFrame, epoch: int) -> None:
        mp.load(rows, pond, "numbers", branch="fix", epoch=epoch, extra="add")
        if dies.pop(0):
            raise RuntimeError("died")
        mp.load(rows, pond, "numbers", epoch=epoch)

    def run() -> None:
        query = source.frame().writeStream.foreachBatch(feed).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    source.add({"key": "a", "value": 1})
    with pytest.raises(PySparkException):
        run()
    fix.map("numbers").load([{"key": "a", "value": -1}])
    run()
    assert (fix.map("numbers").get("a"), pond.map("numbers").get("a")) == (-1, 1)
    assert sum("epoch" in commit.metadata for commit in pond.refs.log("fix")) == 1


@pytest.mark.sample(1, of="drivers that are killed")
def test_a_driver_that_is_killed_leaves_all_of_the_load_or_nothing(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 300, 1, 3).selectExpr("concat('k', id) as key", "id as value")

    def load(folder: Path) -> int:
        return mp.load(frame, str(folder), "numbers", branch="fix", load_id="nightly-1").rows

    def made(name: str) -> Path:
        with millpond.open(tmp_path / name) as pond:
            pond.create_map("numbers", kind="state", value="long", store="layers")
            pond.branch("fix", source="main")
        return tmp_path / name

    whole = made("whole")
    with arm(log=str(tmp_path / "log")):
        assert load(whole) == 300
    moments = [moment for moment in occurrences(tmp_path / "log")
               if moment.startswith(("layers.", "shares.", "refs.", "versions."))]  # fmt: skip
    assert {moment.partition(":")[0] for moment in moments} >= {"layers.layer_written", "refs.committed"}
    for number, moment in drawn(list(enumerate(moments)), 1, name="branch loads"):
        folder = made(str(number))
        killed = subprocess.run(
            [sys.executable, "-c", DRIVER, str(folder)], env={**os.environ, KILL_AT: moment}, timeout=300,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr[-2000:])
        with millpond.open(folder) as pond:
            assert total(pond.branch("fix")) in ((0, 0), (300, sum(range(300)))), moment
            assert pond.verify(full=True).ok, moment
        assert load(folder) == 300, moment
        with millpond.open(folder) as pond:
            assert total(pond.branch("fix")) == (300, sum(range(300))), moment
            assert sum("Load" in commit.message for commit in pond.refs.log("fix")) == 1, moment
            assert list((folder / "writer").iterdir()) == [], moment
