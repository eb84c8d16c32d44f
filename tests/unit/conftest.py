"""A local S3 server, started when a test asks for a bucket."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from millpond.stores.objects import Objects, open_objects

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server on a free loopback port, with one bucket."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, request: pytest.FixtureRequest) -> Objects:
    """Objects of a fresh bucket."""
    import urllib.request

    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{name}", method="PUT")).close()
    return open_objects(
        f"s3://{name}/some/prefix", endpoint=s3_server, access_key_id="test", secret_access_key="test",
        region="us-east-1", allow_http=True,
    )  # fmt: skip
