"""Errors as a status of gRPC: `millpond/statuses.py` says which one.

The details are the message with its values and the way out; the kind is in the trailing metadata, as `millpond-kind`,
and the error as over HTTP, where it is small, as `millpond-error-bin`.
Where a limit passes, `grpc-status-details-bin` holds a `google.rpc.RetryInfo`: clients call again by themselves.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from millpond import statuses
from millpond.client.wire_errors import ERROR_KEY, KIND_KEY, to_wire
from millpond.errors import MillpondError
from millpond.json_forms import to_json
from millpond.server.wire import relative

__all__ = ("details_of", "grpc_status", "trailing_metadata")

_DETAILS_KEY = "grpc-status-details-bin"
_RETRY_SECONDS = 1
_DETAILS_CHARS_MAX = 4_000
"""Details travel in the headers of HTTP/2, of which clients take 8 KiB."""
_ERROR_BYTES_MAX = 1_000


def grpc_status(error: MillpondError) -> StatusCode:
    """The status of an error."""
    return StatusCode[statuses.grpc_status(error)]


def trailing_metadata(error: MillpondError, details: str, folder: Path) -> tuple[tuple[str, str | bytes], ...]:
    """The kind of an error, and the error whole; where a limit passes, the time after which to call again, too."""
    kind: tuple[tuple[str, str | bytes], ...] = ((KIND_KEY, error.kind),)
    whole = to_json(relative(to_wire(error), folder))
    if len(whole) <= _ERROR_BYTES_MAX:
        kind += ((ERROR_KEY, whole),)
    if not statuses.row_of(error.kind).passes:
        return kind
    delay = Duration()
    delay.FromMilliseconds(round(1000 * float(str(error.values.get("retry_after", _RETRY_SECONDS)))))
    packed = Any()
    packed.Pack(RetryInfo(retry_delay=delay))
    status = Status(code=grpc_status(error).value[0], message=details, details=[packed])
    return *kind, (_DETAILS_KEY, status.SerializeToString())


def details_of(error: MillpondError, folder: Path) -> str:
    """An error in words that name no place on the node's disk."""
    return str(relative(str(error), folder))[:_DETAILS_CHARS_MAX]
