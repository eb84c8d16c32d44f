"""Columns of queries, before anything runs: a query is bound over empty tables with the columns that are there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.model.table_query import connected
from millpond.pipelines.queries import bound

__all__ = ("columns_of_query",)

_MISSING = re.compile(r"not found in FROM|does not (have|exist)")
"""Words of DuckDB that no value of a parameter would change."""
_SHOWN = 300


def columns_of_query(
    query: str, tables: Mapping[str, pa.Schema], values: Mapping[str, Any], *, sure: bool
) -> pa.Schema | None:  # fmt: skip
    """The columns of a query over tables; `values` stand for its parameters, and are of their types where it is `sure`.
    None where only a run says.

    Raises: `Invalid` for what the tables do not have.
    """
    import duckdb  # a process that deploys nothing does without it

    places = {name: {"map": name} for name in tables}
    with connected({"threads": 1}) as connection:
        for name, schema in tables.items():
            connection.register(name, schema.empty_table())
        try:
            rows = connection.sql(bound(query, {**places, **values}, "${}".format), params=dict(values))
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            if sure or _MISSING.search(str(error)):
                raise _not_there(str(error), tables) from None
            return None
        except (duckdb.Error, OSError):
            return None  # as of a file that is not there yet
        with suppress(duckdb.Error, OSError):
            own: pa.Schema = rows.limit(0).to_arrow_table().schema
            return own
    return None


def _not_there(said: str, tables: Mapping[str, pa.Schema]) -> Invalid:
    lines = [line.strip() for line in said.partition("\n\nLINE")[0].splitlines() if line.strip()]
    there = "; ".join(f"{name} has {', '.join(schema.names)}" for name, schema in tables.items())
    return Invalid("the query asks for what is not there", kind="pipeline_sql", reason=" ".join(lines[:2])[:_SHOWN],
                   hint=f"{there or 'tables and maps are inputs'}: from {{weather}}, so named")  # fmt: skip
