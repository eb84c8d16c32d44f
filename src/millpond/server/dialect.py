"""The protocols that a node speaks over HTTP, each of which has its own way to say who sends, and what is wrong.

All else is the same for all of them: how a route is declared, found, admitted, read and answered (`dispatch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millpond.errors import Invalid, NotFound
from millpond.server.access import admit
from millpond.server.routes.table import RouteNeeds
from millpond.server.wire import ErrorResponse, answer_failure, error_answer

__all__ = ("OWN", "Dialect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The ways of one protocol."""

    title: str
    about: str
    tags: Mapping[str, str]
    """The words about each tag, in the order of the page."""
    security: Mapping[str, Mapping[str, str]]
    """The ways to show a right, as OpenAPI has them."""
    error: type
    """The type of an answer that is no success."""
    admit: Callable[[Request, RouteNeeds], None]
    failed: Callable[[Request, BaseException], Response]
    unrouted: Callable[[Request, Collection[str]], Response]
    """The answer where no route is; it is told the methods of routes that have the path."""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    """The headers of an answer that is JSON."""
    values: Mapping[Any, Callable[[Request], Any]] = field(default_factory=dict)
    """Values for parameters of handlers, by their types."""
    strict: Callable[[Request], bool] = lambda _request: False
    """True for a request whose parameters are all known, or it is refused."""
    blank_is_default: bool = False
    """True when an empty parameter of a query, or null in a body, stands for its default."""


def _unrouted(request: Request, methods: Collection[str]) -> Response:
    path, hint = request.url.path, "see /docs"
    if not methods:
        return error_answer(NotFound("there is no such route", kind="route_not_found", path=path, hint=hint))
    answer = error_answer(
        Invalid(
            "the route does not know this method",
            kind="method_not_allowed",
            path=path,
            method=request.method,
            hint=hint,
        )
    )
    answer.headers["Allow"] = ", ".join(sorted(methods))
    return answer


OWN = Dialect(
    title="Millpond node",
    about=(
        "State that data pipelines need: uploads, maps, snapshots, questions, maintenance.\n\n"
        "Commands, `millpond.open`, Spark and the nodes themselves use these routes. Where tokens are on, each request "
        "carries one: `Authorization: Bearer …`. Errors are JSON objects with a stable `kind`, what it is about, and "
        "the way out. Repositories of objects have [a page of their own](/docs/versions)."
    ),
    tags={
        "maps": "What there is, and making, altering and dropping it.",
        "alerts": "Rules that tell of loads of a map, and trials of them.",
        "loads": "Sending parts, and entering them as one load.",
        "questions": "Values of keys, and rows. Arrow streams in and out.",
        "refs": "Differences of maps between refs, by key, and their history.",
        "snapshots": "Frozen maps, to be fetched and asked elsewhere.",
        "parts": "Parts that wait, were merged, or were quarantined.",
        "events": "Streams of events.",
        "runs": "Runs of workflows as rows.",
        "jobs": "What the node does by itself, and maintenance.",
        "nodes": "What nodes ask each other.",
        "health": "How the node stands.",
    },
    security={
        "token": {"type": "http", "scheme": "bearer", "description": "a token of this node, see `millpond token`"}
    },
    error=ErrorResponse,
    admit=admit,
    failed=answer_failure,
    unrouted=_unrouted,
    # Monitors add parameters of their own to pages that everybody may see.
    strict=lambda request: request.url.path.startswith("/v1/"),
)
