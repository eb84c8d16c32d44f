"""Starts for data: a schedule that waits for loads, alerts or commits begins runs when they come.

    a node looks behind the cursor ─▶ DataArrived(since, mark) ─▶ is `since` the cursor still?  no: nothing
                                                                  is the run before open?       yes: nothing yet
                                                                  else one write: cursor = mark, a run of that mark

| state | is |
|---|---|
| `AFTER` of the schedule | the cursor: of what is up to there, all is decided |
| `LAST` of the schedule | the run that it began last; without `OVERLAP` the next one waits for its end |

Invariants:
* the cursor moves in the write that causes the run, and only from where the node saw it: so each mark begins one run,
  however often, and by how many nodes, it is found;
* a run has the mark in its id, as `nightly-on-17`: a load's position in the log, the id of an alert's event, or digits
  of a commit's id;
* what comes while a run is open, or while no node looks, is behind the cursor when somebody looks again;
* a schedule that is put anew goes on at its cursor; one that was off, or waited for other data, begins where it is put.
"""

from __future__ import annotations

import re
from dataclasses import replace

from littlehorse.model import ScheduledWfRun, ScheduleWfRequest, WfRun

from millpond.errors import Invalid
from millpond.workflows.engine.commands import DataArrived
from millpond.workflows.engine.cron import Cron, parse_cron
from millpond.workflows.engine.keys import key_of, root_of
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.scheduled_runs import begin_run, is_open, run_name
from millpond.workflows.engine.work import Work

__all__ = ("check_newest", "data_arrived", "mark_of", "run_for", "with_cursor")

_MARK_CHARACTERS = 16
_RUN_FOR = re.compile(r"-on-([0-9a-f]{1,16})$")


def run_for(schedule: str, mark: str) -> str:
    """The id of the run of a mark.

    >>> run_for("nightly", "17"), mark_of("nightly-on-17"), mark_of("nightly-961a457684")
    ('nightly-on-17', '17', '')
    """
    return f"{schedule}-on-{mark[:_MARK_CHARACTERS]}"


def mark_of(run: str) -> str:
    """The mark for which a schedule began a run; nothing for another run."""
    match = _RUN_FOR.search(run)
    return match[1] if match else ""


def data_arrived(work: Work, request: DataArrived) -> None:
    """Begin the run of a mark, and move the cursor; or find out if the run before is open."""
    is_answered = request.is_open >= 0
    if request.run_id.id and not is_answered:
        answer = replace(request, is_open=int(is_open(work.rows.get(WfRun, key_of(request.run_id)))))
        work.cause(CommandCaused(request.due.id, answer))
        return
    schedule = work.rows.get(ScheduledWfRun, key_of(request.due))
    if schedule is None or schedule.created_at.ToMilliseconds() != request.created:
        return
    cron = parse_cron(schedule.cron_expression)
    if not cron.on or cron.paused or cron.after != request.since or request.is_open > 0:
        return
    if request.begins and cron.last and not cron.overlap and not is_answered:
        last = run_name(schedule, cron.last)
        work.cause(CommandCaused(root_of(last), replace(request, run_id=last)))
        return
    if request.begins:
        run = run_for(schedule.id.id, request.mark)
        begin_run(work, schedule, run)
        cron = replace(cron, last="" if cron.overlap else run)
    schedule.cron_expression = replace(cron, after=request.mark).text()
    work.rows.put(key_of(schedule.id), schedule)


def with_cursor(cron: Cron, before: Cron) -> Cron:
    """A schedule that is put anew, at the cursor of the one before, if that looked at the same data."""
    if not cron.on or before.on != cron.on or before.paused:
        return cron
    return replace(cron, after=before.after)


def check_newest(request: ScheduleWfRequest) -> None:
    """Refuse a version for runs that data begin.

    Raises: `Invalid`.
    """
    cron = parse_cron(request.cron_expression)
    if cron.on and (cron.version or request.HasField("major_version") or request.HasField("revision")):
        raise Invalid("data begin runs of the newest version", kind="cron", workflow=request.wf_spec_name,
                      hint="name no version")  # fmt: skip
