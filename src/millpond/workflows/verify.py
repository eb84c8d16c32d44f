"""Checks of the runs in a space: the threads of each are whole (`verify_threads.py`); one that is open has its
specification, and what it waits for can come.

Invariant: runs are read page by page, each in a transaction of its own, so commands go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice, pairwise

from littlehorse.model import (
    InactiveThreadRun,
    LHStatus,
    NodeRun,
    ScheduledTask,
    TaskRun,
    TaskStatus,
    ThreadRun,
    WfRun,
    WfSpec,
)

from millpond.kernel.keys import KeyRange, Prefix, decode
from millpond.kernel.space import ReadTransaction, Space
from millpond.kernel.verify import Report, attempt, checked, problem
from millpond.workflows.engine import Rows, key_of
from millpond.workflows.keyspaces import DELETION, GROUP, TIMER_TIME
from millpond.workflows.processor import ReadRows
from millpond.workflows.store import Initialization, RunReads
from millpond.workflows.store.initialization import initialization

__all__ = ("check_runs", "faults_of_threads", "tenants_in")

_PAGE = 500
_BEGIN_AGAIN = "delete the run, and start it again"
_LEFT = "give no run this id again"
_REMEDY = "stop the run and resume it, or delete it and start it again"


def check_runs(space: Space) -> Report:
    """Check the runs of a space."""
    with space.read() as tx:
        born = initialization(tx)
        tenants = [] if born is None else list(tenants_in(tx))
    report = Report()
    for tenant in tenants:
        assert born is not None
        report += attempt("run", tenant, lambda tenant=tenant: _check(space, tenant, born), _REMEDY)  # type: ignore[misc]
    return report


def tenants_in(tx: ReadTransaction) -> Iterator[str]:
    """The tenants that have runs."""
    rest = GROUP.range()
    while key := next(tx.keys(rest), None):
        tenant = str(GROUP.unpack(key)[0])
        yield tenant
        rest = KeyRange(_behind(GROUP[tenant]), rest.stop)


def _behind(prefix: Prefix) -> bytes:
    behind = prefix.range().stop
    assert behind is not None, "the keys of a prefix have an end"
    return behind


def _check(space: Space, tenant: str, born: Initialization) -> Iterator[Report]:
    keys: KeyRange | None = GROUP[tenant].range()
    while keys is not None:
        with space.read() as tx:
            page = list(islice(_groups(tx, tenant, keys), _PAGE))
            rows, there = ReadRows(tx, RunReads(tenant, born)), 0
            for path, deleting, _ in page:
                run = rows.get(WfRun, (path,))
                there += run is not None
                for fault, remedy in [] if deleting else _faults(tx, rows, run, path):
                    yield problem("run", f"{tenant}/{path}", fault, remedy, counted=False)
            yield checked("run", there)
            keys = page[-1][2] if page else None


def _groups(tx: ReadTransaction, tenant: str, keys: KeyRange) -> Iterator[tuple[str, bool, KeyRange]]:
    """The runs that have rows: the path of each, True for one that is being deleted, the keys behind it."""
    here = GROUP[tenant]
    while key := next(tx.keys(keys), None):
        root, children, *_ = here.unpack(key)
        assert isinstance(children, bytes)
        keys = KeyRange(_behind(here[root][children]), keys.stop)
        deleting = tx.get(DELETION.pack(tenant, root, children)) is not None
        yield "_".join(map(str, (root, *decode(children)))), deleting, keys


def _faults(tx: ReadTransaction, rows: ReadRows, run: WfRun | None, path: str) -> Iterator[tuple[str, str]]:
    """The faults of a run, with what to do about each."""
    if run is None and any(True for _ in rows.list(NodeRun, (path,))):
        yield "there are steps of it, and no run", _LEFT
    yield from ((fault, _LEFT if run is None else _BEGIN_AGAIN) for fault in faults_of_threads(rows, path, run))
    if run is not None and run.status == LHStatus.RUNNING:
        yield from ((fault, _REMEDY) for fault in _open_faults(tx, rows, run, path))


def _open_faults(tx: ReadTransaction, rows: ReadRows, run: WfRun, path: str) -> Iterator[str]:
    if rows.get(WfSpec, key_of(run.wf_spec_id)) is None:
        yield f"its specification {'/'.join(map(str, key_of(run.wf_spec_id)))} is gone"
    for thread in run.thread_runs:
        if thread.status == LHStatus.RUNNING and (missing := _missing(tx, rows, path, thread)):
            yield f"thread {thread.number} waits for {missing}, and there is none"


def _missing(tx: ReadTransaction, rows: ReadRows, path: str, thread: ThreadRun) -> str | None:
    """The thing that a thread waits for and that cannot come; None when all is well."""
    node = rows.get(NodeRun, (path, thread.number, thread.current_node_position))
    if node is None:
        return "its node"
    timers = TIMER_TIME[rows.tenant][path]
    match node.WhichOneof("node_type"):
        case "sleep" if not node.sleep.matured:
            timer = timers.pack("node", thread.number, node.id.position)
            return None if tx.get(timer) is not None else "the timer of its sleep"
        case "task" if node.task.HasField("task_run_id"):
            task = rows.get(TaskRun, key_of(node.task.task_run_id))
            if task is not None and task.status == TaskStatus.TASK_SCHEDULED:
                return None if rows.get(ScheduledTask, key_of(task.id)) is not None else "its place in a queue"
            if task is not None and task.status in (TaskStatus.TASK_RUNNING, TaskStatus.TASK_PENDING):
                timer = timers.pack("attempt", task.id.task_guid, len(task.attempts) - 1)
                return None if tx.get(timer) is not None else "the timer of its task"
    return None


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
