"""A node that stops while much is on its way: promptly, and what was on its way can be continued."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millpond.clock import SystemClock
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.stream import PartStream
from tests.nodes.conftest import Served
from tests.nodes.test_uploads import HERE, Writer

CLOCK = SystemClock()
PATIENCE = {"shutdown_seconds": 30}
PROMPT_SECONDS = 5.0


@contextmanager
def stopping(node: Served) -> Iterator[Callable[[], float]]:
    """Stop it in another thread; gives what waits for the end and tells how long it took."""
    began = CLOCK.monotonic()
    closing = threading.Thread(target=node.close)

    def ended() -> float:
        closing.join(60)
        return CLOCK.monotonic() - began

    closing.start()
    try:
        yield ended
    finally:
        closing.join(60)


def entered(writer: Writer, count: int) -> PartFile:
    """A part that the node keeps, larger than what sockets hold."""
    part, data = writer.part(count=count)
    assert writer.send(part, data).json() == HERE
    writer.node.pond.log.wait_applied(writer.enter(part).json()["position"])
    return part


@pytest.fixture
def large(serve: Callable[..., Served], tmp_path: Path) -> tuple[Writer, PartFile]:
    writer = Writer(serve(limits=PATIENCE), tmp_path)
    return writer, entered(writer, 400_000)


def download(node: Served, part: PartFile) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    line = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=30)
    line.request("GET", f"/v1/parts/{part.manifest.id}/stream")
    return line, line.getresponse()


def test_a_reader_that_has_stopped_reading_holds_nobody_up(large: tuple[Writer, PartFile]) -> None:
    writer, part = large
    line, answer = download(writer.node, part)
    assert answer.read(1000)
    with stopping(writer.node) as ended:
        assert ended() < PROMPT_SECONDS
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    line.close()


def test_a_download_that_is_nearly_done_is_finished(large: tuple[Writer, PartFile]) -> None:
    writer, part = large
    data = b"".join(PartStream(part.file).chunks())
    line, answer = download(writer.node, part)
    came = answer.read(1000)
    with stopping(writer.node) as ended:
        assert came + answer.read() == data
        assert ended() < PROMPT_SECONDS
    line.close()


def test_an_upload_that_is_cut_off_goes_on_after_the_start(serve: Callable[..., Served], tmp_path: Path) -> None:
    writer = Writer(serve(limits=PATIENCE, server_data=str(tmp_path / "data")), tmp_path)
    part, data = writer.part(count=150_000)
    line = http.client.HTTPConnection(urlsplit(writer.node.url).netloc, timeout=30)
    line.putrequest("PUT", f"/v1/parts/{part.manifest.id}/upload")
    for name, value in {**writer.headers(data), "Content-Length": str(len(data))}.items():
        line.putheader(name, value)
    line.endheaders(data[:1_500_000])
    writer.node.until(lambda: writer.state(part)["offset"] > 1_000_000)
    with stopping(writer.node) as ended:
        assert ended() < PROMPT_SECONDS
    line.close()
    writer.node = serve(server_data=str(tmp_path / "data"))
    offset = writer.state(part)["offset"]
    assert offset == 1_500_000
    assert writer.send(part, data, offset).json() == HERE
