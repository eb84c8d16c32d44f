"""Threads: start, complete and fail; which handler takes a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from littlehorse.model import (
    EntrypointRun,
    Failure,
    FailureBeingHandled,
    LHStatus,
    NodeRun,
    ParentHalted,
    PendingFailureHandler,
    PendingFailureHandlerHaltReason,
    ThreadHaltReason,
    ThreadRun,
    ThreadType,
    VariableValue,
)

from millpond.workflows.engine import attempts
from millpond.workflows.engine.events import waits
from millpond.workflows.engine.failures import NodeFailed, catches, status_of
from millpond.workflows.engine.halting import halt, task_of, timer_name
from millpond.workflows.engine.limits import FAILURE_CHARACTERS_MAX, THREADS_MAX
from millpond.workflows.engine.pipeline_starts import FAILURE
from millpond.workflows.engine.runs import FAILED, TERMINAL, Run
from millpond.workflows.engine.thread_queue import enqueue, queued_children, room, take
from millpond.workflows.engine.user_tasks.endings import cancel
from millpond.workflows.engine.values.conversions import value_of
from millpond.workflows.engine.variable_scopes import check_inputs, declare

__all__ = (
    "INPUT",
    "start",
    "start_children",
    "start_queued",
    "check_count",
    "new_node_run",
    "handler_inputs",
    "complete",
    "fail",
    "leave",
    "end_failed",
    "failure_of",
    "start_handler",
)

INPUT = "INPUT"
"""The variable that a handler may declare for the content of what it handles."""


def start(
    run: Run,
    spec_name: str,
    inputs: Mapping[str, VariableValue],
    kind: ThreadType,
    parent: ThreadRun | None = None,
) -> ThreadRun:
    """Start a thread at its entrypoint; a child waits in the queue while too many threads of the run move.

    Raises:
        NodeFailed: its inputs do not fit, or the run has too many threads; nothing was started then.
    """
    _check_start(run, spec_name, [inputs])
    thread = _new(run, spec_name, kind, parent)
    if kind == ThreadType.CHILD and room(run) <= 0:
        return enqueue(run, thread, inputs)
    return _begin(run, thread, inputs)


def start_children(
    run: Run, spec_name: str, starts: Sequence[Mapping[str, VariableValue]], parent: ThreadRun
) -> list[int]:
    """Start many children of a thread, as `start`; their numbers."""
    _check_start(run, spec_name, starts)
    room_left, numbers = room(run), []
    for number, inputs in enumerate(starts):
        thread = _new(run, spec_name, ThreadType.CHILD, parent)
        numbers.append((_begin if number < room_left else enqueue)(run, thread, inputs).number)
    return numbers


def start_queued(run: Run) -> bool:
    """Start threads of the queue as far as there is room. True when one was started."""
    taken = take(run)
    for row in taken:
        row.thread_run.status = LHStatus.RUNNING
        row.thread_run.start_time.CopyFrom(run.work.instant())
        try:
            _begin(run, row.thread_run, row.queued.input_vars)
        except NodeFailed as failed:  # what its inputs need may be gone, as the definition of a struct
            fail(run, run.thread(row.thread_run.number), failed, handled=False)
        run.awake.touch(row.thread_run)
    return bool(taken)


def _check_start(run: Run, spec_name: str, starts: Sequence[Mapping[str, VariableValue]]) -> None:
    """Raise NodeFailed when threads with these inputs cannot all be started."""
    if spec_name not in run.spec.thread_specs:
        raise NodeFailed("INTERNAL_ERROR", f"the specification has no thread {spec_name}")
    check_count(run, len(starts))
    declared = list(run.spec.thread_specs[spec_name].variable_defs)
    for inputs in starts:
        check_inputs(run.work, declared, inputs)


def check_count(run: Run, starts: int) -> None:
    """Raise NodeFailed when a run may not have so many more threads."""
    if run.row.greatest_threadrun_number + starts >= THREADS_MAX:
        problem = "cannot start threads, exceeding the maximum number of ThreadRuns per WfRun"
        raise NodeFailed("INTERNAL_ERROR", f"{problem}. threads={starts} threads_max={THREADS_MAX}")


def _new(run: Run, spec_name: str, kind: ThreadType, parent: ThreadRun | None) -> ThreadRun:
    """A thread that is nowhere yet, with the next number."""
    number = run.row.greatest_threadrun_number + 1 if run.row.thread_runs else 0
    thread = ThreadRun(
        wf_spec_id=run.spec.id,
        number=number,
        status=LHStatus.RUNNING,
        thread_spec_name=spec_name,
        start_time=run.work.instant(),
        type=kind,
    )
    if parent is not None:
        thread.parent_thread_id = parent.number
        parent.child_thread_ids.append(number)
    run.row.greatest_threadrun_number = number
    return thread


def _begin(run: Run, thread: ThreadRun, inputs: Mapping[str, VariableValue]) -> ThreadRun:
    """Let a thread move from its entrypoint on."""
    run.row.thread_runs.append(thread)
    thread = run.row.thread_runs[-1]
    run.threads[thread.number] = thread
    run.awake.wake([thread.number])
    nodes = run.thread_spec(thread).nodes
    first = next(name for name in sorted(nodes) if nodes[name].WhichOneof("node") == "entrypoint")
    run.put(new_node_run(run, thread, first, LHStatus.RUNNING, entrypoint=True))
    declare(run, thread, inputs)
    return thread


def new_node_run(run: Run, thread: ThreadRun, name: str, status: LHStatus, *, entrypoint: bool = False) -> NodeRun:
    """The node run at a thread's current position."""
    return NodeRun(
        id=run.node_run_id(thread, thread.current_node_position),
        wf_spec_id=run.spec.id,
        status=status,
        arrival_time=run.work.instant(),
        thread_spec_name=thread.thread_spec_name,
        node_name=name,
        entrypoint=EntrypointRun() if entrypoint else None,
    )


def handler_inputs(
    run: Run, spec_name: str, content: VariableValue | None, failure: Failure | None = None
) -> dict[str, VariableValue]:  # fmt: skip
    """The inputs of a handler that declares variables for them: the content of what it handles, and the failure."""
    declared = {variable.var_def.name for variable in run.spec.thread_specs[spec_name].variable_defs}
    inputs = {INPUT: content or VariableValue()}
    if failure is not None:
        kind = failure.failure_name.lower().replace("_", "-")
        inputs[FAILURE] = value_of({"kind": kind, "reason": failure.message[:FAILURE_CHARACTERS_MAX]})
    return {name: value for name, value in inputs.items() if name in declared}


def complete(run: Run, thread: ThreadRun, output: VariableValue | None) -> None:
    """End a thread well."""
    thread.status = LHStatus.COMPLETED
    thread.end_time.CopyFrom(run.work.instant())
    run.awake.touch(thread)
    if output is not None:
        thread.output.CopyFrom(output)


def fail(run: Run, thread: ThreadRun, failed: NodeFailed, *, handled: bool = True) -> None:
    """Fail a thread at its node: halt it for the handler that takes the failure, or end it.

    Without `handled` no handler is looked for.
    """
    node_run = run.node_run(thread)
    node_run.failures.append(failed.row())
    node_run.status = status_of(failed.name)
    node_run.error_message = failed.message
    node_run.end_time.CopyFrom(run.work.instant())
    leave(run, node_run)
    run.put(node_run)
    handler = _handler(run, node_run, failed.name) if handled else None
    if handler is None:
        end_failed(run, thread, failed)
        return
    run.row.pending_failures.append(PendingFailureHandler(failed_thread_run=thread.number, handler_spec_name=handler))
    reason = PendingFailureHandlerHaltReason(node_run_position=node_run.id.position)
    halt(run, thread, ThreadHaltReason(pending_failure=reason))


def leave(run: Run, node_run: NodeRun) -> None:
    """Cancel what a node run still waits for."""
    if node_run.WhichOneof("node_type") in ("sleep", "external_event"):
        run.work.cancel_timer(timer_name(node_run))
    waits.withdraw(run.work, node_run)
    if node_run.WhichOneof("node_type") == "user_task":
        cancel(run, node_run, "the user task was cancelled because its node failed")
    if node_run.WhichOneof("node_type") == "task":
        task = task_of(run, node_run)
        if task is not None and task.status in attempts.OPEN:
            attempts.withdraw(run.work, task)


def _handler(run: Run, node_run: NodeRun, name: str) -> str | None:
    """The first handler of a node that catches a failure."""
    for handler in run.node(node_run).failure_handlers:
        if catches(handler, name):
            return handler.handler_spec_name
    return None


def end_failed(run: Run, thread: ThreadRun, failed: NodeFailed) -> None:
    """End a thread with a failure that nobody handles; its children pause for ever."""
    thread.status = status_of(failed.name)
    thread.error_message = failed.message
    thread.end_time.CopyFrom(run.work.instant())
    run.awake.touch(thread)
    for child in [*run.children(thread), *queued_children(run, thread)]:
        halt(run, child, ThreadHaltReason(parent_halted=ParentHalted(parent_thread_id=thread.number)))
    if thread.type in (ThreadType.INTERRUPT, ThreadType.FAILURE_HANDLER):
        _fail_handled(run, thread, failed)


def _fail_handled(run: Run, handler: ThreadRun, failed: NodeFailed) -> None:
    """A failed handler fails the thread for which it ran, unless that one has ended."""
    parent = run.thread(handler.parent_thread_id)
    if parent.status in TERMINAL:
        return
    if handler.type == ThreadType.INTERRUPT:
        failed = NodeFailed(failed.name, f"Interrupt thread with id {handler.number} failed!", failed.content)
    del parent.halt_reasons[:]
    fail(run, parent, failed, handled=False)


def failure_of(run: Run, thread: ThreadRun) -> NodeFailed:
    """The failure with which a thread ended."""
    assert thread.status in FAILED, "the thread failed"
    failure = run.node_run(thread).failures[-1]
    content = failure.content if failure.HasField("content") else None
    return NodeFailed(failure.failure_name, failure.message, content)


def start_handler(run: Run, failed: ThreadRun, spec_name: str) -> ThreadRun:
    """Start the handler of the newest failure of a thread's node, as a child of that thread."""
    node_run = run.node_run(failed)
    failure = node_run.failures[-1]
    content = failure.content if failure.HasField("content") else None
    inputs = handler_inputs(run, spec_name, content, failure)
    handler = start(run, spec_name, inputs, ThreadType.FAILURE_HANDLER, failed)
    handler.failure_being_handled.CopyFrom(
        FailureBeingHandled(
            thread_run_number=failed.number,
            node_run_position=node_run.id.position,
            failure_number=len(node_run.failures) - 1,
        )
    )
    node_run.failure_handler_ids.append(handler.number)
    failure.failure_handler_threadrun_id = handler.number
    run.put(node_run)
    return handler
