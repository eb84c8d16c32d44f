"""Outcome of a command: rows to write, effects beyond the rows, and the reply.

A timer has a name that begins with the path of its run. A timer set under the name of another one replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import Message
from littlehorse.model import TaskDefId, TaskRunId, WorkflowEvent

from millpond.workflows.engine.commands import Request
from millpond.workflows.engine.keys import Key
from millpond.workflows.engine.rows import RunDeleted, Write

__all__ = (
    "TaskQueued",
    "TaskWithdrawn",
    "TimerSet",
    "TimerCancelled",
    "TimersOfRunCancelled",
    "EventThrown",
    "CommandCaused",
    "Effect",
    "Outcome",
)


@dataclass(frozen=True, slots=True)
class TaskQueued:
    """A task that joins the end of the queue of its definition."""

    task_def_id: TaskDefId
    task_run_id: TaskRunId


@dataclass(frozen=True, slots=True)
class TaskWithdrawn:
    """A queued task that nobody may take any more."""

    task_def_id: TaskDefId
    task_run_id: TaskRunId


@dataclass(frozen=True, slots=True)
class TimerSet:
    """A request to be applied as a command at an instant, in milliseconds since 1970."""

    name: Key
    at: int
    request: Request


@dataclass(frozen=True, slots=True)
class TimerCancelled:
    """A timer whose reason is gone. One that has fired already is no error."""

    name: Key


@dataclass(frozen=True, slots=True)
class TimersOfRunCancelled:
    """All timers of a run."""

    run: str


@dataclass(frozen=True, slots=True)
class EventThrown:
    """A workflow event for which callers may be waiting."""

    event: WorkflowEvent


@dataclass(frozen=True, slots=True)
class CommandCaused:
    """A command that follows from this one, on the partition of a key: the root of a run, or a correlation key.

    Without a key it is for the partition of the definitions.
    """

    partition_key: str | None
    request: Request


Effect: TypeAlias = (
    TaskQueued | TaskWithdrawn | TimerSet | TimerCancelled | TimersOfRunCancelled | EventThrown | CommandCaused
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The whole result of one command."""

    writes: tuple[Write | RunDeleted, ...]
    effects: tuple[Effect, ...]
    reply: Message | None
