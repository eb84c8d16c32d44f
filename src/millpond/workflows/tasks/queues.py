"""Queues of tasks that wait for a worker, and of workers that wait for a task: one pair for each definition.

    worker polls ─▶ Workers ──┐
                              ├─▶ a claim in the same write ─▶ durable ─▶ handed out
    task queued ─▶ rows ──────┘

The rows are the truth; `TaskQueues` is a window of them. A processor owns its queues; workers wait for all processors
of a node.

Invariants:
* no worker waits while a task is queued, and no task is passed over: when a window is empty, it is read again from the
  rows behind the last place that it held;
* a task leaves a queue only by a command, so one that was withdrawn, or is met twice, is claimed by nobody;
* a definition takes memory for at most `WINDOW` tasks, however many are queued, and none before a worker polls;
* a worker gets one task for each time that it waits, or gives up waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ("BEATING", "WINDOW", "Position", "Queue", "Queued", "QueuedTask", "TaskQueues", "Worker", "Workers")

WINDOW = 1_000
BEATING = "+beats"
"""The end of the id of a worker that registers every few seconds: its silence is its end."""

Position: TypeAlias = tuple[int, int]
"""Position of the command that queued a task, and its number among what that command wrote."""
Queue: TypeAlias = tuple[str, str]
"""The name of a queue: a tenant, and a definition of a task."""

Look: TypeAlias = Callable[[Queue], None]


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task run in a queue: its place there, its run, and its id in it."""

    position: Position
    run: str
    guid: str


@dataclass(frozen=True, slots=True)
class Queued:
    """A task that joined the queue of a definition."""

    definition: str
    task: QueuedTask


@dataclass(slots=True, eq=False)
class Worker:
    """A worker that waits for one task of a queue."""

    queue: Queue
    id: str
    version: str = ""


class Workers:
    """The workers that wait, the longest first. Each method is one step of a deque, so threads may share it.

    Processors watch it: each looks into its queue when a worker begins to wait.
    """

    def __init__(self) -> None:
        self._queues: dict[Queue, deque[Worker]] = {}
        self._watching: tuple[Look, ...] = ()

    @property
    def count(self) -> int:
        """The number of workers that wait."""
        return sum(len(queue) for queue in tuple(self._queues.values()))

    def queues(self) -> tuple[Queue, ...]:
        """The queues of which workers wait for a task."""
        return tuple(queue for queue, workers in tuple(self._queues.items()) if workers)

    def watch(self, look: Look) -> None:
        """Call a function with the queue of each worker that begins to wait."""
        self._watching = (*self._watching, look)

    def unwatch(self, look: Look) -> None:
        """Call it no more."""
        self._watching = tuple(own for own in self._watching if own != look)

    def wait(self, worker: Worker) -> None:
        """Let a worker wait behind the others."""
        self._queues.setdefault(worker.queue, deque()).append(worker)
        self._announce(worker.queue)

    def withdraw(self, worker: Worker) -> bool:
        """Let a worker wait no more; False when it was taken already."""
        try:
            self._queues[worker.queue].remove(worker)
        except (KeyError, ValueError):
            return False
        return True

    def take(self, queue: Queue) -> Worker | None:
        """The worker that has waited longest, which waits no more; None when nobody waits."""
        queued = self._queues.get(queue)
        try:
            return queued.popleft() if queued else None
        except IndexError:  # another thread was faster
            return None

    def give_back(self, worker: Worker) -> None:
        """Let a worker wait again, before all others."""
        self._queues.setdefault(worker.queue, deque()).appendleft(worker)
        self._announce(worker.queue)

    def _announce(self, queue: Queue) -> None:
        for look in self._watching:
            look(queue)


@dataclass(slots=True)
class _Window:
    tasks: deque[QueuedTask] = field(default_factory=deque)
    after: Position | None = None
    more: bool = True


Read: TypeAlias = Callable[[Queue, Position | None, int], Sequence[QueuedTask]]
"""The tasks of a queue behind a place, of the rows that are there now."""


class TaskQueues:
    """The windows of one processor's queues."""

    def __init__(self) -> None:
        self._windows: dict[Queue, _Window] = {}

    def add(self, queue: Queue, task: QueuedTask) -> None:
        """Note a task that joined the end of a queue."""
        window = self._windows.get(queue)
        if window is None or window.more:
            return  # it will be read
        if len(window.tasks) >= WINDOW:
            window.more = True
            return
        window.tasks.append(task)
        window.after = task.position

    def may_hold(self, queue: Queue) -> bool:
        """False when nothing is queued."""
        window = self._windows.get(queue)
        return window is None or window.more or bool(window.tasks)

    def next(self, queue: Queue, read: Read) -> QueuedTask | None:
        """Take the oldest task of a queue that was not taken yet; None when there is none."""
        window = self._windows.setdefault(queue, _Window())
        if not window.tasks and window.more:
            tasks = read(queue, window.after, WINDOW)
            window.more = len(tasks) == WINDOW
            window.tasks.extend(tasks)
            if tasks:
                window.after = tasks[-1].position
        return window.tasks.popleft() if window.tasks else None

    def forget(self, queue: Queue) -> None:
        """Drop the window of a queue, which is read again from its beginning: what was taken was not claimed."""
        self._windows.pop(queue, None)
