"""Waits for threads: which children have ended, how their failures are handled, and when the wait is over.

ALL ends when every child completed, or at the first failure that no handler takes. ANY ends at the first success, FIRST
at the first end of whatever kind; both then halt the children that are left, for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from littlehorse.model import (
    InactiveThreadRun,
    LHStatus,
    Node,
    NodeRun,
    ThreadRun,
    WaitForThreadsRun,
    WaitForThreadsStrategy,
)

from millpond.workflows.engine.failures import NodeFailed, catches, substitution
from millpond.workflows.engine.halting import halt_for_good
from millpond.workflows.engine.runs import FAILED, TERMINAL, Run
from millpond.workflows.engine.thread_queue import thread_of
from millpond.workflows.engine.threads import failure_of, start_handler

__all__ = (
    "IN_PROGRESS",
    "HANDLING",
    "SUCCESSFUL",
    "UNSUCCESSFUL",
    "STOPPED",
    "arrive_wait",
    "wait_done",
)

IN_PROGRESS = WaitForThreadsRun.THREAD_IN_PROGRESS
HANDLING = WaitForThreadsRun.THREAD_HANDLING_FAILURE
SUCCESSFUL = WaitForThreadsRun.THREAD_COMPLETED_OR_FAILURE_HANDLED
UNSUCCESSFUL = WaitForThreadsRun.THREAD_UNSUCCESSFUL
STOPPED = WaitForThreadsRun.THREAD_STOPPED
_OVER = frozenset({SUCCESSFUL, UNSUCCESSFUL})


def arrive_wait(run: Run, thread: ThreadRun, row: NodeRun, numbers: Sequence[Any]) -> None:
    """Begin a wait for child threads, by their numbers."""
    row.wait_for_threads.SetInParent()
    for number in numbers:
        whole = isinstance(number, int) and not isinstance(number, bool)
        child = (run.threads.get(number) or _archived(run, number)) if whole and number > 0 else None
        if child is None or child.parent_thread_id != thread.number:
            raise substitution(f"thread {thread.number} has no child thread {str(number)[:40]}")
        row.wait_for_threads.threads.add(thread_run_number=number, thread_status=child.status)


def _archived(run: Run, number: int) -> ThreadRun | None:
    row = run.work.rows.get(InactiveThreadRun, (run.path, number))
    return None if row is None else row.thread_run


def wait_done(run: Run, thread: ThreadRun, node: Node, row: NodeRun) -> bool:
    """True when a wait is over.

    Raises:
        NodeFailed: CHILD_FAILURE, or the exception of a child that nobody handled, or of its handler.
    """
    before = row.SerializeToString(deterministic=True)
    for waited in row.wait_for_threads.threads:
        if waited.waiting_status not in _OVER and waited.thread_run_number not in run.queue:
            _observe(run, thread, node, waited)
    if row.SerializeToString(deterministic=True) != before:
        run.put(row)
    match node.wait_for_threads.strategy:
        case WaitForThreadsStrategy.WAIT_FOR_ANY:
            return _any_done(run, thread, row)
        case WaitForThreadsStrategy.WAIT_FOR_FIRST:
            return _first_done(run, thread, row)
        case _:
            return _all_done(run, thread, row)


def _observe(run: Run, thread: ThreadRun, node: Node, waited: WaitForThreadsRun.WaitForThread) -> None:
    """Bring one line of a wait up to its child's state."""
    child = run.threads.get(waited.thread_run_number) or _archived(run, waited.thread_run_number)
    assert child is not None, "a thread that is not in its run's row is archived"
    waited.thread_status = child.status
    if child.HasField("end_time"):
        waited.thread_end_time.CopyFrom(child.end_time)
    if waited.waiting_status == HANDLING:
        _observe_handler(run, thread, child, waited)
    if waited.waiting_status != IN_PROGRESS:
        return
    if child.status == LHStatus.COMPLETED:
        waited.waiting_status = SUCCESSFUL
    elif child.status in FAILED:
        _begin_handling(run, node, child, waited)


def _begin_handling(run: Run, node: Node, child: ThreadRun, waited: WaitForThreadsRun.WaitForThread) -> None:
    name = failure_of(run, child).name
    for handler in node.wait_for_threads.per_thread_failure_handlers:
        if not catches(handler, name):
            continue
        try:
            started = start_handler(run, child, handler.handler_spec_name)
        except NodeFailed:
            break
        waited.waiting_status, waited.failure_handler_thread_run_id = HANDLING, started.number
        return
    waited.waiting_status = UNSUCCESSFUL


def _observe_handler(run: Run, thread: ThreadRun, child: ThreadRun, waited: WaitForThreadsRun.WaitForThread) -> None:
    handler = run.threads.get(waited.failure_handler_thread_run_id)
    if handler is None or handler.status == LHStatus.COMPLETED:  # only completed threads are archived
        waited.waiting_status = SUCCESSFUL
        _excuse(thread, child.number)
        failed = run.node_run(child)
        failed.failures[-1].was_properly_handled = True
        run.put(failed)
    elif handler.status in FAILED:
        waited.waiting_status = UNSUCCESSFUL


def _all_done(run: Run, thread: ThreadRun, row: NodeRun) -> bool:
    lines = row.wait_for_threads.threads
    for waited in lines:
        if waited.waiting_status == UNSUCCESSFUL:
            _stop_rest(run, row)
            raise _child_failure(run, waited)
    return all(waited.waiting_status == SUCCESSFUL for waited in lines)


def _any_done(run: Run, thread: ThreadRun, row: NodeRun) -> bool:
    lines = row.wait_for_threads.threads
    if any(waited.waiting_status == SUCCESSFUL for waited in lines):
        for waited in lines:
            if waited.waiting_status == UNSUCCESSFUL:
                _excuse(thread, waited.thread_run_number)
        _stop_rest(run, row)
        return True
    if all(waited.waiting_status == UNSUCCESSFUL for waited in lines) and lines:
        raise NodeFailed("CHILD_FAILURE", "All child threads failed")
    return not lines


def _first_done(run: Run, thread: ThreadRun, row: NodeRun) -> bool:
    lines = row.wait_for_threads.threads
    ended = [waited for waited in lines if waited.waiting_status in (SUCCESSFUL, UNSUCCESSFUL)]
    if not ended:
        return not lines
    first = min(ended, key=lambda waited: (waited.thread_end_time.ToNanoseconds(), waited.thread_run_number))
    _stop_rest(run, row)
    if first.waiting_status == UNSUCCESSFUL:
        raise _child_failure(run, first)
    for waited in ended:
        if waited.waiting_status == UNSUCCESSFUL:
            _excuse(thread, waited.thread_run_number)
    return True


def _stop_rest(run: Run, row: NodeRun) -> None:
    """Halt the children that are not needed any more."""
    for waited in row.wait_for_threads.threads:
        number = waited.thread_run_number
        child = thread_of(run, number) if number in run.queue else run.threads.get(number)
        if child is not None and child.status not in TERMINAL:
            halt_for_good(run, child, row)
            waited.thread_status, waited.waiting_status = child.status, STOPPED
    run.put(row)


def _excuse(thread: ThreadRun, child: int) -> None:
    """Keep a child's failure from failing its parent."""
    if child not in thread.handled_failed_children:
        thread.handled_failed_children.append(child)


def _child_failure(run: Run, waited: WaitForThreadsRun.WaitForThread) -> NodeFailed:
    """The failure of a child as its parent's: that of its handler, if there was one and it failed."""
    number = waited.thread_run_number
    handled = waited.HasField("failure_handler_thread_run_id")
    failed = run.thread(waited.failure_handler_thread_run_id if handled else number)
    failure = failure_of(run, failed)
    if failed.status == LHStatus.EXCEPTION:
        return failure
    return NodeFailed("CHILD_FAILURE", f"Child thread {number} failed with {failure.name}: {failure.message}")
