"""Handlers of interrupts and failures: they start when the thread that they are for has paused."""

from __future__ import annotations

from littlehorse.model import (
    ExternalEvent,
    HandlingFailureHaltReason,
    Interrupted,
    LHStatus,
    PendingInterrupt,
    PendingInterruptHaltReason,
    ThreadHaltReason,
    ThreadRun,
    ThreadType,
)

from millpond.workflows.engine.events.unclaimed import claim
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.halting import halt
from millpond.workflows.engine.keys import key_of
from millpond.workflows.engine.runs import TERMINAL, Run
from millpond.workflows.engine.threads import fail, handler_inputs, start, start_handler

__all__ = (
    "interrupt",
    "start_interrupts",
    "start_failure_handlers",
)


def interrupt(run: Run, event: ExternalEvent) -> None:
    """Interrupt every thread that declares a handler for an event; the event is claimed then."""
    for thread in list(run.row.thread_runs):
        if event.HasField("thread_run_number") and event.thread_run_number != thread.number:
            continue
        handler = _interrupt_handler(run, thread, event)
        if handler is None or thread.status in TERMINAL:
            continue
        claim(run.work, event)
        run.row.pending_interrupts.append(
            PendingInterrupt(external_event_id=event.id, handler_spec_name=handler, interrupted_thread_id=thread.number)
        )
        reason = PendingInterruptHaltReason(external_event_id=event.id)
        halt(run, thread, ThreadHaltReason(pending_interrupt=reason))


def _interrupt_handler(run: Run, thread: ThreadRun, event: ExternalEvent) -> str | None:
    for definition in run.thread_spec(thread).interrupt_defs:
        if definition.external_event_def_id.name == event.id.external_event_def_id.name:
            return definition.handler_spec_name
    return None


def start_interrupts(run: Run) -> bool:
    """Start the handlers of pending interrupts whose threads have paused. True when something changed."""
    pending = list(run.row.pending_interrupts)
    if not pending:
        return False
    left = [interrupt for interrupt in pending if not _started(run, interrupt)]
    if len(left) == len(pending):
        return False
    del run.row.pending_interrupts[:]
    run.row.pending_interrupts.extend(left)
    return True


def _started(run: Run, pending: PendingInterrupt) -> bool:
    """True when a pending interrupt was started, or its thread has ended meanwhile."""
    thread = run.threads.get(pending.interrupted_thread_id)
    if thread is None or thread.status in TERMINAL:
        return True
    if thread.status != LHStatus.HALTED or not _only(thread, "pending_interrupt"):
        return False
    event = run.work.rows.get(ExternalEvent, key_of(pending.external_event_id))
    content = event.content if event is not None else None
    reason = PendingInterruptHaltReason(external_event_id=pending.external_event_id)
    thread.halt_reasons.remove(ThreadHaltReason(pending_interrupt=reason))
    try:
        inputs = handler_inputs(run, pending.handler_spec_name, content)
        handler = start(run, pending.handler_spec_name, inputs, ThreadType.INTERRUPT, thread)
    except NodeFailed as failed:
        fail(run, thread, failed, handled=False)
        return True
    handler.interrupt_trigger_id.CopyFrom(pending.external_event_id)
    thread.halt_reasons.append(ThreadHaltReason(interrupted=Interrupted(interrupt_thread_id=handler.number)))
    run.awake.touch(thread)
    return True


def start_failure_handlers(run: Run) -> bool:
    """Start the handlers of failures whose threads have paused. True when something changed."""
    moved = False
    for pending in list(run.row.pending_failures):
        thread = run.thread(pending.failed_thread_run)
        paused = thread.status == LHStatus.HALTED and _only(thread, "pending_failure", "pending_interrupt")
        if thread.status not in TERMINAL and not paused:
            continue
        run.row.pending_failures.remove(pending)
        moved = True
        if paused:
            _handle(run, thread, pending.handler_spec_name)
    return moved


def _handle(run: Run, thread: ThreadRun, spec_name: str) -> None:
    left = [reason for reason in thread.halt_reasons if reason.WhichOneof("reason") != "pending_failure"]
    del thread.halt_reasons[:]
    thread.halt_reasons.extend(left)
    try:
        handler = start_handler(run, thread, spec_name)
    except NodeFailed as failed:
        fail(run, thread, failed, handled=False)
        return
    reason = HandlingFailureHaltReason(handler_thread_id=handler.number)
    thread.halt_reasons.append(ThreadHaltReason(handling_failure=reason))
    run.awake.touch(thread)


def _only(thread: ThreadRun, *reasons: str) -> bool:
    """True when a thread is halted for nothing but reasons of these kinds."""
    return all(reason.WhichOneof("reason") in reasons for reason in thread.halt_reasons)
