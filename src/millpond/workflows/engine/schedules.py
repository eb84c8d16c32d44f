"""Schedules: runs that start by themselves at the instants of a cron expression, see `cron`.

Invariants:

* A schedule has one timer: its next instant. The timer's command starts a run, and sets the next one from the instant
  that was due, so none is left out: those that passed while the server was down follow one after another. Of more than
  `PASSED_MAX` only the first has a run, or a clock that jumps two days ahead would start thousands.
* A clock that was ahead leaves no gap behind it: the next instant is one after the time that it is.
* A schedule that is put again under its id replaces the old one, with its timer.
* A schedule that is off has no timer; on again, it begins with the next instant.
* A version that was named stands in the expression, so that a schedule that is switched off and on keeps to it.
* Without `OVERLAP` a run begins when the one before it has ended, stopped ones included; it is asked at its partition
  again and again, ever more seldom. What passed meanwhile is as if the server had been down.
* `MISSED`: of instants that passed, `all` have runs as above, or the `last`, or `none`: those late by a minute.
* A run of a schedule with either has its instant in its id, so that it may know it, and none has two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    DeleteScheduledWfRunRequest,
    ScheduledWfRun,
    ScheduledWfRunId,
    ScheduleWfRequest,
    WfRun,
)

from millpond.errors import Invalid
from millpond.workflows.engine.commands import ScheduleDue, ScheduleWaits
from millpond.workflows.engine.cron import Cron, instant_to_run, next_instant, parse_cron, run_at
from millpond.workflows.engine.data_starts import check_newest, with_cursor
from millpond.workflows.engine.keys import Key, check_name, key_of, root_of
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.pipeline_starts import check_start
from millpond.workflows.engine.schedule_masks import put_again, shown_schedule
from millpond.workflows.engine.scheduled_runs import begin_run, is_open, run_name
from millpond.workflows.engine.work import Work, find_spec

__all__ = ("delete_schedule", "put_schedule", "run_due", "wait_for_run")

PASSED_MAX: Final = 100
"""The instants that passed, while the server was down or its clock behind, that runs are started for."""
_LOOK_MS_MIN, _LOOK_MS_MAX = 1_000, 60_000


def put_schedule(work: Work, request: ScheduleWfRequest) -> ScheduledWfRun:
    """Start runs of a specification at the instants of a cron expression, from now on; the schedule as it is shown."""
    name = ScheduledWfRunId(id=request.id if request.HasField("id") else work.new_id())
    check_name("schedule", name.id)
    cron = parse_cron(request.cron_expression)
    major, revision = cron.numbers()
    if request.HasField("major_version"):
        major, revision = request.major_version, request.revision if request.HasField("revision") else None
        cron = replace(cron, version=f"{major}" if revision is None else f"{major}.{revision}")
    spec = find_spec(work, request.wf_spec_name, major, revision)
    if spec is None:
        missing = request.wf_spec_name[:80]
        raise Invalid(f"Couldn't find WfSpec {missing}, or this version of it", kind="workflow_spec", spec=missing)
    before = work.rows.get(ScheduledWfRun, key_of(name))
    request = put_again(work, request, before)
    check_start(spec, request.variables)
    check_newest(request)
    if request.ByteSize() > VALUE_BYTES_MAX:
        size = request.ByteSize()
        raise Invalid("the inputs are too large", kind="value_bytes", bytes=size, limit=VALUE_BYTES_MAX)
    schedule = ScheduledWfRun(
        id=name,
        wf_spec_id=spec.id,
        variables=request.variables,
        cron_expression=_with_last(cron.text() if cron.version else request.cron_expression, before),
        created_at=work.instant(),
        parent_wf_run_id=request.parent_wf_run_id if request.HasField("parent_wf_run_id") else None,
    )
    work.rows.put(key_of(name), schedule)
    _set_timer(work, schedule, work.now, -1 if major is None else major, -1 if revision is None else revision)
    return shown_schedule(work, schedule)


def run_due(work: Work, request: ScheduleDue) -> None:
    """Start the run of an instant of a schedule, of the version that is the newest now unless one was named."""
    schedule = work.rows.get(ScheduledWfRun, key_of(request.schedule_id))
    if schedule is None:
        return
    cron = parse_cron(schedule.cron_expression)
    if cron.paused:
        return
    if request.at > work.now:  # the timer was set by a clock that was ahead
        _set_timer(work, schedule, work.now, request.major, request.revision)
        return
    at = instant_to_run(schedule.cron_expression, request.at, work.now)
    if at is None:
        _set_timer(work, schedule, work.now, request.major, request.revision)
        return
    if cron.last and not cron.overlap:
        run, created = run_name(schedule, cron.last), schedule.created_at.ToMilliseconds()
        question = ScheduleWaits(schedule.id, run, created, request.at, request.major, request.revision)
        work.cause(CommandCaused(root_of(run), question))
        return
    id_ = work.new_id() if cron.overlap and cron.missed == "all" else run_at(schedule.id.id, at)
    begin_run(work, schedule, id_, major=request.major, revision=request.revision)
    if not cron.overlap:
        _put_last(work, schedule, cron, id_)
    after = _caught_up(schedule.cron_expression, at, work.now)
    _set_timer(work, schedule, after, request.major, request.revision)


def wait_for_run(work: Work, request: ScheduleWaits) -> None:
    """Tell a schedule whether a run of it is open; and there: start the next run, or ask again later."""
    if request.is_open < 0:
        answer = replace(request, is_open=int(is_open(work.rows.get(WfRun, key_of(request.run_id)))))
        work.cause(CommandCaused(request.due.id, answer))
        return
    schedule = work.rows.get(ScheduledWfRun, key_of(request.due))
    if schedule is None or schedule.created_at.ToMilliseconds() != request.created:
        return
    due = ScheduleDue(request.due, request.at, request.major, request.revision)
    if request.is_open:
        wait = min(max((work.now - request.at) // 10, _LOOK_MS_MIN), _LOOK_MS_MAX)
        work.set_timer(_timer_name(request.due), work.now + wait, due)
        return
    _put_last(work, schedule, parse_cron(schedule.cron_expression), "")
    run_due(work, due)


def delete_schedule(work: Work, request: DeleteScheduledWfRunRequest) -> Empty:
    """Delete a schedule; its runs stay. One that is gone is no error."""
    work.rows.delete(ScheduledWfRun, key_of(request.id))
    work.cancel_timer(_timer_name(request.id))
    return Empty()


def _set_timer(work: Work, schedule: ScheduledWfRun, after: int, major: int, revision: int) -> None:
    at = next_instant(schedule.cron_expression, after)
    if at is None:
        work.cancel_timer(_timer_name(schedule.id))
    else:
        work.set_timer(_timer_name(schedule.id), at, ScheduleDue(schedule.id, at, major, revision))


def _caught_up(expression: str, at: int, now: int) -> int:
    """The instant after which a schedule goes on that ran for `at`: that, or now when too many have passed since."""
    passed = at
    for _ in range(PASSED_MAX + 1):
        following = next_instant(expression, passed)
        if following is None or following > now:
            return at
        passed = following
    return now


def _with_last(expression: str, before: ScheduledWfRun | None) -> str:
    """An expression that is put anew, with the run that its schedule began last, and the cursor of its data."""
    cron = parse_cron(expression)
    if before is None or (cron.overlap and not cron.on):
        return expression
    old = parse_cron(before.cron_expression)
    return replace(with_cursor(cron, old), last="" if cron.overlap else old.last).text()


def _put_last(work: Work, schedule: ScheduledWfRun, cron: Cron, run: str) -> None:
    schedule.cron_expression = replace(cron, last=run).text()
    work.rows.put(key_of(schedule.id), schedule)


def _timer_name(name: ScheduledWfRunId) -> Key:
    return ("scheduled run", name.id)
