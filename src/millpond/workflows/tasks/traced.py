"""Runs and their tasks as spans: a task is within its run, a run within the request that started it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from littlehorse.model import LHStatus, ScheduledTask, WfRun

from millpond.tracing import Kind, Noted, is_traced, span
from millpond.tracing.runs import end_run, run_parent
from millpond.workflows.engine import RunDeleted, Write, run_path
from millpond.workflows.engine.trace_context import carried

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ("RunSpan", "ended_runs", "task_span", "tell_ended")


class RunSpan(NamedTuple):
    """The span of a run that has ended."""

    run: str
    workflow: str
    caller: str
    began_ms: int
    ended_ms: int
    error: str


def task_span(scheduled: ScheduledTask, name: str) -> AbstractContextManager[Noted | None]:
    """The span of an attempt at a task, by whoever works on it."""
    if not is_traced():
        return nullcontext()
    run = run_path(scheduled.task_run_id.wf_run_id)
    parent = run_parent(run, carried(scheduled))
    return span(name, Kind.CONSUMER, parent, run=run, task=scheduled.task_def_id.name, attempt=scheduled.attempt_number)


def ended_runs(writes: Sequence[Write | RunDeleted], now_ms: int) -> tuple[RunSpan, ...]:
    """The runs that end by these writes; none in a process without traces."""
    if not is_traced():
        return ()
    rows = [(write.key, write.row) for write in writes if isinstance(write, Write) and write.kind is WfRun]
    return tuple(_span_of(str(key[0]), row) for key, row in rows if _ends(row, now_ms))


def _ends(row: Message | None, now_ms: int) -> bool:
    return isinstance(row, WfRun) and row.HasField("end_time") and row.end_time.ToMilliseconds() == now_ms


def _span_of(run: str, row: Message | None) -> RunSpan:
    assert isinstance(row, WfRun)
    error = "" if row.status == LHStatus.COMPLETED else LHStatus.Name(row.status)
    times = row.start_time.ToMilliseconds(), row.end_time.ToMilliseconds()
    return RunSpan(run, row.wf_spec_id.name, carried(row), *times, error)


def tell_ended(runs: Iterable[RunSpan]) -> None:
    """Make the spans of runs whose end is durable."""
    for run in runs:
        end_run(run.run, run.caller, run.began_ms, run.ended_ms, run.error, workflow=run.workflow)
