"""A query over tables that the caller may read: it reads, and has a bound in time, rows, memory.

| table | rows |
|---|---|
| a map | where the caller may read it |
| `events` | of the streams that it may read |
| `repositories`, `refs`, `commits` | of the repositories that it may read |
| `runs` | of the tenants that it may read, as their access lists allow it to search |
| `map_diff(…)` | of a map that it may read, where it may read refs of maps |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from millpond.console import bars
from millpond.errors import Invalid, MillpondError
from millpond.json_forms import parse_object
from millpond.maps.model.definition import check_name
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.face import POND, differences_here
from millpond.server.confined import prepare
from millpond.server.console.pages import HEADERS, answered, pages
from millpond.server.console.queries import MEMORY_BYTES, SECONDS_MAX, Tables, answer_of
from millpond.server.console.runs import TENANT, calling
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import may as may_repository
from millpond.server.lakefs.access import need as need_repository
from millpond.server.routes.run_rows import RunsOf
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.server.stream_rights import may_stream
from millpond.tables import DifferenceTable

__all__ = ("routes",)

ROWS_MAX = 500
EXPORT_ROWS_MAX = 100_000
_CHARTS = 3
_FORMATS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_NEEDS = RouteNeeds("read", On.ANY_MAP, Work.LARGE, memory_bytes=MEMORY_BYTES, confined=True, when_ready=True)


def _tables(node: Node, request: Request, caller: Caller) -> Tables:
    """The tables that the sender of a request may read."""
    from millpond.refs.refs import Refs
    from millpond.tables import EventTable, difference_tables, run_table, version_tables

    calls, pond = calling(request, caller, TENANT), node.pond

    def differing(name: str, map: str, sides: Sequence[str], three_dots: bool) -> DifferenceTable:
        caller.need("read", check_name(map))
        need_repository(caller, "read", POND)
        return difference_tables(differences_here(lambda: Refs(node.at_refs.refs).states))(name, map, sides, three_dots)

    return Tables(
        [pond_map for pond_map in pond.maps() if caller.may("read", pond_map.name)],
        [
            EventTable(lambda: node.events, lambda stream: may_stream(caller, "read", stream)),
            *version_tables(lambda: pond.repositories, lambda name: may_repository(caller, "read", name)),
            run_table(lambda: None if calls is None else RunsOf(calls)),
        ],
        differing,
    )


def routes(node: Node) -> Routes:
    """The route of queries."""
    router = pages("/console/sql")

    def answer(tables: Tables, text: str, form: str, rows_max: int) -> bytes:
        return answer_of(tables, text, now_ms=node.clock.now_ms(), form=form, rows_max=rows_max)

    @router.get("", _NEEDS, summary="A query")
    def show(request: Request, caller: Caller, q: str = "") -> Response:
        """The form, and the rows of its query; the URL has the query, to be shared."""
        tables = _tables(node, request, caller)
        values: dict[str, Any] = {
            "query": q, "error": None, "result": None, "bounds": {"rows": ROWS_MAX, "seconds": SECONDS_MAX},
            "example": next(iter(tables.maps), "events"),
        }  # fmt: skip
        try:
            if q.strip():
                values["result"] = parse_object(answer(tables, q, "page", ROWS_MAX))
            else:
                prepare()
        except MillpondError as error:
            values["error"] = str(error)
        return answered(request, "sql", values, {"charts": _charts(values["result"])})

    @router.get("/export", _NEEDS, summary="The rows of a query as a file")
    def export(request: Request, caller: Caller, q: str, format: str = "csv") -> Response:
        """CSV or Parquet, whole or not at all."""
        if format not in _FORMATS:
            raise Invalid("there is no such format", kind="request_invalid", where="format", reason=format[:80],
                          hint="csv or parquet")  # fmt: skip
        file = answer(_tables(node, request, caller), q, format, EXPORT_ROWS_MAX)
        name = {"Content-Disposition": f'attachment; filename="query.{format}"'}
        return Response(file, 200, {**HEADERS, **name}, _FORMATS[format])

    return router


def _charts(result: Mapping[str, Any] | None) -> dict[str, Markup]:
    """Bars of the first columns of numbers, a bar for each row, named by its first column."""
    if result is None or len(result["rows"]) < 2:
        return {}
    columns = zip(result["columns"], zip(*result["rows"], strict=True), strict=True)
    numbers = ((name, cells) for name, cells in columns if all(type(cell) in (int, float) for cell in cells))
    names = [str(row[0])[:100] for row in result["rows"]]
    return {
        name: bars(cells, f"{name} by row",
                   [f"{of}: {cell:,.10g}" for of, cell in zip(names, cells, strict=True)])
        for name, cells in islice(numbers, _CHARTS)
    }  # fmt: skip
