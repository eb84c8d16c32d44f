"""Checks of the threads of a run: each of its numbers is one thread, in one place, and its queue can go on.

numbers 0 to the greatest ─▶ the row of the run, or a row of its own: archived, or queued and in the queue
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from littlehorse.model import InactiveThreadRun, LHStatus, NodeRun, ThreadRun, WfRun, WfSpec

from millpond.workflows.engine import Rows, key_of

__all__ = ("faults_of_threads",)

_HALTED = LHStatus.HALTED
_NAMED_MAX = 10


def faults_of_threads(rows: Rows, path: str, run: WfRun | None) -> Iterator[str]:
    """The broken promises about the threads of a run, one for each kind; None for a run that is not there."""
    inactive = {row.id.thread_run_number: row for _, row in rows.list(InactiveThreadRun, (path,))}
    if run is None:
        yield from _said("in a row of its own, and there is no run", inactive)
        return
    queue, listed = list(run.thread_run_queue), {thread.number: thread for thread in run.thread_runs}
    queued = {number: row.thread_run for number, row in inactive.items() if row.HasField("queued")}
    count = run.greatest_threadrun_number + 1
    everywhere = {*listed, *inactive, *queue}
    yield from _said("neither in the run, nor in its archive, nor in its queue", {*range(count)} - everywhere)
    yield from _said(f"there, and the run counts {count} threads", {n for n in everywhere if n >= count})
    yield from _said("in the run, and in a row of its own", listed.keys() & inactive.keys())
    yield from _said("in the queue, and has no row there", set(queue) - queued.keys())
    yield from _said("in a row as a queued one, and not in the queue", queued.keys() - set(queue))
    late = {after for before, after in pairwise(queue) if after <= before}
    yield from _said("in the queue behind a later one, or twice", late)
    if queued:
        yield from _queued_faults(rows, path, run, listed, queued)


def _queued_faults(
    rows: Rows, path: str, run: WfRun, listed: dict[int, ThreadRun], queued: dict[int, ThreadRun]
) -> Iterator[str]:
    children = {child for parent in listed.values() for child in parent.child_thread_ids}
    gone = {number for number, own in queued.items() if own.parent_thread_id not in listed}
    yield from _said("queued, and its parent is gone", gone)
    yield from _said("queued, and its parent does not list it", queued.keys() - children - gone)
    wrong = {n for n, own in queued.items() if own.status != (_HALTED if own.halt_reasons else LHStatus.STARTING)}
    yield from _said("queued, and its status is that of another one", wrong)
    begun = {number for number in queued if rows.get(NodeRun, (path, number, 0)) is not None}
    yield from _said("queued, and has begun", begun)
    spec = rows.get(WfSpec, key_of(run.wf_spec_id))
    if spec is not None:
        strange = {number for number, own in queued.items() if own.thread_spec_name not in spec.thread_specs}
        yield from _said("queued, and its specification has no such thread", strange)


def _said(fault: str, numbers: Collection[int]) -> Iterator[str]:
    """A fault of some threads, of which the first are named.

    >>> list(_said("gone", {3, 1}))
    ['threads 1, 3: gone']
    """
    if numbers:
        more = len(numbers) - _NAMED_MAX
        some = ", ".join(map(str, sorted(numbers)[:_NAMED_MAX])) + (f" and {more} more" if more > 0 else "")
        yield f"thread{'s' if len(numbers) > 1 else ''} {some}: {fault}"
