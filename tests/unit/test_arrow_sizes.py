"""Declared sizes of Arrow streams: Arrow allocates no more than was declared, and hostile streams fail."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.arrow_sizes import BATCH_ELEMENTS_MAX, bounded_stream, declared_sizes
from millpond.errors import Invalid


def stream_of(batches: list[pa.RecordBatch], codec: str | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec, **options)
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


@given(COLUMNS, COLUMNS, st.sampled_from([None, "lz4", "zstd"]), st.booleans(), st.booleans())
def test_a_bounded_stream_is_what_arrow_reads(
    first: pa.Array, second: pa.Array, codec: str | None, legacy: bool, cut: bool
) -> None:
    batches = [pa.record_batch([column], names=["key"]) for column in (first, second) if column.type == first.type]
    stream = stream_of(batches, codec, use_legacy_format=legacy)
    table = pa.ipc.open_stream(stream).read_all()
    found = bounded_stream(io.BytesIO(stream[: -4 if legacy else -8] if cut else stream))
    assert found.schema == table.schema
    assert found.read_all() == table


def bombs() -> dict[str, bytes]:
    """Streams of a kilobyte or two that would become more than a megabyte."""
    long, same = pa.array(["k" * 60_000]), pa.array([0] * 1_000, pa.int32())
    dictionary = pa.DictionaryArray.from_arrays(same, long)
    views = pa.array(["k" * 60_000] * 1_000, pa.string_view())
    buffers = [views.buffers()[0], pa.py_buffer(views.buffers()[1].to_pybytes()[:16] * 1_000), views.buffers()[2]]
    columns = {
        "compressed": long.take(same), "nulls": pa.nulls(BATCH_ELEMENTS_MAX + 1), "dictionary": dictionary,
        "views": pa.Array.from_buffers(pa.string_view(), 1_000, buffers),
        "list views": pa.ListViewArray.from_arrays([0], [BATCH_ELEMENTS_MAX], pa.nulls(BATCH_ELEMENTS_MAX)),
        "runs": pa.RunEndEncodedArray.from_arrays([BATCH_ELEMENTS_MAX + 1], ["k"]),
    }  # fmt: skip
    return {name: stream_of([pa.record_batch([column], names=["path"])], "zstd") for name, column in columns.items()}


@pytest.mark.parametrize("name", bombs())
def test_little_that_becomes_much_is_refused_before_it_is_read(name: str) -> None:
    stream = bombs()[name]
    assert len(stream) < 6_000
    pool = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(watched)
    try:
        with pytest.raises(Invalid) as caught:
            bounded_stream(io.BytesIO(stream), 1 << 20).read_all()
    finally:
        pa.set_memory_pool(pool)
    assert caught.value.kind == "arrow_batch_large"
    assert watched.max_memory() < 1 << 20


def test_the_dictionaries_of_a_stream_count_until_they_are_replaced() -> None:
    def batches(count: int) -> list[pa.RecordBatch]:
        columns = [pa.array([f"{number}" * 300_000]).dictionary_encode() for number in range(count)]
        return [pa.record_batch([column], names=["key"]) for column in columns]

    replaced = stream_of(batches(9))
    assert bounded_stream(io.BytesIO(replaced), 1 << 20).read_all().num_rows == 9
    grown, column = [], pa.array([], pa.string())
    for batch in batches(9):
        column = pa.concat_arrays([column, batch.column(0).dictionary])
        indices = pa.array([len(column) - 1], pa.int32())
        grown.append(pa.record_batch([pa.DictionaryArray.from_arrays(indices, column)], names=["key"]))
    stream = stream_of(grown, emit_dictionary_deltas=True)
    assert bounded_stream(io.BytesIO(stream)).read_all().num_rows == 9
    with pytest.raises(Invalid):
        bounded_stream(io.BytesIO(stream), 1 << 20).read_all()


@given(st.data())
def test_a_damaged_stream_is_refused_or_read(data: Any) -> None:
    stream = bytearray(stream_of([pa.record_batch({"key": pa.array(["a", "b", None]).dictionary_encode()})], "zstd"))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        bounded_stream(io.BytesIO(stream[: data.draw(st.integers(0, len(stream)))])).read_all().validate(full=True)
    except (Invalid, pa.ArrowException, OSError) as error:
        assert not isinstance(error, MemoryError)  # noqa: PT017  # a stream may also be whole after damage
