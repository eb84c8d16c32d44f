"""Events as lines of JSON: those that are sent to a node to be appended, and those that a reader gets.

    {"time": "2026-11-22T17:00:00Z", "kind": "running", "payload": "text", "headers": {"job_id": "7"}, "position": 9}
    {"id": "1961…", "time_ms": 1795366800000, "kind": "running", "payload": "text", "headers": {"job_id": "7"}}

A reader of several streams finds in each line the number of its stream, `"stream": 0`, in the order of its request.
A payload that is no UTF-8 stands under `payload_base64`. A line that a reader gets without an `id` is about
the reading: `caught_up`, `gap` or `alive`, each with the id from which to go on, or `error`. A reader with filters goes
on there, too: what is before it did not match.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.errors import Invalid
from millpond.events.event import NO_HEADERS, Event, EventBatch, NewEvent
from millpond.events.ids import parse_id
from millpond.events.names import StreamName
from millpond.json_forms import FormError, JsonForm, parse_object, to_json
from millpond.times.instants import clear_instant, parse_instant

__all__ = (
    "batch_of_lines",
    "event_of_line",
    "line_of_event",
    "line_of_stream_event",
    "lines_of_batch",
    "shown_event",
)


@dataclass(frozen=True, slots=True)
class _NewLine:
    """A line of an append. `time`: UTC milliseconds that could be no seconds, or text with a zone; by default now."""

    time: int | str | None = None
    kind: str = ""
    payload: str | None = None
    payload_base64: str | None = None
    headers: dict[str, str] | None = None
    position: int | None = None


_NEW = JsonForm(_NewLine)


def batch_of_lines(stream: StreamName, lines: Iterable[bytes], source: str, now_ms: int) -> EventBatch:
    """The batch of events in lines of JSON; empty lines are left out.

    Raises:
        Invalid: a line is not understood; it is named by its number.
    """
    events: list[NewEvent] = []
    positions: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parsed = _NEW.decode(line)
            time_ms = _time_ms(parsed.time, now_ms)
            payload = _payload_of(parsed)
        except (FormError, binascii.Error, UnicodeEncodeError, Invalid) as error:
            raise Invalid(
                "a line is no event", kind="event_line", line=number, reason=error,
                hint='write {"kind": "running", "payload": "text"}, one object a line',
            ) from error  # fmt: skip
        events.append(NewEvent(time_ms, payload, parsed.kind, parsed.headers or NO_HEADERS))
        if parsed.position is not None:
            positions.append(parsed.position)
    return EventBatch(stream, events, source, positions)


def _payload_of(line: _NewLine) -> bytes:
    if line.payload_base64 is None:
        return (line.payload or "").encode()
    if line.payload is not None:
        raise FormError("payload and payload_base64 are the same bytes in two forms: name one")
    return base64.b64decode(line.payload_base64, validate=True)


def _time_ms(time: int | str | None, now_ms: int) -> int:
    if time is None:
        return now_ms
    if isinstance(time, int) and clear_instant(time) == time:
        return time  # also one beyond every calendar
    return parse_instant(time)


def lines_of_batch(batch: EventBatch) -> bytes:
    """The lines from which `batch_of_lines` makes the batch."""
    positions: Sequence[int | None] = batch.positions or [None] * len(batch.events)
    return b"".join(
        to_json(_line_of_new(event, position)) + b"\n"
        for event, position in zip(batch.events, positions, strict=True)
    )  # fmt: skip


def _line_of_new(event: NewEvent, position: int | None) -> dict[str, Any]:
    line: dict[str, Any] = {"time": clear_instant(event.time_ms), "kind": event.kind, **_payload(event.payload)}
    if event.headers:
        line["headers"] = dict(event.headers)
    if position is not None:
        line["position"] = position
    return line


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def shown_event(event: Event) -> dict[str, Any]:
    """An event as an object of JSON."""
    shown: dict[str, Any] = {"id": event.id, "time_ms": event.time_ms, "kind": event.kind, **_payload(event.payload)}
    if event.headers:
        shown["headers"] = dict(event.headers)
    return shown


def line_of_event(event: Event) -> bytes:
    """An event as a line of JSON."""
    return to_json(shown_event(event)) + b"\n"


def line_of_stream_event(number: int, event: Event) -> bytes:
    """An event as a line of JSON, with the number of its stream."""
    return to_json(shown_event(event) | {"stream": number}) + b"\n"


def event_of_line(line: bytes) -> tuple[int, Event | None, dict[str, Any]]:
    """The number of the stream, 0 of one alone, and the event of a line; or None, and what it says of the reading.

    Raises:
        Invalid: the line is not what a node sends.
    """
    parsed = _parse(line)
    return int(parsed.get("stream", 0)), _event_of(parsed) if "id" in parsed else None, parsed


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return parse_object(line)
    except FormError as error:
        raise Invalid("a line is no event", kind="event_line", reason=error) from error


def _event_of(parsed: dict[str, Any]) -> Event:
    try:
        text = parsed.get("payload")
        payload = base64.b64decode(parsed["payload_base64"]) if text is None else str(text).encode()
        headers = parsed.get("headers") or NO_HEADERS
        return Event(parse_id(parsed["id"]), int(parsed["time_ms"]), payload, parsed["kind"], headers)
    except (KeyError, ValueError, TypeError) as error:
        raise Invalid("a line is no event", kind="event_line", reason=error) from error
