"""The wire format: errors as JSON with their status (see `millpond/statuses.py`), and the forms of bodies."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse

from millpond.client.wire_errors import to_wire
from millpond.errors import Closed, Corrupt, Internal, MillpondError, Unavailable
from millpond.server.access import may_read_all
from millpond.statuses import http_status, is_refusal, row_of
from millpond.stores.files import DISK_FULL

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.metrics import Metrics

__all__ = (
    "POSITION_MAX",
    "ErrorResponse",
    "RequestBody",
    "answer_failure",
    "error_answer",
    "relative",
    "reported",
    "reporting_damage",
    "retry_header",
    "shown_to",
    "stopping",
    "classify_error",
)

_LOG = logging.getLogger("millpond.server")


POSITION_MAX = (1 << 63) - 1
"""The largest position of a log."""


class RequestBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a field that is not known is refused, as in every form of ours."""


class ErrorResponse(msgspec.Struct):
    """Any answer that is no success."""

    error: Annotated[str, Meta(description="the class, which says what to do next", examples=["Invalid"])]
    kind: Annotated[str, Meta(description="what happened precisely; never renamed", examples=["map_name"])]
    message: str
    hint: Annotated[str | None, Meta(description="the way out, where there is one")]
    values: Annotated[dict[str, Any], Meta(description="what it is about")]


@contextmanager
def reporting_damage() -> Iterator[None]:
    """Report what was sent damaged as a fault of the request, not of the node."""
    try:
        yield
    except Corrupt as error:
        error.http_status = 422
        raise


def classify_error(error: BaseException) -> MillpondError:
    """Any error as one of ours."""
    if isinstance(error, MillpondError):
        return error
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return Unavailable(
            "no space is left on the node's disk", kind="disk_full", hint="free some space there and try again"
        )
    _LOG.error("unexpected error", exc_info=error)
    return Internal(
        "the node made a mistake", kind="unexpected", reason=type(error).__name__, hint="its log says more; report it"
    )


def error_answer(error: MillpondError, status: int | None = None) -> JSONResponse:
    """An error as an answer."""
    headers = retry_header(error)
    status = status or http_status(error)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(to_wire(error), status, headers)


def retry_header(error: MillpondError) -> dict[str, str]:
    """The header that says when to call again, of an error that passes."""
    seconds = error.values.get("retry_after") if error.kind == "rate_limited" else row_of(error.kind).retry_seconds
    return {} if seconds is None else {"Retry-After": str(seconds)}


def shown_to(request: Request, error: MillpondError) -> MillpondError:
    """An error as its caller may see it: without places on the node's disk, and without names of maps of others."""
    folder = request.app.state.node.pond.folder
    hint = relative(error.hint, folder)
    if error.kind == "map_not_found" and not may_read_all(request):
        hint = "GET /v1/maps lists the maps that the token may read"
    return type(error)(
        relative(error.message, folder), kind=error.kind, hint=hint,
        **{name: relative(value, folder) for name, value in error.values.items()},
    )  # fmt: skip


def relative(value: Any, folder: Path) -> Any:
    """A value whose texts name places in the data folder from there on; of a file elsewhere, only its name is left.

    >>> relative(["cannot read '/srv/pond/parts/1'", Path("/etc/passwd")], Path("/srv/pond"))
    ["cannot read 'parts/1'", 'passwd']
    >>> relative("/srv/pond has no /srv/ponds", Path("/srv/pond"))
    '. has no /srv/ponds'
    """
    if isinstance(value, dict):
        return {name: relative(inner, folder) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [relative(inner, folder) for inner in value]
    if isinstance(value, Path) and not value.is_relative_to(folder):
        return value.name
    if isinstance(value, str | Path | BaseException):
        return re.sub(
            rf"(?<![\w.-]){re.escape(str(folder))}(/(?=.)|(?![\w.-]))",
            lambda match: "" if match[1] else ".",
            str(value),
        )
    return value


def stopping() -> Unavailable:
    """The error of what comes while the node ends."""
    return Unavailable("the node is stopping", kind="node_stopping", hint="send it to another, or again in a moment")


def reported(
    raised: BaseException, node: Node, metrics: Metrics, surface: str,
    status_of: Callable[[MillpondError], int | str] = http_status,
) -> MillpondError:  # fmt: skip
    """Any error that ends a request, as one of ours; a refusal is counted for its `surface`, the API."""
    error = classify_error(raised)
    if isinstance(error, Closed) and node.stopping:
        error = stopping()
    if is_refusal(error, status_of(error)):
        metrics.count_refused(surface, error.kind)
    return error


def answer_failure(request: Request, raised: BaseException) -> JSONResponse:
    """Any error that ended a request as its answer."""
    error = reported(raised, request.app.state.node, request.app.state.metrics, "http")
    return error_answer(shown_to(request, error), http_status(error))
