"""An event as people read it: in one line, with the reason when a job failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.json_forms import FormError, parse_object
from millpond.sizes import human_count

if TYPE_CHECKING:
    from millpond.events.event import Event

__all__ = ("ENDED_BADLY", "details_of", "line_of", "reason_of", "time_of")

ENDED_BADLY = frozenset(("failed", "preempted", "cancelled", "lease_returned", "lease_expired", "unable_to_schedule"))
"""The kinds of events that may tell a reason."""
_REASONS = ("error", "reason")
_TEXTS = (*_REASONS, "message")
_JOB = "job_id"
_PAYLOAD_CHARACTERS = 120
"""The beginning of a payload that a line shows; `--raw` shows it whole."""


def line_of(event: Event) -> str:
    """One event in words, with the beginning of its payload, unless that told the reason."""
    facts = (time_of(event), event.kind or "event", event.headers.get(_JOB, ""), details_of(event))
    return " ".join(filter(None, (*facts, "" if reason_of(event) else _short_payload(event.payload))))


def _short_payload(payload: bytes) -> str:
    """The beginning of a payload that is text; of another its size."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"({human_count(len(payload), 'byte')})"
    return text if len(text) <= _PAYLOAD_CHARACTERS else f"{text[:_PAYLOAD_CHARACTERS]}…"


def time_of(event: Event) -> str:
    """The time of an event, by the second."""
    try:
        return event.time.strftime("%Y-%m-%d %H:%M:%S")
    except Invalid:
        return f"{event.time_ms} ms"


def details_of(event: Event) -> str:
    """The reason of a failure, then the other headers."""
    names = sorted(event.headers, key=lambda name: name not in _REASONS) if event.kind in ENDED_BADLY else event.headers
    facts = {name: event.headers[name] for name in names if name != _JOB}
    reason = "" if any(name in facts for name in _REASONS) else reason_of(event)
    return " ".join(f"{name}={text}" for name, text in (({"reason": reason} if reason else {}) | facts).items())


def reason_of(event: Event) -> str:
    """The reason that an event of a job which did not succeed has in its payload: in JSON, or as Armada's message.

    >>> from millpond.events.event import Event
    >>> reason_of(Event(1, 0, b'{"reason": "no disk", "node": 7}', "failed", {}))
    'no disk'
    """
    if event.kind not in ENDED_BADLY or not event.payload:
        return ""
    if not event.payload.startswith(b"{"):
        return _reason_of_message(event)
    try:
        payload = parse_object(event.payload)
    except FormError:
        return ""
    texts = (payload.get(name) for name in _TEXTS)
    return ": ".join(text for text in texts if isinstance(text, str) and text)


def _reason_of_message(event: Event) -> str:
    """The reason in the fields of Armada's message for the kind; empty for a payload that is none."""
    from google.protobuf.message import DecodeError

    from millpond.server.armada.wire import armada_pb2 as pb

    inner: Any = getattr(pb.EventMessage(), event.kind)
    try:
        inner.MergeFromString(event.payload)
    except DecodeError:
        return ""
    return str(getattr(inner, "reason", "")) or "; ".join(map(_ended, getattr(inner, "container_statuses", ())))


def _ended(container: Any) -> str:
    code = f"{container.name or 'container'} ended with {container.exitCode}"
    return ": ".join(filter(None, (code, container.reason, container.message)))
