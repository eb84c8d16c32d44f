"""The output of file readers: input rows of one map, the position of each, and the records that were not even rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.maps.inputs.faults import REJECTED

__all__ = ("Arrived", "NOTHING_REJECTED", "Positions", "rejects_of")

Positions = int | Sequence[int] | npt.NDArray[np.int64]
"""The position of the first of consecutive rows, or of each."""

NOTHING_REJECTED = pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in REJECTED], schema=REJECTED)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch of input rows, not normalised yet.

    `map` is None where the input does not name one. Positions count rows of the source from 1; in XML they are lines.
    `rejected` has positions in its `row`, and is about what is not among `rows`. `last` is the position of the last
    record read so far, `read` how many of the file's bytes have been, where that is known.
    """

    rows: pa.RecordBatch | None
    positions: Positions = 0
    map: str | None = None
    rejected: pa.RecordBatch = field(default_factory=lambda: NOTHING_REJECTED)
    last: int = 0
    read: int = 0


def rejects_of(rejects: Iterable[tuple[int, str, object]]) -> pa.RecordBatch:
    """Rejects from position, reason and record."""
    rows = [
        {"row": position, "reason": reason, "record": json.dumps(record, ensure_ascii=False, default=str)}
        for position, reason, record in rejects
    ]
    return pa.RecordBatch.from_pylist(rows, schema=REJECTED)
