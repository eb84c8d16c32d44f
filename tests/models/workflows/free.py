"""Verbs of scenarios for what belongs to no run: correlated events and schedules.

correlate KEY NAME [JSON] · forget KEY NAME · correlated      send or delete a correlated event; list all, and who waits
schedule ID SPEC MINUTE HOUR DAY MONTH WEEKDAY [NAME=JSON …]  every run of a schedule is listed by `runs SPEC`
unschedule ID · runs SPEC · instants                          `instants` lists when schedules are due
unheard                                                       the errors of commands that no caller sent
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from littlehorse.model import (
    CorrelatedEvent,
    CorrelatedEventConfig,
    CorrelatedEventId,
    DeleteCorrelatedEventRequest,
    DeleteScheduledWfRunRequest,
    ExternalEventDefId,
    LHStatus,
    NodeRunId,
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    ReturnType,
    ScheduledWfRunId,
    ScheduleWfRequest,
    TypeDefinition,
    VariableType,
    WfRun,
)

from millpond.workflows.engine import run_path
from millpond.workflows.engine.values.conversions import plain, value_of
from tests.models.workflows.stage import Stage

FREE_VERBS = frozenset(
    {"correlate", "forget", "correlated", "schedule", "unschedule", "runs", "instants", "unheard"}
)  # fmt: skip


def define_correlated(stage: Stage) -> None:
    """Define the correlated events: `paid` stays, `once` is used up by the first node, `brief` lives for a minute."""
    content = ReturnType(return_type=TypeDefinition(primitive_type=VariableType.STR))
    for name, config in {
        "paid": CorrelatedEventConfig(),
        "once": CorrelatedEventConfig(delete_after_first_correlation=True),
        "brief": CorrelatedEventConfig(ttl_seconds=60),
    }.items():
        stage.do(PutExternalEventDefRequest(name=name, content_type=content, correlated_event_config=config))


def perform_free(stage: Stage, verb: str, words: list[str]) -> str | None:
    """Do one command; what it shows, if it shows anything."""
    match verb:
        case "correlate":
            content = value_of(json.loads(" ".join(words[2:]) or "null"))
            event = ExternalEventDefId(name=words[1])
            stage.do(PutCorrelatedEventRequest(key=words[0], external_event_def_id=event, content=content))
        case "forget":
            event = ExternalEventDefId(name=words[1])
            name = CorrelatedEventId(key=words[0], external_event_def_id=event)
            stage.do(DeleteCorrelatedEventRequest(id=name))
        case "correlated":
            return "\n".join(_correlated_lines(stage)) or "none"
        case "schedule":
            inputs = dict(word.split("=", 1) for word in words[7:])
            values = {name: value_of(json.loads(text)) for name, text in inputs.items()}
            cron = " ".join(words[2:7])
            stage.do(ScheduleWfRequest(id=words[0], wf_spec_name=words[1], cron_expression=cron, variables=values))
        case "unschedule":
            stage.do(DeleteScheduledWfRunRequest(id=ScheduledWfRunId(id=words[0])))
        case "runs":
            found = [run for _key, run in stage.rows.list(WfRun, ()) if run.wf_spec_id.name == words[0]]
            return "\n".join(_run_line(run) for run in sorted(found, key=_started)) or "none"
        case "instants":
            due = sorted((timer.at, str(name[1])) for name, timer in stage.timers.items() if name[0] == "scheduled run")
            return "\n".join(f"{name} {_time(at)}" for at, name in due) or "none"
        case _:
            return "\n".join(f"{type(error).__name__} {error.kind}" for error in stage.unheard) or "none"
    return None


def _correlated_lines(stage: Stage) -> list[str]:
    lines = []
    for key, event in stage.rows.list(CorrelatedEvent, ()):
        runs = sorted(run_path(made.wf_run_id) for made in event.external_events)
        lines.append(f"{key[0]} {key[1]} = {plain(event.content)!r} sent to {runs}")
    for key, node in stage.rows.list(NodeRunId, ()):
        lines.append(
            f"{key[0]} {key[1]} awaited by {run_path(node.wf_run_id)} {node.thread_run_number}/{node.position}"
        )
    return lines


def _started(run: WfRun) -> int:
    return run.start_time.ToMilliseconds()


def _run_line(run: WfRun) -> str:
    version = f"{run.wf_spec_id.major_version}.{run.wf_spec_id.revision}"
    return f"{run.wf_spec_id.name} {version} {_time(_started(run))} {LHStatus.Name(run.status)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
