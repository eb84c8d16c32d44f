"""Rows that are read as they are asked for, and that a notebook shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from millpond.error_values import ROWS_SHOWN, html_rows
from millpond.errors import MillpondError

__all__ = ("Listed",)

T = TypeVar("T")


class Listed(Iterator[T]):
    """Rows, each once. A notebook shows the first of those that are left; they stay for who goes on."""

    __slots__ = ("_ahead", "_rows", "_title")

    def __init__(self, title: str, rows: Iterable[T]) -> None:
        self._title, self._rows = title, iter(rows)
        self._ahead: deque[T] = deque()

    def __next__(self) -> T:
        return self._ahead.popleft() if self._ahead else next(self._rows)

    def _repr_html_(self) -> str | None:
        with suppress(MillpondError):
            # One more than is shown tells whether there are more.
            self._ahead.extend(islice(self._rows, max(0, ROWS_SHOWN + 1 - len(self._ahead))))
            more = f", the first {ROWS_SHOWN}" if len(self._ahead) > ROWS_SHOWN else ""
            return html_rows(f"{self._title}{more}", list(islice(self._ahead, ROWS_SHOWN)))
        return None  # it was closed, or no node answers: a notebook shows the text
