"""A map that is loaded by a process under a limit of memory: sealed in parts, merged in one pass, and frozen.

    python -m tests.unit.load_memory_child POND ROWS LIMIT_BYTES

The limit holds for the memory that the process allocates after it loaded a small map.
"""

from __future__ import annotations

import resource
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import millpond
from millpond.memory_bound import MEMORY_LEAST
from tests.unit.versions_memory_child import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 1_000_003
"""A prime, which brings numbers in no order, and each once."""


def rows(count: int) -> Iterator[pa.RecordBatch]:
    """So many rows of different keys, in no order."""
    for low in range(0, count, 10_000):
        number = np.arange(low, min(low + 10_000, count)) * STEP % count
        yield pa.record_batch({"key": [f"a key of some length {n:08d}" for n in number.tolist()], "value": number})


def main() -> None:
    threading.stack_size(1 << 20)  # stacks count, used or not
    folder, count, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with millpond.open(folder, maps_memory_max=MEMORY_LEAST, events_reports=False) as pond:
        for name, size in (("small", 150_000), ("large", count)):
            pond.create_map(name, kind="state", value="long")
            if name == "large":
                most = memory()["VmData"] + limit
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))
            pond.map(name).load(rows(size))
            pond.map(name).freeze()


if __name__ == "__main__":
    main()
