"""Files of pipelines, compiled so that their functions of steps compute nothing of values of the run in silence.

In a function that is a pipeline, or calls a step, text is watched where it is made, and calls and `is` and `in` where
they are done: plain `str` tells nobody what is asked of it. Functions that steps call stay as they are.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from millpond.pipelines.declare import is_declaring, is_output
from millpond.pipelines.placeholders import Placeholder, not_yet
from millpond.pipelines.values import Text, holds_value

__all__ = ("WATCHES", "watched_code")

_STEPS = ("branch", "check", "condense", "enrich", "load", "merge", "notify", "publish", "python", "retain", "shell",
          "spark", "sql")  # fmt: skip
_FRAMED = ("dir", "eval", "exec", "globals", "locals", "super", "vars")
"""Functions that look at the one that calls them."""
_HOLDING = {"builtins", "collections", "copy", "dataclasses", "functools", "itertools", "typing"}
"""Modules of the library whose functions keep what they are given."""
_TELLING = {isinstance, issubclass, type, hasattr, callable, id}
_MAKING = {"format", "format_map", "join"}
"""Methods of `str` that put text together."""


def watched_code(source: str, file: str) -> Any:
    """The code of a file.

    Raises: as `compile`.
    """
    tree = ast.parse(source, file)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _declares(node):
            node.body = [_Watching().visit(own) for own in node.body]
    return compile(ast.fix_missing_locations(tree), file, "exec")


def _declares(function: ast.FunctionDef) -> bool:
    marks = [own.func if isinstance(own, ast.Call) else own for own in function.decorator_list]
    calls = [own.func for own in ast.walk(function) if isinstance(own, ast.Call)]
    return any(_last(own) == "pipeline" for own in marks) or any(
        isinstance(own, ast.Name) and own.id in _STEPS for own in calls
    )


def _last(name: ast.expr) -> str:
    return name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""


class _Watching(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if _declares(node) else self.generic_visit(node)  # an inner one has its own turn

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)
        if node.format_spec is not None:  # stays text
            self.generic_visit(node.format_spec)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        return _call(node, "__text__", node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _FRAMED:
            return node
        call = _call(node, "__called__", node.func, *node.args)
        call.keywords = node.keywords
        return call

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            node.left = _call(node, "__known__", node.left)
        return node


def _call(place: ast.AST, name: str, *arguments: ast.expr) -> ast.Call:
    function = ast.copy_location(ast.Name(name, ast.Load()), place)
    return ast.copy_location(ast.Call(function, list(arguments), []), place)


# -- while it is declared -----------------------------------------------------------------------------


def _text(value: Any) -> Any:
    return Text(value) if type(value) is str and holds_value(value) and is_declaring() else value


def _known(value: Any, act: str = "is") -> Any:
    """A value of which may be asked what it is."""
    if isinstance(value, Placeholder) and not is_output(value):
        raise not_yet(value, act)
    return value


def _called(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    if _computes(function):
        for value in (*arguments, *named.values()):
            _known(value, getattr(function, "__name__", "call"))
    return _text(function(*arguments, **named))


def _computes(function: Callable[..., Any]) -> bool:
    module = getattr(function, "__module__", None) or ""
    root = module.partition(".")[0].removeprefix("_")
    of_text = isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, str)
    return (
        (root in _LIBRARY and root not in _HOLDING)
        or any(function is own for own in _TELLING)
        or (of_text and function.__name__ not in _MAKING)
    )


_LIBRARY = {name.removeprefix("_") for name in sys.stdlib_module_names}
WATCHES = {"__text__": _text, "__called__": _called, "__known__": _known}
"""Names that the code of a file finds in its module."""
