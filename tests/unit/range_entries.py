"""Shared by the tests of ranges: entries drawn by Hypothesis, a sorted dict as their model, and small boundaries."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from millpond.ranges import Boundaries, Index, RangeReader
from millpond.stores.objects import MemoryObjects

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("rows", pa.list_(pa.struct([pa.field("at", pa.int64(), nullable=False), ("value", pa.string())]))),
        pa.field("flag", pa.bool_()),
        pa.field("size", pa.float64()),
    ]
)
SMALL = Boundaries(rows_min=2, rows_max=16, bits=2, bytes_max=4096)

Model = dict[bytes, dict[str, Any]]

# few bytes, so that keys are prefixes of each other and meet often
keys = st.one_of(st.binary(max_size=3), st.integers(0, 400).map(lambda n: b"k%03d" % n))
values = st.fixed_dictionaries(
    {
        "hash": st.integers(0, 2**64 - 1),
        "rows": st.none()
        | st.lists(
            st.none() | st.fixed_dictionaries({"at": st.integers(-5, 5), "value": st.none() | st.text(max_size=5)}),
            max_size=3,
        ),
        "flag": st.none() | st.booleans(),
        "size": st.none() | st.floats(allow_nan=False),
    }
)
plain_values = st.integers(0, 3).map(
    lambda n: {"hash": n, "rows": [{"at": n, "value": str(n)}] * n, "flag": None, "size": 0.5 * n}
)
models = st.dictionaries(keys, values, max_size=40)
large_models = st.dictionaries(keys, plain_values, max_size=250)
boundaries = st.sampled_from(
    [
        SMALL,
        Boundaries(rows_min=1, rows_max=1, bits=0, bytes_max=100),
        Boundaries(rows_min=1, rows_max=1000, bits=3, bytes_max=300),
        Boundaries(rows_min=4, rows_max=64, bits=4, bytes_max=1 << 20),
        Boundaries(),
    ]
)


def batch_of(model: Model) -> pa.RecordBatch:
    """All entries of a model as one sorted batch."""
    return pa.RecordBatch.from_pylist([{"key": key, **model[key]} for key in sorted(model)], schema=SCHEMA)


def pieces_of(batch: pa.RecordBatch, cuts: list[int]) -> list[pa.RecordBatch]:
    """The batch in pieces that end at `cuts`, some of them empty."""
    at = [0, *sorted(cut % (batch.num_rows + 1) for cut in cuts), batch.num_rows]
    return [batch.slice(start, stop - start) for start, stop in itertools.pairwise(at)]


def model_of(reader: RangeReader) -> Model:
    """The entries of an index, as a model."""
    held = [row for batch in reader.scan() for row in batch.to_pylist()]
    return {row.pop("key"): row for row in held}


def check_index(reader: RangeReader) -> None:
    """The invariants that every index keeps."""
    index: Index = reader.index
    limits = index.boundaries
    last: bytes | None = None
    for at, entry in enumerate(index.entries):
        batch = reader.batch(at)
        keys = batch.column("key").to_pylist()
        assert keys == sorted(set(keys))
        assert (entry.first, entry.last, entry.count) == (keys[0], keys[-1], len(keys))
        assert last is None or last < entry.first
        assert entry.count <= limits.rows_max
        last = entry.last
    assert index.count == sum(entry.count for entry in index.entries)


def same(a: object, b: object) -> bool:
    """Equality for which NaN equals itself and 0.0 is not -0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def plain(n: int) -> dict[str, Any]:
    """A value that differs from its neighbours'."""
    return {"hash": n % 2**64, "rows": [{"at": n, "value": str(n)}], "flag": n % 2 == 0, "size": n / 2}


def tombstone(n: int = 0) -> dict[str, Any]:
    """An entry that says that its key is gone: no rows."""
    return {"hash": n, "rows": [], "flag": None, "size": None}


class Watched(MemoryObjects):
    """Objects in memory that remember which names were read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.written: list[str] = []

    def get(self, name: str) -> pa.Buffer:
        """As all objects, and remembered."""
        self.read.append(name)
        return super().get(name)

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """As all objects, and remembered."""
        super().put(name, data)
        self.written.append(name)

    def forget(self) -> None:
        """Count from here on."""
        self.read.clear()
        self.written.clear()

    def ranges_read(self) -> list[str]:
        """The ranges that were read."""
        return [name for name in self.read if name.startswith("ranges/")]

    def ranges_written(self) -> list[str]:
        """The ranges that were written."""
        return [name for name in self.written if name.startswith("ranges/")]


@contextmanager
def synced_places() -> Iterator[list[str]]:
    """The names of the files and folders that are synced meanwhile, in that order."""
    synced, fsync = list[str](), os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        yield synced
