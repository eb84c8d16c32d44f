"""Patience with the work of a thread: loops over many rows ask for it, and end when nobody waits for them any more.

    with patient(check):  work ─▶ a loop, between two batches ─▶ check_patience() ─▶ check() raises ─▶ the work ends

A question may take minutes, and pass through many hands. The loops at its bottom are few, so they ask what holds for
their thread, and the functions in between need not hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ("check_patience", "patient", "patiently")

T = TypeVar("T")

# A variable of the context, not of the thread: work that asks within a check of its own takes the one around it along,
# with a copy of the context (`server/confined.py`).
_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("patience", default=None)


@contextmanager
def patient(check: Callable[[], None]) -> Iterator[None]:
    """Let `check` end the work of this thread: it raises when there is no patience left."""
    before = _CHECK.set(check)
    try:
        yield
    finally:
        # Back to the one before, not to none: checks may lie within each other.
        _CHECK.reset(before)


def check_patience() -> None:
    """Insist that this thread may go on.

    Raises: what the check of the innermost `patient` raises; nothing where there is none.
    """
    check = _CHECK.get()
    if check is not None:
        check()


def patiently(items: Iterable[T]) -> Iterator[T]:
    """The items, as long as this thread may go on.

    Raises: as `check_patience`.
    """
    for item in items:
        check_patience()
        yield item
