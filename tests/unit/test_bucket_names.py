"""Names that objects of a bucket may have, and its client reads as others: none is imported under another name.

The buckets are those of a small server, which holds any name, as S3 does; servers over a folder hold few of these.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from millpond.errors import Invalid
from millpond.stores.objects.sources import Source, open_source

_OBJECT = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>1</ETag><Size>{}</Size></Contents>"
)


@contextmanager
def bucket(objects: dict[str, int]) -> Iterator[Source]:
    """A bucket with objects of these names and sizes, which can be listed and looked for."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """The two requests of a walk."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            found = sorted(
                (
                    name
                    for name in objects
                    if name.startswith(query.get("prefix", "")) and name > query.get("start-after", "")
                ),
                key=str.encode,
            )
            rows = "".join(_OBJECT.format(escape(name), objects[name]) for name in found)
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
            self._answer(200, len(body))
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            name = unquote(urlsplit(self.path).path).removeprefix("/bucket/")
            requests.append(name)
            self._answer(200 if name in objects else 404, objects.get(name, 0))

        def _answer(self, status: int, length: int) -> None:
            self.send_response(status)
            for header, value in (("Content-Length", str(length)), ("ETag", "1")):
                self.send_header(header, value)
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            config = {
                "endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": True,
                "skip_signature": True, "region": "us-east-1", "virtual_hosted_style_request": False,
            }  # fmt: skip
            source = open_source("s3://bucket", None, config)
            source.requests = requests  # type: ignore[attr-defined]
            yield source
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("names", "prefix", "wrong"),
    [
        (["x/", "x/a"], "", "x/"), (["p/x", "p/x/"], "p/", "p/x/"), (["/x", "a"], "", "/x"), (["a/b", "/x"], "x", "/x"),
        ([".a", "/.b", "z"], "", "/.b"), (["x", "/x", "y"], "", "x/"), (["/a/b", "c"], "", "/a/b"),
    ],
)  # fmt: skip
def test_a_name_that_is_read_as_another_is_refused(names: list[str], prefix: str, wrong: str) -> None:
    with bucket(dict.fromkeys(names, 5)) as source, pytest.raises(Invalid) as error:
        list(source.walk(prefix))
    assert error.value.kind == "source_name"
    assert error.value.values["name"] == repr(wrong)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("objects", "prefix", "found"),
    [
        ({"/a": 5, "x": 5, "z": 5}, "x", ["x"]), ({"x": 5, "x-": 5, "x/a": 5, "x0": 5}, "", ["x", "x-", "x/a", "x0"]),
        ({"a/": 0, "a/b": 5, "c": 0}, "", ["a/b", "c"]), ({"x": 5, "x/": 0, "x/a": 5}, "", ["x", "x/a"]),
        ({".a": 5, ".b/c": 5, "0": 5, "é/ü": 5}, "", [".a", ".b/c", "0", "é/ü"]), ({}, "", []),
    ],
)  # fmt: skip
def test_other_names_are_read_as_they_are(objects: dict[str, int], prefix: str, found: list[str]) -> None:
    with bucket(objects) as source:
        assert [one.name for block in source.walk(prefix) for one in block] == found


@pytest.mark.usefixtures("process")
def test_few_names_are_looked_for() -> None:
    objects = dict.fromkeys([f"{folder}/{number:03}" for folder in "abc" for number in range(100)], 5)
    with bucket({"a/": 0, **objects}) as source:
        assert [one.name for block in source.walk("") for one in block] == list(objects)
        assert source.requests == ["a", "a"]  # type: ignore[attr-defined]
