"""Expressions of refs, parsed: `main`, `v1^2~3`, `main@`, `main$`, `3f2a`.

    expression   = base modifier* | base "@" | base "$"
    modifier     = "~" [number] | "^" [number]

| | means |
|---|---|
| `~n` | the n-th first parent; `~` is `~1`, `~0` the commit itself |
| `^n` | the n-th parent; `^` is `^1`, `^0` the commit itself |
| `@` | the head of a branch, without what is staged |
| `$` | a branch with what is staged |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millpond.errors import Invalid

__all__ = ("Expression", "Step", "parse")

_EXPRESSION = re.compile(r"(?P<base>[^\s~^@$]+)(?:(?P<steps>(?:[~^][0-9]*)*)|(?P<mark>[@$]))")
_STEP = re.compile(r"([~^])([0-9]*)")
_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class Step:
    """One move: `~` along first parents so many times, or `^` to the parent of that number."""

    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A base, and the steps from there, or one of the marks `@` and `$`."""

    base: str
    steps: tuple[Step, ...] = ()
    mark: str = ""


def parse(text: object) -> Expression:
    """The expression that a text writes.

    >>> parse("main~2^")
    Expression(base='main', steps=(Step(kind='~', number=2), Step(kind='^', number=1)), mark='')

    Raises: `Invalid`.
    """
    match = _EXPRESSION.fullmatch(text) if isinstance(text, str) else None
    # A tag may hold ~ in its name; such a tag is reached by its commit.
    if match is None:
        raise _refused(text)
    steps = []
    for kind, digits in _STEP.findall(match["steps"] or ""):
        if len(digits) > _DIGITS_MAX:
            raise _refused(text)
        steps.append(Step(kind, int(digits) if digits else 1))
    return Expression(match["base"], tuple(steps), match["mark"] or "")


def _refused(text: object) -> Invalid:
    return Invalid(
        "not a ref", kind="ref_invalid", ref=repr(text),
        hint="a branch, tag or commit, then ~n or ^n; or a branch with @ or $",
    )  # fmt: skip
