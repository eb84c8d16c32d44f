"""The needs of routes of the API of versions, and the beginnings of their paths; see `server/routes/table.py`."""

from __future__ import annotations

from millpond.kernel.operations import Operation
from millpond.server.routes.table import ORDER_BYTES_MAX, On, RouteNeeds, Work

__all__ = ("ANYBODY", "BRANCH", "PAIR", "PREFIX", "REPOSITORY", "administer", "change", "declared", "read", "write")

PREFIX = "/api/v1"
REPOSITORY = "/repositories/{repository}"
BRANCH = f"{REPOSITORY}/branches/{{branch}}"
ANYBODY = RouteNeeds(None, On.NOTHING, Work.ADMINISTRATION)
PAIR = RouteNeeds("read", On.ANY_REPOSITORY, Work.ADMINISTRATION)
"""A route for whoever has a pair."""


def read(on: On = On.REPOSITORY, body_bytes_max: int = 0, *, large: bool = False) -> RouteNeeds:
    """A question."""
    return RouteNeeds("read", on, Work.LARGE if large else Work.SMALL, body_bytes_max, when_ready=True)


def administer(*, large: bool = False) -> RouteNeeds:
    """A question that only an administrator may ask."""
    return RouteNeeds("admin", On.REPOSITORY, Work.LARGE if large else Work.SMALL, when_ready=True)


def change(right: str, on: On, body_bytes_max: int | None = ORDER_BYTES_MAX) -> RouteNeeds:
    """A change; it may wait for its turn."""
    return RouteNeeds(right, on, Work.UPLOAD, body_bytes_max, when_ready=True, audited=True)


def write(body_bytes_max: int | None = ORDER_BYTES_MAX) -> RouteNeeds:
    """A change of one object, of which there are too many for the audit log; None: the body is streamed."""
    return RouteNeeds("write", On.BRANCH, Work.UPLOAD, body_bytes_max, when_ready=True)


def declared(operation: Operation, body_bytes_max: int) -> RouteNeeds:
    """The needs of an operation that is served by its declaration."""
    if operation.right == "read":
        return read(On.REPOSITORY, body_bytes_max, large=operation.large)
    return change(operation.right, On.BRANCH if "{branch}" in operation.path else On.REPOSITORY, body_bytes_max)
