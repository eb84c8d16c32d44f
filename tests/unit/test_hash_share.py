"""A share of a snapshot: which hashes it has, which files it opens, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Invalid
from millpond.maps.snapshots.partition_filter import SHARES_MAX, HashShare, shares_of
from millpond.maps.snapshots.snapshot import Snapshot

COUNT = 300_000
SHARES = 5


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1), st.integers(1, SHARES_MAX))
def test_each_hash_lies_in_the_span_of_its_share_alone(hashes: list[int], count: int) -> None:
    numbers = shares_of(np.array(hashes, np.uint64), count)
    assert numbers.min() >= 0
    assert numbers.max() < count
    for hash_, number in zip(hashes, numbers.tolist(), strict=True):
        span, order_key = HashShare(number, count).groups, hash_.to_bytes(8, "big") + b"key"
        assert span.lower is None or span.lower <= order_key
        assert span.upper is None or order_key < span.upper


@pytest.mark.parametrize(("number", "count"), [(0, 0), (-1, 2), (2, 2), (0, SHARES_MAX + 1)])
def test_a_share_that_is_none_is_refused(number: int, count: int) -> None:
    with pytest.raises(Invalid, match="no such share"):
        HashShare(number, count)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("layers", [1, 2])
def test_shares_together_answer_what_the_whole_does_and_each_maps_its_part(tmp_path: Path, layers: int) -> None:
    keys = pa.array(np.char.add("key-", np.arange(COUNT).astype("U7")).tolist())
    with millpond.open(tmp_path) as pond:
        large = pond.create_map("large", kind="temporal_state", value="long")
        for layer in range(layers):
            some = keys.slice(0, COUNT // 50 if layer else COUNT)
            at = pa.array([layer + 1] * len(some))
            large.load(pa.table({"key": some, "effective_time": at, "value": np.arange(len(some)) + layer}))
            large.freeze()
        with large.snapshot() as whole:
            expected, total, manifest = whole.lookup(keys, 9), whole.mapped_bytes, whole.manifest
        largest = max(file.stat().st_size for file in (large.objects.root / "ranges").iterdir())
        numbers = shares_of(hash_keys(keys), SHARES)
        for number in range(SHARES):
            inside = np.flatnonzero(numbers == number)
            with Snapshot.open(large.objects, manifest, share=HashShare(number, SHARES)) as share:
                assert share.lookup(keys.take(pa.array(inside)), 9).equals(expected.take(pa.array(inside)))
                coded = keys.take(pa.array(inside[:3])).dictionary_encode()
                assert share.lookup(coded, 9).equals(expected.take(pa.array(inside[:3])))
                assert share.lookup(pa.nulls(2, pa.string()), 9).null_count == 2
                # A share begins and ends within a file of each layer.
                assert share.mapped_bytes <= total / SHARES + 2 * len(manifest.layers) * largest
                other = int(np.flatnonzero(numbers != number)[0])
                with pytest.raises(Invalid, match=str(keys[other])):
                    share.lookup(keys.slice(other, 1), 9)
