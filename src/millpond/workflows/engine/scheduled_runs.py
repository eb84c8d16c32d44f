"""Runs that schedules begin, whether an instant or data made them due."""

from __future__ import annotations

from littlehorse.model import RunWfRequest, ScheduledWfRun, WfRun, WfRunId

from millpond.workflows.engine.keys import root_of
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.runs import TERMINAL
from millpond.workflows.engine.work import Work

__all__ = ("begin_run", "is_open", "run_name")


def run_name(schedule: ScheduledWfRun, run: str) -> WfRunId:
    """The name of a run of a schedule, below the parent that the schedule names."""
    parent = schedule.parent_wf_run_id if schedule.HasField("parent_wf_run_id") else None
    return WfRunId(id=run, parent_wf_run_id=parent)


def begin_run(work: Work, schedule: ScheduledWfRun, run: str, *, major: int = -1, revision: int = -1) -> None:
    """Cause the start of a run, of the newest version unless one is named."""
    started = RunWfRequest(wf_spec_name=schedule.wf_spec_id.name, variables=schedule.variables, id=run)
    if major >= 0:
        started.major_version = major
    if revision >= 0:
        started.revision = revision
    if schedule.HasField("parent_wf_run_id"):
        started.parent_wf_run_id.CopyFrom(schedule.parent_wf_run_id)
    work.cause(CommandCaused(root_of(run_name(schedule, run)), started))


def is_open(row: WfRun | None) -> bool:
    """True when a run is there, and has not ended."""
    return row is not None and row.status not in TERMINAL
