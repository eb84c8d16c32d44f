"""Taste of names: a variable is named for what it holds. A rule of `tidy.py`."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy import Source

PARTICIPLES = frozenset(("found", "known", "wanted", "given", "one"))
"""They say how a value came here, and not what it is."""
WRITTEN_SO = frozenset(("kernel/verify.py: found", "pipelines/rules.py: found"))
"""Fields whose names users read: of a problem, and of a finding of a step."""


def names_say_what_they_hold(source: Source) -> Iterator[str]:
    """No variable, field, function, class or file that ships is a participle."""
    path = source.path.removeprefix("src/millpond/")
    if not source.shipped:
        return
    for line, name in sorted({(0, PurePosixPath(path).stem), *_bound(source)}):
        if name.strip("_").lower() in PARTICIPLES and f"{path}: {name}" not in WRITTEN_SO:
            yield f"line {line}: {name}: name it for what it holds"


def _bound(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        yield node.lineno, node.name
    for argument in source.of(ast.arg):
        yield argument.lineno, argument.arg
    for variable in source.of(ast.Name):
        if isinstance(variable.ctx, ast.Store):
            yield variable.lineno, variable.id
    for field in source.of(ast.Attribute):
        if isinstance(field.ctx, ast.Store):
            yield field.lineno, field.attr


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
