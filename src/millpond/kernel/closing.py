"""Things that are used in a `with` block, and closed at its end."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

__all__ = ("Closing",)


class Closing:
    """A context manager that is itself, and closes itself however its block ends."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
