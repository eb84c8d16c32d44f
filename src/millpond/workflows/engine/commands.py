"""Commands: a request of a client as it came, or one that the system itself makes (a claim, a timer).

A command carries all that its effect depends on: its id is the seed of every id it makes,
and its instant is given beside it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import Message
from littlehorse.model import (
    BulkJob,
    BulkJobId,
    CorrelatedEventId,
    ExternalEventId,
    NodeRunId,
    ScheduledWfRunId,
    TaskRunId,
    UserTaskRunId,
    VariableValue,
    WfRunId,
    WfSpecId,
)

__all__ = (
    "TaskClaim",
    "AttemptTimedOut",
    "AttemptDue",
    "NodeDue",
    "EventExpired",
    "UserTaskDue",
    "CorrelationAwaited",
    "CorrelationForgotten",
    "CorrelatedEventSent",
    "CorrelatedEventExpired",
    "ScheduleDue",
    "ScheduleWaits",
    "DataArrived",
    "BulkJobDue",
    "BulkJobStepped",
    "SpecMigrationDue",
    "RunMigrationDue",
    "RunUnable",
    "Request",
    "Command",
    "derived_id",
    "caused_id",
)


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A worker takes a queued task. The reply is the ScheduledTask, or None when the task was taken or withdrawn."""

    task_run_id: TaskRunId
    worker_id: str
    worker_version: str = ""


@dataclass(frozen=True, slots=True)
class AttemptTimedOut:
    """A claimed attempt has run for its timeout without report, and without checkpoint since the timer was set."""

    task_run_id: TaskRunId
    attempt: int
    checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class AttemptDue:
    """The delay before the next attempt of a task is over."""

    task_run_id: TaskRunId
    attempt: int


@dataclass(frozen=True, slots=True)
class NodeDue:
    """A timer of a node run is due: its sleep is over, or its event has not arrived in time."""

    node_run_id: NodeRunId


@dataclass(frozen=True, slots=True)
class EventExpired:
    """An external event that no run has claimed for as long as its definition says."""

    event_id: ExternalEventId


@dataclass(frozen=True, slots=True)
class UserTaskDue:
    """The delay of an action of a user task is over: a reminder, a reassignment or a cancellation."""

    user_task_run_id: UserTaskRunId
    action: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CorrelationAwaited:
    """A node run begins to wait for the event with a key. It goes to the partition of the key."""

    event_id: CorrelatedEventId
    node_run_id: NodeRunId


@dataclass(frozen=True, slots=True)
class CorrelationForgotten:
    """A node run waits for the event with a key no more. It goes to the partition of the key."""

    event_id: CorrelatedEventId
    node_run_id: NodeRunId


@dataclass(frozen=True, slots=True)
class CorrelatedEventSent:
    """A correlated event has met a node run that waits for it. It goes to the partition of the run."""

    node_run_id: NodeRunId
    event_id: ExternalEventId
    content: VariableValue


@dataclass(frozen=True, slots=True)
class CorrelatedEventExpired:
    """The time is over for which a correlated event waits for nodes."""

    event_id: CorrelatedEventId


@dataclass(frozen=True, slots=True)
class ScheduleDue:
    """An instant of a schedule, in milliseconds, has come. A version of -1 leaves it open."""

    schedule_id: ScheduledWfRunId
    at: int
    major: int
    revision: int


@dataclass(frozen=True, slots=True)
class ScheduleWaits:
    """A schedule waits for a run to end: a question at the run's partition, and from there the answer, `is_open`.

    Of a schedule that was put anew since, `created` is another.
    """

    due: ScheduledWfRunId
    run_id: WfRunId
    created: int
    at: int
    major: int
    revision: int
    is_open: int = -1


@dataclass(frozen=True, slots=True)
class DataArrived:
    """Data for which a schedule waits has come: behind `since`, up to `mark`. A run `begins` for it, or none does.

    With a `run_id`, that of the run before: a question at its partition, and from there the answer, `is_open`.
    """

    due: ScheduledWfRunId
    run_id: WfRunId
    created: int
    since: str
    mark: str
    begins: int
    is_open: int = -1


@dataclass(frozen=True, slots=True)
class BulkJobDue:
    """The next step of a bulk job."""

    job_id: BulkJobId


@dataclass(frozen=True, slots=True)
class BulkJobStepped:
    """A partition has done a step of its part of a bulk job. It goes to the partition of the definitions."""

    job_id: BulkJobId
    part: BulkJob.Subprocess


@dataclass(frozen=True, slots=True)
class SpecMigrationDue:
    """The next runs with a status are to leave a version of a specification: those behind a place of a search."""

    spec_id: WfSpecId
    status: int
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class RunMigrationDue:
    """A run is to leave its version of a specification, as the migration of that version says."""

    run_id: WfRunId


@dataclass(frozen=True, slots=True)
class RunUnable:
    """A timer of a run could not be applied, for a reason: the run cannot go on by itself."""

    run_id: WfRunId
    reason: str


Request: TypeAlias = (
    Message
    | TaskClaim
    | AttemptTimedOut
    | AttemptDue
    | NodeDue
    | EventExpired
    | UserTaskDue
    | CorrelationAwaited
    | CorrelationForgotten
    | CorrelatedEventSent
    | CorrelatedEventExpired
    | ScheduleDue
    | ScheduleWaits
    | DataArrived
    | BulkJobDue
    | BulkJobStepped
    | SpecMigrationDue
    | RunMigrationDue
    | RunUnable
)


@dataclass(frozen=True, slots=True)
class Command:
    """One request with the id under which the log holds it."""

    id: str
    request: Request


def derived_id(seed: str, number: int) -> str:
    """The `number`-th id that a command makes: 32 hexadecimal digits, the same at every replay."""
    return hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:32]


def caused_id(seed: str, number: int) -> str:
    """The id of the `number`-th command that a command causes: 32 hexadecimal digits, the same at every replay."""
    return derived_id(f"{seed}/caused", number)
