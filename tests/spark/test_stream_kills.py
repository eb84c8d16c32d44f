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
KILLS = [*(("shard", step) for step in STEPS), *(("layers", step) for step in LAYER_STEPS)]


@pytest.fixture
def store() -> str:
    return "shard"


@pytest.fixture
def scratch(tmp_path: Path, store: str) -> Path:
    """A pond, and a source of three files; the same keys come in each, so the epochs' order shows."""
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("numbers", kind="state", value="long", store=store)
    (tmp_path / "source").mkdir()
    for epoch in range(EPOCHS):
        file = tmp_path / "source" / f"{epoch}.json"
        rows = [{"key": f"k{n}", "value": epoch * ROWS + n} for n in range(epoch, ROWS)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + epoch,) * 2)
    return tmp_path


def run(scratch: Path, kill_at: str = "") -> bool:
    """Run the query to its end, or to where it dies; whether it came to its end."""
    said = scratch / "said"
    with said.open("w") as output:
        # Workers may outlive the driver for a moment: what they hold open is no pipe that anybody waits for.
        done = subprocess.run(
            [sys.executable, str(JOB), str(scratch), kill_at], cwd=scratch, stdout=output, stderr=output, timeout=240,
            check=False,
        )  # fmt: skip
    if kill_at and done.returncode == -signal.SIGKILL:
        return False
    assert done.returncode == 0, said.read_text()[-6_000:]
    return True


def check(pond: Pond) -> None:
    """Nothing is lost, doubled or out of order."""
    loads = [entry.body for entry in pond.log.entries(0) if entry.kind == "load"]
    assert [load["stream"][1] for load in loads] == list(range(EPOCHS))
    assert len({load["stream"][0] for load in loads}) == 1
    numbers = pond.map("numbers")
    assert [load["rows"]["numbers"] for load in loads] == [ROWS - epoch for epoch in range(EPOCHS)]
    latest = {f"k{n}": min(n, EPOCHS - 1) * ROWS + n for n in range(ROWS)}
    rows = numbers.scan().read_all().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == latest
    assert len(rows) == ROWS
    assert left_behind(pond) == []


def killed_at(scratch: Path, *steps: str) -> None:
    """Die at each of these in turn, each time in the epoch that the run before left, and then come to the end."""
    for step in steps:
        assert not run(scratch, step), f"{step} was never taken"
    assert run(scratch)
    with millpond.open(scratch / "pond") as pond:
        check(pond)


@pytest.mark.sample(1, of="drivers that are killed")
@pytest.mark.parametrize("store", ["shard", "layers"])
def test_a_query_that_dies_when_an_epoch_is_entered_and_spark_does_not_know(scratch: Path) -> None:
    killed_at(scratch, "load.committed:1")


@pytest.mark.full
def test_a_query_that_is_killed_again_and_again(scratch: Path) -> None:
    killed_at(scratch, "epoch.tasks_done:1", "load.committed:1", "epoch.committed:1")


@pytest.mark.full
@pytest.mark.parametrize(("store", "step"), KILLS)
def test_a_query_that_is_killed_at_a_step(scratch: Path, step: str) -> None:
    killed_at(scratch, step)
