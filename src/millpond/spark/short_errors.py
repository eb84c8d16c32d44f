"""Errors of ours while Spark plans a read or a load: their words, without the traceback of the process of planning.

PySpark writes an error of that process into the text of its own, behind a prefix of the JVM, and shows the frames of
both. The prefix stays, and the class is PySpark's: nothing of ours runs in the user's process between the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from millpond.errors import Corrupt, Internal, MillpondError

__all__ = ("short_errors",)

_Class = TypeVar("_Class", bound=type[Any])
_HIDES = "SPARK_HIDE_TRACEBACK"
"""The variable by which a process of PySpark leaves out the traceback. It looks when it has failed, and then ends."""

_OF_STREAMS = "streamReader"
"""The method whose error PySpark replaces by one of its own, of a reader that is not there: the traceback has ours."""


def short_errors(cls: _Class) -> _Class:
    """Let the public methods of a data source, its readers or its writers tell errors of ours in their words alone.

    `MILLPOND_TRACEBACK` keeps the traceback; so do errors that are our mistake, or damage.
    """
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _whole(method) if name == _OF_STREAMS else _short(method))
    return cls


def _whole(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose errors keep their traceback, whatever was called within."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except MillpondError:
            os.environ.pop(_HIDES, None)
            raise

    return call


def _short(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except MillpondError as error:
            if not isinstance(error, Corrupt | Internal) and not os.environ.get("MILLPOND_TRACEBACK"):
                os.environ[_HIDES] = "1"
            raise

    return call
