"""Rows that cannot be stored: counted, written to a file with their reasons, and reported when they are too many.

The file holds one JSON object a line: `{"source": …, "row": …, "reason": …, "record": …}`. `row` counts the rows
of the source: from 1 in files (in XML it is the line), from 0 in tables. `record` is the row as it came.

Invariants:
* The file is made anew by every load and is complete when the load ends, well or not.
* More than `max_rejects` rows fail the load. With a file it reads on, up to `ENOUGH` rejects, so that all can be mended
  at once; without one it stops at the first too many.
"""

from __future__ import annotations

import json
from numbers import Integral
from os import PathLike
from pathlib import Path
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TextIO

from millpond.argument_types import need_type
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ("ENOUGH", "RejectWriter")

ENOUGH = 10_000
"""Rejects that are collected at most when the load fails for them anyway."""

_SHOWN_MAX = 3
_OTHERS = "to load the other rows allow more: max_rejects=N"


class RejectWriter:
    """Takes the rejected rows (`faults.REJECTED`) of one load; a context manager that fails for too many at its end."""

    def __init__(
        self, path: str | Path | None, *, max_rejects: int = 0, source: str = "",
        outcome: str = "cannot be stored, nothing was loaded", others: str = _OTHERS,
    ) -> None:  # fmt: skip
        need_type("rejects", path, str, PathLike, NoneType)
        need_type("max_rejects", max_rejects, Integral)
        if max_rejects < 0:
            raise Invalid("max_rejects is negative", kind="max_rejects", max_rejects=max_rejects)
        self.path = None if path is None else Path(path)
        self.max_rejects = max_rejects
        self.source = source
        self.outcome, self.others = outcome, others
        self.count = 0
        self._shown: list[str] = []
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            try:
                self._file = self.path.open("w", encoding="utf-8")
            except (OSError, ValueError) as error:
                raise NotFound(
                    "the reject file cannot be made", kind="rejects_file", path=self.path,
                    reason=getattr(error, "strerror", error), hint="name a file in a folder that may be written",
                ) from error  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if kind is None and self.count > self.max_rejects:
            raise self._too_many()

    def fail(self) -> NoReturn:
        """Fail now for too many rejects, rather than at the end.

        Raises: `Invalid`.
        """
        raise self._too_many()

    def write(
        self, rejected: pa.RecordBatch, *, first_row: int = 0, rows: Sequence[int] | None = None,
        source: str | None = None,
    ) -> None:  # fmt: skip
        """Take rejected rows of one batch, which began at row `first_row` of the source, or whose rows are at `rows`.

        Raises: `Invalid` when there are more than the load may have, and reading on helps nobody.
        """
        if not rejected.num_rows:
            return
        source = self.source if source is None else source
        indices, reasons, records = (rejected.column(name).to_pylist() for name in ("row", "reason", "record"))
        for index, reason, record in zip(indices, reasons, records, strict=True):
            row = first_row + index if rows is None else rows[index]
            self._take(source, row, reason, record)
        if self.count > self.max_rejects and (self._file is None or self.count >= self.max_rejects + ENOUGH):
            raise self._too_many(stopped=True)

    def _take(self, source: str, row: int, reason: str, record: str) -> None:
        self.count += 1
        if len(self._shown) < _SHOWN_MAX:
            where = f"{source} row {row}" if source else f"row {row}"
            self._shown.append(f"{where}: {reason}")
        if self._file is not None:
            reject = {"source": source, "row": row, "reason": reason, "record": _decoded(record)}
            self._file.write(json.dumps(reject, ensure_ascii=False) + "\n")

    def _too_many(self, *, stopped: bool = False) -> Invalid:
        more = self.count - len(self._shown)
        first = "; ".join(self._shown) + (f"; and {more:,} more" if more else "")
        count = f"{'at least ' if stopped else ''}{self.count:,} {'row' if self.count == 1 else 'rows'}"
        seen = f"see them all in {self.path}" if self.path else "write them all to a file: rejects='FILE'"
        return Invalid(
            f"{count} {self.outcome}: {first}", kind="too_many_rejects",
            hint=f"{seen}; {self.others}",
            rejected=self.count, max_rejects=self.max_rejects,
        )  # fmt: skip


def _decoded(record: str) -> object:
    try:
        return json.loads(record)
    except ValueError:
        return record
