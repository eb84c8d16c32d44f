"""Answers that end before their end, and maps that are dropped while they are read: all rows, or an error."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond.errors import NotFound, Unavailable
from millpond.nodes.lookup_service import arrow_stream
from tests.nodes.conftest import QUICK, Served

pytestmark = pytest.mark.sample(3, of="file")

ROWS = 200_000
END_BYTES = 8


@pytest.fixture
def served(node: Served) -> Served:
    made = node.pond.create_map("m", kind="state", value="long")
    # The last bytes of a batch look like the end of a stream.
    values = pa.array([(1 << 32) - 1] * ROWS, pa.int64())
    made.load(pa.table({"key": [f"k{number:06d}" for number in range(ROWS)], "value": values}))
    made.freeze()
    return node


@contextmanager
def opened(node: Served) -> Iterator[Any]:
    with millpond.open(node.url, **{**QUICK, "client_attempts": 1}) as pond:
        yield pond


def batch_ends(stream: bytes) -> list[int]:
    """The places after the schema and after each batch."""
    reader = pa.BufferReader(stream)
    return [reader.tell() for _ in pa.ipc.MessageReader.open_stream(reader)]


def cutting(length: int) -> Callable[[pa.RecordBatchReader], Iterator[bytes]]:
    """A scan of which only so many bytes are sent, as if these were all."""

    def cut(reader: pa.RecordBatchReader) -> Iterator[bytes]:
        left = length
        for chunk in arrow_stream(reader):
            yield chunk[:left]
            left -= min(len(chunk), left)
            if not left:
                return

    return cut


def test_a_scan_that_ends_early_is_an_error_wherever_it_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = served.post("/v1/maps/m/scan", {}).body
    ends = batch_ends(whole)
    assert len(ends) > 2 and whole[-END_BYTES:] == struct.pack("<q", (1 << 32) - 1)
    places = {1, 4, 100, *ends, *(end - 1 for end in ends), ends[1] + 4, ends[1] + 300, len(whole) - 4, len(whole) - 1}
    with opened(served) as pond:
        assert pond.map("m").scan().read_all().num_rows == ROWS
        for place in sorted(places):
            monkeypatch.setattr("millpond.server.routes.questions.arrow_stream", cutting(place))
            with pytest.raises(Unavailable) as caught:
                pond.map("m").scan().read_all()
            assert caught.value.kind == "answer_cut", place
            assert caught.value.values["node"] == served.url


def test_a_scan_that_fails_on_its_way_is_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(reader: pa.RecordBatchReader) -> Iterator[bytes]:
        yield next(arrow_stream(reader))
        raise OSError("the disk is gone")

    monkeypatch.setattr("millpond.server.routes.questions.arrow_stream", failing)
    with opened(served) as pond:
        with pytest.raises(Unavailable) as caught:
            pond.map("m").scan().read_all()
        assert caught.value.kind == "node_unreachable"


def test_a_lookup_that_ends_early_is_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.server.routes import questions

    whole = questions.stream_of

    def cut(*arguments: Any) -> memoryview:
        return whole(*arguments)[: lengths.pop()]

    monkeypatch.setattr(questions, "stream_of", cut)
    lengths = [0, 50, 300, -END_BYTES - 8, -END_BYTES - 1]
    with opened(served) as pond:
        while lengths:
            with pytest.raises(Unavailable) as caught:
                pond.map("m").lookup(["k000001", "none"])
            assert caught.value.kind == "answer_cut"


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "made anew"])
def test_a_map_that_is_dropped_while_it_is_read(node: Served, again: bool) -> None:
    made = node.pond.create_map("m", kind="state", value="string")
    rows = 40_000
    made.load(pa.table({"key": [f"k{n}" for n in range(rows)], "value": ["v" * 1000] * rows}))
    with opened(node) as pond:
        remote = pond.map("m")
        reader = remote.scan()
        seen = reader.read_next_batch().num_rows
        assert 0 < seen < rows, "the node waits for the reader"
        node.pond.drop_map("m")
        if again:
            node.pond.create_map("m", kind="state", value="string").load([{"key": "k0", "value": "new"}])
        node.node.scheduler.run("orphans")
        node.node.scheduler.run("cleanup")
        try:
            seen += sum(batch.num_rows for batch in reader)
        except (Unavailable, NotFound) as error:
            assert error.kind in ("answer_cut", "node_unreachable", "map_dropped")  # noqa: PT017  # or all rows
        else:
            assert seen == rows
        with pytest.raises(NotFound):
            remote.scan().read_all()
