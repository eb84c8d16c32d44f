"""The types of arguments of public calls: one that a call cannot take is refused by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from os import PathLike
from types import NoneType

from millpond.error_values import shown
from millpond.errors import Invalid

__all__ = ("need_type",)

_WORDS = {
    str: "a text", Integral: "a whole number", PathLike: "a path", Mapping: "a dict", Iterable: "a list",
    NoneType: "None",
}  # fmt: skip


def need_type(argument: str, value: object, *kinds: type) -> None:
    """Refuse an argument of a type that it cannot have.

    Raises: `Invalid`, kind `argument_type`.
    """
    if not isinstance(value, kinds):
        raise Invalid(
            "an argument is of another type", kind="argument_type", argument=argument, value=shown(value),
            hint=f"give {' or '.join(_WORDS.get(kind, kind.__name__) for kind in kinds)}",
        )  # fmt: skip
