"""Tasks of this process's partitions, offered to the workers that poll it: one thread claims for all.

    worker polls ─▶ Workers ──┐
                              ├─▶ this thread ─▶ a claim in the partition's log ─▶ applied ─▶ handed out
    task queued ─▶ rows ──────┘

Invariants:
* a task is handed out after its claim is in the log and applied: two processes that offer the same task make two
  claims, of which one is the first;
* a worker whose claim came too late, or is not decided, waits again, before all others;
* a queue whose claim is not decided is read again from its beginning.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from littlehorse.model import ScheduledTask, TaskRunId

from millpond.kernel.worker import WorkerThread
from millpond.workflows.engine import TaskClaim, run_id
from millpond.workflows.processor.rows import queued_after
from millpond.workflows.tasks.queues import TaskQueues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from google.protobuf.message import Message

    from millpond.clock import Clock
    from millpond.workflows.partitions import Follower
    from millpond.workflows.processor import Applied
    from millpond.workflows.tasks.queues import Place, Queue, Queued, QueuedTask, Worker, Workers

__all__ = ("Offers",)

_RETRY_SECONDS = 0.5
_LOG = logging.getLogger(__name__)


class Offers:
    """Offers tasks of the partitions that `owned` says; `hand` gets each worker its task."""

    def __init__(
        self, workers: Workers, owned: Callable[[], dict[int, Follower]], hand: Callable[[Worker, ScheduledTask], None],
        clock: Clock,
    ) -> None:  # fmt: skip
        self._workers, self._owned, self._hand, self._clock = workers, owned, hand, clock
        self._queues: dict[int, TaskQueues] = {}
        self._polled: set[Queue] = set()
        self._looked: deque[Queue] = deque()
        self._added: deque[tuple[int, Queue, Queued]] = deque()
        self._forgotten: deque[tuple[int, Queue]] = deque()
        self._owning: frozenset[int] = frozenset()
        self._worker = WorkerThread("offers of tasks", self._offer_all, clock, retry_seconds=_RETRY_SECONDS)

    def start(self) -> None:
        """Begin to offer."""
        self._workers.watch(self._look)
        self._worker.start()

    def stop(self) -> None:
        """Offer nothing more."""
        self._workers.unwatch(self._look)
        self._worker.stop()

    def own(self, owned: frozenset[int]) -> None:
        """Offer the tasks of these partitions."""
        self._owning = owned
        self._looked.extend(tuple(self._polled))
        self._worker.wake()

    def queued(self, number: int, applied: Sequence[Applied]) -> None:
        """Note the tasks that commands of a partition queued."""
        for end in applied:
            for queued in end.queued:
                self._added.append((number, (end.command.tenant, queued.definition), queued))
        if self._added:
            self._worker.wake()

    def _look(self, queue: Queue) -> None:
        self._looked.append(queue)
        self._worker.wake()

    # -- the thread -----------------------------------------------------------------------------------

    def _offer_all(self) -> None:
        try:
            self._offer()
        except Exception:
            self._looked.extend(tuple(self._polled))
            raise

    def _offer(self) -> None:
        owning = self._owning
        for number in self._queues.keys() - owning:
            del self._queues[number]
        for number in owning - self._queues.keys():
            self._queues[number] = TaskQueues()
        while self._forgotten:
            number, queue = self._forgotten.popleft()
            if number in self._queues:
                self._queues[number].forget(queue)
        touched: set[Queue] = set()
        while self._added:
            number, queue, queued = self._added.popleft()
            touched.add(queue)
            if number in self._queues:
                self._queues[number].add(queue, queued.task)
        while self._looked:
            touched.add(self._looked.popleft())
        self._polled |= touched
        for queue in sorted(touched):
            for number, follower in sorted(self._owned().items()):
                if number in self._queues:
                    self._offer_of(number, follower, queue)

    def _offer_of(self, number: int, follower: Follower, queue: Queue) -> None:
        """Claim the tasks of a partition in a queue, as long as there are both tasks and workers."""
        queues = self._queues[number]

        def read(queue: Queue, after: Place | None, limit: int) -> Sequence[QueuedTask]:
            with follower.space.read() as tx:
                return queued_after(tx, *queue, after, limit)

        while queues.may_hold(queue) and (worker := self._workers.take(queue)) is not None:
            task = queues.next(queue, read)
            if task is None:
                self._workers.give_back(worker)
                return
            name = TaskRunId(wf_run_id=run_id(task.run), task_guid=task.guid)
            claimed = follower.submit(queue[0], TaskClaim(name, worker.id, worker.version))
            claimed.add_done_callback(lambda end, worker=worker: self._claimed(number, worker, end))  # type: ignore[misc]

    def _claimed(self, number: int, worker: Worker, end: Future[Message | None]) -> None:
        error = end.exception()
        if error is not None:
            _LOG.warning("a claim on partition %s is not decided: %s", number, error)
            self._forgotten.append((number, worker.queue))
        reply = None if error is not None else end.result()
        if isinstance(reply, ScheduledTask):
            self._hand(worker, reply)
        else:
            self._workers.give_back(worker)
