"""A query over the maps that the caller may read, as DuckDB tables: it reads, and has a bound in time, rows, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from millpond.errors import MillpondError
from millpond.nodes.tokens import Caller
from millpond.server.console.pages import answered, pages
from millpond.server.console.tables import shown_rows
from millpond.server.routes.table import On, RouteNeeds, Work

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.maps.map import Map
    from millpond.nodes.node import Node
    from millpond.server.dispatch import Routes

__all__ = ("routes",)

ROWS_MAX = 500
SECONDS_MAX = 20.0
MEMORY_BYTES = 256 << 20
_NEEDS = RouteNeeds("read", On.ANY_MAP, Work.LARGE, memory_bytes=MEMORY_BYTES, when_ready=True)


@dataclass(frozen=True, slots=True)
class _Readable:
    """A pond of which only the maps are there that the caller may read."""

    node: Node
    caller: Caller

    @property
    def clock(self) -> Clock:
        return self.node.clock

    def maps(self) -> Sequence[Map]:
        return [opened for opened in self.node.pond.maps() if self.caller.may("read", opened.name)]


def routes(node: Node) -> Routes:
    """The route of queries."""
    router = pages("/console/sql")

    @router.get("", _NEEDS, summary="A query")
    def show(request: Request, caller: Caller, q: str = "") -> Response:
        """The form, and the rows of its query; the URL has the query, to be shared."""
        readable = _Readable(node, caller)
        values: dict[str, Any] = {
            "query": q, "error": None, "result": None, "bounds": {"rows": ROWS_MAX, "seconds": SECONDS_MAX},
            "example": next((opened.name for opened in readable.maps()), "events"),
        }  # fmt: skip
        try:
            if q.strip():
                values["result"] = _result(readable, q)
        except MillpondError as error:
            values["error"] = error.message + "".join(f". {key}: {text}" for key, text in error.values.items())
        return answered(request, "sql", values)

    return router


def _result(readable: _Readable, text: str) -> dict[str, Any]:
    from millpond.event_table import EventTable
    from millpond.maps.sql import Bounds, query

    tables = [EventTable(lambda: readable.node.pond.events)] if readable.caller.may("read") else []
    return shown_rows(query(readable, text, tables, Bounds(ROWS_MAX + 1, SECONDS_MAX, MEMORY_BYTES)), ROWS_MAX)
