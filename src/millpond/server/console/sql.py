"""A query over what the caller may read, as DuckDB tables: it reads, and has a bound in time, rows, memory.

| table | rows |
|---|---|
| a map | where the caller may read it |
| `events` | of the streams that it may read |
| `repositories`, `refs`, `commits` | of the repositories that it may read |
| `runs` | of the tenants that it may read, as their access lists allow it to search |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import bars
from millpond.errors import Invalid, MillpondError
from millpond.json_forms import to_json
from millpond.nodes.tokens import Caller
from millpond.server.console.pages import HEADERS, answered, pages
from millpond.server.console.runs import TENANT, calling
from millpond.server.console.tables import cells_of, shown_cell, shown_rows
from millpond.server.lakefs.access import may as may_repository
from millpond.server.routes.run_rows import RunsOf
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.server.stream_rights import may_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from markupsafe import Markup

    from millpond.clock import Clock
    from millpond.maps.map import Map
    from millpond.maps.sql import QueryableTable
    from millpond.nodes.node import Node
    from millpond.server.console.runs import Calls
    from millpond.server.dispatch import Routes

__all__ = ("routes",)

T = TypeVar("T")
ROWS_MAX = 500
EXPORT_ROWS_MAX = 100_000
SECONDS_MAX = 20.0
MEMORY_BYTES = 256 << 20
_CHARTS = 3
_FORMATS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_NUMBER = r"\A[-+][0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\z"
_NEEDS = RouteNeeds("read", On.ANY_MAP, Work.LARGE, memory_bytes=MEMORY_BYTES, when_ready=True)


@dataclass(frozen=True, slots=True)
class _Readable:
    """A pond of which only that is there which the caller may read."""

    node: Node
    caller: Caller
    calls: Calls | None
    """The methods of workflows, where there are some, to be called by the threads of DuckDB."""

    @classmethod
    def of(cls, node: Node, request: Request, caller: Caller) -> _Readable:
        """As the sender of a request may read it."""
        calls = calling(request, caller, TENANT)
        return cls(node, caller, None if calls is None else calls.anywhere())

    @property
    def clock(self) -> Clock:
        return self.node.clock

    def maps(self) -> Sequence[Map]:
        return [opened for opened in self.node.pond.maps() if self.caller.may("read", opened.name)]

    def tables(self) -> list[QueryableTable]:
        """The tables that are no maps."""
        from millpond.tables import EventTable, run_table, version_tables

        pond, caller = self.node.pond, self.caller
        return [
            EventTable(lambda: self.node.events, lambda stream: may_stream(caller, "read", stream)),
            *version_tables(lambda: pond.repositories, lambda name: may_repository(caller, "read", name)),
            run_table(lambda: None if self.calls is None else RunsOf(self.calls)),
        ]  # fmt: skip


def routes(node: Node) -> Routes:
    """The route of queries."""
    router = pages("/console/sql")

    @router.get("", _NEEDS, summary="A query")
    def show(request: Request, caller: Caller, q: str = "") -> Response:
        """The form, and the rows of its query; the URL has the query, to be shared."""
        readable = _Readable.of(node, request, caller)
        values: dict[str, Any] = {
            "query": q, "error": None, "result": None, "bounds": {"rows": ROWS_MAX, "seconds": SECONDS_MAX},
            "example": next((opened.name for opened in readable.maps()), "events"),
        }  # fmt: skip
        try:
            if q.strip():
                values["result"] = _result(readable, q)
        except MillpondError as error:
            values["error"] = error.message + "".join(f". {key}: {text}" for key, text in error.values.items())
        return answered(request, "sql", values, {"charts": _charts(values["result"])})

    @router.get("/export", _NEEDS, summary="The rows of a query as a file")
    def export(request: Request, caller: Caller, q: str, format: str = "csv") -> Response:
        """CSV or Parquet, whole or not at all."""
        if format not in _FORMATS:
            raise Invalid("there is no such format", kind="request_invalid", where="format", reason=format[:80],
                          hint="csv or parquet")  # fmt: skip
        table = _table_of(_Readable.of(node, request, caller), q, EXPORT_ROWS_MAX)
        if table.num_rows > EXPORT_ROWS_MAX:
            raise Invalid("a file has more rows than a page exports", kind="export_rows", rows_max=EXPORT_ROWS_MAX,
                          hint="narrow the query, or run it with millpond query")  # fmt: skip
        name = {"Content-Disposition": f'attachment; filename="query.{format}"'}
        return Response(_file(table, format), 200, {**HEADERS, **name}, _FORMATS[format])

    return router


def _table_of(readable: _Readable, text: str, rows_max: int) -> pa.Table:
    """The rows of a query, one more than `rows_max` if there are as many."""
    from millpond.maps.sql import Bounds, query

    return query(readable, text, readable.tables(), Bounds(rows_max + 1, SECONDS_MAX, MEMORY_BYTES))


def _result(readable: _Readable, text: str) -> dict[str, Any]:
    return shown_rows(_table_of(readable, text, ROWS_MAX), ROWS_MAX)


def _charts(result: Mapping[str, Any] | None) -> dict[str, Markup]:
    """Bars of the first columns of numbers, a bar for each row."""
    if result is None or len(result["rows"]) < 2:
        return {}
    columns = zip(result["columns"], zip(*result["rows"], strict=True), strict=True)
    numbers = ((name, cells) for name, cells in columns if all(type(cell) in (int, float) for cell in cells))
    return {
        name: bars([max(0.0, cell) for cell in cells], f"{name} by row") for name, cells in islice(numbers, _CHARTS)
    }


def _file(table: pa.Table, format: str) -> bytes:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    try:
        if format == "parquet":
            pa.parquet.write_table(table, sink)
        else:
            names = _no_formulas(pa.array(table.column_names)).to_pylist()
            pa.csv.write_csv(pa.table([_flat(column) for column in table.columns], names), sink)
    except pa.ArrowNotImplementedError as error:
        raise Invalid("a file of this format has no such column", kind="request_invalid", where="format",
                      reason=error, hint="cast it to text in the query") from error  # fmt: skip
    return bytes(sink.getvalue())


def _flat(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any] | pa.Array[Any]:
    """A column as CSV has it: what is nested or no text as JSON, or as the page shows it."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _flat(column.cast(kind.value_type))
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        return _no_formulas(column.cast(pa.string()))
    interval = pa.types.is_interval(kind)
    if not (interval or pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return column
    cells = map(shown_cell, cells_of(column))
    texts = [None if cell is None else cell if isinstance(cell, str) else to_json(cell).decode() for cell in cells]
    return _no_formulas(pa.array(texts, pa.string()))


def _no_formulas(texts: pa.ChunkedArray[Any] | pa.Array[Any]) -> pa.ChunkedArray[Any] | pa.Array[Any]:
    """Texts behind an apostrophe where a spreadsheet would run them; it takes numbers for what they are."""
    import pyarrow.compute as pc

    quoted = pc.replace_substring_regex(texts, r"\A([-=+@\t\r])", r"'\1")
    return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, quoted)
