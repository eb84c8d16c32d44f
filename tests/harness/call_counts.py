"""The number of calls of Python functions: what something costs, whatever else the machine does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ("counted_calls",)


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """The calls that this thread makes meanwhile, by the names of the functions."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counts[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(before)
