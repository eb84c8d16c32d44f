"""Options that need no check: text is what was typed, and an option that was not given is None.

Typer checks each value with pydantic, whose import takes as long as all the rest of `millpond get`. Where it would
check that text is text, or nothing nothing, it is spared that; all other values are checked as ever, and so is
everything by versions of typer that check in another way.
"""

from __future__ import annotations

from typing import Any

from typer import core

__all__ = ("take_text_as_typed",)


class _Unchecked:
    """The value of an option or argument, without a check where there is nothing to check."""

    def __init__(self, parameter: Any, make_check: Any) -> None:
        self._parameter, self._make_check = parameter, make_check

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = getattr(self._parameter, "multiple", False)
        text = isinstance(value, str) and self._parameter.type_descriptor.annotation is str
        if not many and (value is None or (text and self._parameter.nargs == 1)):
            return value
        return self._make_check(self._parameter).coerce(value, param=param, ctx=ctx)


def take_text_as_typed() -> None:
    """Have no parameter of this process import pydantic for text, or for nothing."""
    parameter: Any = getattr(core, "_TyperParameter", None)
    make_check = getattr(parameter, "get_runtime_param", None)
    if make_check is not None and make_check.__module__ == core.__name__:
        parameter.get_runtime_param = lambda self: _Unchecked(self, make_check)
