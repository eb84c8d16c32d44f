"""Actors and faults, drawn by their weights."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

__all__ = ("drawn",)

T = TypeVar("T")


def drawn(chance: random.Random, weighted: Iterable[tuple[T, int]]) -> T:
    """One of several, each as often as its weight says.

    >>> drawn(random.Random(1), [("often", 9), ("never", 0)])
    'often'
    """
    chosen, weights = zip(*weighted, strict=True)
    found: T = chance.choices(chosen, weights)[0]
    return found
