"""Attempts of tasks: queue, withdraw, claim, end, and the next attempt.

Invariants:

* A row `ScheduledTask` exists exactly while an attempt is queued: a claim deletes it, so an attempt is handed out once.
* A timeout counts from the claim; a queued attempt never times out.
* Only an attempt that is RUNNING can end, and only once.
* A worker that is gone costs a task none of its retries, up to `LOST_MAX` times: it is reported as a timeout.
"""

from __future__ import annotations

from littlehorse.model import (
    Checkpoint,
    CheckpointId,
    LHErrorType,
    LHTaskError,
    PutCheckpointRequest,
    PutCheckpointResponse,
    ReportTaskRun,
    ScheduledTask,
    TaskAttempt,
    TaskDef,
    TaskRun,
    TaskStatus,
)

from millpond.errors import Invalid
from millpond.workflows.engine.commands import AttemptDue, AttemptTimedOut, TaskClaim
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.keys import Key, key_of, run_path
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.outcome import TaskQueued, TaskWithdrawn
from millpond.workflows.engine.pipeline_starts import is_step
from millpond.workflows.engine.trace_context import carry_on
from millpond.workflows.engine.values.conversions import (
    fits,
    is_null,
    kind_of,
    plain,
    type_name,
    value_type_name,
)
from millpond.workflows.engine.work import Work

__all__ = (
    "RETRIED",
    "OPEN",
    "timer_name",
    "put",
    "put_checkpoint",
    "queue",
    "withdraw",
    "is_queued",
    "claim",
    "set_timeout",
    "running",
    "report",
    "time_out",
    "delay_ms",
    "failure_of",
)

LOST_MAX = 10
"""The attempts at a task that may end because their workers were gone, before such an end counts as one of its own."""
RETRIED = frozenset({TaskStatus.TASK_FAILED, TaskStatus.TASK_TIMEOUT})
OPEN = frozenset({TaskStatus.TASK_SCHEDULED, TaskStatus.TASK_RUNNING, TaskStatus.TASK_PENDING})


def timer_name(task: TaskRun, attempt: int) -> Key:
    """The name of the one timer of an attempt: its delay, then its timeout."""
    return (run_path(task.id.wf_run_id), "attempt", task.id.task_guid, attempt)


def put(work: Work, task: TaskRun) -> None:
    """Write a task run; its status is that of its newest attempt."""
    task.status = task.attempts[-1].status
    work.rows.put(key_of(task.id), task)


def queue(work: Work, task: TaskRun) -> None:
    """Put the newest attempt at the end of the queue of its definition."""
    number = len(task.attempts) - 1
    attempt = task.attempts[number]
    attempt.status = TaskStatus.TASK_SCHEDULED
    attempt.schedule_time.CopyFrom(work.instant())
    row = ScheduledTask(
        task_run_id=task.id,
        task_def_id=task.task_def_id,
        attempt_number=number,
        variables=task.input_variables,
        created_at=work.instant(),
        source=task.source,
        total_observed_checkpoints=task.total_checkpoints,
    )
    carry_on(task, row)
    work.rows.put(key_of(task.id), row)
    work.cause(TaskQueued(task.task_def_id, task.id))
    put(work, task)


def withdraw(work: Work, task: TaskRun) -> bool:
    """Take a queued task out of its queue. True when it was queued."""
    key = key_of(task.id)
    if work.rows.get(ScheduledTask, key) is None:
        return False
    work.rows.delete(ScheduledTask, key)
    work.cause(TaskWithdrawn(task.task_def_id, task.id))
    return True


def is_queued(work: Work, task: TaskRun) -> bool:
    """True while a worker may claim the task."""
    return work.rows.get(ScheduledTask, key_of(task.id)) is not None


def claim(work: Work, request: TaskClaim) -> ScheduledTask | None:
    """Hand a queued attempt to a worker, and begin its timeout; None when it is queued no more."""
    key = key_of(request.task_run_id)
    scheduled, task = work.rows.get(ScheduledTask, key), work.rows.get(TaskRun, key)
    if scheduled is None or task is None:
        return None
    work.rows.delete(ScheduledTask, key)
    attempt = task.attempts[scheduled.attempt_number]
    assert attempt.status == TaskStatus.TASK_SCHEDULED, "a queued attempt has not been claimed"
    attempt.status = TaskStatus.TASK_RUNNING
    attempt.start_time.CopyFrom(work.instant())
    attempt.task_worker_id = request.worker_id
    attempt.task_worker_version = request.worker_version
    put(work, task)
    set_timeout(work, task, scheduled.attempt_number)
    return scheduled


def set_timeout(work: Work, task: TaskRun, attempt: int) -> None:
    """Begin the timeout of an attempt anew."""
    at = work.now + 1000 * task.timeout_seconds
    work.set_timer(timer_name(task, attempt), at, AttemptTimedOut(task.id, attempt, task.total_checkpoints))


def running(work: Work, key: Key, attempt: int) -> TaskRun | None:
    """The task run whose attempt with a number is RUNNING, or None."""
    task = work.rows.get(TaskRun, key)
    if task is None or not 0 <= attempt < len(task.attempts):
        return None
    return task if task.attempts[attempt].status == TaskStatus.TASK_RUNNING else None


def put_checkpoint(work: Work, request: PutCheckpointRequest) -> PutCheckpointResponse:
    """Store what a running attempt has reached, and begin its timeout anew; an attempt that is over must stop."""
    key = key_of(request.task_run_id)
    if work.rows.get(TaskRun, key) is None:
        raise Invalid("no task run with this id", kind="task_run", task=request.task_run_id.task_guid)
    task = running(work, key, request.task_attempt)
    if task is None:
        return PutCheckpointResponse(flow_control_continue_type=PutCheckpointResponse.STOP_TASK)
    if request.ByteSize() > VALUE_BYTES_MAX:
        size = request.ByteSize()
        raise Invalid("the checkpoint is too large", kind="value_bytes", bytes=size, limit=VALUE_BYTES_MAX)
    checkpoint = Checkpoint(
        id=CheckpointId(task_run=task.id, checkpoint_number=task.total_checkpoints),
        value=request.value,
        logs=request.logs if request.HasField("logs") else None,
        created_at=work.instant(),
    )
    task.total_checkpoints += 1
    work.rows.put(key_of(checkpoint.id), checkpoint)
    put(work, task)
    set_timeout(work, task, request.task_attempt)
    return PutCheckpointResponse(
        flow_control_continue_type=PutCheckpointResponse.CONTINUE_TASK, created_checkpoint=checkpoint
    )


def report(work: Work, task: TaskRun, request: ReportTaskRun) -> None:
    """End an attempt with what its worker reports."""
    attempt = task.attempts[request.attempt_number]
    attempt.status = request.status
    match request.WhichOneof("result"):
        case "output":
            attempt.output.CopyFrom(request.output)
        case "error":
            attempt.error.CopyFrom(request.error)
        case "exception":
            attempt.exception.CopyFrom(request.exception)
    if request.HasField("log_output"):
        attempt.log_output.CopyFrom(request.log_output)
    problem = _output_problem(work, task, attempt)
    if problem is not None:
        attempt.status = TaskStatus.TASK_OUTPUT_SERDE_ERROR
        attempt.ClearField("log_output")
        attempt.error.CopyFrom(LHTaskError(type=LHErrorType.VAR_MUTATION_ERROR, message=problem))
    if attempt.status == TaskStatus.TASK_TIMEOUT:
        timed_out = sum(own.status == TaskStatus.TASK_TIMEOUT for own in task.attempts)
        task.total_attempts += timed_out <= LOST_MAX
    work.cancel_timer(timer_name(task, request.attempt_number))
    _end(work, task, attempt)


def time_out(work: Work, task: TaskRun, attempt_number: int) -> None:
    """End an attempt whose timeout is over."""
    attempt = task.attempts[attempt_number]
    attempt.status = TaskStatus.TASK_TIMEOUT
    longer = "timeout= at the step gives it more" if is_step(task.task_def_id.name) else "state a longer one"
    message = f"no report within its timeout of {task.timeout_seconds} s; it may have been at work: {longer}"
    attempt.error.CopyFrom(LHTaskError(type=LHErrorType.TIMEOUT, message=message))
    _end(work, task, attempt)


def _end(work: Work, task: TaskRun, attempt: TaskAttempt) -> None:
    attempt.end_time.CopyFrom(work.instant())
    if attempt.status in RETRIED and len(task.attempts) < task.total_attempts:
        _next_attempt(work, task)
    put(work, task)


def _next_attempt(work: Work, task: TaskRun) -> None:
    """Add the next attempt. Without a delay it waits to be queued by its node, in the same command."""
    task.attempts.add(status=TaskStatus.TASK_PENDING, masked_value=task.attempts[-1].masked_value)
    number = len(task.attempts) - 1
    delay = delay_ms(task, number)
    if delay:
        work.set_timer(timer_name(task, number), work.now + delay, AttemptDue(task.id, number))
    else:
        task.attempts[-1].status = TaskStatus.TASK_SCHEDULED


def delay_ms(task: TaskRun, retry: int) -> int:
    """The delay before a retry, which counts from 1, in milliseconds."""
    if not task.HasField("exponential_backoff"):
        return 0
    policy = task.exponential_backoff
    longest = float(policy.max_delay_ms)
    try:
        return int(min(policy.base_interval_ms * float(policy.multiplier) ** (retry - 1), longest))
    except OverflowError:
        return int(longest)


def _output_problem(work: Work, task: TaskRun, attempt: TaskAttempt) -> str | None:
    """The reason for which the output of an attempt cannot be stored, or None."""
    size = task.ByteSize()
    if size > VALUE_BYTES_MAX:
        attempt.ClearField("result")
        limit = f"value_bytes_max={VALUE_BYTES_MAX}"
        return f"RESOURCE_EXHAUSTED: the task run would have {size} bytes with this result, more than {limit}"
    if attempt.status != TaskStatus.TASK_SUCCESS:
        return None
    definition = work.rows.get(TaskDef, (task.task_def_id.name,)) or TaskDef()
    expected = definition.return_type.return_type
    if not fits(attempt.output, expected):
        return f"the output is of type {value_type_name(attempt.output)}, not {type_name(expected)}"
    try:
        if kind_of(attempt.output) in ("json_obj", "json_arr"):
            plain(attempt.output)
        attempt.output.CopyFrom(settled(work, attempt.output, expected))
    except NodeFailed as failed:
        return failed.message
    return None


def failure_of(task: TaskRun) -> NodeFailed:
    """The failure that the newest attempt of a task gives to its node."""
    attempt = task.attempts[-1]
    match attempt.status:
        case TaskStatus.TASK_EXCEPTION:
            thrown = attempt.exception
            content = None if is_null(thrown.content) else thrown.content
            return NodeFailed(thrown.name, thrown.message, content)
        case TaskStatus.TASK_TIMEOUT:
            return NodeFailed("TIMEOUT", attempt.error.message)
        case TaskStatus.TASK_OUTPUT_SERDE_ERROR:
            return NodeFailed("VAR_MUTATION_ERROR", attempt.error.message)
        case TaskStatus.TASK_INPUT_VAR_SUB_ERROR:
            return NodeFailed("VAR_SUB_ERROR", attempt.error.message)
        case _:
            name = "TIMEOUT" if attempt.error.type == LHErrorType.TIMEOUT else "TASK_FAILURE"
            return NodeFailed(name, attempt.error.message or "the task failed")
