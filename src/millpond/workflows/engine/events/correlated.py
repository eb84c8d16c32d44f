"""Correlated events: those that find the node runs that wait for them by a key, not by a run.

    run's partition      a node arrives ─▶ CorrelationAwaited ┐
    key's partition      the event, or a row of the node run that waits; whoever is second ─▶ CorrelatedEventSent
    run's partition      an external event, bound to the node run ◀─┘

Invariants:

* A node run that waits has a row under its key, or has been sent the event.
* An event is sent to a node run once: the id of what it makes follows from the two.
* The rows of a key are read and written on the key's partition only.
"""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    CorrelatedEvent,
    CorrelatedEventId,
    DeleteCorrelatedEventRequest,
    ExternalEvent,
    ExternalEventDef,
    ExternalEventId,
    NodeRunId,
    PutCorrelatedEventRequest,
    WfRun,
)

from millpond.errors import AlreadyExists, Invalid
from millpond.workflows.engine.commands import (
    CorrelatedEventExpired,
    CorrelatedEventSent,
    CorrelationAwaited,
    CorrelationForgotten,
    derived_id,
)
from millpond.workflows.engine.events.external import content_of, store_event
from millpond.workflows.engine.events.waits import key_problem
from millpond.workflows.engine.keys import Key, key_of, root_of, run_path
from millpond.workflows.engine.limits import CORRELATIONS_MAX
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.work import Work

__all__ = (
    "await_correlation",
    "correlated_event_expired",
    "delete_correlated_event",
    "forget_correlation",
    "put_correlated_event",
    "receive_correlated_event",
)


def put_correlated_event(work: Work, request: PutCorrelatedEventRequest) -> CorrelatedEvent:
    """Store an event under its key, and send it to the node runs that wait for it."""
    problem = key_problem(request.key)
    if problem is not None:
        raise Invalid(problem, kind="correlation_key", key=request.key[:80])
    name = request.external_event_def_id.name
    definition = work.rows.get(ExternalEventDef, (name,))
    if definition is None:
        raise Invalid("no external event has this name", kind="event_def", name=name)
    if not definition.HasField("correlated_event_config"):
        hint = "define it with a correlated_event_config"
        raise Invalid("events of this definition are not correlated", kind="event_def", name=name, hint=hint)
    content = content_of(work, definition, request.content)
    event = CorrelatedEvent(
        id=CorrelatedEventId(key=request.key, external_event_def_id=definition.id),
        created_at=work.instant(),
        content=content,
    )
    if work.rows.get(CorrelatedEvent, key_of(event.id)) is not None:
        raise AlreadyExists("an event has this key", kind="correlated_event", event=name, key=request.key)
    config = definition.correlated_event_config
    if config.HasField("ttl_seconds"):
        at = work.now + 1000 * max(0, config.ttl_seconds)
        work.set_timer(_timer_name(event.id), at, CorrelatedEventExpired(event.id))
    node_runs = work.rows.list(NodeRunId, key_of(event.id), limit=CORRELATIONS_MAX)
    for node_run in node_runs:
        work.rows.delete(NodeRunId, _row_key(event.id, node_run))
    _serve(work, event, node_runs)
    return event


def await_correlation(work: Work, request: CorrelationAwaited) -> None:
    """Send a node run the event that it waits for, or note that it waits."""
    event = work.rows.get(CorrelatedEvent, key_of(request.event_id))
    if event is None or len(event.external_events) >= CORRELATIONS_MAX:
        work.rows.put(_row_key(request.event_id, request.node_run_id), request.node_run_id)
    else:
        _serve(work, event, [request.node_run_id])


def forget_correlation(work: Work, request: CorrelationForgotten) -> None:
    """Forget a node run that waits no more."""
    work.rows.delete(NodeRunId, _row_key(request.event_id, request.node_run_id))


def delete_correlated_event(work: Work, request: DeleteCorrelatedEventRequest) -> Empty:
    """Delete a correlated event. One that is gone is no error."""
    _delete(work, request.id)
    return Empty()


def correlated_event_expired(work: Work, request: CorrelatedEventExpired) -> None:
    """Delete a correlated event whose time is over."""
    _delete(work, request.event_id)


def receive_correlated_event(work: Work, request: CorrelatedEventSent) -> None:
    """Store a correlated event as an external one of a node run. A run that was deleted gets none."""
    name, node_run = request.event_id, request.node_run_id
    gone = work.rows.get(WfRun, (run_path(name.wf_run_id),)) is None
    if gone or work.rows.get(ExternalEvent, key_of(name)) is not None:
        return
    event = ExternalEvent(
        id=name,
        created_at=work.instant(),
        content=request.content,
        thread_run_number=node_run.thread_run_number,
        node_run_position=node_run.position,
    )
    store_event(work, event, work.rows.get(ExternalEventDef, (name.external_event_def_id.name,)))


def _serve(work: Work, event: CorrelatedEvent, node_runs: list[NodeRunId]) -> None:
    """Send an event to node runs; then store it, or delete it if the first nodes use it up."""
    for node_run in node_runs:
        made = ExternalEventId(
            wf_run_id=node_run.wf_run_id,
            external_event_def_id=event.id.external_event_def_id,
            guid=_guid(event, node_run),
        )
        event.external_events.append(made)
        work.cause(CommandCaused(root_of(node_run.wf_run_id), CorrelatedEventSent(node_run, made, event.content)))
    definition = work.rows.get(ExternalEventDef, (event.id.external_event_def_id.name,))
    config = None if definition is None else definition.correlated_event_config
    if node_runs and config is not None and config.delete_after_first_correlation:
        _delete(work, event.id)
    else:
        work.rows.put(key_of(event.id), event)


def _delete(work: Work, name: CorrelatedEventId) -> None:
    work.rows.delete(CorrelatedEvent, key_of(name))
    work.cancel_timer(_timer_name(name))


def _guid(event: CorrelatedEvent, node_run: NodeRunId) -> str:
    parts = (*key_of(event.id), event.created_at.ToMilliseconds(), *key_of(node_run))
    return derived_id("/".join(map(str, parts)), 0)


def _row_key(event: CorrelatedEventId, node_run: NodeRunId) -> Key:
    """The key of the row of a node run that waits."""
    return (*key_of(event), *key_of(node_run))


def _timer_name(name: CorrelatedEventId) -> Key:
    return ("correlated event", *key_of(name))
