"""Arguments of public calls: one of another type, or a number of things below zero, is refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from os import PathLike
from types import NoneType

from millpond.error_values import shown
from millpond.errors import Invalid

__all__ = ("need_count", "need_list", "need_type")

_WORDS = {
    str: "a text", bytes: "bytes", Integral: "a whole number", Real: "a number", PathLike: "a path", Mapping: "a dict",
    Iterable: "a list", Collection: "a list", NoneType: "None",
}  # fmt: skip


def need_type(argument: str, value: object, *kinds: type) -> None:
    """Refuse an argument of a type that it cannot have.

    Raises: `Invalid`, kind `argument_type`.
    """
    # A duration of NumPy says that it is a whole number, and is none.
    if not isinstance(value, kinds) or (isinstance(value, Integral) and not hasattr(value, "__index__")):
        raise _refused(argument, value, kinds)


def need_count(argument: str, value: object, *kinds: type) -> None:
    """Refuse what is no number of things: a whole number, from zero on, or of `kinds`.

    Raises: as `need_type`; `Invalid`, kind `argument_negative`.
    """
    need_type(argument, value, Integral, *kinds)
    if isinstance(value, Integral) and int(value) < 0:
        raise Invalid(
            "a number of things is negative", kind="argument_negative", argument=argument, value=value,
            hint="give 0 or more",
        )  # fmt: skip


def need_list(argument: str, values: object, *kinds: type) -> None:
    """Refuse an argument that is not a list of such values; one text is none, nor is a mapping.

    Raises: as `need_type`.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection):
        raise _refused(argument, values, (Collection,))
    for value in values:
        need_type(argument, value, *kinds)


def _refused(argument: str, value: object, kinds: tuple[type, ...]) -> Invalid:
    return Invalid(
        "an argument is of another type", kind="argument_type", argument=argument, value=shown(value),
        hint=f"give {' or '.join(_WORDS.get(kind, kind.__name__) for kind in kinds)}",
    )  # fmt: skip
