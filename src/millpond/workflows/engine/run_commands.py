"""Commands of runs: start, stop, resume, rescue and delete one; what workers and timers do to its tasks."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    DeleteWfRunRequest,
    LHStatus,
    ManualHalt,
    NodeRun,
    ReportTaskRun,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    RunWfRequest,
    StopWfRunRequest,
    TaskRun,
    TaskStatus,
    ThreadHaltReason,
    ThreadRun,
    ThreadType,
    WfRun,
    WfRunId,
    WfSpec,
)

from millpond.errors import AlreadyExists, Conflict, Invalid, NotFound
from millpond.workflows.engine import attempts
from millpond.workflows.engine.advance import advance, end_unable, enter, skip
from millpond.workflows.engine.commands import AttemptDue, AttemptTimedOut, NodeDue, RunUnable
from millpond.workflows.engine.events import waits
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.halting import halt, task_of, timer_name
from millpond.workflows.engine.keys import check_name, key_of, run_path
from millpond.workflows.engine.limits import RUN_DEPTH_MAX
from millpond.workflows.engine.outcome import TaskWithdrawn, TimersOfRunCancelled
from millpond.workflows.engine.pipeline_starts import check_start, parameters_in
from millpond.workflows.engine.runs import TERMINAL, Run, existing, load
from millpond.workflows.engine.start_inputs import input_defs
from millpond.workflows.engine.thread_queue import queued_children, save, thread_of
from millpond.workflows.engine.threads import new_node_run, start
from millpond.workflows.engine.trace_context import carry_on
from millpond.workflows.engine.user_tasks.actions import queue_reminder
from millpond.workflows.engine.work import Work, find_spec

__all__ = (
    "REPORTABLE",
    "run_workflow",
    "stop_run",
    "resume_run",
    "rescue_thread",
    "delete_run",
    "report_task",
    "time_out",
    "attempt_due",
    "node_due",
    "run_unable",
)

REPORTABLE = frozenset(
    {
        TaskStatus.TASK_SUCCESS,
        TaskStatus.TASK_FAILED,
        TaskStatus.TASK_EXCEPTION,
        TaskStatus.TASK_TIMEOUT,
        TaskStatus.TASK_OUTPUT_SERDE_ERROR,
        TaskStatus.TASK_INPUT_VAR_SUB_ERROR,
    }
)


def run_workflow(work: Work, request: RunWfRequest) -> WfRun:
    """Start a run, and bring it as far as it can go."""
    if not request.wf_spec_name:
        raise Invalid("no specification is named", kind="workflow_spec")
    name = WfRunId(id=request.id if request.HasField("id") else work.new_id())
    check_name("run", name.id)
    spec = find_spec(
        work,
        request.wf_spec_name,
        request.major_version if request.HasField("major_version") else None,
        request.revision if request.HasField("revision") else None,
    )
    if spec is None:
        raise NotFound(f"Couldn't find WfSpec {request.wf_spec_name[:80]}, or this version of it", kind="workflow_spec",
                       spec=request.wf_spec_name)  # fmt: skip
    if request.HasField("parent_wf_run_id"):
        name.parent_wf_run_id.CopyFrom(request.parent_wf_run_id)
    path = run_path(name)
    if path.count("_") >= RUN_DEPTH_MAX:
        raise Invalid("runs nested too deep", kind="run_depth", limit=RUN_DEPTH_MAX)
    _check_parent(work, spec, request)
    if work.rows.get(WfRun, (path,)) is not None:
        raise AlreadyExists(f"WfRun with id {name.id} already exists!", kind="workflow_run", run=path,
                            hint="give another id, or go on with the run that is there")  # fmt: skip
    check_start(spec, request.variables)
    run = Run(work, WfRun(id=name, wf_spec_id=spec.id, status=LHStatus.RUNNING, start_time=work.instant()), spec)
    carry_on(request, run.row)
    try:
        start(run, spec.entrypoint_thread_name, request.variables, ThreadType.ENTRYPOINT)
    except NodeFailed as failed:
        raise Invalid(
            failed.message, kind="workflow_inputs", run=run.path, workflow=spec.id.name, hint=_inputs_taken(spec)
        ) from failed
    advance(run)
    return run.row


def _inputs_taken(spec: WfSpec) -> str:
    """The inputs that a run of a specification takes, in words."""
    names = [f"{of.var_def.name} (required)" if of.required else of.var_def.name for of in input_defs(spec)]
    return f"its inputs are: {', '.join(names)}" if names else "it takes no inputs"


def _check_parent(work: Work, spec: WfSpec, request: RunWfRequest) -> None:
    """Raise when a run's parent is not the one that its specification demands."""
    if spec.HasField("parent_wf_spec") != request.HasField("parent_wf_run_id"):
        needed = "needs" if spec.HasField("parent_wf_spec") else "takes no"
        raise Invalid(f"a run of this specification {needed} parent run", kind="workflow_parent", spec=spec.id.name)
    if not request.HasField("parent_wf_run_id"):
        return
    path = run_path(request.parent_wf_run_id)
    parent = work.rows.get(WfRun, (path,))
    if parent is None:
        raise Conflict("the parent run does not exist", kind="failed_precondition", run=path)
    if parent.wf_spec_id.name != spec.parent_wf_spec.wf_spec_name:
        raise Invalid("the parent run follows another specification", kind="workflow_parent", run=path)


def stop_run(work: Work, request: StopWfRunRequest) -> Empty:
    """Halt a thread until somebody resumes it."""
    run = existing(work, run_path(request.wf_run_id), request.thread_run_number)
    halt(run, thread_of(run, request.thread_run_number), ThreadHaltReason(manual_halt=ManualHalt(meaning_of_life=True)))
    advance(run, ())
    return Empty()


def resume_run(work: Work, request: ResumeWfRunRequest) -> Empty:
    """Let a thread run again that somebody stopped. A sleep that has lost its timer gets one."""
    run = existing(work, run_path(request.wf_run_id), request.thread_run_number)
    thread = thread_of(run, request.thread_run_number)
    row = NodeRun() if thread.number in run.queue else run.node_run(thread)
    if row.WhichOneof("node_type") == "sleep" and row.status not in TERMINAL and not row.sleep.matured:
        work.set_timer(timer_name(row), row.sleep.maturation_time.ToMilliseconds(), NodeDue(row.id))
    _drop_reasons(run, thread, "manual_halt")
    run.awake.touch(thread)
    advance(run, ())
    return Empty()


def _drop_reasons(run: Run, thread: ThreadRun, kind: str) -> None:
    left = [reason for reason in thread.halt_reasons if reason.WhichOneof("reason") != kind]
    del thread.halt_reasons[:]
    thread.halt_reasons.extend(left)
    save(run, thread)


def rescue_thread(work: Work, request: RescueThreadRunRequest) -> WfRun:
    """Let a thread that ended in ERROR try its node again, or go on behind it; of a pipeline also in EXCEPTION."""
    run = existing(work, run_path(request.wf_run_id), request.thread_run_number)
    thread = thread_of(run, request.thread_run_number)
    step = _step_of_pipeline(run, thread)
    if thread.status != LHStatus.ERROR and (thread.status != LHStatus.EXCEPTION or step is None):
        status = LHStatus.Name(thread.status)
        raise Conflict("the thread is not in ERROR", kind="failed_precondition", thread=thread.number, status=status,
                       hint="a run that was stopped is resumed; only threads in ERROR are rescued")  # fmt: skip
    parent = run.threads.get(thread.parent_thread_id) if thread.HasField("parent_thread_id") else None
    if parent is not None and (thread.number in parent.handled_failed_children or parent.status == LHStatus.COMPLETED):
        raise Conflict("the failure was handled by the parent", kind="failed_precondition", thread=thread.number)
    _revive(run, thread)
    if request.skip_current_node:
        skip(run, thread)
    elif step is not None:
        _try_again(run, thread, step)
    else:
        enter(run, thread, run.node_run(thread).node_name)
    _wait_again(run, thread)
    advance(run)
    return run.row


def _step_of_pipeline(run: Run, thread: ThreadRun) -> TaskRun | None:
    """The task run at which the first thread of a pipeline is."""
    if thread.number or parameters_in(run.spec) is None:
        return None
    return task_of(run, run.node_run(thread))


def _try_again(run: Run, thread: ThreadRun, task: TaskRun) -> None:
    """Let a task run have as many attempts more as its node has: what checkpoints of earlier ones hold stays done."""
    before = run.node_run(thread)
    thread.current_node_position += 1
    row = new_node_run(run, thread, before.node_name, LHStatus.RUNNING)
    row.task.task_run_id.CopyFrom(task.id)
    run.put(row)
    task.source.task_node.node_run_id.CopyFrom(row.id)
    task.total_attempts = len(task.attempts) + run.node(row).task.retries + 1
    task.attempts.add(masked_value=task.attempts[-1].masked_value)
    attempts.queue(run.work, task)


def _wait_again(run: Run, thread: ThreadRun) -> None:
    """Let the threads wait again that ended because this thread had failed: those above it, then the parent run's."""
    while thread.HasField("parent_thread_id"):
        thread = run.thread(thread.parent_thread_id)
        if not _failed_with_child(run, thread):
            return
        _revive(run, thread)
        enter(run, thread, run.node_run(thread).node_name)
    node_run_id = run.row.parent_trigger.waiting_node_run
    above = load(run.work, run_path(node_run_id.wf_run_id))
    waiter = above.threads.get(node_run_id.thread_run_number) if above is not None else None
    if above is None or waiter is None or waiter.current_node_position != node_run_id.position:
        return
    if _failed_with_child(above, waiter):
        _revive(above, waiter)
        enter(above, waiter, above.node_run(waiter).node_name)
        _wait_again(above, waiter)
        above.save()
        run.work.ahead.append((above.path, None))


def _revive(run: Run, thread: ThreadRun) -> None:
    """Make an ended thread run again, with the children that its failed wait had halted."""
    thread.status = LHStatus.RUNNING
    thread.ClearField("end_time")
    thread.ClearField("error_message")
    del thread.halt_reasons[:]
    for child in [*run.children(thread), *queued_children(run, thread)]:
        _drop_reasons(run, child, "halted_by_parent")
    run.awake.touch(thread)
    if thread.number == 0:
        run.row.status = LHStatus.RUNNING
        run.row.ClearField("end_time")
        run.work.cancel_timer((run.path, "retention"))


def _failed_with_child(run: Run, thread: ThreadRun) -> bool:
    """True when a thread ended because a child of it, or a child run, had failed."""
    if thread.status != LHStatus.ERROR:
        return False
    row = run.node_run(thread)
    waited = row.WhichOneof("node_type") in ("wait_for_threads", "exit", "wait_for_child_wf")
    return waited and bool(row.failures) and row.failures[-1].failure_name == "CHILD_FAILURE"


def delete_run(work: Work, request: DeleteWfRunRequest) -> Empty:
    """Delete a run with all that belongs to it, and its timers and queued tasks. One that is gone is no error."""
    path = run_path(request.id)
    row = work.rows.get(WfRun, (path,))
    if row is None:
        return Empty()
    waits.withdraw_all(work, row, path)
    for task in work.rows.list(TaskRun, (path,)):
        if attempts.is_queued(work, task):
            work.cause(TaskWithdrawn(task.task_def_id, task.id))
    work.rows.delete_run(path)
    work.cause(TimersOfRunCancelled(path))
    return Empty()


# ------------------------------------------------------------------------------------------------ tasks


def report_task(work: Work, request: ReportTaskRun) -> Empty:
    """End an attempt with its worker's report.

    A late, stale or repeated report, also of a task run that was deleted, is no error and changes nothing.
    """
    if request.status not in REPORTABLE:
        raise Invalid("not a status of an ended attempt", kind="task_status", status=request.status)
    task = attempts.running(work, key_of(request.task_run_id), request.attempt_number)
    if task is not None:
        attempts.report(work, task, request)
        _go_on(work, task)
    return Empty()


def time_out(work: Work, request: AttemptTimedOut) -> None:
    """End an attempt whose worker was silent, unless a checkpoint has come since its timer was set."""
    task = attempts.running(work, key_of(request.task_run_id), request.attempt)
    if task is not None and task.total_checkpoints == request.checkpoints:
        attempts.time_out(work, task, request.attempt)
        _go_on(work, task)


def attempt_due(work: Work, request: AttemptDue) -> None:
    """Let the next attempt of a task begin: its node queues it, at once or when its thread runs again."""
    task = work.rows.get(TaskRun, key_of(request.task_run_id))
    if task is None or len(task.attempts) - 1 != request.attempt or task.status != TaskStatus.TASK_PENDING:
        return
    task.attempts[-1].status = TaskStatus.TASK_SCHEDULED
    attempts.put(work, task)
    _go_on(work, task)


def _go_on(work: Work, task: TaskRun) -> None:
    queue_reminder(work, task)
    run = load(work, run_path(task.id.wf_run_id))
    if run is not None:
        of_node = task.source.WhichOneof("task_run_source") == "task_node"
        advance(run, [task.source.task_node.node_run_id.thread_run_number] if of_node else None)


def node_due(work: Work, request: NodeDue) -> None:
    """Wake a node run: its sleep is over, or its event is late. One that has gone on takes no notice."""
    row = work.rows.get(NodeRun, key_of(request.node_run_id))
    run = load(work, run_path(request.node_run_id.wf_run_id))
    if row is None or run is None or row.status in TERMINAL:
        return
    if row.WhichOneof("node_type") == "sleep":
        # A timer that was set by a clock that was ahead comes early: a length of time is over then, an instant is not.
        at = row.sleep.maturation_time.ToMilliseconds()
        row.sleep.matured = at <= work.now or run.node(row).sleep.WhichOneof("sleep_length") == "raw_seconds"
        if not row.sleep.matured:
            work.set_timer(timer_name(row), at, request)
    else:
        row.external_event.timed_out = True
    work.rows.put(key_of(row.id), row)
    advance(run, [row.id.thread_run_number])


def run_unable(work: Work, request: RunUnable) -> None:
    """End a run whose timer could not be applied: a run that waits for ever in silence helps nobody."""
    path = run_path(request.run_id)
    row = work.rows.get(WfRun, (path,))
    if row is not None and row.status not in TERMINAL:
        spec = work.rows.get(WfSpec, key_of(row.wf_spec_id))
        end_unable(Run(work, row, spec or WfSpec(id=row.wf_spec_id)), request.reason)
