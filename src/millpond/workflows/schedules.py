"""Schedules of a server, as its callers see and change them: told, switched off and on, and begun once by hand.

Invariant: a schedule that is switched keeps its inputs, its parent and its version; the engine knows what masks hide.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.workflows.deferred import engine, protocol

if TYPE_CHECKING:
    from millpond.workflows.engine.cron import Cron

__all__ = ("next_runs", "run_now", "schedule_facts", "switch")

_NEXT_RUNS = 3


def schedule_facts(row: Any, now_ms: int) -> dict[str, Any]:
    """The parts of a schedule by their names, with its next instants, in its zone."""
    from millpond.workflows.engine.cron import parse_cron

    cron = parse_cron(row.cron_expression)
    return {
        "id": row.id.id, "cron": cron.fields, "on": cron.on, "time_zone": cron.time_zone or "UTC",
        "paused": cron.paused, "overlap": cron.overlap, "missed": cron.missed, "last": cron.last or None,
        "version": cron.version or None,
        "next": [at.isoformat(" ", "minutes") for at in next_runs(cron, now_ms, _NEXT_RUNS)],
    }  # fmt: skip


def next_runs(cron: Cron, now_ms: int, limit: int) -> list[datetime]:
    """The next instants of a schedule, in its zone; none when it is off, waits for data, or has none for 50 years."""
    from millpond.workflows.engine.cron import next_instant, zone_of

    expression, instants = cron.text(), list[int]()
    with suppress(Invalid):
        while len(instants) < limit and (at := next_instant(expression, instants[-1] if instants else now_ms)):
            instants.append(at)
    return [datetime.fromtimestamp(at / 1000, zone_of(cron.time_zone or "UTC")) for at in instants]


def switch(call: Any, schedule: str, *, paused: bool) -> Cron:
    """Switch a schedule off, or on again from its next instant; the expression that it has then.

    Raises: `NotFound`.
    """
    from millpond.workflows.engine.cron import parse_cron

    row = call("GetScheduledWfRun", protocol.ScheduledWfRunId(id=schedule))
    cron = parse_cron(row.cron_expression)
    if cron.paused != paused:
        cron = cron.switched(paused=paused)
        parent = row.parent_wf_run_id if row.HasField("parent_wf_run_id") else None
        call("ScheduleWf", protocol.ScheduleWfRequest(
            id=schedule, wf_spec_name=row.wf_spec_id.name, variables=row.variables, parent_wf_run_id=parent,
            cron_expression=cron.text(),
        ))  # fmt: skip
    return cron


def run_now(call: Any, row: Any) -> str:
    """Begin a run as a schedule would, beside those that it begins; the id of the run. The row is as it is stored."""
    from millpond.workflows.engine.cron import parse_cron

    major, revision = parse_cron(row.cron_expression).numbers()
    parent = row.parent_wf_run_id if row.HasField("parent_wf_run_id") else None
    begun = call("RunWf", protocol.RunWfRequest(
        wf_spec_name=row.wf_spec_id.name, variables=row.variables, parent_wf_run_id=parent, major_version=major,
        revision=revision,
    ))  # fmt: skip
    return engine.run_path(begun.id)
