"""Errors as a status of gRPC.

| class | status | but |
|---|---|---|
| `Invalid` | INVALID_ARGUMENT | |
| `Denied` | PERMISSION_DENIED | UNAUTHENTICATED when it is not known who calls |
| `NotFound` | NOT_FOUND | |
| `AlreadyExists` | ALREADY_EXISTS | |
| `Conflict`, `Fenced` | ABORTED | FAILED_PRECONDITION when another node is the primary, or the state forbids it |
| `Unavailable`, `Uncertain`, `Closed` | UNAVAILABLE | RESOURCE_EXHAUSTED where a limit is reached |
| `Corrupt` | DATA_LOSS | |
| `Internal` | INTERNAL | |

The details are the message with its values and the way out; the kind is in the trailing metadata, as `millpond-kind`.
Where a limit passes, `grpc-status-details-bin` holds a `google.rpc.RetryInfo`: clients call again by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from millpond.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    MillpondError,
    NotFound,
    Unavailable,
)
from millpond.server.wire import relative

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("KIND_KEY", "details_of", "grpc_status", "trailing_metadata")

KIND_KEY = "millpond-kind"
_DETAILS_KEY = "grpc-status-details-bin"
_PASSING = ("rate_limited", "quota_exceeded", "calls_full", "commands_full", "request_memory_full", "watchers_full")
"""The limits that a caller meets and that are over in a moment."""
_RETRY_SECONDS = 1
_OF_CLASS: tuple[tuple[type[MillpondError], StatusCode], ...] = (
    (Invalid, StatusCode.INVALID_ARGUMENT),
    (Denied, StatusCode.PERMISSION_DENIED),
    (NotFound, StatusCode.NOT_FOUND),
    (AlreadyExists, StatusCode.ALREADY_EXISTS),
    (Conflict, StatusCode.ABORTED),
    (Unavailable, StatusCode.UNAVAILABLE),
    (Closed, StatusCode.UNAVAILABLE),
    (Corrupt, StatusCode.DATA_LOSS),
)
_OF_KIND = {
    "token_missing": StatusCode.UNAUTHENTICATED, "token_unknown": StatusCode.UNAUTHENTICATED,
    "token_expired": StatusCode.UNAUTHENTICATED, "not_primary": StatusCode.FAILED_PRECONDITION,
    "quota_exceeded": StatusCode.RESOURCE_EXHAUSTED,
    "rate_limited": StatusCode.RESOURCE_EXHAUSTED, "calls_full": StatusCode.RESOURCE_EXHAUSTED,
    "watchers_full": StatusCode.RESOURCE_EXHAUSTED, "watcher_stalled": StatusCode.RESOURCE_EXHAUSTED,
    "request_memory_full": StatusCode.RESOURCE_EXHAUSTED, "disk_full": StatusCode.RESOURCE_EXHAUSTED,
    "queues_full": StatusCode.RESOURCE_EXHAUSTED, "commands_full": StatusCode.RESOURCE_EXHAUSTED,
    "failed_precondition": StatusCode.FAILED_PRECONDITION, "workflow_unserved": StatusCode.UNIMPLEMENTED,
    "wait_over": StatusCode.DEADLINE_EXCEEDED,
    "job_set_large": StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
_DETAILS_CHARS_MAX = 4_000
"""Details travel in the headers of HTTP/2, of which clients take 8 KiB."""


def grpc_status(error: MillpondError) -> StatusCode:
    """The status of an error."""
    if error.kind in _OF_KIND:
        return _OF_KIND[error.kind]
    return next((status for cls, status in _OF_CLASS if isinstance(error, cls)), StatusCode.INTERNAL)


def trailing_metadata(error: MillpondError, details: str) -> tuple[tuple[str, str | bytes], ...]:
    """The kind of an error; where a limit passes, the time after which to call again, as clients of gRPC read it."""
    kind: tuple[str, str | bytes] = (KIND_KEY, error.kind)
    if error.kind not in _PASSING:
        return (kind,)
    delay = Duration()
    delay.FromMilliseconds(round(1000 * float(str(error.values.get("retry_after", _RETRY_SECONDS)))))
    packed = Any()
    packed.Pack(RetryInfo(retry_delay=delay))
    status = Status(code=grpc_status(error).value[0], message=details, details=[packed])
    return kind, (_DETAILS_KEY, status.SerializeToString())


def details_of(error: MillpondError, folder: Path) -> str:
    """An error in words that name no place on the node's disk."""
    return str(relative(str(error), folder))[:_DETAILS_CHARS_MAX]
