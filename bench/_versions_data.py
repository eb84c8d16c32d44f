"""Entries for the benchmarks of versions: a million files in folders of a thousand, as an import finds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

__all__ = ("entries", "path")


def path(number: int) -> str:
    """The path of a file by its number."""
    return f"big/d{number // 1000:05d}/part-{number % 1000:04d}.parquet"


def entries(numbers: Sequence[int], seed: int = 0, *, prefix: str = "") -> pa.Table:
    """Entries with checksums that nothing compresses; another seed is other content."""
    rng = np.random.default_rng((seed, len(numbers)))
    digits = rng.bytes(16 * len(numbers)).hex()
    paths = [prefix + path(number) for number in numbers]
    return pa.table(
        {
            "path": paths, "address": [f"s3://bucket/import/{name}" for name in paths],
            "size": rng.integers(1_000, 1_000_000, len(numbers)), "mtime": np.asarray(numbers) // 100 + 1_700_000_000,
            "checksum": [digits[32 * at : 32 * at + 32] for at in range(len(numbers))],
        }
    )  # fmt: skip
