"""Halting: a thread pauses for a reason, its children with it, and runs again when no reason is left.

Invariants:

* A thread is HALTED only when its node has paused and every child is terminal or HALTED, but for the handler that it
  is halted for. The node run says HALTED then too, and HALTING until then; its task run stays as it was.
* A reason that is resolved is dropped; a thread without reasons does not stay HALTED.
"""

from __future__ import annotations

from littlehorse.model import (
    HaltedByParentNodeHaltReason,
    LHStatus,
    NodeRun,
    ParentHalted,
    TaskRun,
    TaskStatus,
    ThreadHaltReason,
    ThreadRun,
    WfRun,
)

from millpond.workflows.engine import attempts
from millpond.workflows.engine.keys import Key, key_of
from millpond.workflows.engine.runs import FAILED, TERMINAL, Run
from millpond.workflows.engine.thread_queue import queued_children, save
from millpond.workflows.engine.user_tasks.endings import cancel

__all__ = (
    "PAUSING",
    "halt",
    "halt_for_good",
    "finish",
    "handlers_of",
    "task_of",
    "run_again",
    "timer_name",
    "is_halted_by_hand",
)

PAUSING = frozenset({LHStatus.HALTING, LHStatus.HALTED})


def halt(run: Run, thread: ThreadRun, reason: ThreadHaltReason) -> None:
    """Ask a thread and its children to pause."""
    if thread.status in TERMINAL:
        return
    if reason not in thread.halt_reasons:
        thread.halt_reasons.append(reason)
    if thread.number in run.queue:
        thread.status = LHStatus.HALTED
        save(run, thread)
        return
    if thread.status not in PAUSING:
        thread.status = LHStatus.HALTING
    run.awake.touch(thread)
    spared = reason.WhichOneof("reason") in ("interrupted", "pending_interrupt")
    handlers = handlers_of(thread)
    for child in [*run.children(thread), *queued_children(run, thread)]:
        if not (spared and child.number in handlers):
            halt(run, child, ThreadHaltReason(parent_halted=ParentHalted(parent_thread_id=thread.number)))
    finish(run, thread)


def halt_for_good(run: Run, thread: ThreadRun, wait: NodeRun) -> None:
    """Halt a thread for which its parent waits no more; it does not run again by itself."""
    stopped = HaltedByParentNodeHaltReason(
        parent_thread_run_number=wait.id.thread_run_number, waiting_node_run_position=wait.id.position
    )
    halt(run, thread, ThreadHaltReason(halted_by_parent=stopped))


def finish(run: Run, thread: ThreadRun) -> bool:
    """Make a HALTING thread HALTED when nothing of it moves any more. True when it became so."""
    if thread.status != LHStatus.HALTING or not _pause(run, run.node_run(thread)):
        return False
    handlers = handlers_of(thread)
    for child in run.children(thread):
        if child.number not in handlers and child.status not in TERMINAL and child.status != LHStatus.HALTED:
            return False
    thread.status = LHStatus.HALTED
    run.awake.touch(thread)
    return True


def handlers_of(thread: ThreadRun) -> set[int]:
    """The handlers for which a thread is halted."""
    handlers = set()
    for reason in thread.halt_reasons:
        match reason.WhichOneof("reason"):
            case "interrupted":
                handlers.add(reason.interrupted.interrupt_thread_id)
            case "handling_failure":
                handlers.add(reason.handling_failure.handler_thread_id)
    return handlers


def _pause(run: Run, node_run: NodeRun) -> bool:
    """Pause a node as far as it can. True when nothing of it moves any more."""
    if node_run.status in TERMINAL:
        return True
    paused = _is_at_rest(run, node_run)
    _show(run, node_run, LHStatus.HALTED if paused else LHStatus.HALTING)
    return paused


def _show(run: Run, node_run: NodeRun, status: LHStatus) -> None:
    if node_run.status != status:
        node_run.status = status
        run.put(node_run)


def _is_at_rest(run: Run, node_run: NodeRun) -> bool:
    """True when a node waits no more. A claimed task and a child run are waited for; a queued task leaves its queue."""
    match node_run.WhichOneof("node_type"):
        case "user_task":
            cancel(run, node_run, "the user task was cancelled because its thread halted")
        case "task":
            task = task_of(run, node_run)
            if task is not None and task.status == TaskStatus.TASK_RUNNING:
                return False
            if task is not None:
                attempts.withdraw(run.work, task)
        case "wait_for_child_wf":
            child = run.work.rows.get(WfRun, key_of(node_run.wait_for_child_wf.child_wf_run_id))
            return child is None or child.status in TERMINAL
    return True


def task_of(run: Run, node_run: NodeRun) -> TaskRun | None:
    """The task run of a task node, or None before it has one."""
    if not node_run.task.HasField("task_run_id"):
        return None
    return run.work.rows.get(TaskRun, key_of(node_run.task.task_run_id))


def run_again(run: Run, thread: ThreadRun) -> bool:
    """Drop the resolved reasons of a paused thread, and let it run when none is left. True when one was."""
    unresolved = [reason for reason in thread.halt_reasons if not _resolved(run, thread, reason)]
    if len(unresolved) == len(thread.halt_reasons) and unresolved:
        return False
    del thread.halt_reasons[:]
    thread.halt_reasons.extend(unresolved)
    if thread.number in run.queue:
        thread.status = LHStatus.HALTED if unresolved else LHStatus.STARTING
        save(run, thread)
        return True
    if not unresolved:
        thread.status = LHStatus.RUNNING
        node_run = run.node_run(thread)
        if node_run.status in PAUSING:
            _show(run, node_run, LHStatus.RUNNING)
    run.awake.touch(thread)
    return True


def _resolved(run: Run, thread: ThreadRun, reason: ThreadHaltReason) -> bool:
    match reason.WhichOneof("reason"):
        case "parent_halted":
            parent = run.thread(reason.parent_halted.parent_thread_id)
            return _lets_run(parent, thread)
        case "interrupted":
            return run.thread(reason.interrupted.interrupt_thread_id).status == LHStatus.COMPLETED
        case "handling_failure":
            handler = run.thread(reason.handling_failure.handler_thread_id)
            if handler.status != LHStatus.COMPLETED:
                return False
            _mark_handled(run, thread)
            return True
        case _:
            return False


def _lets_run(parent: ThreadRun, thread: ThreadRun) -> bool:
    """True when a parent runs, or is halted for the handler that this thread is.

    A pending interrupt does not stop a handler: it comes after it.
    """
    if parent.status in FAILED:
        return False
    if parent.status not in PAUSING:
        return True
    reasons = [r for r in parent.halt_reasons if r.WhichOneof("reason") != "pending_interrupt"]
    return bool(reasons) and all(thread.number in handlers_of(ThreadRun(halt_reasons=[r])) for r in reasons)


def _mark_handled(run: Run, thread: ThreadRun) -> None:
    """Record that the failure of a thread's node was handled, with the failures of children that it stands for."""
    node_run = run.node_run(thread)
    node_run.failures[-1].was_properly_handled = True
    run.put(node_run)
    for waited in node_run.wait_for_threads.threads:
        child = run.threads.get(waited.thread_run_number)
        if child is not None and child.status in FAILED and child.number not in thread.handled_failed_children:
            thread.handled_failed_children.append(child.number)


def timer_name(node_run: NodeRun) -> Key:
    """The name of the one timer of a node run."""
    return (key_of(node_run.id)[0], "node", node_run.id.thread_run_number, node_run.id.position)


def is_halted_by_hand(run: WfRun, thread: int) -> bool:
    """True when somebody stopped a thread; one that an event interrupts lets its task end."""
    if not any(own.number == thread and own.status in PAUSING for own in run.thread_runs):
        return False
    return any(reason.HasField("manual_halt") for own in run.thread_runs for reason in own.halt_reasons)
