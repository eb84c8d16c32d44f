"""Facts about a run: what the rows that a command writes tell, compared with the rows that were there.

| job | event | when | headers |
|---|---|---|---|
| the run | `running` | it started, was resumed or rescued | `workflow`, `version` |
| | `halted` | it was stopped | |
| | `succeeded`, `failed` | it is COMPLETED; it is ERROR or EXCEPTION | `error`, `reason` |
| | `cancelled` | it was deleted before its end | |
| a task run | `queued` | an attempt waits for a worker | `task`, `attempt` |
| | `running` | a worker has it | `worker` |
| | `succeeded`, `failed` | the attempt ended; `retryable` if another follows | `error`, `reason` |
| | `cancelled` | it was withdrawn before its end | |

Invariant: a change of state is told once: rows that are written without one tell nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from littlehorse.model import LHErrorType, LHStatus, TaskAttempt, TaskRun, TaskStatus, WfRun

from millpond.workflows.engine import RunDeleted, Write

__all__ = ("Fact", "facts_of")

REASON_CHARACTERS_MAX = 1_000
_RUN_KINDS: Final[dict[int, str]] = {
    LHStatus.RUNNING: "running", LHStatus.HALTED: "halted", LHStatus.COMPLETED: "succeeded",
    LHStatus.ERROR: "failed", LHStatus.EXCEPTION: "failed",
}  # fmt: skip
_RUN_ENDS: Final = frozenset({LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION})
_TASK_KINDS: Final[dict[int, str]] = {
    TaskStatus.TASK_SCHEDULED: "queued", TaskStatus.TASK_RUNNING: "running", TaskStatus.TASK_SUCCESS: "succeeded",
    TaskStatus.TASK_FAILED: "failed", TaskStatus.TASK_TIMEOUT: "failed", TaskStatus.TASK_EXCEPTION: "failed",
    TaskStatus.TASK_OUTPUT_SERDE_ERROR: "failed", TaskStatus.TASK_INPUT_VAR_SUB_ERROR: "failed",
}  # fmt: skip
"""An attempt that is PENDING waits for the delay of its retry: `failed` with `retryable` told of it."""

OldRow = Callable[[type[Any], tuple[str | int, ...]], "Message | None"]


class Fact(NamedTuple):
    """An event of a run, named by its path."""

    run: str
    kind: str
    headers: dict[str, str]


def facts_of(writes: Sequence[Write | RunDeleted], old: OldRow) -> list[Fact]:
    """The facts that some writes tell; `old` gives the row that was there. Tasks come before the end of their run."""
    begun: list[Fact] = []
    tasks: list[Fact] = []
    ended: list[Fact] = []
    for write in writes:
        if isinstance(write, RunDeleted):
            before = old(WfRun, (write.run,))
            if isinstance(before, WfRun) and before.status not in _RUN_ENDS:
                ended.append(Fact(write.run, "cancelled", {"job_id": write.run}))
        elif write.kind is TaskRun and isinstance(write.row, TaskRun):
            tasks += _of_task(str(write.key[0]), write.row, old(TaskRun, write.key))
        elif write.kind is WfRun and isinstance(write.row, WfRun):
            facts = _of_run(str(write.key[0]), write.row, old(WfRun, write.key))
            if facts is not None:
                (begun if facts.kind == "running" else ended).append(facts)
    return [*begun, *tasks, *ended]


def _of_run(run: str, now: WfRun, before: Message | None) -> Fact | None:
    status = before.status if isinstance(before, WfRun) else None
    if status is None and now.status not in _RUN_ENDS:
        status, shown = now.status, LHStatus.RUNNING  # a run that begins, whatever it waits for
    elif status == now.status or now.status not in _RUN_KINDS:
        return None
    else:
        shown = now.status
    spec = now.wf_spec_id
    headers = {"job_id": run, "workflow": spec.name, "version": f"{spec.major_version}.{spec.revision}"}
    if _RUN_KINDS[shown] == "failed":
        headers |= _error_of_run(now)
    return Fact(run, _RUN_KINDS[shown], headers)


def _error_of_run(run: WfRun) -> dict[str, str]:
    """The newest failure of the entrypoint, or the words of its error."""
    threads = [thread for thread in run.thread_runs if thread.number == 0]
    message = threads[0].error_message if threads else ""
    return _reasons(LHStatus.Name(run.status), message)


def _of_task(run: str, now: TaskRun, before: Message | None) -> Iterator[Fact]:
    statuses = [attempt.status for attempt in before.attempts] if isinstance(before, TaskRun) else []
    last = len(now.attempts) - 1
    for number in range(max(len(statuses) - 1, 0), last + 1):
        attempt = now.attempts[number]
        if number < len(statuses) and statuses[number] == attempt.status:
            continue
        kind = _TASK_KINDS.get(attempt.status)
        if kind is None:
            continue
        headers = {"job_id": now.id.task_guid, "task": now.task_def_id.name, "attempt": str(number)}
        if kind == "running":
            headers["worker"] = attempt.task_worker_id
        elif kind == "failed":
            headers |= _error_of_attempt(attempt)
            if number < last:
                headers["retryable"] = "true"
        yield Fact(run, kind, headers)


def _error_of_attempt(attempt: TaskAttempt) -> dict[str, str]:
    if attempt.HasField("exception"):
        return _reasons(attempt.exception.name, attempt.exception.message)
    if attempt.HasField("error"):
        return _reasons(LHErrorType.Name(attempt.error.type), attempt.error.message)
    return _reasons(TaskStatus.Name(attempt.status), "")


def _reasons(error: str, message: str) -> dict[str, str]:
    reasons = {"error": error[:REASON_CHARACTERS_MAX]}
    if message:
        reasons["reason"] = message[:REASON_CHARACTERS_MAX]
    return reasons
