"""Blocks of staged rows, and the reads that bring them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.kernel.keys import KeyRange
from millpond.kernel.scans import first_rows
from millpond.kernel.space import Transaction
from millpond.ranges.spans import Spans
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from millpond.versions.keyspaces import STAGED
from millpond.versions.objects.entries import Entry, entries_of
from millpond.versions.objects.staged_rows import TOMBSTONE, decode_block, decode_entry, encode_entry

texts = st.text(max_size=12)
entries = st.builds(
    Entry, st.text(min_size=1, max_size=20), texts, st.integers(0, 1 << 60), st.integers(0, 1 << 40), texts, texts,
    st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip


@pytest.mark.usefixtures("processor")
@given(st.lists(st.tuples(entries, st.booleans()), max_size=20, unique_by=lambda row: row[0].path))
def test_a_block_is_what_its_rows_are(rows: list[tuple[Entry, bool]]) -> None:
    prefix = STAGED["token"]
    rows.sort(key=lambda row: prefix.pack(row[0].path))
    values = [TOMBSTONE if gone else encode_entry(entry) for entry, gone in rows]
    assert [decode_entry(entry.path, value) for (entry, _), value in zip(rows, values, strict=True)] == [
        None if gone else entry for entry, gone in rows
    ]
    block = decode_block(prefix, [prefix.pack(entry.path) for entry, _ in rows], values)
    block.validate(full=True)
    assert block.column("deleted").to_pylist() == [gone for _, gone in rows]
    found = list(entries_of(block))
    assert [item.path for item in found] == [entry.path for entry, _ in rows]
    assert [item for item, (_, gone) in zip(found, rows, strict=True) if not gone] == [
        entry for entry, gone in rows if not gone
    ]


def test_the_first_rows_are_those_of_a_scan(tmp_path: Path) -> None:
    keys = [b"a", b"b" * 400, b"b" * 500 + b"1", b"b" * 600, b"c", b"d", b"d\x00", b"e" * 700, b"f"]

    def fill(tx: Transaction) -> None:
        for key in keys:
            tx.put(key, key[:3])

    spaces = [MemorySpace(), LmdbSpace(tmp_path / "space", durable=False)]
    for space in spaces:
        space.write(fill)
    bounds = [b"", b"a", b"b", b"b" * 450, b"c", b"d\x00", b"e", b"f", b"g"]
    with spaces[0].read() as memory, spaces[1].read() as lmdb:
        for start in bounds:
            for stop in [None, *bounds]:
                for limit in (1, 2, 3, 100):
                    for reverse in (False, True):
                        found = KeyRange(start, stop)
                        expected = list(memory.scan(found, reverse=reverse))[:limit]
                        assert first_rows(lmdb, found, limit, reverse=reverse) == expected
    for space in spaces:
        space.close()


@pytest.mark.usefixtures("processor")
@given(st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=5), st.binary(max_size=4))
def test_spans_hold_what_one_of_their_ranges_holds(ranges: list[tuple[bytes, bytes | None]], key: bytes) -> None:
    import pyarrow as pa

    from millpond.ranges.key_columns import key_column

    given_ = [KeyRange(start, stop) for start, stop in ranges if stop is None or start < stop]
    spans = Spans.of(given_)
    expected = any(one.holds(key) for one in given_)
    assert spans.holds(key_column(pa.array([key], pa.binary()))).tolist() == [expected]
    assert spans.meets(key, key) is expected
    assert spans.covers(key, key) is expected
