"""Partitions on a log in a bucket: processes that both think they own them, and one that stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("littlehorse")
pytest.importorskip("rocksdict")

from littlehorse.model import PutTaskDefRequest, RunWfRequest, ScheduledTask, TaskDef, WfRun

from millpond.clock import SystemClock
from millpond.errors import AlreadyExists, Invalid, Unavailable
from millpond.kernel.keys import EVERYTHING
from millpond.server.workflows.shared.ownership import Ownership
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.workflows.engine import key_of
from millpond.workflows.keyspaces import INITIALIZED
from millpond.workflows.logs.bucket import BucketLog
from millpond.workflows.partitions import METADATA, Checkpoints, Follower
from millpond.workflows.processor import Applied, Measures, read_rows
from millpond.workflows.tasks.queues import Worker, Workers
from tests.models.workflows.specs import request
from tests.workflows.test_client import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from millpond.workflows.engine import Request

SECONDS, TENANT, RUNS = 20, "acme", 30
pytestmark = pytest.mark.usefixtures("process")


class Process:
    """A process with followers of both partitions, which believes that it owns them."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.log, self.handed = BucketLog(objects, 2, SystemClock()), list[ScheduledTask]()
        self.followers = [
            Follower(self.log, number, MemorySpace(), SystemClock(), self._passed_on) for number in range(2)
        ]
        for follower in self.followers:
            follower.own(True)
            follower.start()

    def _passed_on(self, ends: Sequence[Applied]) -> None:
        for end in ends:
            if end.worker is not None:
                assert isinstance(end.reply, ScheduledTask)
                self.handed.append(end.reply)

    def do(self, act: Request, number: int = 1) -> Any:
        return self.followers[number].submit(TENANT, act)

    def settle(self) -> None:
        for number, follower in enumerate(self.followers):
            follower.wait_until(self.log.end(number), SECONDS)

    def rows(self) -> dict[bytes, bytes]:
        with self.followers[1].space.read() as tx:
            return {key: row for key, row in tx.scan(EVERYTHING) if key not in INITIALIZED}

    def stop(self) -> None:
        self.log.close()
        for follower in self.followers:
            follower.stop()


def test_two_owners_at_once_do_everything_once() -> None:
    objects = MemoryObjects()
    one, other = both = Process(objects), Process(objects)
    try:
        one.do(PutTaskDefRequest(name="work"), METADATA).result(SECONDS)
        one.do(request("retried"), METADATA).result(SECONDS)
        other.settle()
        for process in both:
            for number in range(RUNS):
                process.followers[1].workers.wait(Worker((TENANT, "work"), f"worker-{number}"))
        runs = [f"run-{number}" for number in range(RUNS)]
        begun = [process.do(RunWfRequest(wf_spec_name="retried", id=run)) for run in runs for process in both]
        errors = [future.exception(SECONDS) for future in begun]
        assert [isinstance(error, AlreadyExists | Invalid) for error in errors].count(True) == RUNS
        assert errors.count(None) == RUNS, "of two who begin a run one succeeds"
        wait_for(lambda: len(one.handed) + len(other.handed) >= RUNS)
        for process in both:
            process.settle()
        tasks = [key_of(task.task_run_id) for process in both for task in process.handed]
        assert len(set(tasks)) == len(tasks) == RUNS, "each task is handed to one worker"
        wait_for(lambda: one.rows() == other.rows())  # an owner enters its clock meanwhile
    finally:
        for process in both:
            process.stop()


class _Away(MemoryObjects):
    """A bucket, as a process sees it that stands still now and then."""

    def __init__(self, there: MemoryObjects) -> None:
        super().__init__()
        self._held, self._lock, self.away = there._held, there._lock, False

    def get(self, name: str) -> pa.Buffer:
        if self.away:
            raise Unavailable("the process stands still", kind="objects_unavailable")
        return super().get(name)


def test_a_process_that_stood_still_begins_anew_with_a_checkpoint(tmp_path: Path) -> None:
    there = MemoryObjects()
    here, one = _Away(there), Process(there)
    log, checkpoints = BucketLog(here, 2, SystemClock()), Checkpoints(MemoryObjects())
    ownership = Ownership(
        log, tmp_path, checkpoints, SystemClock(), assigned=frozenset, passed_on=lambda _: None, workers=Workers(),
        measures=Measures(), interval=300,
    )  # fmt: skip
    ownership.start()
    try:
        one.do(PutTaskDefRequest(name="work"), METADATA).result(SECONDS)
        ownership.metadata.wait_until(log.end(METADATA), SECONDS)
        here.away = True
        for block in range(2):
            for number in range(3):
                one.do(PutTaskDefRequest(name=f"more-{block}-{number}"), METADATA).result(SECONDS)
            before = checkpoints.save(METADATA, one.followers[METADATA].space)
        one.log.trim(METADATA, before)
        here.away = False
        wait_for(lambda: ownership.metadata.behind)
        ownership.wake()
        wait_for(lambda: ownership.metadata.position >= one.log.end(METADATA))
        assert read_rows(ownership.metadata, TENANT, lambda rows: rows.get(TaskDef, ("more-1-2",))) is not None
        assert read_rows(ownership.metadata, TENANT, lambda rows: rows.get(WfRun, ("none",))) is None
    finally:
        ownership.stop()
        log.close()
        one.stop()
