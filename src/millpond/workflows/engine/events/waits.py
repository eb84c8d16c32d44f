"""Waits for a correlated event, as the run's partition sees them: announced on arrival, withdrawn when they end."""

from __future__ import annotations

from littlehorse.model import CorrelatedEventId, ExternalEventDefId, NodeRun, WfRun, WfSpec

from millpond.workflows.engine.commands import CorrelationAwaited, CorrelationForgotten
from millpond.workflows.engine.failures import substitution
from millpond.workflows.engine.limits import CORRELATION_KEY_CHARACTERS_MAX
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.runs import TERMINAL
from millpond.workflows.engine.work import Work

__all__ = ("announce", "key_problem", "withdraw", "withdraw_all")


def key_problem(key: str) -> str | None:
    """The reason for which a text is no correlation key, or None."""
    if not key:
        return "a correlation key is not empty"
    if "/" in key or "~" in key:
        return "a correlation key has neither / nor ~"
    if len(key) > CORRELATION_KEY_CHARACTERS_MAX:
        return f"a correlation key has at most correlation_key_characters_max={CORRELATION_KEY_CHARACTERS_MAX}"
    return None


def announce(work: Work, row: NodeRun) -> None:
    """Tell the partition of a node run's correlation key that the node run waits.

    Raises:
        NodeFailed: VAR_SUB_ERROR; the key is none.
    """
    problem = key_problem(row.external_event.correlation_key)
    if problem is not None:
        row.external_event.ClearField("correlation_key")
        raise substitution(problem)
    event = _event_of(row)
    work.cause(CommandCaused(event.key, CorrelationAwaited(event, row.id)))


def withdraw(work: Work, row: NodeRun) -> None:
    """Tell the partition of the key, if a node run has one, that the node run waits no more."""
    if row.external_event.correlation_key:
        event = _event_of(row)
        work.cause(CommandCaused(event.key, CorrelationForgotten(event, row.id)))


def withdraw_all(work: Work, run: WfRun, path: str) -> None:
    """Withdraw all waits of a run that is being deleted."""
    spec = work.rows.get(WfSpec, (run.wf_spec_id.name, run.wf_spec_id.major_version, run.wf_spec_id.revision))
    if spec is not None and not _correlates(spec):
        return
    for thread in run.thread_runs:
        if thread.status not in TERMINAL:
            row = work.rows.get(NodeRun, (path, thread.number, thread.current_node_position))
            if row is not None and row.status not in TERMINAL:
                withdraw(work, row)


def _correlates(spec: WfSpec) -> bool:
    nodes = (node for thread in spec.thread_specs.values() for node in thread.nodes.values())
    return any(node.external_event.HasField("correlation_key") for node in nodes)


def _event_of(row: NodeRun) -> CorrelatedEventId:
    event = ExternalEventDefId(name=row.external_event.external_event_def_id.name)
    return CorrelatedEventId(key=row.external_event.correlation_key, external_event_def_id=event)
