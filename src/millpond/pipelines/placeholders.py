"""Placeholders: at declaration they stand for values of the run, of which Python may compute nothing yet.

The rule:

| of a value, text that holds one, or a condition | is |
|---|---|
| `f"{day:%Y}"`, `f"{a}" + "b"`, `"/".join(…)`, `"{}".format(…)` | text, which the run fills |
| `rows.rows`, `rows["rows"]` | another value |
| `==`, `!=`, `<`, `<=`, `>`, `>=` | a condition, for `when` |
| anything else: lengths, slices, methods, arithmetic, `int(…)`, `if`, `in`, a format of text | refused, by its name |

A refusal holds also where the function catches it. Text that is plain `str` keeps a mark for each value; one that was
changed is found when the text arrives at a step. `watched` finds more, in the functions of a file and
those that they call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

from millpond.errors import Invalid

__all__ = ("Placeholder", "not_yet", "refused_acts", "refusing")

_MADE: ContextVar[list[Invalid] | None] = ContextVar("made", default=None)
_REFUSED = (
    "abs", "add", "and", "bool", "bytes", "call", "complex", "contains", "delitem", "divmod", "enter", "float",
    "floordiv", "fspath", "hash", "index", "int", "invert", "iter", "len", "lshift", "matmul", "mod", "mul", "neg",
    "next", "or", "pos", "pow", "radd", "rand", "rdivmod", "reversed", "rfloordiv", "rlshift", "rmatmul", "rmod",
    "rmul", "ror", "round", "rpow", "rrshift", "rshift", "rsub", "rtruediv", "rxor", "setitem", "str", "sub",
    "truediv", "trunc", "xor", "ceil", "floor",
)  # fmt: skip


class Placeholder:
    """A stand-in for a value of the run: Python computes nothing of it."""

    __slots__ = ()

    def __named__(self) -> str:
        """The values that it stands for, as the pipeline calls them."""
        raise NotImplementedError


def refusing(act: str) -> Callable[..., NoReturn]:
    """A method that refuses to be called."""

    def refuse(self: Placeholder, *_: object, **__: object) -> NoReturn:
        raise not_yet(self, act)

    return refuse


def not_yet(value: Placeholder, act: str) -> Invalid:
    """The refusal of an act, which is remembered."""
    hint = 'text takes it whole, as f"{day:%Y}"; compute with it in a step: python(function, day)'
    if act in ("bool", "iter", "contains", "is"):
        hint = "a condition is the option when of a step, a list its option over; else ask in a step: python(…)"
    error = Invalid("a value of the run is not there yet when the pipeline is declared", kind="pipeline_value",
                    value=value.__named__(), act=act, hint=hint)  # fmt: skip
    if (made := _MADE.get()) is not None:
        made.append(error)
    return error


@contextmanager
def refused_acts() -> Iterator[None]:
    """Raise the first refusal that was made meanwhile, also one that somebody caught."""
    made: list[Invalid] = []
    token = _MADE.set(made)
    try:
        yield
    finally:
        _MADE.reset(token)
        if made:
            raise made[0] from None


for _act in _REFUSED:
    setattr(Placeholder, f"__{_act}__", refusing(_act))
