"""Stored events as the messages that clients read, and the first events of a job as they are stored.

A stored event of a job has as its `kind` a name of the API (`running`), its job in the header `job_id`, and as payload
the fields of that message which are left: in the wire format of gRPC, or as a JSON object, which begins with `{`. The
queue, the job set and the time are not stored again; they are filled in when an event is read.

Invariants:
* an event of a kind that the API does not know has no message, and nothing else is lost by it;
* a payload that is neither form ends no stream: the message has the job, the queue, the job set and the time;
* both are counted in `LEFT_OUT`, each time they are read for a client of Armada: its messages have no place for them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from prometheus_client import Counter

from millpond.events.event import Event, NewEvent
from millpond.events.jobs.active import ends_job
from millpond.events.jobs.submissions import JOB_ID
from millpond.events.names import StreamName
from millpond.json_forms import FormError, parse_object
from millpond.server.armada.wire import armada_pb2 as pb

__all__ = ("KINDS", "LEFT_OUT", "api_event", "is_bare", "job_event", "marker", "plain_message", "stored_message")

KINDS = frozenset(field.name for field in pb.EventMessage.DESCRIPTOR.oneofs_by_name["events"].fields)
"""The kinds of events that the API knows."""
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""The years 1 and 9999, in which times of the wire format lie."""
_JSON_BEGINS = b"{"
LEFT_OUT = Counter(
    "millpond_events_left_out", "Events, or their payloads, that had no form for a client of Armada.", ("what",),
    registry=None,
)  # fmt: skip


def job_event(kind: str, job_id: str, time_ms: int, message: Message | None = None) -> NewEvent:
    """An event of a job, to be appended."""
    payload = b"" if message is None else message.SerializeToString()
    return NewEvent(time_ms, payload, kind, {JOB_ID: job_id})


def api_event(stream: StreamName, event: Event) -> pb.EventMessage | None:
    """The event that clients read; None for a kind that the API does not know."""
    if event.kind not in KINDS:
        LEFT_OUT.labels("event").inc()
        return None
    message = pb.EventMessage()
    inner: Any = getattr(message, event.kind)
    inner.SetInParent()
    _merge_payload(inner, event.payload)
    inner.queue, inner.job_set_id = stream.queue, stream.job_set
    inner.job_id = event.headers.get(JOB_ID, inner.job_id)
    seconds, ms = divmod(event.time_ms, 1000)
    inner.created.seconds = min(max(seconds, _SECONDS_MIN), _SECONDS_MAX)
    inner.created.nanos = ms * 1_000_000
    if event.kind == "failed" and not ends_job(event.kind, event.headers):
        inner.retryable = True
    if event.kind == "submitted":
        job = inner.job
        job.id, job.queue, job.job_set_id = inner.job_id, stream.queue, stream.job_set
        job.created.CopyFrom(inner.created)
    return message


def is_bare(event: Event) -> bool:
    """True when the message of an event has no more than the job, the queue, the job set and the time."""
    return not event.payload and event.kind in KINDS and event.kind not in ("submitted", "failed")


def _merge_payload(inner: Message, payload: bytes) -> None:
    try:
        if payload.startswith(_JSON_BEGINS):
            ParseDict(parse_object(payload), inner, ignore_unknown_fields=True)
        elif payload:
            inner.MergeFromString(payload)
    except (DecodeError, ParseError, FormError, ValueError, TypeError, RecursionError):
        LEFT_OUT.labels("payload").inc()
        inner.Clear()
        inner.SetInParent()


def plain_message(stream: StreamName, event: Event) -> bytes | None:
    """The message of an event to a client of Armada; None when there is none."""
    message = api_event(stream, event)
    return None if message is None else pb.EventStreamMessage(id=event.id, message=message).SerializeToString()


def stored_message(_stream: StreamName, event: Event) -> bytes:
    """The message of an event of any kind to a client of Millpond."""
    message = pb.StoredEvent(kind=event.kind, payload=event.payload, headers=event.headers, time_ms=event.time_ms)
    return pb.EventStreamMessage(id=event.id, stored=message).SerializeToString()


def marker(id_: str, which: pb.Marker) -> bytes:
    """A message without an event, for clients of Millpond."""
    return pb.EventStreamMessage(id=id_, marker=which).SerializeToString()
