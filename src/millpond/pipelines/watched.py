"""Files of pipelines, compiled so that their functions of steps compute nothing of values of the run in silence.

In a function that is a pipeline, or calls a step, text is watched where it is made, and calls and `is` and `in` where
they are done: plain `str` tells nobody what is asked of it. A function that such a one gives a value, of whatever
module, is compiled so for that call, if its source is there and is what runs. Functions that steps call stay as they
are. Not seen: what a class, a lambda or compiled code does with text, and what a function has of a value by a closure.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any

from millpond.pipelines.declare import Declared, is_declaring, is_output
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


def _call(node: ast.AST, name: str, *arguments: ast.expr) -> ast.Call:
    function = ast.copy_location(ast.Name(name, ast.Load()), node)
    return ast.copy_location(ast.Call(function, list(arguments), []), node)


# -- while it is declared -----------------------------------------------------------------------------


def _text(value: Any) -> Any:
    return Text(value) if type(value) is str and holds_value(value) and is_declaring() else value


def _constant(value: Any, act: str = "is") -> Any:
    """A value of which may be asked what it is."""
    if isinstance(value, Placeholder) and not is_output(value):
        raise not_yet(value, act)
    return value


def _called(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    if _computes(function):
        for value in (*arguments, *named.values()):
            _constant(value, getattr(function, "__name__", "call"))
    if is_declaring() and any(map(_holds, (*arguments, *named.values()))):
        function = _watched(function)
    return _text(function(*arguments, **named))


def _holds(value: Any) -> bool:
    """True for what holds a value of the run, also in a list or a dictionary."""
    if isinstance(value, Mapping):
        return any(map(_holds, value.values()))
    return any(map(_holds, value)) if isinstance(value, list | tuple) else holds_value(value)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of users, watched; any other as it is."""
    if isinstance(function, MethodType):
        return MethodType(_watched(function.__func__), function.__self__)
    if isinstance(function, Declared):  # of another file
        within = copy(function)
        within.function = _watched(function.function)
        return within
    if not isinstance(function, FunctionType) or function.__module__.partition(".")[0] in _OWN:
        return function
    code = _watched_body(function.__code__)
    if code is None:
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(own) for name, own in WATCHES.items()}
    closure = tuple(cells[name] for name in code.co_freevars)
    watched = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    watched.__kwdefaults__ = function.__kwdefaults__
    return watched


@lru_cache(maxsize=1_000)
def _watched_body(code: CodeType) -> CodeType | None:
    """The code of a function, watched; None where its source is not there, or says something else."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    ast.increment_lineno(node, code.co_firstlineno - min([node.lineno, *(own.lineno for own in node.decorator_list)]))
    node.decorator_list, node.returns = [], None
    if _content(_within(node, code, code.co_freevars)) != _content(code):
        return None  # the file has changed since, or it is watched already
    node.body = [_Watching().visit(own) for own in node.body]
    return _within(node, code, (*code.co_freevars, *WATCHES))


def _within(function: ast.FunctionDef, code: CodeType, free: tuple[str, ...]) -> CodeType:
    """The code of a function in another one, of which it has variables."""
    names = [ast.arg(name) for name in free]
    around = ast.FunctionDef("around", ast.arguments([], names, None, [], [], None, []), [function], [], None)
    module = ast.fix_missing_locations(ast.Module([around], []))
    future = code.co_flags & annotations.compiler_flag  # as the file says itself
    outer = _inner(compile(module, code.co_filename, "exec", future, dont_inherit=True), "around")
    return _inner(outer, function.name)


def _content(code: CodeType) -> tuple[Any, ...]:
    constants = [_content(own) if isinstance(own, CodeType) else own for own in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _inner(code: CodeType, name: str) -> CodeType:
    return next(own for own in code.co_consts if isinstance(own, CodeType) and own.co_name == name)


def _computes(function: Callable[..., Any]) -> bool:
    module = getattr(function, "__module__", None) or ""
    root = module.partition(".")[0].removeprefix("_")
    of_text = isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, str)
    return (
        (root in _LIBRARY and root not in _HOLDING)
        or any(function is own for own in _TELLING)
        or (of_text and function.__name__ not in _MAKING)
    )


_OWN = {"millpond", *sys.stdlib_module_names}
"""Modules whose functions know what values are, or are not watched."""
_LIBRARY = {name.removeprefix("_") for name in sys.stdlib_module_names}
WATCHES = {"__text__": _text, "__called__": _called, "__known__": _constant}
"""Names that the code of a file finds in its module."""
