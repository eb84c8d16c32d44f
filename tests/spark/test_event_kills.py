"""A query into streams of events whose driver, JVM and workers are all killed at a step, and which is started again
from its checkpoint: each event is stored once, in the order of the epochs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millpond
from tests.spark.test_loads import left_behind

ROOT = Path(__file__).parents[2]
EPOCHS = 2
ROWS = 30
STEPS = [
    "events.task_done:1", "events.tasks_done:1", "events.rows_put:2", "events.runs_appended:1",
    "events.runs_appended:4", "events.epoch_appended:1", "events.epoch_appended:2",
]  # fmt: skip


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A pond, and a source of files whose rows have few different times."""
    with millpond.open(tmp_path / "pond"):
        pass
    (tmp_path / "source").mkdir()
    for epoch in range(EPOCHS):
        file = tmp_path / "source" / f"{epoch}.json"
        rows = [
            {
                "queue": "etl",
                "job_set": f"set {n % 2}",
                "time": f"2024-10-04T00:00:{n % 3:02}Z",
                "payload": f"{epoch} {n}",
            }
            for n in range(ROWS)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + epoch,) * 2)
    return tmp_path


def run(scratch: Path, kill_at: str = "") -> bool:
    """Run the query to its end, or to where it dies; True when it came to its end."""
    said = scratch / "said"
    with said.open("w") as output:
        # Workers may outlive the driver for a moment: what they hold open is no pipe that anybody waits for.
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.events_job", str(scratch), kill_at], cwd=ROOT, stdout=output,
            stderr=output, timeout=400, check=False,
        )  # fmt: skip
    if kill_at and done.returncode == -signal.SIGKILL:
        return False
    assert done.returncode == 0, said.read_text()[-6_000:]
    return True


def killed_at(scratch: Path, *steps: str) -> None:
    """Die at each of these in turn, and then come to the end."""
    for step in steps:
        assert not run(scratch, step), f"{step} was never taken"
    assert run(scratch)
    with millpond.open(scratch / "pond") as pond:
        for name in range(2):
            found = [event.payload.decode() for event in pond.events.read("etl", f"set {name}")]
            wanted = [f"{epoch} {n}" for epoch in range(EPOCHS) for n in range(name, ROWS, 2)]
            assert sorted(found) == sorted(wanted)
            assert [payload[0] for payload in found] == sorted(payload[0] for payload in found)
        assert left_behind(pond) == []


@pytest.mark.full
def test_a_query_that_dies_amid_the_writes_of_an_epoch(scratch: Path) -> None:
    killed_at(scratch, "events.runs_appended:2")


@pytest.mark.full
def test_a_query_that_is_killed_again_and_again(scratch: Path) -> None:
    killed_at(scratch, "events.runs_appended:1", "events.runs_appended:3", "events.epoch_appended:1")


@pytest.mark.full
@pytest.mark.parametrize("step", STEPS)
def test_a_query_that_is_killed_at_a_step(scratch: Path, step: str) -> None:
    killed_at(scratch, step)
