"""The events of a job set as lines of JSON, for those who watch over HTTP.

    {"result": {"id": "…", "message": {"Queued": {"jobId": "…", "jobSetId": "…", "queue": "…", "created": {…}}}}}
    {"error": {…}}                                             the last line, when the stream ended with an error
    {"result": {"id": "…", "event": {"kind": …, "payload": …, "headers": …, "timeMs": …}}}    for clients of Millpond,
    {"result": {"id": "…", "marker": "CAUGHT_UP"}}                                        which also get markers

A payload that is text stands there as it is; another one in base64, under `payloadBase64`.
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from millpond.client.wire_errors import to_wire
from millpond.errors import MillpondError
from millpond.events.event import Event
from millpond.events.jobs.submissions import JOB_ID
from millpond.events.names import StreamName
from millpond.json_forms import to_json
from millpond.server.armada.events_api import Forms
from millpond.server.armada.messages import api_event, is_bare
from millpond.server.armada.wire import armada_pb2 as pb

__all__ = ("ALL_LINES", "LINES", "NDJSON", "error_line")

NDJSON = "application/ndjson-stream"
_SMALL = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_ENUM)
"""The types of numbers that JSON has as they are."""


def _line(result: dict[str, Any]) -> bytes:
    return to_json({"result": result}) + b"\n"


def _plain_line(stream: StreamName, event: Event) -> bytes | None:
    if is_bare(event):
        named = (("jobId", event.headers.get(JOB_ID, "")), ("jobSetId", stream.job_set), ("queue", stream.queue))
        fields: dict[str, Any] = {name: text for name, text in named if text}
    elif (message := api_event(stream, event)) is not None:
        fields = _fields(getattr(message, event.kind))
    else:
        return None
    created = {"seconds": event.time_ms // 1000, "nanos": event.time_ms % 1000 * 1_000_000}
    fields["created"] = created
    if "job" in fields:
        fields["job"]["created"] = created
    return _line({"id": event.id, "message": {_word(event.kind): fields}})


def _fields(message: Message) -> dict[str, Any]:
    """The fields of a message in JSON: most have texts and small numbers alone, which need no conversion."""
    fields = {}
    for field, value in message.ListFields():
        type_ = type(value)
        if type_ is not str and type_ is not bool and (type_ is not int or field.cpp_type not in _SMALL):
            if field.name == "created":
                value = None  # the caller's
            else:
                return MessageToDict(message, use_integers_for_enums=True)
        fields[field.json_name] = value
    return fields


def _word(kind: str) -> str:
    """The name of a kind in JSON.

    >>> _word("lease_returned")
    'LeaseReturned'
    """
    return "".join(word.capitalize() for word in kind.split("_"))


def _stored_line(_stream: StreamName, event: Event) -> bytes:
    try:
        payload = {"payload": event.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payloadBase64": base64.b64encode(event.payload).decode()}
    line = {"kind": event.kind, "timeMs": event.time_ms, "headers": dict(event.headers), **payload}
    return _line({"id": event.id, "event": line})


def _marker_line(id_: str, which: pb.Marker) -> bytes:
    return _line({"id": id_, "marker": pb.Marker.Name(which)})


def error_line(error: MillpondError) -> bytes:
    """The last line of a stream that ends with an error."""
    return to_json({"error": to_wire(error)}) + b"\n"


LINES, ALL_LINES = Forms(_plain_line), Forms(_stored_line, _marker_line)
