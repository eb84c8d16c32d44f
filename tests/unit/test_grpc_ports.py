"""The port for gRPC: beside that of HTTP, another one, or none."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from millpond.errors import Unavailable
from millpond.server.rpc.serving import choose_port
from millpond.settings import load_settings


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.usefixtures("process")
def test_by_default_it_is_the_one_after_that_of_http() -> None:
    free = choose_port(load_settings(server_grpc_port=0), 7433)
    assert free is not None
    assert choose_port(load_settings(server_port=free - 1), free - 1) == free
    assert choose_port(load_settings(server_port=0), 40_000) not in (None, 40_001)
    assert choose_port(load_settings(server_grpc_port="off"), 7433) is None


@pytest.mark.usefixtures("process")
def test_a_port_that_is_taken_is_an_error_only_where_it_was_named(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable) as caught:
        choose_port(load_settings(server_grpc_port=taken), 7433)
    assert caught.value.kind == "grpc_port_in_use"
    with caplog.at_level(logging.WARNING):
        assert choose_port(load_settings(server_port=taken - 1), taken - 1) is None
        assert choose_port(load_settings(server_port=65_535), 65_535) is None
    assert "grpc_port" in caplog.text
