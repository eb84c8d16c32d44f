"""External events: stored for a run, which need not exist yet, and taken by its threads."""

from __future__ import annotations

from littlehorse.model import (
    ExternalEvent,
    ExternalEventDef,
    ExternalEventId,
    LHStatus,
    NodeRun,
    PutExternalEventRequest,
    VariableValue,
)

from millpond.errors import AlreadyExists, Invalid
from millpond.workflows.engine.advance import advance
from millpond.workflows.engine.commands import EventExpired
from millpond.workflows.engine.events.unclaimed import drop, note
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.handlers import interrupt
from millpond.workflows.engine.keys import check_name, key_of, run_path
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.runs import TERMINAL, Run, load
from millpond.workflows.engine.values.conversions import coerced, type_name, value_type_name
from millpond.workflows.engine.work import Work

__all__ = ("content_of", "event_expired", "put_external_event", "store_event")


def put_external_event(work: Work, request: PutExternalEventRequest) -> ExternalEvent:
    """Store an event for a run, which need not exist yet, and let the run take it."""
    definition = work.rows.get(ExternalEventDef, (request.external_event_def_id.name,))
    if definition is None:
        raise Invalid("no external event has this name", kind="event_def", name=request.external_event_def_id.name)
    for part in run_path(request.wf_run_id).split("_"):
        check_name("run", part)
    content = content_of(work, definition, request.content)
    if not request.guid.isprintable():
        raise Invalid("not a valid name", kind="workflow_name", thing="external event", name=repr(request.guid),
                      hint="use characters that can be printed")  # fmt: skip
    name = ExternalEventId(
        wf_run_id=request.wf_run_id,
        external_event_def_id=request.external_event_def_id,
        guid=request.guid if request.HasField("guid") else work.new_id(),
    )
    if work.rows.get(ExternalEvent, key_of(name)) is not None:
        raise AlreadyExists("an event has this guid", kind="external_event", guid=name.guid)
    event = ExternalEvent(id=name, created_at=work.instant(), content=content)
    if request.HasField("thread_run_number"):
        event.thread_run_number = request.thread_run_number
    if request.HasField("node_run_position"):
        event.node_run_position = request.node_run_position
    store_event(work, event, definition)
    return event


def store_event(work: Work, event: ExternalEvent, definition: ExternalEventDef | None) -> None:
    """Store a new event, and let its run take it."""
    note(work, event)
    policy = None if definition is None else definition.retention_policy
    if policy is not None and policy.WhichOneof("ext_evt_gc_policy") == "seconds_after_put":
        at = work.now + 1000 * max(0, policy.seconds_after_put)
        work.set_timer((run_path(event.id.wf_run_id), "event", *key_of(event.id)[1:]), at, EventExpired(event.id))
    run = load(work, run_path(event.id.wf_run_id))
    if run is not None and run.row.status not in TERMINAL:
        interrupt(run, event)
        if event.HasField("thread_run_number"):
            run.awake.wake([event.thread_run_number])
        else:
            run.awake.wake(_taker(run, event))
        advance(run, ())


def _taker(run: Run, event: ExternalEvent) -> list[int]:
    """The first thread that waits for an event which is for any: it takes it, and the others need not be looked at."""
    specs = run.facts.awaiting.get(event.id.external_event_def_id.name, frozenset())
    for number, thread in sorted(run.threads.items()):
        moves = thread.status == LHStatus.RUNNING and thread.thread_spec_name in specs
        if moves and _takes(run.node_run(thread), event):
            return [number]
    return []


def _takes(row: NodeRun, event: ExternalEvent) -> bool:
    if row.status != LHStatus.RUNNING or row.external_event.external_event_def_id != event.id.external_event_def_id:
        return False
    return not event.HasField("node_run_position") or event.node_run_position == row.id.position


def event_expired(work: Work, request: EventExpired) -> None:
    """Delete an external event that nobody has claimed."""
    event = work.rows.get(ExternalEvent, key_of(request.event_id))
    if event is not None and not event.claimed:
        drop(work, event)


def content_of(work: Work, definition: ExternalEventDef, content: VariableValue) -> VariableValue:
    """The content of an event, as the type that the event has.

    Raises:
        Invalid: the content is too large, or cannot be of the type.
    """
    if content.ByteSize() > VALUE_BYTES_MAX:
        raise Invalid("the content is too large", kind="value_bytes", bytes=content.ByteSize(), limit=VALUE_BYTES_MAX)
    type_ = definition.type_information.return_type
    try:
        return settled(work, coerced(content, type_), type_)
    except NodeFailed as failed:
        name = definition.id.name
        raise Invalid(
            f"Invalid type of content for event. Check the return type of ExternalEventDef {name}",
            kind="event_type",
            event=name,
            type=type_name(type_),
            given=value_type_name(content),
            problem=failed.message,
        ) from failed
