"""Errors of the API of versions: a status, and `{"message": …}` in the words that clients of lakeFS may depend on.

| kind or class | status | message |
|---|---|---|
| a token that is missing, unknown or expired | 401 | `error authenticating request` |
| `right_missing` | 401 | `insufficient permissions` |
| `request_invalid`: a query, or a body, that is none | 400 | what msgspec says, in the words of lakeFS |
| `Invalid` | 400 | its own, or that of its kind |
| `Denied` | 403 | its own |
| `NotFound` | 404 | its own; 410 `No data` for bytes that are gone |
| `AlreadyExists`, `Conflict` | 409 | its own; 412 for a condition that does not hold |
| `Unavailable` | 503, 429 for a pair that sends too much | its own, with its hint |

A client that accepts `OWN` gets errors as the other routes of a node answer them: class, kind, message, hint, values.

A handler that knows better says so with `wording`:

    with wording({"ref_not_found": "get commit by ref {ref}: not found"}):
        call.repository.diff(left, right)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from starlette.responses import Response

from millpond.errors import Denied, Invalid, MillpondError, NotFound, Unavailable
from millpond.json_forms import to_json
from millpond.server.wire import answer_failure, relative, reported, retry_header
from millpond.statuses import lakefs_status, row_of
from millpond.versions.merges import MergeConflict

if TYPE_CHECKING:
    from starlette.requests import Request

    from millpond.server.dispatch import Route

__all__ = (
    "COMMIT_HEADER", "CONFLICTS", "HEADERS", "OWN", "ApiError", "failure", "json_answer", "is_native_client", "wording",
)  # fmt: skip

HEADERS = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
OWN = "application/vnd.millpond+json"
"""The media type by which a client of Millpond accepts more than clients of lakeFS know."""
CONFLICTS = "conflicts"
"""The field of an answer that names the first conflicting paths; clients of lakeFS leave it unread."""
COMMIT_HEADER = "X-Millpond-Commit"
"""Names the commit that has what a commit without changes would have had."""
_CLASSES: Mapping[int, type[MillpondError]] = {401: Denied, 403: Denied, 404: NotFound}


class ApiError(Exception):
    """An answer that is no success, said in full: its status, message, headers, and more fields of its body."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message = status, message
        self.headers, self.fields = dict(headers or {}), dict(fields or {})


def is_native_client(request: Request) -> bool:
    """True for a client of Millpond."""
    return OWN in request.headers.get("accept", "")


def json_answer(payload: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A body of JSON."""
    return Response(to_json(payload), status, {**HEADERS, **(headers or {})})


def failure(request: Request, error: BaseException) -> Response:
    """Any error that ended a request as its answer; an unexpected one is a line of the node's log."""
    if is_native_client(request):
        return answer_failure(request, _own(error))
    if not isinstance(error, ApiError):
        state = request.app.state
        error = _in_words(request, reported(error, state.node, state.metrics, "lakefs", lakefs_status))
    return json_answer({"message": error.message, **error.fields}, error.status, error.headers)


def _own(error: BaseException) -> BaseException:
    """An error with its kind: of one that was worded for clients of lakeFS, the one before."""
    if isinstance(error, ApiError):
        cause = error.__cause__
        if isinstance(cause, MillpondError):
            return cause
        return _CLASSES.get(error.status, Invalid)(error.message, kind="api_request", status=error.status)
    if isinstance(error, MergeConflict):
        error.values["paths"] = list(error.paths)
    return error


def _in_words(request: Request, error: MillpondError) -> ApiError:
    status = lakefs_status(error)
    headers = retry_header(error)
    if status == 401 and error.kind != "right_missing":
        headers["WWW-Authenticate"] = 'Basic realm="millpond"'
    fields = {CONFLICTS: list(error.paths)} if isinstance(error, MergeConflict) else None
    message = relative(_message(request, error), request.app.state.node.pond.folder)
    return ApiError(status, str(message), headers=headers, fields=fields)


def _message(request: Request, error: MillpondError) -> str:
    if error.kind == "request_invalid":
        return _not_understood(request, **{name: str(error.values[name]) for name in ("where", "reason")})
    words = row_of(error.kind).words
    if words is not None:
        return words.format(**error.values)
    return str(error) if isinstance(error, Unavailable) else error.message


_FIELD = re.compile(r"(?<=.)\[(\d*)(?:\.{3})?\]|\.")
_REASONS = {
    r"Object missing required field.*": ("value is required but missing", 'property "{name}" is missing'),
    r"Expected `int` <= (.*)": ("number must be at most {0}",) * 2,
    r"Expected `int` >= (.*)": ("number must be at least {0}",) * 2,
    r"Expected `int.*": ("value {value}: an invalid integer: invalid syntax", "value must be an integer"),
    r"Expected `bool.*": ("value {value}: an invalid boolean: invalid syntax", "value must be a boolean"),
    r"Expected `str` of length .*": ("empty value is not allowed",) * 2,
    r"Expected `str` matching regex '(.*)'": ('string doesn\'t match the regular expression "{0}"',) * 2,
    r"Expected `str.*": ("value must be a string",) * 2,
    r"Expected `array.*": ("value must be an array",) * 2,
    r"Expected `object.*": ("value must be an object",) * 2,
    r"Invalid enum value .*": ("value is not one of the allowed values {choices}",) * 2,
}
"""Words of msgspec about a value, and those that clients of lakeFS know: of one in the query, of one in the body."""


def _not_understood(request: Request, where: str, reason: str) -> str:
    """The words about a query or a body that cannot be taken."""
    part, _, path = _FIELD.sub(r"/\1", where).partition("/")
    route, name = request.scope["route"], path.rpartition("/")[2]
    in_body = part == "body"
    if in_body and not path:
        missing = reason == "it is missing"
        said = "value is required but missing" if missing else f"failed to decode request body: {reason}"
        return f"request body has an error: {said}"
    if not path:
        return "the query is not understood: escape its text as UTF-8"
    for form, words in _REASONS.items():
        if match := re.fullmatch(form, reason, re.DOTALL):
            reason = words[in_body].format(
                *match.groups(), name=name, value=request.query_params.get(name), choices=_choices(route, name)
            )
            break
    if not in_body:
        return f'parameter "{name}" in {part} has an error: {reason}'
    return (
        f"request body has an error: doesn't match schema #/components/schemas/{route.taken.schema}: "
        f'Error at "/{path}": {reason}'
    )


def _choices(route: Route, name: str) -> str:
    """The words that a parameter may be, as JSON; nothing for a field of a body."""
    types = (field.type for field in route.taken.query if field.name == name)
    return next((to_json(get_args(type_)).decode() for type_ in types if get_origin(type_) is Literal), "")


@contextmanager
def wording(messages: Mapping[str, str], **values: object) -> Iterator[None]:
    """Say errors of some kinds in other words; `{name}` stands for one of these values, or for a value of the error."""
    try:
        yield
    except MillpondError as error:
        words = messages.get(error.kind)
        if words is None:
            raise
        headers = {COMMIT_HEADER: str(error.values["commit"])} if error.kind == "no_changes" else {}
        raise ApiError(lakefs_status(error), words.format_map({**error.values, **values}), headers=headers) from error
