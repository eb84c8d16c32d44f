"""Taste of names: a variable is named for what it holds. A rule of `tidy.py`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.tidy_sources import walked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy import Source

PARTICIPLES = frozenset(("found", "known", "wanted", "given", "one"))
"""They say how a value came here, and not what it is."""


def variables_name_what_they_hold(source: Source) -> Iterator[str]:
    """No parameter or variable of a shipped function is a participle."""
    if not source.python or not source.shipped:
        return
    functions = source.of(ast.FunctionDef, ast.AsyncFunctionDef)
    inside = {inner for function in functions for inner in walked(function)}
    names = {(node.lineno, node.arg) for node in inside if isinstance(node, ast.arg)} | {
        (node.lineno, node.id) for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for line, name in sorted(names):
        if name in PARTICIPLES:
            yield f"line {line}: {name}: name it for what it holds"
