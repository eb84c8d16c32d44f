"""Faults of rows, gathered check by check; the first fault of a row is the one reported.

Checks work on whole columns; words are made for faulty rows only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ("REJECTED", "Faults", "Mask", "no_rows", "plain", "rejected_rows", "shown")

Mask = npt.NDArray[np.bool_]

REJECTED = pa.schema([
    pa.field("row", pa.int64(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("record", pa.string(), nullable=False),
])  # fmt: skip
"""Rows that cannot be stored: where they stood, why, and what they held as JSON."""

_SHOWN_MAX = 80


def no_rows(count: int) -> Mask:
    """A mask that holds no row."""
    return np.zeros(count, np.bool_)


def shown(value: object) -> str:
    """A value in a sentence, cut short when it is long.

    >>> shown("007")
    "'007'"
    """
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"


@dataclass(slots=True)
class Faults:
    """The faulty rows among `count`, each with its reason."""

    count: int
    bad: Mask = field(init=False)
    reasons: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.bad = no_rows(self.count)

    def add(self, mask: Mask, tell: Callable[[int], str]) -> None:
        """The rows of `mask` are faulty; `tell` words the reason of a row."""
        for row in np.flatnonzero(mask & ~self.bad).tolist():
            self.reasons[row] = tell(row)
        self.bad |= mask

    def add_values(self, mask: Mask, column: pa.Array[Any], name: str, problem: str) -> None:
        """The rows of `mask` are faulty because of their value in `column`."""
        self.add(mask, lambda row: f"{name} {shown(plain(column[row]))} {problem}")


def plain(value: pa.Scalar[Any]) -> object:
    """A Python value for any Arrow value, also for what Python cannot hold."""
    try:
        return value.as_py()
    except (ValueError, OverflowError, ImportError):
        number = getattr(value, "value", None) if pa.types.is_temporal(value.type) else None
    try:
        return repr(value) if number is None else f"{number} as {value.type}"
    except (ValueError, OverflowError):
        return f"a {value.type}"


def rejected_rows(batch: pa.RecordBatch, faults: Faults) -> pa.RecordBatch:
    """The faulty rows of `batch` as `REJECTED`."""
    rows = sorted(faults.reasons)
    if not rows:
        return pa.RecordBatch.from_pylist([], schema=REJECTED)
    names = batch.schema.names
    columns = [batch.column(index) for index in range(batch.num_columns)]
    records = [_record_json(names, columns, row) for row in rows]
    reasons = [faults.reasons[row] for row in rows]
    return pa.RecordBatch.from_arrays([pa.array(rows), pa.array(reasons), pa.array(records)], schema=REJECTED)


def _record_json(names: Sequence[str], columns: Sequence[pa.Array[Any]], row: int) -> str:
    record = {name: plain(column[row]) for name, column in zip(names, columns, strict=True)}
    return json.dumps(record, default=_as_json, ensure_ascii=False)


def _as_json(value: object) -> object:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return str(value)
