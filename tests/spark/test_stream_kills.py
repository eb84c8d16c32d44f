"""A query whose driver, JVM and workers are all killed at a step, and which is started again from its checkpoint.

After each kill the map holds what the source does, and the log holds each epoch once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from tests.spark.test_loads import left_behind

if TYPE_CHECKING:
    from millpond import Pond


JOB = Path(__file__).with_name("stream_job.py")
EPOCHS = 3
ROWS = 40

STEPS = [
    # in a task
    "part.data_written:1", "part.sealed:2", "epoch.task_done:2",
    # between the tasks and the entry
    "epoch.tasks_done:1", "load.received:1", "load.received:2",
    # entered, and Spark does not know
    "load.committed:1", "load.committed:2", "merge.part_taken:1", "merge.dequeued:2", "epoch.committed:1",
]  # fmt: skip
LAYER_STEPS = [
    "rows.filed:2", "epoch.task_done:2", "epoch.tasks_done:1", "shares.written:2", "layers.layer_written:1",
    "load.layers_placed:2", "load.committed:1", "epoch.committed:1",
]  # fmt: skip
BRANCH_STEPS = [
    "rows.filed:2", "epoch.task_done:2", "epoch.tasks_done:1", "shares.written:2", "layers.layer_written:1",
    "versions.sealed:1", "versions.built:1", "versions.moved:1", "refs.committed:1", "epoch.committed:1",
]  # fmt: skip
KILLS = [*(("shard", step) for step in STEPS), *(("layers", step) for step in LAYER_STEPS),
         *(("branch", step) for step in BRANCH_STEPS)]  # fmt: skip


@pytest.fixture
def store() -> str:
    return "shard"


@pytest.fixture
def scratch(tmp_path: Path, store: str) -> Path:
    """A pond, and a source of three files; the same keys come in each, so the epochs' order shows.

    The `store` is that of the map, or `branch`: the query writes to a branch.
    """
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("numbers", kind="state", value="long", store="layers" if store == "branch" else store)
        if store == "branch":
            pond.branch("fix", source="main")
    (tmp_path / "source").mkdir()
    for epoch in range(EPOCHS):
        file = tmp_path / "source" / f"{epoch}.json"
        rows = [{"key": f"k{n}", "value": epoch * ROWS + n} for n in range(epoch, ROWS)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + epoch,) * 2)
    return tmp_path


def run(scratch: Path, kill_at: str = "", branch: str = "") -> bool:
    """Run the query to its end, or to where it dies; whether it came to its end."""
    said = scratch / "said"
    with said.open("w") as output:
        # Workers may outlive the driver for a moment: what they hold open is no pipe that anybody waits for.
        done = subprocess.run(
            [sys.executable, str(JOB), str(scratch), kill_at, branch], cwd=scratch, stdout=output, stderr=output,
            timeout=240, check=False,
        )  # fmt: skip
    if kill_at and done.returncode == -signal.SIGKILL:
        return False
    assert done.returncode == 0, said.read_text()[-6_000:]
    return True


def entered(pond: Pond, branch: str) -> list[tuple[str, int, int]]:
    """The query, the number and the rows of each epoch."""
    if branch:
        words = [commit.metadata for commit in reversed(list(pond.refs.log(branch))) if "epoch" in commit.metadata]
        return [(word["stream"], int(word["epoch"]), int(word["rows"])) for word in words]
    loads = [entry.body for entry in pond.log.entries(0) if entry.kind == "load"]
    return [(*load["stream"], load["rows"]["numbers"]) for load in loads]


def check(pond: Pond, branch: str = "") -> None:
    """Nothing is lost, doubled or out of order."""
    epochs = entered(pond, branch)
    assert [(number, rows) for _, number, rows in epochs] == [(epoch, ROWS - epoch) for epoch in range(EPOCHS)]
    assert len({query for query, _, _ in epochs}) == 1
    numbers = (pond.branch(branch) if branch else pond).map("numbers")
    latest = {f"k{n}": min(n, EPOCHS - 1) * ROWS + n for n in range(ROWS)}
    rows = numbers.scan().read_all().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == latest
    assert len(rows) == ROWS
    assert left_behind(pond) == []


def killed_at(scratch: Path, *steps: str, store: str) -> None:
    """Die at each of these in turn, each time in the epoch that the run before left, and then come to the end."""
    branch = "fix" if store == "branch" else ""
    for step in steps:
        assert not run(scratch, step, branch), f"{step} was never taken"
    assert run(scratch, branch=branch)
    with millpond.open(scratch / "pond") as pond:
        check(pond, branch)


@pytest.mark.sample(1, of="drivers that are killed")
@pytest.mark.parametrize("store", ["shard", "layers", "branch"])
def test_a_query_that_dies_when_an_epoch_is_entered_and_spark_does_not_know(scratch: Path, store: str) -> None:
    killed_at(scratch, "refs.committed:1" if store == "branch" else "load.committed:1", store=store)


@pytest.mark.full
def test_a_query_that_is_killed_again_and_again(scratch: Path) -> None:
    killed_at(scratch, "epoch.tasks_done:1", "load.committed:1", "epoch.committed:1", store="shard")


@pytest.mark.full
@pytest.mark.parametrize(("store", "step"), KILLS)
def test_a_query_that_is_killed_at_a_step(scratch: Path, store: str, step: str) -> None:
    killed_at(scratch, step, store=store)
