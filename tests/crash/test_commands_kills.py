"""A processor killed at each of its steps: what was acknowledged is there, and all that is there is the log's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import KILL_AT, STEPS_LOG
from millpond.workflows.keyspaces import COMMANDS, DEFINITION, FAILED, GROUP, QUEUED, TAG, TIMER, TIMER_TIME
from millpond.workflows.processor import Partition
from millpond.workflows.store import initialize
from tests.crash.commands_killed import commands
from tests.rings.forked import run_python

PROGRAM = Path(__file__).parent / "commands_killed.py"
ALL = (COMMANDS, DEFINITION, FAILED, QUEUED, TIMER, TIMER_TIME, GROUP, TAG)


def run(folder: Path, **environment: str) -> tuple[int, int]:
    """The exit code, and the number of commands that were acknowledged."""
    done = run_python(str(PROGRAM), str(folder), **environment)
    return done.returncode, done.stdout.count("done")


def rows_of(space: LmdbSpace) -> list[tuple[bytes, bytes]]:
    with space.read() as tx:
        return [row for prefix in ALL for row in tx.scan(prefix.range())]


def test_a_processor_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    assert run(tmp_path / "whole", **{STEPS_LOG: str(steps)}) == (0, len(commands()))
    taken = [line for line in steps.read_text().splitlines() if line.startswith("workflows.")]
    counts = {name: taken.count(name) for name in set(taken)}
    assert set(counts) == {"workflows.applied", "workflows.batch_uncommitted", "workflows.batch_committed"}
    for name, count in counts.items():
        for at in {1, 2, count // 2, count}:
            if at:
                folder = tmp_path / f"{name}-{at}"
                code, acknowledged = run(folder, **{KILL_AT: f"{name}:{at}"})
                if code == 0:
                    continue  # commands came together otherwise than in the whole run, in fewer writes
                assert code == -signal.SIGKILL
                check(folder, acknowledged, tmp_path / f"again-{name}-{at}")


def check(folder: Path, acknowledged: int, again: Path) -> None:
    """Compare what is there with what the log says, applied once more."""
    space, fresh = LmdbSpace(folder), LmdbSpace(again, durable=False)
    initialization = space.write(lambda tx: initialize(tx, 1_700_000_000_000))
    fresh.write(lambda tx: initialize(tx, 1_700_000_000_000))
    partition, repeated = Partition(initialization), Partition(initialization)
    with space.read() as tx:
        records = list(partition.log.records(tx))
    assert acknowledged <= len(records) <= len(commands())
    for record in records:
        (applied,) = fresh.write(lambda tx, record=record: repeated.apply(tx, [record.entry], record.stamp_ms))
        assert applied.error is None
    assert [record.entry.request for record in records] == commands()[: len(records)]
    assert rows_of(fresh) == rows_of(space)
    space.close()
    fresh.close()
