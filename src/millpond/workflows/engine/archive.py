"""Archive of threads: completed ones leave the row of their run, for rows of their own.

Invariants:

* Only a completed thread is archived, and only when nothing in the run depends on it any more: its children are
  completed, and its parent is not halted for it.
* An archived thread stays where it is; numbers go on, and its parent still lists it among its children.
"""

from __future__ import annotations

from littlehorse.model import ArchivedThreadRunInfo, InactiveThreadRun, InactiveThreadRunId, LHStatus, ThreadRun

from millpond.workflows.engine.halting import PAUSING
from millpond.workflows.engine.keys import key_of
from millpond.workflows.engine.limits import THREADS_LISTED_MAX
from millpond.workflows.engine.runs import Run

__all__ = ("archive",)


def archive(run: Run) -> None:
    """Archive the threads that are retained no longer, and the oldest ones of a run that lists too many."""
    surplus = 0
    if len(run.row.thread_runs) > THREADS_LISTED_MAX:
        surplus = len(run.row.thread_runs) - THREADS_LISTED_MAX // 2
    if not surplus and not run.facts.retained:
        return
    gone: set[int] = set()
    for thread in reversed(run.row.thread_runs):  # children have greater numbers than their parents
        if _is_over(run, thread) and _is_free(run, thread, gone):
            gone.add(thread.number)
    if surplus:
        for thread in run.row.thread_runs:
            if len(gone) >= surplus:
                break
            if thread.number not in gone and _is_free(run, thread, gone):
                gone.add(thread.number)
    if gone:
        _move(run, gone)


def _is_over(run: Run, thread: ThreadRun) -> bool:
    """True when a thread ended longer ago than its specification retains it."""
    spec = run.thread_spec(thread)
    if thread.status != LHStatus.COMPLETED or not spec.HasField("retention_policy"):
        return False
    seconds = max(0, spec.retention_policy.seconds_after_thread_termination)
    return thread.end_time.ToMilliseconds() + 1000 * seconds <= run.work.now


def _is_free(run: Run, thread: ThreadRun, gone: set[int]) -> bool:
    """True when nothing in the run depends on a thread, but for those that go with it."""
    if thread.number == 0 or thread.status != LHStatus.COMPLETED:
        return False
    parent = run.threads.get(thread.parent_thread_id)
    if parent is not None and parent.status in PAUSING:
        return False
    return run.queue.isdisjoint(thread.child_thread_ids) and all(c.number in gone for c in run.children(thread))


def _move(run: Run, gone: set[int]) -> None:
    for number in sorted(gone):
        row = InactiveThreadRun(
            id=InactiveThreadRunId(wf_run_id=run.row.id, thread_run_number=number),
            thread_run=run.threads.pop(number),
            archived=ArchivedThreadRunInfo(),
        )
        run.work.rows.put(key_of(row.id), row)
    for place in reversed(range(len(run.row.thread_runs))):
        if run.row.thread_runs[place].number in gone:
            del run.row.thread_runs[place]
