"""The ranges of one index, written stretch by stretch: by this process, or by several that take a stretch each.

Whoever has them written holds `layers.writing()` from before the first until a manifest names them, for a range that no
index names is nobody's, and collected when nobody writes any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

__all__ = ("StretchWriter", "Writes", "write_here")

Stretch = TypeVar("Stretch")
Written_co = TypeVar("Written_co", covariant=True)
Written = TypeVar("Written")


class StretchWriter(Protocol[Stretch, Written_co]):
    """The ranges that are to be written; it travels to the tasks that do. What is written of a stretch is the same
    whoever writes it, however often."""

    def cut(self, at_once: int) -> list[Stretch]:
        """Ascending stretches, for so many tasks at once; a single one is written here."""

    def write(self, stretch: Stretch) -> Written_co:
        """Write the ranges of a stretch.

        Raises: `NotFound`, `Corrupt` for a file that is read; `Unavailable` when the place is full.
        """

    def write_here(self) -> Sequence[Written_co]:
        """Write all in this process.

        Raises: as `write`.
        """


class Writes(Protocol):
    """Has all ranges written, here or elsewhere: those of ascending stretches."""

    def __call__(self, writer: StretchWriter[Any, Written], /) -> Sequence[Written]: ...


def write_here(writer: StretchWriter[Any, Written], /) -> Sequence[Written]:
    """Have all written by this process.

    Raises: as `StretchWriter.write`.
    """
    return writer.write_here()
