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


def constants_are_bound_once(source: Source) -> Iterator[str]:
    """No name at the top of a shipped module is given a second value: what stands before it would have that one."""
    if not source.shipped:
        return
    bound: set[str] = set()
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        for name in (target.id for target in targets if isinstance(target, ast.Name)):
            if name in bound:
                yield f"line {node.lineno}: {name} has a value already"
            bound.add(name)
