"""Workflows by seed: log, processor, tasks and timers, with a crash at any step of any write.

A caller starts runs, workers wait and report well, badly or never, the clock moves, and the processor crashes. Each
crash leaves the space as its last write left it; a new processor goes on. In the end all is let come to rest.

Invariants:
* no attempt of a task is handed out twice, and tasks of a queue are handed out in their order;
* a run whose RunWf was answered is there, and comes to its end;
* the log, applied once more, makes the same rows, byte for byte;
* the same seed takes the same course.
"""

from __future__ import annotations

import random  # noqa: TID251 - each simulation has its seed
from collections.abc import Sequence

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    LHErrorType,
    LHStatus,
    LHTaskError,
    PutTaskDefRequest,
    ReportTaskRun,
    RunWfRequest,
    ScheduledTask,
    TaskStatus,
    WfRun,
)

from millpond.clock import ManualClock
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.log import Record
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import Transaction
from millpond.kernel.steps import listening
from millpond.stores.memory import MemorySpace
from millpond.workflows.engine import Request, key_of
from millpond.workflows.keyspaces import QUEUED, TIMER, TIMER_TIME
from millpond.workflows.processor import Applied, Partition, Processor
from millpond.workflows.processor.codec import LoggedCommand, encode_request
from millpond.workflows.store import initialize
from millpond.workflows.tasks.queues import Worker
from tests.models.workflows.specs import request

SPECS = ("retried", "delayed", "timed", "sleeps")
BEGAN_MS = 1_700_000_000_000
ENDED = (LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION)


class Crashed(BaseException):
    """The end of a process, as nothing in it can catch."""


class World:
    """One space, and the processes that serve it one after another."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock, self.space = ManualClock(BEGAN_MS), MemorySpace()
        self.story: list[str] = []
        self.started: dict[str, bool] = {}
        self.handed: list[tuple[str, str, int]] = []
        self.working: list[ScheduledTask] = []
        self.posted: dict[str, Request] = {}
        self.crash_in: int | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a processor on what is there."""
        self.processor = Processor(self.space, self.clock, self._passed)
        self.posted.clear()

    def _passed(self, ends: Sequence[Applied]) -> None:
        for end in ends:
            posted = self.posted.pop(end.command.id, None)
            if isinstance(posted, RunWfRequest):
                assert end.error is None, end.error
                self.started[posted.id] = True
            if end.worker is not None:
                assert isinstance(end.reply, ScheduledTask)
                self._take(end.reply)

    def _take(self, task: ScheduledTask) -> None:
        attempt = (*map(str, key_of(task.task_run_id)), task.attempt_number)
        assert attempt not in self.handed, "an attempt is handed out at most once"
        self.handed.append(attempt)  # type: ignore[arg-type]
        self.working.append(task)

    def _step(self, name: str) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                self.story.append(f"crash at {name}")
                raise Crashed

    def rest(self) -> None:
        """Let the processor do what there is to do, or crash at it."""
        with listening(self._step):
            try:
                while self.processor.turn():
                    pass
            except Crashed:
                self.begin()

    def post(self, wanted: Request) -> None:
        """Send a request; its end is seen if the processor lives as long."""
        self.posted[self.processor.post("acme", wanted)] = wanted

    def act(self) -> None:
        """One thing that happens, by chance."""
        what = self.dice.choice(("run", "run", "work", "work", "report", "report", "fail", "clock", "crash"))
        self.story.append(what)
        if what == "run":
            run = f"run-{len(self.started)}"
            self.started[run] = False
            self.post(RunWfRequest(wf_spec_name=self.dice.choice(SPECS), id=run))
        elif what == "work":
            self.processor.workers.wait(Worker(("acme", "work"), "worker"))
        elif what in ("report", "fail") and self.working:
            self.report(self.working.pop(self.dice.randrange(len(self.working))), well=what == "report")
        elif what == "clock":
            self.clock.advance(self.dice.choice((10, 600, 3_000, 70_000)))
        elif what == "crash":
            self.crash_in = self.dice.randrange(6)
        if self.dice.random() < 0.6:
            self.rest()

    def report(self, task: ScheduledTask, *, well: bool) -> None:
        """Report an attempt."""
        ended = ReportTaskRun(task_run_id=task.task_run_id, attempt_number=task.attempt_number)
        if well:
            ended.status = TaskStatus.TASK_SUCCESS
        else:
            ended.status = TaskStatus.TASK_FAILED
            ended.error.CopyFrom(LHTaskError(type=LHErrorType.TASK_FAILURE, message="by chance"))
        self.post(ended)

    def status(self, run: str) -> int | None:
        """The status of a run; None when there is none."""
        with self.space.read() as tx:
            found = self.processor.partition.reads(tx, "acme").get(WfRun, (run,))
        return None if found is None else found.status

    def finish(self) -> None:
        """No more crashes: workers serve what is queued, timers fire, until nothing is left."""
        self.crash_in = None
        for _ in range(2_000):
            self.rest()
            while self.working:
                self.report(self.working.pop(), well=True)
            self.rest()
            with self.space.read() as tx:
                queued = sum(1 for _ in tx.keys(QUEUED.range()))
                timers = sum(1 for _ in tx.keys(TIMER.range()))
            for _ in range(queued):
                self.processor.workers.wait(Worker(("acme", "work"), "worker"))
            if not queued and not timers:
                return
            self.clock.advance(3_600_000 if not queued else 1)
        raise AssertionError("it does not come to rest")


def simulated(seed: int, acts: int) -> World:
    world = World(seed)
    for task in ("work", "repair"):
        world.post(PutTaskDefRequest(name=task))
    for spec in SPECS:
        world.post(request(spec))
    world.rest()
    for _ in range(acts):
        world.act()
    world.finish()
    return world


def rows_of(space: MemorySpace) -> dict[bytes, bytes]:
    with space.read() as tx:
        return dict(tx.scan(EVERYTHING))


def applied_again(world: World) -> MemorySpace:
    fresh = MemorySpace()
    partition = Partition(fresh.write(lambda tx: initialize(tx, BEGAN_MS)))
    with world.space.read() as tx:
        records = list(partition.log.records(tx))

    def write(tx: Transaction, record: Record[LoggedCommand]) -> None:
        _fire(tx, record)
        partition.apply(tx, [record.entry], record.stamp_ms)

    for record in records:
        fresh.write(lambda tx, record=record: write(tx, record))
    return fresh


def _fire(tx: Transaction, record: Record[LoggedCommand]) -> None:
    """Let a timer be set no more whose command this is: a processor takes it before it applies the command."""
    fired = encode_request(record.entry.request)
    for key, made in list(tx.scan(TIMER.range((), (record.stamp_ms + 1,)))):
        if made == fired:
            _, tenant, *name = TIMER.unpack(key)
            delete_rows(tx, [key, TIMER_TIME.pack(tenant, *name)])


def check(seed: int, acts: int) -> World:
    world = simulated(seed, acts)
    for run, answered in world.started.items():
        status = world.status(run)
        assert status in ENDED or (status is None and not answered), (seed, run, status)
    assert rows_of(applied_again(world)) == rows_of(world.space), seed
    return world


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(25))
def test_runs_end_and_the_log_makes_the_same_rows(seed: int) -> None:
    check(seed, 60)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1_000, 1_400))
def test_many_more(seed: int) -> None:
    check(seed, 150)


def test_a_seed_takes_one_course() -> None:
    first, second = simulated(7, 60), simulated(7, 60)
    assert first.story == second.story
    assert rows_of(first.space) == rows_of(second.space)


@pytest.mark.usefixtures("processor")
def test_crashes_happen_at_every_step() -> None:
    crashes = {line for seed in range(40) for line in check(seed, 60).story if line.startswith("crash at")}
    assert {"crash at workflows.applied", "crash at workflows.batch_uncommitted"} <= crashes
    assert "crash at workflows.batch_committed" in crashes
