"""Fetching a file over lines that break: it comes whole, from where it stopped, or not at all."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import xxhash

from millpond.client.transfer import CHECKSUM, fetch_file
from millpond.client.transport import Connection
from millpond.errors import Corrupt, Unavailable
from millpond.settings import load_settings

DATA = bytes(range(256)) * 40_000


class Source(ThreadingHTTPServer):
    """Serves one file; may end an answer early, and records the requested ranges."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data, self.tag, self.checksum = DATA, "one", xxhash.xxh3_128_hexdigest(DATA)
        self.cuts: list[int] = []
        self.ranges: list[str | None] = []

    def handle_error(self, *_: Any) -> None:
        """A reader that goes away is what these tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Source

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        found = re.fullmatch(r"bytes=(\d+)-", wanted or "")
        continued = found and self.headers.get("If-Range") == f'"{self.server.tag}"'
        start = int(found[1]) if found and continued else 0
        body = self.server.data[start:]
        self.send_response(206 if continued else 200)
        self.send_header("ETag", f'"{self.server.tag}"')
        self.send_header(CHECKSUM, self.server.checksum)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(body)
        self.wfile.write(body[:cut])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Silence."""


@pytest.fixture
def source() -> Iterator[Source]:
    server = Source()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def line(source: Source) -> Connection:
    settings = load_settings(client_attempts=1)
    return Connection(f"http://127.0.0.1:{source.server_address[1]}", settings)


def test_a_file_comes_whole(source: Source, line: Connection, tmp_path: Path) -> None:
    fetched = fetch_file(line, "/file", tmp_path / "new" / "file")
    assert fetched.file.read_bytes() == DATA
    assert fetched.bytes == len(DATA)
    assert fetched.headers["etag"] == '"one"'
    assert [path.name for path in fetched.file.parent.iterdir()] == ["file"]


def test_it_goes_on_where_the_connection_was_lost(source: Source, line: Connection, tmp_path: Path) -> None:
    source.cuts = [3_000_000, 0, 4_000_000]
    assert fetch_file(line, "/file", tmp_path / "file").file.read_bytes() == DATA
    offsets = [int(header[6:-1]) if header else 0 for header in source.ranges]
    assert offsets[0] == 0
    assert 0 < offsets[1] <= 3_000_000
    assert offsets[1] == offsets[2] < offsets[3]


def test_what_came_is_reused_the_next_time(source: Source, line: Connection, tmp_path: Path) -> None:
    source.cuts = [2_000_000, 0]
    with pytest.raises(Unavailable, match="cannot be reached"):
        fetch_file(line, "/file", tmp_path / "file", attempts=2)
    [left] = tmp_path.iterdir()
    assert left.name == "file.one.partial"
    size = left.stat().st_size
    assert fetch_file(line, "/file", tmp_path / "file").file.read_bytes() == DATA
    assert source.ranges[-1] == f"bytes={size}-"


def test_other_bytes_are_begun_anew(source: Source, line: Connection, tmp_path: Path) -> None:
    source.cuts = [2_000_000]
    with pytest.raises(Unavailable):
        fetch_file(line, "/file", tmp_path / "file", attempts=1)
    source.data, source.tag = DATA[::-1], "two"
    source.checksum = xxhash.xxh3_128_hexdigest(source.data)
    assert fetch_file(line, "/file", tmp_path / "file").file.read_bytes() == DATA[::-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_damage_on_the_way_is_noticed(source: Source, line: Connection, tmp_path: Path) -> None:
    source.data = DATA[:-1] + b"?"
    with pytest.raises(Corrupt, match="not what was sent"):
        fetch_file(line, "/file", tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_file_that_came_whole_before_a_crash_is_not_requested_beyond_its_end(
    source: Source, line: Connection, tmp_path: Path
) -> None:
    (tmp_path / "file.one.partial").write_bytes(DATA)
    assert fetch_file(line, "/file", tmp_path / "file").file.read_bytes() == DATA
