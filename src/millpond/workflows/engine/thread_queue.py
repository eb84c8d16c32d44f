"""The queue of a run: threads that wait until fewer of it move, each in a row of its own with its inputs.

Invariants:

* A queued thread has its number, and its parent lists it; it has no node run, and is STARTING, or HALTED for reasons.
* Threads leave the queue in its order, but for those that are halted, and none does once the run has ended.
* A thread that may wait for a queued one takes no place, but for the first: waits for children end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from littlehorse.model import (
    InactiveThreadRun,
    InactiveThreadRunId,
    LHStatus,
    QueuedThreadRunInfo,
    ThreadRun,
    VariableValue,
)

from millpond.errors import Internal
from millpond.workflows.engine.keys import Key, key_of
from millpond.workflows.engine.limits import THREADS_ACTIVE_MAX
from millpond.workflows.engine.runs import TERMINAL, Run

__all__ = (
    "room",
    "enqueue",
    "thread_of",
    "queued",
    "queued_children",
    "save",
    "take",
)

_RESTING = TERMINAL | {LHStatus.HALTED}


def room(run: Run) -> int:
    """The number of threads that may begin to move."""
    above = _above(run)
    moving = (thread for thread in run.row.thread_runs if thread.status not in _RESTING)
    return THREADS_ACTIVE_MAX - sum(thread.number not in above for thread in moving)


def _above(run: Run) -> set[int]:
    """The threads below which one is queued, without the first."""
    above: set[int] = set()
    if run.queue:
        for thread in reversed(run.row.thread_runs[1:]):  # children come behind their parents
            if thread.number in above or not run.queue.isdisjoint(thread.child_thread_ids):
                above |= {thread.number, thread.parent_thread_id}
    return above - {0}


def enqueue(run: Run, thread: ThreadRun, inputs: Mapping[str, VariableValue]) -> ThreadRun:
    """Store a new thread at the end of the queue."""
    thread.status = LHStatus.STARTING
    name = InactiveThreadRunId(wf_run_id=run.row.id, thread_run_number=thread.number)
    row = InactiveThreadRun(id=name, thread_run=thread, queued=QueuedThreadRunInfo(input_vars=inputs))
    run.work.rows.put(key_of(name), row)
    run.row.thread_run_queue.append(thread.number)
    run.queue.add(thread.number)
    return row.thread_run


def thread_of(run: Run, number: int) -> ThreadRun:
    """The thread with a number, which may be queued."""
    return queued(run, number).thread_run if number in run.queue else run.thread(number)


def queued_children(run: Run, thread: ThreadRun) -> Iterator[ThreadRun]:
    """The children of a thread that are queued."""
    return (thread_of(run, number) for number in thread.child_thread_ids if number in run.queue)


def save(run: Run, thread: ThreadRun) -> None:
    """Write a thread that has changed, if it is queued."""
    if thread.number in run.queue:
        run.work.rows.put(_key(run, thread.number), queued(run, thread.number))


def take(run: Run) -> list[InactiveThreadRun]:
    """Take threads out of the queue, as many as there is room for."""
    room_left = room(run) if run.queue and run.thread(0).status not in TERMINAL else 0
    taken: list[InactiveThreadRun] = []
    for number in run.row.thread_run_queue:
        if len(taken) >= room_left:
            break
        row = queued(run, number)
        if not row.thread_run.halt_reasons:
            taken.append(row)
    for row in taken:
        number = row.thread_run.number
        run.row.thread_run_queue.remove(number)
        run.queue.remove(number)
        run.work.rows.delete(InactiveThreadRun, _key(run, number))
    return taken


def queued(run: Run, number: int) -> InactiveThreadRun:
    """The row of a queued thread."""
    row = run.work.rows.get(InactiveThreadRun, _key(run, number))
    if row is None:
        raise Internal("the row of a queued thread is missing", kind="run_rows", run=run.path, thread=number)
    return row


def _key(run: Run, number: int) -> Key:
    return (run.path, number)
