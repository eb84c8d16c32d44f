"""The shortest run of a seed that still fails: a shorter run of an exact world is the beginning of a longer one."""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.frame.report import Broken

__all__ = ("shortest",)


def shortest(run: Callable[[int], object], length: int, broken: Broken) -> tuple[int, Broken]:
    """The length of a short run that fails, and its failure, found by halving; `length` is known to fail as `broken`.

    A fault may come and go with the length, so there may be a shorter one yet; the one that is found does fail.
    """
    passes = 0
    while length - passes > 1:
        middle = (passes + length) // 2
        try:
            run(middle)
        except Broken as shorter:
            length, broken = middle, shorter
        else:
            passes = middle
    return length, broken
