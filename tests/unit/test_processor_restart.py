"""A processor that begins anew: queued tasks in their order, sleeps that end, timeouts that count from the claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import LHStatus, TaskRun, TaskStatus, WfRun

from millpond.errors import Unavailable
from millpond.kernel.space import ReadTransaction
from millpond.kernel.worker import workers
from millpond.stores.memory import MemorySpace
from millpond.workflows.engine import TaskClaim
from millpond.workflows.processor.rows import queued_after
from tests.models.workflows.specs import request
from tests.unit.test_processor import Ground, opened, started, task_of, until


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(opened("lmdb", tmp_path))
    yield made
    made.processor.stop()
    made.space.close()


def test_case_46_what_was_queued_asleep_and_running_goes_on(ground: Ground) -> None:
    ground.do(request("sleeps"))
    started(ground, "sleeps", "asleep")
    runs = ["c", "a", "b", "claimed"]
    for run in runs:
        started(ground, "timed", run)
    assert ground.do(TaskClaim(task_of("claimed"), "worker")) is not None

    def queued() -> list[str]:
        with ground.space.read() as tx:
            return [task.run for task in queued_after(tx, "acme", "work", None, 10)]

    def claimed() -> int:
        task = ground.row(TaskRun, "claimed", "0-1")
        assert isinstance(task, TaskRun)
        return task.attempts[0].status

    def asleep() -> int:
        run = ground.row(WfRun, "asleep")
        assert isinstance(run, WfRun)
        return run.status

    for passed in (1_500, 500):  # the timeout is two seconds from the claim, whatever is restarted in between
        assert (queued(), claimed()) == (["c", "a", "b"], TaskStatus.TASK_RUNNING)
        ground.processor.stop()
        ground.clock.advance(passed)
        ground.begun()
        ground.do(request("sleeps"))
    until(lambda: claimed() == TaskStatus.TASK_TIMEOUT)
    assert queued() == ["c", "a", "b", "claimed"], "the next attempt is behind the others"
    assert asleep() == LHStatus.RUNNING
    ground.processor.stop()
    ground.clock.advance(8_000)
    ground.begun()
    until(lambda: asleep() == LHStatus.COMPLETED)


class _Away(MemorySpace):
    """A space that can be written, and not read until it is there."""

    is_away = True

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        if self.is_away:
            raise Unavailable("the disk does not answer", kind="space_away")
        return super().read(wait=wait)


def test_one_that_cannot_go_on_is_seen_and_goes_on_later() -> None:
    space = _Away()
    ground = Ground(space)

    def states() -> list[tuple[str, str | None]]:
        return [(seen.state, seen.failure) for seen in workers() if seen.name == "workflows"]

    until(lambda: ("failing", "the disk does not answer") in states())
    space.is_away = False
    assert ground.do(request("sleeps")) is not None
    until(lambda: ("waiting", "the disk does not answer") in states())  # what went wrong last is still said
    ground.processor.stop()
    assert not states()
