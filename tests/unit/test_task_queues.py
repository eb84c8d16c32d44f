"""Queues of tasks: each is handed out once and in order, to the worker that waited longest, whatever comes between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.workflows.tasks import queues as module
from millpond.workflows.tasks.queues import Position, Queue, QueuedTask, TaskQueues, Worker, Workers

QUEUE: Queue = ("acme", "greet")


class Ground:
    """The rows of one queue, with its window and its workers, matched as a processor does it."""

    def __init__(self) -> None:
        self.rows: dict[Position, QueuedTask] = {}
        self.queues, self.workers = TaskQueues(), Workers()
        self.reads = self.number = 0
        self.handed: list[tuple[Worker, QueuedTask]] = []
        self.looked: list[Queue] = []
        self.workers.watch(self.looked.append)

    def read(self, queue: Queue, after: Position | None, limit: int) -> list[QueuedTask]:
        assert queue == QUEUE
        self.reads += 1
        return [task for position, task in sorted(self.rows.items()) if after is None or position > after][:limit]

    def add(self) -> None:
        self.number += 1
        task = QueuedTask((self.number, 0), "run", str(self.number))
        self.rows[task.position] = task
        self.queues.add(QUEUE, task)

    def hand_out(self, *, durable: bool = True) -> None:
        made: list[tuple[Worker, QueuedTask]] = []
        while worker := self.workers.take(QUEUE):
            task = self.queues.next(QUEUE, self.read)
            while task is not None and task.position not in self.rows:  # it was withdrawn
                task = self.queues.next(QUEUE, self.read)
            if task is None:
                self.workers.give_back(worker)
                break
            made.append((worker, task))
        if durable:
            for _, task in made:
                del self.rows[task.position]
            self.handed += made
        else:
            self.queues.forget(QUEUE)
            for worker, _ in reversed(made):
                self.workers.give_back(worker)


STEPS = ("add", "wait", "leave", "withdraw", "hand out", "fail")


@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_every_task_is_handed_out_once_and_in_order(steps: list[str]) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "WINDOW", 2)
    try:
        _steps(steps)
    finally:
        patch.undo()


def _steps(steps: list[str]) -> None:
    ground, hungry, withdrawn = Ground(), list[Worker](), 0
    for number, step in enumerate(steps):
        if step == "add":
            ground.add()
        elif step == "wait":
            hungry.append(Worker(QUEUE, str(number)))
            ground.workers.wait(hungry[-1])
        elif step == "leave" and hungry:
            left = hungry.pop()
            assert ground.workers.withdraw(left) is (left not in [worker for worker, _ in ground.handed])
        elif step == "withdraw" and ground.rows:
            ground.rows.pop(max(ground.rows))
            withdrawn += 1
        elif step == "fail":
            ground.hand_out(durable=False)
        else:
            ground.hand_out()
            there = {worker for worker, _ in ground.handed}
            assert not ground.rows or all(worker in there for worker in hungry), "nobody waits while a task is queued"
    tasks = [task.position for _, task in ground.handed]
    assert tasks == sorted(set(tasks))
    workers = [int(worker.id) for worker, _ in ground.handed]
    assert workers == sorted(set(workers))
    assert len(tasks) + len(ground.rows) + withdrawn == ground.number


def test_a_window_holds_a_few_of_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 10)
    ground = Ground()
    for _ in range(1_000):
        ground.add()
    for number in range(1_000):
        ground.workers.wait(Worker(QUEUE, str(number)))
        ground.hand_out()
    assert [task.guid for _, task in ground.handed] == [str(number + 1) for number in range(1_000)]
    assert ground.reads == 100


def test_tasks_that_come_one_by_one_are_not_read_again() -> None:
    ground = Ground()
    for number in range(100):
        ground.add()
        ground.workers.wait(Worker(QUEUE, str(number)))
        ground.hand_out()
    assert (len(ground.handed), ground.reads) == (100, 1)
    assert not ground.queues.may_hold(QUEUE)


def test_processors_look_when_a_worker_begins_to_wait_and_when_one_is_given_back() -> None:
    ground = Ground()
    worker = Worker(QUEUE, "a")
    ground.workers.wait(worker)
    assert ground.workers.take(QUEUE) is worker
    ground.workers.give_back(worker)
    ground.workers.unwatch(ground.looked.append)
    assert ground.looked == [QUEUE, QUEUE]
    ground.workers.wait(worker)
    assert len(ground.looked) == 2
