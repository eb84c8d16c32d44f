"""Runs of workflows as rows, which SQL over this node reads.

| route | answers |
|---|---|
| `GET /v1/runs?tenant&workflow&status&start_ms&stop_ms&after` | the runs that meet all conditions, some at a time |
| `GET /v1/runs?tenant&id` | those of some ids |
| `GET /v1/runs/tenants` | the tenants of which the caller may read runs |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from millpond.errors import Invalid
from millpond.nodes.tokens import Caller
from millpond.server.console.runs import TENANT, Calls, absent, bookmark_in, calling, tenants_of
from millpond.server.dispatch import Routes
from millpond.server.routes.table import On, read
from millpond.tables.runs import IDS_MAX, RUNS, RunRows, RunSearch

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.nodes.node import Node
    from millpond.workflows.processor import ReadRows

__all__ = ("RunResponse", "RunsOf", "RunsResponse", "TenantsResponse", "routes")

T = TypeVar("T")


class RunResponse(msgspec.Struct):
    """A run."""

    tenant: str
    id: str
    workflow: str
    version: int
    revision: int
    status: str
    began: Annotated[int | None, Meta(description="milliseconds since 1970")]
    ended: Annotated[int | None, Meta(description="milliseconds since 1970; null while it goes on")]
    error: str | None


class RunsResponse(msgspec.Struct):
    """Runs; the next page begins `after` the bookmark `next`, which is null at the end."""

    runs: list[RunResponse]
    next: str | None


class TenantsResponse(msgspec.Struct):
    """Tenants."""

    tenants: list[str]


@dataclass(frozen=True, slots=True)
class RunsOf(RunRows):
    """The runs that a caller may read."""

    calls: Calls

    def tenants(self) -> list[str]:
        """Those on which it has the right: also those that a token names, whose caller may not search for tenants."""
        caller = self.calls.caller
        named = [name for name in caller.patterns("read", "tenant") if not set(name) & set("*?[")]
        names = dict.fromkeys([*tenants_of(self.calls), *named])
        return [name for name in names if caller.may_tenant("read", name)]

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The rows that a search reads."""
        return replace(self.calls, tenant=tenant).rows("SearchWfRun", act)


def routes(_node: Node) -> Routes:
    """The routes of runs."""
    router = Routes(prefix="/v1/runs", tag="runs")

    @router.get("", read(On.TENANT), summary="Runs of a tenant", answer=RunsResponse)
    def runs(
        request: Request, caller: Caller, tenant: str = TENANT, workflow: str = "", status: str = "",
        start_ms: Annotated[int | None, Meta(description="those that began then or later")] = None,
        stop_ms: Annotated[int | None, Meta(description="those that began then or earlier")] = None,
        id: Annotated[list[str], Meta(description="those of these ids, whatever else is asked")] = [],  # noqa: B006, nobody changes it
        after: Annotated[str, Meta(description="the bookmark of the page before")] = "",
    ) -> dict[str, Any]:  # fmt: skip
        """The runs that meet all conditions, in the order of an index."""
        reading = _reading(request, caller)
        if len(id) > IDS_MAX:
            raise Invalid("more ids than one request asks for", kind="request_invalid", where="id", reason=len(id),
                          hint=f"at most {IDS_MAX}")  # fmt: skip
        search, bookmark = RunSearch(workflow or None, status or None, start_ms, stop_ms), None
        if id:
            rows = reading.named(tenant, id)
        else:
            rows, bookmark = reading.page(tenant, search, bookmark_in(after))
        return {
            "runs": [dict(zip(RUNS.names, row, strict=True)) for row in rows],
            "next": None if bookmark is None else bookmark.hex(),
        }  # fmt: skip

    @router.get("/tenants", read(On.ANY_TENANT), summary="Tenants", answer=TenantsResponse)
    def tenants(request: Request, caller: Caller) -> dict[str, Any]:
        """The tenants of which the caller may read runs."""
        return {"tenants": _reading(request, caller).tenants()}

    return router


def _reading(request: Request, caller: Caller) -> RunsOf:
    calls = calling(request, caller, TENANT)
    if calls is None:
        raise absent()
    return RunsOf(calls)
