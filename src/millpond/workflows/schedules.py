"""Schedules of a server, as its callers see and change them: switched off and on, and begun once by hand.

Invariant: a schedule that is switched keeps its inputs, its parent and its version; the engine knows what masks hide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.workflows.engine.cron import Cron

__all__ = ("run_now", "switch")


def switch(call: Any, schedule: str, *, paused: bool) -> Cron:
    """Switch a schedule off, or on again from its next instant; the expression that it has then.

    Raises: `NotFound`.
    """
    from littlehorse.model import ScheduledWfRunId, ScheduleWfRequest

    from millpond.workflows.engine.cron import parse_cron

    row = call("GetScheduledWfRun", ScheduledWfRunId(id=schedule))
    cron = parse_cron(row.cron_expression)
    if cron.paused != paused:
        cron = cron.switched(paused=paused)
        parent = row.parent_wf_run_id if row.HasField("parent_wf_run_id") else None
        call("ScheduleWf", ScheduleWfRequest(
            id=schedule, wf_spec_name=row.wf_spec_id.name, variables=row.variables, parent_wf_run_id=parent,
            cron_expression=cron.text(),
        ))  # fmt: skip
    return cron


def run_now(call: Any, row: Any) -> str:
    """Begin a run as a schedule would, beside those that it begins; the id of the run. The row is as it is stored."""
    from littlehorse.model import RunWfRequest

    from millpond.workflows.engine import run_path
    from millpond.workflows.engine.cron import parse_cron

    major, revision = parse_cron(row.cron_expression).numbers()
    parent = row.parent_wf_run_id if row.HasField("parent_wf_run_id") else None
    begun = call("RunWf", RunWfRequest(
        wf_spec_name=row.wf_spec_id.name, variables=row.variables, parent_wf_run_id=parent, major_version=major,
        revision=revision,
    ))  # fmt: skip
    return run_path(begun.id)
