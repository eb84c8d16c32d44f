"""The columns of which those of a query are made: of its syntax, as DuckDB reads it.

    with hot as (select key, temp as t from weather) select key, max(t) + 1 as m from hot group by key

gives `key` of `weather.key`, and `m` of `weather.temp`. Columns that only filter, join or order are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millpond.json_forms import parse_object

__all__ = ("columns_of",)

Origins = frozenset[tuple[str, str]]
"""Tables, and a column of each."""
Columns = list[tuple[str, Origins]]


def columns_of(query: str, tables: Mapping[str, Sequence[str]]) -> Columns:
    """The columns of a query over tables of these columns, in their order; none when it is not understood.

    >>> columns_of("select a.x, y + z as s from a join b using (x)", {"a": ["x", "y"], "b": ["x", "z"]})[0]
    ('x', frozenset({('a', 'x')}))
    """
    import duckdb  # a process that follows no query does without it

    with duckdb.connect() as connection:
        [(text,)] = connection.execute("select json_serialize_sql($1::varchar)", [query]).fetchall()
    views = {
        name.lower(): [(column, frozenset({(name, column)})) for column in columns] for name, columns in tables.items()
    }
    try:
        [statement] = parse_object(text)["statements"]
        return _columns(statement["node"], views)
    except (KeyError, ValueError):  # an error of syntax; a table or a form of query that is none of these
        return []


def _columns(node: dict[str, Any], views: Mapping[str, Columns]) -> Columns:
    own = dict(views)
    for entry in node["cte_map"]["map"]:
        own[entry["key"].lower()] = _columns(entry["value"]["query_node"], own)
    if node["type"] == "SET_OPERATION_NODE":
        sides = node.get("children") or [node["left"], node["right"]]  # by the version of DuckDB
        rows = zip(*(_columns(side, own) for side in sides), strict=True)
        return [(row[0][0], frozenset().union(*(origins for _, origins in row))) for row in rows]
    if node["type"] != "SELECT_NODE":
        raise KeyError(node["type"])
    sources = list(_sources(node["from_table"], own))
    columns: Columns = []
    for item in node["select_list"]:
        if item["class"] == "STAR":
            left_out = {str(name).lower() for name in item["exclude_list"]}
            of = item["relation_name"].lower()
            inner = (column for alias, columns in sources if of in ("", alias) for column in columns)
            columns += [column for column in inner if column[0].lower() not in left_out]
        else:
            name = item["alias"] or (item["column_names"][-1] if item["class"] == "COLUMN_REF" else "")
            columns.append((name, frozenset(_origins(item, sources, own))))
    return columns


def _sources(table: dict[str, Any], views: Mapping[str, Columns]) -> Iterator[tuple[str, Columns]]:
    match table["type"]:
        case "BASE_TABLE":
            name = table["table_name"].lower()
            yield (table["alias"] or name).lower(), views[name]
        case "SUBQUERY":
            yield table["alias"].lower(), _columns(table["subquery"]["node"], views)
        case "JOIN":
            shared = {str(name).lower() for name in table["using_columns"]}
            yield from _sources(table["left"], views)
            for alias, columns in _sources(table["right"], views):
                yield alias, [column for column in columns if column[0].lower() not in shared]
        case "EMPTY":
            return
        case other:
            raise KeyError(other)


def _origins(
    item: Any, sources: Sequence[tuple[str, Columns]], views: Mapping[str, Columns]
) -> Iterator[tuple[str, str]]:
    if isinstance(item, dict) and "select_list" in item:
        for _, origins in _columns(item, views):
            yield from origins
    elif isinstance(item, dict) and item.get("class") == "COLUMN_REF":
        names = [name.lower() for name in item["column_names"]]
        table, column = names[:2] if len(names) > 1 and names[0] in dict(sources) else ("", names[0])
        for alias, columns in sources:
            for name, origins in columns:
                if table in ("", alias) and name.lower() == column:
                    yield from origins
    elif isinstance(item, dict | list):
        for inner in item.values() if isinstance(item, dict) else item:
            yield from _origins(inner, sources, views)
