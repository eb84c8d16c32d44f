"""The wire format: errors as JSON with their status (see `millpond/statuses.py`), and the forms of bodies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from millpond.client.wire_errors import to_wire
from millpond.errors import (
    Closed,
    Corrupt,
    Internal,
    Invalid,
    MillpondError,
    NotFound,
    Unavailable,
)
from millpond.server.access import may_read_all
from millpond.statuses import http_status, is_refusal, row_of
from millpond.stores.files import DISK_FULL

if TYPE_CHECKING:
    from millpond.server.limits import GuardedRoute

__all__ = (
    "ErrorResponse",
    "RequestBody",
    "RequestError",
    "add_error_handlers",
    "answer_failure",
    "error_answer",
    "relative",
    "reporting_damage",
    "retry_header",
    "shown_to",
    "understood",
)

_LOG = logging.getLogger("millpond.server")


class RequestBody(BaseModel):
    """The body of a request: a field that is not known is refused, as in every form of ours."""

    model_config = ConfigDict(extra="forbid")


class ErrorResponse(BaseModel):
    """Any answer that is no success."""

    error: str = Field(description="the class, which says what to do next", examples=["Invalid"])
    kind: str = Field(description="what happened precisely; never renamed", examples=["map_name"])
    message: str
    hint: str | None = Field(description="the way out, where there is one")
    values: dict[str, Any] = Field(description="what it is about")


class RequestError(Exception):
    """An error with a status of its own: what was sent is damaged, not what is stored."""

    def __init__(self, status: int, error: MillpondError) -> None:
        super().__init__(str(error))
        self.status, self.error = status, error


@contextmanager
def reporting_damage() -> Iterator[None]:
    """Report what was sent damaged as a fault of the request, not of the node."""
    try:
        yield
    except Corrupt as error:
        raise RequestError(422, error) from error


def understood(error: BaseException) -> MillpondError:
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
            lambda found: "" if found[1] else ".",
            str(value),
        )
    return value


def answer_failure(request: Request, error: BaseException) -> JSONResponse:
    """Any error that ended a request as its answer."""
    if isinstance(error, RequestError):
        return error_answer(shown_to(request, error.error), error.status)
    reported = understood(error)
    if isinstance(reported, Closed) and request.app.state.node.stopping:
        reported = Unavailable("the node is stopping", kind="node_stopping", hint="ask another")
    if is_refusal(reported):
        request.app.state.metrics.count_refused("http", reported.kind)
    return error_answer(shown_to(request, reported))


def add_error_handlers(app: FastAPI) -> None:
    """Let every error leave the node in one form."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        return answer_failure(request, error)

    async def gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)  # nobody is there to read it

    async def unsound(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_answer(_unsound(request, error))

    async def unrouted(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        answer = error_answer(_unrouted(request, error), error.status_code)
        if error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_methods(request))
        return answer

    app.add_exception_handler(MillpondError, ours)
    app.add_exception_handler(OSError, ours)
    app.add_exception_handler(Exception, ours)
    app.add_exception_handler(RequestError, ours)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(RequestValidationError, unsound)
    app.add_exception_handler(HTTPException, unrouted)


def _unsound(request: Request, error: RequestValidationError) -> Invalid:
    first = error.errors()[0]
    where, hint = ".".join(str(place) for place in first["loc"]), "/docs shows what this route takes"
    if where == "body" and "json" not in request.headers.get("content-type", ""):
        hint = "send the body with Content-Type: application/json"
    return Invalid("the request is not understood", kind="request_invalid", where=where, reason=first["msg"], hint=hint)


def _methods(request: Request) -> list[str]:
    """The methods that the path of a request takes."""
    routes: tuple[GuardedRoute, ...] = request.app.state.routes
    return sorted({route.method for route in routes if route.path_regex.match(request.scope["path"])})


def _unrouted(request: Request, error: HTTPException) -> MillpondError:
    path = request.url.path
    if error.status_code == 404:
        return NotFound("there is no such route", kind="route_not_found", path=path, hint="see /docs")
    if error.status_code == 405:
        return Invalid(
            "the route does not know this method", kind="method_not_allowed", path=path, method=request.method,
            hint="see /docs",
        )  # fmt: skip
    hint = "/docs shows what this route takes"
    return Invalid(str(error.detail), kind="request_invalid", path=path, hint=hint)
