"""Arguments of calls as requests carry them: what has no JSON is refused by its name, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from millpond.error_values import shown
from millpond.errors import Invalid

__all__ = ("encoded",)

T = TypeVar("T")


def encoded(values: Any, encode: Callable[[Any], T]) -> T:
    """The values in the form of a request.

    Raises: `Invalid`, kind `argument_type`, naming the one that it cannot carry.
    """
    try:
        return encode(values)
    except TypeError as error:
        for name, value in values.items() if isinstance(values, Mapping) else ():
            try:
                encode(value)
            except TypeError:
                raise Invalid(
                    "an argument is of another type", kind="argument_type", argument=name, value=shown(value),
                    hint="give what JSON has: a text, a number, a list, a dict",
                ) from error  # fmt: skip
        raise
