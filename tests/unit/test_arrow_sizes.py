"""Declared sizes of Arrow streams: Arrow allocates no more than was declared, and hostile streams fail."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.arrow_sizes import declared_sizes
from millpond.errors import Invalid


def stream_of(batches: list[pa.RecordBatch], codec: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


COLUMNS: Any = st.one_of(
    st.lists(st.none() | st.text(max_size=50), max_size=60).map(lambda values: pa.array(values, pa.string())),
    st.lists(st.none() | st.integers(-100, 100), max_size=60).map(lambda values: pa.array(values, pa.int64())),
    st.integers(0, 5000).map(pa.nulls),
    st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=30).map(lambda v: pa.array(v, pa.list_(pa.int64()))),
    st.lists(st.sampled_from("abc"), max_size=60).map(lambda v: pa.array(v, pa.string()).dictionary_encode()),
)


@given(COLUMNS, st.sampled_from([None, "lz4", "zstd"]), st.integers(1, 3))
def test_arrow_allocates_no_more_than_is_declared(column: pa.Array, codec: str | None, batches: int) -> None:
    stream = stream_of([pa.record_batch([column], names=["key"])] * batches, codec)
    sizes = declared_sizes(stream)
    assert len(column) * batches <= sizes.rows <= sizes.elements  # rows of dictionaries count, too
    before = pa.total_allocated_bytes()
    with pa.ipc.open_stream(pa.py_buffer(stream), options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        table = reader.read_all()
    assert table.nbytes <= sizes.buffers + 64 * batches
    assert pa.total_allocated_bytes() - before <= sizes.decoded + 64 * 8 * batches  # Arrow pads each buffer


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_little_that_becomes_much_declares_it(codec: str) -> None:
    batch = pa.record_batch({"key": pa.array(["k" * 1000]).take(pa.array([0] * 100_000))})
    stream = stream_of([batch], codec)
    assert len(stream) < 1 << 20 < 100 << 20 > declared_sizes(stream).decoded >= 100_000_000


def test_nulls_declare_their_rows() -> None:
    stream = stream_of([pa.record_batch({"key": pa.nulls(1 << 26)})])
    assert len(stream) < 1000 and declared_sizes(stream).elements == 1 << 26


@given(st.data())
def test_a_damaged_stream_fails_or_is_measured(data: Any) -> None:
    stream = bytearray(stream_of([pa.record_batch({"key": pa.array(["a", "b", None])})], "zstd"))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(stream[: data.draw(st.integers(0, len(stream)))])
    try:
        sizes = declared_sizes(cut)
    except Invalid as error:
        assert error.hint  # noqa: PT017  # a stream may also be whole after damage
    else:
        assert min(sizes.rows, sizes.elements, sizes.buffers, sizes.decoded) >= 0
