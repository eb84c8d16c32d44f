"""Recorded histories: the command logs of earlier versions, applied by this one to the same ends.

A file holds the commands of one log, one a line: milliseconds, then the bytes of the entry in hexadecimal. After a line
of dashes it says what they led to: each run with its status, each task run with those of its attempts, and the number
of tasks that are queued. Rows may change from version to version; what happened may not.

    python -m tests.models.workflows.test_histories SEED    records a history of the simulation under a new name
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import LHStatus, TaskRun, TaskStatus, WfRun

from millpond.kernel.keys import decode
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.stores.memory import MemorySpace
from millpond.workflows.engine import run_path
from millpond.workflows.keyspaces import GROUP, QUEUED
from millpond.workflows.processor import Partition
from millpond.workflows.processor.codec import decode_command, encode_command
from millpond.workflows.store import initialize
from millpond.workflows.store.addresses import run_id

FOLDER = Path(__file__).with_name("histories")
RULE = "-" * 20


def ends(tx: ReadTransaction, partition: Partition) -> list[str]:
    """The ends of a history: of its runs and their tasks."""
    runs = {}
    for key in tx.keys(GROUP.range()):
        tenant, root, children, *_ = GROUP.unpack(key)
        assert isinstance(children, bytes)
        runs[str(tenant), run_path(run_id((str(root), *map(str, decode(children)))))] = None
    lines = []
    for tenant, run in runs:
        reads = partition.reads(tx, tenant)
        found = reads.get(WfRun, (run,))
        assert found is not None
        lines.append(f"{tenant} {run} {LHStatus.Name(found.status)}")
        for key, task in reads.list(TaskRun, (run,)):
            attempts = " ".join(TaskStatus.Name(attempt.status) for attempt in task.attempts)
            lines.append(f"  {key[1]} {attempts}")
    return [*lines, f"queued {sum(1 for _ in tx.keys(QUEUED.range()))}"]


def replayed(lines: list[str]) -> list[str]:
    """The ends that the commands of a file lead to."""
    space = MemorySpace()
    partition = Partition(space.write(lambda tx: initialize(tx, 0)))
    for line in lines:
        stamp_ms, entry = line.split()

        def write(tx: Transaction, stamp_ms: str = stamp_ms, entry: str = entry) -> None:
            (end,) = partition.apply(tx, [decode_command(bytes.fromhex(entry))], int(stamp_ms))
            assert end.error is None, end.error

        space.write(write)
    with space.read() as tx:
        return ends(tx, partition)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_a_recorded_history_ends_as_it_did(file: Path) -> None:
    lines = file.read_text().splitlines()
    rule = lines.index(RULE)
    assert replayed(lines[:rule]) == lines[rule + 1 :]


def record(seed: int) -> Path:
    """Record a history of the simulation; no file is replaced."""
    from tests.simulation.test_workflows import simulated

    world = simulated(seed, 80)
    with world.space.read() as tx:
        records = list(world.processor.partition.log.records(tx))
    lines = [f"{record.stamp_ms} {encode_command(record.entry).hex()}" for record in records]
    file = FOLDER / f"seed-{seed}.txt"
    FOLDER.mkdir(exist_ok=True)
    with file.open("x") as made:
        made.write("\n".join([*lines, RULE, *replayed(lines)]) + "\n")
    return file


if __name__ == "__main__":
    print(record(int(sys.argv[1])))
