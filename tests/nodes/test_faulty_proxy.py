"""The faulty proxy does what its troubles say, and nothing else."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.harness.faulty_proxy import FaultyProxy, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    """A proxy before a server that echoes."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                call, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(call,), daemon=True).start()

    def echo(call: socket.socket) -> None:
        with call:
            try:
                while data := call.recv(1 << 16):
                    call.sendall(data)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with FaultyProxy(listener.getsockname()[1]) as opened:
            yield opened
        listener.shutdown(socket.SHUT_RDWR)


def call(proxy: FaultyProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def heard(link: socket.socket, count: int) -> bytes:
    """The bytes that come, up to so many or the end, however it ended."""
    received = b""
    try:
        while len(received) < count and (data := link.recv(count - len(received))):
            received += data
    except ConnectionError:
        pass
    return received


def test_everything_passes_unchanged(proxy: FaultyProxy) -> None:
    with call(proxy) as link:
        data = bytes(range(256)) * 4096
        threading.Thread(target=link.sendall, args=(data,)).start()
        assert heard(link, len(data)) == data


def test_a_connection_is_cut_after_so_many_bytes_of_what_was_meant(proxy: FaultyProxy) -> None:
    trouble = proxy.trouble(Trouble("cut", match=b"PUT /a", after=10))
    with call(proxy) as other, call(proxy) as link:
        other.sendall(b"GET /a" + b"x" * 100)
        assert len(heard(other, 106)) == 106
        link.sendall(b"HEAD PUT /a" + b"x" * 100)
        assert len(heard(link, 200)) <= len(b"HEAD PUT /a") + 10
    assert trouble.struck.is_set()
    with call(proxy) as link:
        link.sendall(b"PUT /a" + b"x" * 100)
        assert len(heard(link, 106)) == 106


def test_an_answer_is_lost_though_the_question_arrived(proxy: FaultyProxy) -> None:
    proxy.trouble(Trouble("cut", match=b"POST", down=True))
    with call(proxy) as link:
        link.sendall(b"POST it")
        assert heard(link, 7) == b""


def test_a_byte_is_flipped(proxy: FaultyProxy) -> None:
    proxy.trouble(Trouble("flip", match=b"put ", after=2))
    with call(proxy) as link:
        link.sendall(b"put abcdef")
        assert heard(link, 10) == b"put ab" + bytes([ord("c") ^ 0xFF]) + b"def"


def test_what_is_held_comes_when_the_connection_is_mended(proxy: FaultyProxy) -> None:
    trouble = proxy.trouble(Trouble("hold", match=b"go", after=1))
    with call(proxy) as link:
        link.sendall(b"go12")
        assert heard(link, 3) == b"go1"
        assert trouble.struck.wait(10)
        proxy.mend()
        assert heard(link, 1) == b"2"


def test_a_connection_that_is_cut_carries_nothing_until_it_is_mended(proxy: FaultyProxy) -> None:
    with call(proxy) as link:
        link.sendall(b"a")
        assert heard(link, 1) == b"a"
        proxy.cut()
        assert heard(link, 1) == b""
    with pytest.raises(ConnectionError), call(proxy) as link:
        link.sendall(b"a")
        if not link.recv(1):
            raise ConnectionResetError
    proxy.mend()
    with call(proxy) as link:
        link.sendall(b"b")
        assert heard(link, 1) == b"b"


def test_what_is_slow_passes_unchanged_and_at_once_when_the_proxy_is_mended(proxy: FaultyProxy) -> None:
    with call(proxy) as link:
        proxy.slow(0.01)
        link.sendall(b"slow")
        assert heard(link, 4) == b"slow"
        proxy.slow(3600.0)
        link.sendall(b"waits")
        proxy.mend()
        assert heard(link, 5) == b"waits"
