"""Advance of a run: every thread goes as far as it can, in rounds, until nothing moves.

Invariants:

* A command advances a run for at most `ROUNDS_MAX` rounds; a run that still moves then fails with INTERNAL_ERROR.
* A run whose specification is left for a newer version goes on with that one behind the command.
* The status of the run is that of its first thread; a run whose first thread is halted only for a handler is RUNNING.

Archive of threads: completed ones leave the row of their run, for rows of their own.

Invariants:

* Only a completed thread is archived, and only when nothing in the run depends on it any more: its children are
  completed, and its parent is not halted for it.
* An archived thread stays where it is; numbers go on, and its parent still lists it among its children.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from littlehorse.model import (
    ArchivedThreadRunInfo,
    DeleteWfRunRequest,
    InactiveThreadRun,
    InactiveThreadRunId,
    LHStatus,
    ThreadRun,
    VariableValue,
)

from millpond.workflows.engine.assignments import Scope
from millpond.workflows.engine.commands import RunMigrationDue
from millpond.workflows.engine.edges import chosen, mutate
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.halting import PAUSING, finish, run_again
from millpond.workflows.engine.handlers import start_failure_handlers, start_interrupts
from millpond.workflows.engine.keys import key_of, root_of, run_path
from millpond.workflows.engine.limits import ROUNDS_MAX, THREADS_LISTED_MAX
from millpond.workflows.engine.nodes import KINDS, Step
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.runs import FAILED, TERMINAL, Run, load
from millpond.workflows.engine.thread_queue import thread_of
from millpond.workflows.engine.threads import complete, fail, leave, new_node_run, start_queued
from millpond.workflows.engine.values.conversions import is_null
from millpond.workflows.engine.work import Work

__all__ = ("advance", "advance_family", "end_unable", "enter", "skip", "archive")


def advance(run: Run, only: Iterable[int] | None = None) -> None:
    """Bring a run as far as it can go now, and write it.

    With `only`, something happened to these threads alone, beside those that are awake already.
    """
    run.awake.wake(run.threads if only is None else only)
    if run.facts.inherits:
        run.awake.wake_if(run.facts.watching)
    for _round in range(ROUNDS_MAX):
        moved = start_interrupts(run) | start_failure_handlers(run)
        if not _advance_awake(run) and not moved and not run.awake.numbers and not start_queued(run):
            break
    else:
        _give_up(run, f"more rounds than rounds_max={ROUNDS_MAX}")
    _set_status(run)
    archive(run)
    run.save()
    if run.spec.HasField("migration") and run.row.status != LHStatus.COMPLETED:
        run.work.cause(CommandCaused(root_of(run.row.id), RunMigrationDue(run.row.id)))


def _advance_awake(run: Run) -> bool:
    """Advance each thread that is awake by one step, in the order of their numbers. True when one moved.

    A thread that is woken by one before it has its turn in this round; others have it in the next.
    """
    last = run.row.greatest_threadrun_number
    awake = run.awake.taken()
    turns = [number for number in awake if number <= last]
    heapify(turns)
    listed, moved = set(turns), False
    next_round = awake - listed
    while turns:
        number = heappop(turns)
        listed.discard(number)
        thread = thread_of(run, number) if number in run.queue else run.threads.get(number)
        if thread is not None and _advance_thread(run, thread):
            moved = True
            run.awake.wake([number])
        if run.variables_changed:
            run.variables_changed = False
            run.awake.wake_if(run.facts.watching)
        for woken in run.awake.taken():
            if not number < woken <= last:
                next_round.add(woken)
            elif woken not in listed:
                listed.add(woken)
                heappush(turns, woken)
    run.awake.wake(next_round)
    return moved


def advance_family(work: Work) -> None:
    """Advance the runs that this command has started, and those whose children have ended."""
    while work.ahead:
        path, threads = work.ahead.pop(0)
        run = load(work, path)
        if run is not None:
            run.variables_changed = True  # a child may have written those that it inherits
            advance(run, threads)


def end_unable(run: Run, reason: str) -> None:
    """End a run in ERROR that cannot be advanced, and write it. A rescue lets it try its node again."""
    _give_up(run, reason)
    _set_status(run)
    run.save()


def _give_up(run: Run, reason: str) -> None:
    first = run.thread(0)
    if first.status not in TERMINAL:
        fail(run, first, NodeFailed("INTERNAL_ERROR", reason), handled=False)


def _advance_thread(run: Run, thread: ThreadRun) -> bool:
    """Advance a thread by one step. True when it moved."""
    match thread.status:
        case LHStatus.HALTED:
            return run_again(run, thread)
        case LHStatus.HALTING:
            return finish(run, thread)
        case LHStatus.RUNNING:
            return _advance_node(run, thread)
        case _:
            return False


def _advance_node(run: Run, thread: ThreadRun) -> bool:
    """Complete the node run of a running thread, if it is done, and enter the next node."""
    row = run.node_run(thread)
    step = Step(run, thread, run.node(row), row)
    try:
        if row.status in FAILED:
            assert row.failures[-1].was_properly_handled, "a running thread has no failure that is not handled"
            _enter_next(step, mutated=False)
            return True
        output = KINDS[step.node.WhichOneof("node") or ""].done(step)
        if output is None:
            return False
        _complete(step, output)
    except NodeFailed as failed:
        fail(run, thread, failed)
    return True


def _complete(step: Step, output: VariableValue) -> None:
    """Complete a node run with its output, and leave it."""
    row = step.row
    row.status = LHStatus.COMPLETED
    row.end_time.CopyFrom(step.run.work.instant())
    step.run.put(row)
    if row.WhichOneof("node_type") == "exit":
        complete(step.run, step.thread, None if is_null(output) else output)
        return
    if row.node_name in step.run.facts.outputs[row.thread_spec_name]:
        step.run.put_output(step.thread, row.node_name, output)
    leave(step.run, row)
    _enter_next(step, mutated=True)


def _enter_next(step: Step, *, mutated: bool) -> None:
    """Take the first open edge, do its mutations unless the node failed, and enter the node behind it."""
    scope = Scope(step.run, step.thread)
    edge = chosen(scope, step.node)
    if mutated:
        mutate(scope, edge, step.row.node_name)
    enter(step.run, step.thread, edge.sink_node_name)


def enter(run: Run, thread: ThreadRun, name: str) -> None:
    """Enter a node at the thread's next position; a failure on arrival belongs to the new node run."""
    thread.current_node_position += 1
    row = new_node_run(run, thread, name, LHStatus.STARTING)
    step = Step(run, thread, run.node(row), row)
    run.put(row)
    try:
        KINDS[step.node.WhichOneof("node") or ""].arrive(step)
    except NodeFailed as failed:
        fail(run, thread, failed)
        return
    row.status = LHStatus.RUNNING
    run.put(row)


def skip(run: Run, thread: ThreadRun) -> None:
    """Leave the node of a thread without its mutations."""
    row = run.node_run(thread)
    try:
        _enter_next(Step(run, thread, run.node(row), row), mutated=False)
    except NodeFailed as failed:
        fail(run, thread, failed)


def _set_status(run: Run) -> None:
    """Set the run's status from its first thread, and end it when that has ended."""
    first, before = run.thread(0), run.row.status
    if first.status in TERMINAL or (first.status in PAUSING and _is_stopped(first)):
        run.row.status = first.status
    else:
        run.row.status = LHStatus.RUNNING
    if run.row.status in TERMINAL and before not in TERMINAL:
        run.row.end_time.CopyFrom(run.work.instant())
        if run.row.id.HasField("parent_wf_run_id"):
            trigger = run.row.parent_trigger
            waits = [trigger.waiting_node_run.thread_run_number] if trigger.HasField("waiting_node_run") else []
            run.work.ahead.append((run_path(run.row.id.parent_wf_run_id), waits))
        if run.spec.HasField("retention_policy"):
            seconds = run.spec.retention_policy.seconds_after_wf_termination
            at = run.work.now + 1000 * max(0, seconds)
            run.work.set_timer((run.path, "retention"), at, DeleteWfRunRequest(id=run.row.id))


def _is_stopped(thread: ThreadRun) -> bool:
    """True when somebody has halted a thread, and not resumed it."""
    return any(reason.WhichOneof("reason") == "manual_halt" for reason in thread.halt_reasons)


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
    for index in reversed(range(len(run.row.thread_runs))):
        if run.row.thread_runs[index].number in gone:
            del run.row.thread_runs[index]
