"""The processor: commands in order, replies when durable, timers, mistakes, and what a stop leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")
pytest.importorskip("rocksdict")

from google.protobuf.message import Message
from littlehorse.model import (
    DeleteWfRunRequest,
    LHStatus,
    NodeRun,
    NodeRunId,
    PutTaskDefRequest,
    RunWfRequest,
    ScheduledTask,
    TaskDef,
    TaskDefId,
    TaskRun,
    TaskRunId,
    TaskStatus,
    VariableValue,
    WfRun,
    WfRunId,
)

from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Closed, Internal, NotFound, Unavailable
from millpond.kernel.keys import Prefix
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import listening
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.rocksdb.space import RocksSpace
from millpond.workflows.engine import Request, TaskClaim, TaskQueued, key_of
from millpond.workflows.keyspaces import COMMANDS, FAILED, QUEUED, TIMER
from millpond.workflows.processor import Applied, Processor, partition, processor
from millpond.workflows.store.legacy import ROWS, legacy_address
from millpond.workflows.tasks.queues import Worker
from tests.harness.legacy_rows import write_legacy
from tests.models.workflows.specs import request

SECONDS = 20


class Ground:
    """A space on disk with a processor, which may be stopped and begun anew."""

    def __init__(self, space: Space) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.space = space
        self.passed: list[Applied] = []
        self.processor = self.begun()

    def begun(self) -> Processor:
        self.processor = Processor(self.space, self.clock, self._pass_on)
        self.processor.start()
        return self.processor

    def _pass_on(self, applied: Sequence[Applied]) -> None:
        self.passed += applied

    def do(self, request: Request) -> Message | None:
        return self.processor.submit("acme", request).result(SECONDS)

    def row(self, kind: type[Message], *key: str | int) -> Message | None:
        with self.space.read() as tx:
            return self.processor.partition.reads(tx, "acme").get(kind, key)

    def count(self, prefix: Prefix) -> int:
        with self.space.read() as tx:
            return sum(1 for _ in tx.keys(prefix.range()))


def opened(store: str, folder: Path) -> Space:
    return RocksSpace(folder, durable=False) if store == "rocksdb" else LmdbSpace(folder, durable=False)


@pytest.fixture(params=["lmdb", "rocksdb"])
def ground(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    made = Ground(opened(request.param, tmp_path))
    yield made
    made.processor.stop()
    made.space.close()


def started(ground: Ground, spec: str, run: str, **inputs: str) -> WfRun:
    for task in ("work", "repair"):
        ground.do(PutTaskDefRequest(name=task))
    ground.do(request(spec))
    variables = {name: VariableValue(str=text) for name, text in inputs.items()}
    found = ground.do(RunWfRequest(wf_spec_name=spec, id=run, variables=variables))
    assert isinstance(found, WfRun)
    return found


def task_of(run: str) -> TaskRunId:
    return TaskRunId(wf_run_id=WfRunId(id=run), task_guid="0-1")


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")


def test_a_reply_is_there_to_be_read(ground: Ground) -> None:
    reply = ground.do(PutTaskDefRequest(name="work"))
    assert isinstance(reply, TaskDef)
    assert ground.row(TaskDef, "work") == reply


def test_commands_that_come_together_share_a_write(ground: Ground) -> None:
    writes: list[str] = []
    gate = threading.Event()

    def listen(step: str) -> None:
        writes.append(step)
        if step == "workflows.batch_uncommitted":
            gate.wait(SECONDS)

    with listening(listen):
        first = ground.processor.submit("acme", PutTaskDefRequest(name="first"))
        until(lambda: "workflows.batch_uncommitted" in writes)
        others = [ground.processor.submit("acme", PutTaskDefRequest(name=f"task-{n}")) for n in range(20)]
        gate.set()
        for future in [first, *others]:
            future.result(SECONDS)
    assert writes.count("workflows.batch_committed") == 2
    assert [end.position for end in ground.passed] == list(range(1, 22))


def test_a_mistake_of_the_caller_leaves_no_trace(ground: Ground) -> None:
    ground.do(PutTaskDefRequest(name="work"))
    before = ground.count(COMMANDS)
    with pytest.raises(NotFound, match="Couldn't find WfSpec"):
        ground.do(RunWfRequest(wf_spec_name="nothing", id="a"))
    started(ground, "retried", "a")
    after = ground.count(COMMANDS)
    with pytest.raises(AlreadyExists):
        ground.do(RunWfRequest(wf_spec_name="retried", id="a"))
    assert (before, ground.count(COMMANDS), ground.count(FAILED)) == (2, after, 0)  # the head is a row


def test_a_mistake_of_the_program_is_recorded_and_the_next_command_goes_on(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = partition.apply

    def broken(rows: object, command: object, now: int) -> object:
        if command.request == PutTaskDefRequest(name="bad"):  # type: ignore[attr-defined]
            raise ZeroDivisionError("a mistake")
        return sound(rows, command, now)  # type: ignore[arg-type]

    monkeypatch.setattr(partition, "apply", broken)
    with pytest.raises(Internal, match="failed unexpectedly") as caught:
        ground.do(PutTaskDefRequest(name="bad"))
    assert "command=" in str(caught.value)
    assert ground.count(FAILED) == 1
    assert ground.do(PutTaskDefRequest(name="good")) is not None
    assert ground.row(TaskDef, "bad") is None


def test_a_write_that_fails_is_an_error_for_its_callers_alone(ground: Ground) -> None:
    def fail(step: str) -> None:
        if step == "workflows.batch_uncommitted":
            raise Unavailable("no space is left on the disk", kind="disk_full")

    with listening(fail), pytest.raises(Unavailable, match="no space"):
        ground.do(PutTaskDefRequest(name="work"))
    assert ground.row(TaskDef, "work") is None
    ground.do(PutTaskDefRequest(name="work"))


def test_a_worker_that_waits_gets_a_task_with_the_write_that_queued_it(ground: Ground) -> None:
    ground.do(PutTaskDefRequest(name="work"))
    worker = Worker(("acme", "work"), "worker-1")
    ground.processor.workers.wait(worker)
    writes: list[str] = []
    with listening(writes.append):
        started(ground, "retried", "a")
        until(lambda: any(end.worker is worker for end in ground.passed))
    (handed,) = [end for end in ground.passed if end.worker is worker]
    assert isinstance(handed.reply, ScheduledTask)
    assert key_of(handed.reply.task_run_id) == ("a", "0-1")
    assert writes.count("workflows.batch_committed") == 4  # two definitions, the specification, the run
    assert ground.count(QUEUED) == 0
    assert not ground.processor.workers.withdraw(worker)


def test_a_worker_waits_again_when_the_write_of_its_claim_is_not_made(ground: Ground) -> None:
    started(ground, "retried", "a")
    failed = threading.Event()

    def fail(step: str) -> None:
        if step == "workflows.batch_uncommitted" and not failed.is_set():
            failed.set()
            raise Unavailable("no space is left on the disk", kind="disk_full")

    worker = Worker(("acme", "work"), "worker-1")
    with listening(fail):
        ground.processor.workers.wait(worker)
        assert failed.wait(SECONDS)
    for _ in range(200):
        ground.clock.advance(1_000)
        threading.Event().wait(0.01)
        if any(end.worker is worker for end in ground.passed):
            break
    assert [end.worker for end in ground.passed if end.worker] == [worker]
    task = ground.row(TaskRun, "a", "0-1")
    assert isinstance(task, TaskRun)
    assert task.attempts[0].task_worker_id == "worker-1"


def test_tasks_that_were_queued_before_a_restart_are_handed_out_in_their_order(ground: Ground) -> None:
    started(ground, "retried", "a")
    for run in ("c", "b"):
        ground.do(RunWfRequest(wf_spec_name="retried", id=run))
    ground.processor.stop()
    ground.begun()
    for number in range(3):
        ground.processor.workers.wait(Worker(("acme", "work"), f"worker-{number}"))
    until(lambda: sum(1 for end in ground.passed if end.worker) == 3)
    handed = [end for end in ground.passed if end.worker]
    replies = [end.reply for end in handed if isinstance(end.reply, ScheduledTask)]
    assert [key_of(reply.task_run_id)[0] for reply in replies] == ["a", "c", "b"]
    assert [end.worker.id for end in handed if end.worker] == ["worker-0", "worker-1", "worker-2"]


@pytest.mark.parametrize("store", ["lmdb", "rocksdb"])
def test_rows_of_the_legacy_layout_move_while_no_command_waits(tmp_path: Path, store: str) -> None:
    space = opened(store, tmp_path)
    run = WfRun(id=WfRunId(id="old"), status=LHStatus.COMPLETED)

    def legacy(tx: Transaction) -> None:
        write_legacy(tx, "acme", run)
        for number in range(3):
            place = NodeRunId(wf_run_id=run.id, thread_run_number=0, position=number)
            write_legacy(tx, "acme", NodeRun(id=place, status=LHStatus.COMPLETED))

    space.write(legacy)
    ground = Ground(space)
    try:
        until(lambda: ground.processor.partition.initialization.migrated)
        assert ground.row(WfRun, "old") == run
        with space.read() as tx:
            reads = ground.processor.partition.reads(tx, "acme")
            assert [key for key, _ in reads.list(NodeRun, ("old",))] == [("old", 0, number) for number in range(3)]
            assert not [key for key in tx.keys(ROWS) if legacy_address(key) is not None]
    finally:
        ground.processor.stop()
        space.close()


def test_a_claim_times_out_also_when_the_processor_was_away(ground: Ground) -> None:
    started(ground, "timed", "a")
    assert ground.count(QUEUED) == 1
    assert ground.do(TaskClaim(task_of("a"), "worker")) is not None
    assert ground.do(TaskClaim(task_of("a"), "other")) is None
    assert (ground.count(QUEUED), ground.count(TIMER)) == (0, 1)
    ground.processor.stop()
    ground.clock.advance(5_000)
    ground.begun()

    def timed_out() -> bool:
        task = ground.row(TaskRun, "a", "0-1")
        assert isinstance(task, TaskRun)
        return task.attempts[0].status == TaskStatus.TASK_TIMEOUT

    until(timed_out)
    assert ground.count(QUEUED) == 1  # the next attempt
    until(lambda: any(isinstance(effect, TaskQueued) for end in ground.passed[-1:] for effect in end.effects))


def test_a_timer_fires_when_its_time_has_come(ground: Ground) -> None:
    started(ground, "sleeps", "a")
    assert ground.count(TIMER) == 1

    def status() -> int:
        run = ground.row(WfRun, "a")
        assert isinstance(run, WfRun)
        return run.status

    assert status() == LHStatus.RUNNING
    for _ in range(100):
        ground.clock.advance(60_000)
        threading.Event().wait(0.02)
        if status() == LHStatus.COMPLETED:
            break
    assert status() == LHStatus.COMPLETED
    assert ground.count(TIMER) == 0


def test_a_large_run_is_deleted_to_its_end(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "SLICE_ROWS_MAX", 2)
    started(ground, "retried", "a")
    ground.do(DeleteWfRunRequest(id=WfRunId(id="a")))
    until(lambda: not any(b"a" in key.split(b"acme")[-1] for key in _rows_of_runs(ground)))
    assert ground.count(QUEUED) == 0
    until(lambda: _runs_again(ground))


def _rows_of_runs(ground: Ground) -> list[bytes]:
    from millpond.workflows.keyspaces import DELETION, GROUP, TAG

    with ground.space.read() as tx:
        return [key for prefix in (GROUP, TAG, DELETION) for key in tx.keys(prefix.range())]


def _runs_again(ground: Ground) -> bool:
    return isinstance(ground.do(RunWfRequest(wf_spec_name="retried", id="a")), WfRun)


def test_commands_after_a_stop_get_an_error(ground: Ground) -> None:
    ground.processor.stop()
    with pytest.raises(Closed):
        ground.do(PutTaskDefRequest(name="work"))


def test_more_commands_than_may_wait_are_refused(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "QUEUED_MAX", 2)
    gate, reached = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "workflows.batch_uncommitted":
            reached.set()
            gate.wait(SECONDS)

    with listening(hold):
        futures: list[Future[Message | None]] = [ground.processor.submit("acme", PutTaskDefRequest(name="first"))]
        assert reached.wait(SECONDS)
        futures += [ground.processor.submit("acme", PutTaskDefRequest(name=f"task-{n}")) for n in range(3)]
        with pytest.raises(Unavailable, match="more commands wait"):
            futures[-1].result(SECONDS)
        gate.set()
        for future in futures[:-1]:
            future.result(SECONDS)


def test_the_log_holds_what_was_applied_and_is_trimmed(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "COMMANDS_RETAINED", 10)
    monkeypatch.setattr(partition, "_TRIMMED_AT_ONCE", 5)
    for number in range(23):
        ground.do(PutTaskDefRequest(name=f"task-{number}"))
    with ground.space.read() as tx:
        log = ground.processor.partition.log
        records = list(log.records(tx))
        assert log.head(tx).position == 23
    assert 10 <= len(records) <= 15
    assert [record.entry.request for record in records][-1] == PutTaskDefRequest(name="task-22")
    assert ground.row(TaskDef, "task-0") == TaskDef(id=TaskDefId(name="task-0"), created_at=_instant(ground))


def _instant(ground: Ground) -> object:
    found = ground.row(TaskDef, "task-0")
    assert isinstance(found, TaskDef)
    return found.created_at
