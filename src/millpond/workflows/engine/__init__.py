"""Engine: `apply(rows, command, now) -> Outcome`, the pure function that every workflow follows."""

from millpond.extras import need

need("littlehorse")

from millpond.workflows.engine.enumerations import bind_values

bind_values()

from millpond.workflows.engine.apply import COMMANDS, apply
from millpond.workflows.engine.commands import (
    AttemptDue,
    AttemptTimedOut,
    Command,
    CorrelatedEventExpired,
    CorrelatedEventSent,
    CorrelationAwaited,
    CorrelationForgotten,
    DataArrived,
    EventExpired,
    NodeDue,
    Request,
    RunUnable,
    ScheduleDue,
    ScheduleWaits,
    TaskClaim,
    UserTaskDue,
    caused_id,
)
from millpond.workflows.engine.keys import Key, key_of, root_of, run_id, run_path
from millpond.workflows.engine.outcome import (
    CommandCaused,
    Effect,
    EventThrown,
    Outcome,
    TaskQueued,
    TaskWithdrawn,
    TimerCancelled,
    TimerSet,
    TimersOfRunCancelled,
)
from millpond.workflows.engine.rows import Rows, RunDeleted, Write

__all__ = (
    "apply",
    "COMMANDS",
    "Command",
    "Request",
    "TaskClaim",
    "AttemptTimedOut",
    "AttemptDue",
    "NodeDue",
    "EventExpired",
    "UserTaskDue",
    "ScheduleDue",
    "ScheduleWaits",
    "DataArrived",
    "RunUnable",
    "CorrelationAwaited",
    "CorrelationForgotten",
    "CorrelatedEventSent",
    "CorrelatedEventExpired",
    "CommandCaused",
    "caused_id",
    "Outcome",
    "Effect",
    "TaskQueued",
    "TaskWithdrawn",
    "TimerSet",
    "TimerCancelled",
    "TimersOfRunCancelled",
    "EventThrown",
    "Rows",
    "Write",
    "RunDeleted",
    "Key",
    "key_of",
    "run_path",
    "root_of",
    "run_id",
)
