"""Texts of queries, as they are declared: one SELECT, in which `{name}` is an input, and stands in no quotes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from millpond.errors import Invalid
from millpond.pipelines.values import holds_value

__all__ = ("OPTIONS", "check_query")

OPTIONS = ("name", "needs", "when", "over", "retries", "backoff", "timeout")
"""The options of every step."""
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_NOTES = r"--[^\n]*|/\*.*?\*/"
"""Comments: an apostrophe of theirs begins nothing."""
_QUOTED = {
    "local": re.compile(rf"""{_NOTES}|((?:\b[eE]'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\$(\w*)\$.*?\$\2\$)+)""", re.DOTALL),
    "spark": re.compile(rf"""{_NOTES}|((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`)+)""", re.DOTALL),
}  # fmt: skip


def check_query(query: str, engine: str, inputs: Mapping[str, Any]) -> None:
    """Refuse a query that cannot work with its inputs.

    Raises: `Invalid`.
    """
    if holds_value(query):
        raise Invalid("a value of the run stands in SQL as {name}, and is given by that name", kind="pipeline_sql",
                      hint="write {name} in it, without f before the text, and give the value so named")  # fmt: skip
    if engine not in ("local", "spark"):
        raise Invalid("no such engine", kind="pipeline_plan", engine=engine, hint="local or spark")
    literals = " ".join(match[1] or "" for match in _QUOTED[engine].finditer(query))
    if quoted := _PLACEHOLDER.search(literals):
        raise Invalid("an input of a query stands in quotes", kind="pipeline_sql", input=quoted[1],
                      hint=f"write {quoted[0]} without quotes; text with braces is an input of its own")  # fmt: skip
    names = set(_PLACEHOLDER.findall(query))
    if names != set(inputs):
        odd = min(names ^ set(inputs))
        if odd in OPTIONS:
            raise Invalid("an input of a query has the name of an option of steps", kind="pipeline_sql", input=odd,
                          hint="call it otherwise, in braces and where it is given")  # fmt: skip
        raise Invalid("the inputs of a query are those that it names", kind="pipeline_sql", input=odd,
                      hint="name it in braces in the query and give it, or neither")  # fmt: skip
    if engine == "local" and query:
        _parse(query)


def _parse(query: str) -> None:
    """Refuse SQL that is none, before anything runs."""
    import duckdb  # a worker that parses nothing does without it

    try:
        statements = duckdb.extract_statements(_PLACEHOLDER.sub(r'"\1"', query))
    except duckdb.Error as error:
        raise Invalid("the query is not understood", kind="pipeline_sql",
                      reason=str(error).splitlines()[0]) from None  # fmt: skip
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise Invalid("a query is one SELECT", kind="pipeline_sql", query=query[:80])
