"""Works of confined processes, honest and hostile, for `test_confined.py`."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

from millpond.errors import NotFound
from millpond.server.confined import FRAME_BYTES_MAX, Ask

__all__ = ()


def repeat(ask: Ask, text: str, *, times: int) -> bytes:
    """The answer to a question, some times."""
    return bytes(ask(text.encode())) * times


def refused(ask: Ask) -> bytes:
    """The kind of the error that a question gets."""
    try:
        return bytes(ask(b"?"))
    except NotFound as error:
        return f"{error.kind} {error.values['map']}".encode()


def wrong(_ask: Ask) -> bytes:
    raise NotFound("there is no such map", kind="map_not_found", map="m", hint="name another")


def broken(_ask: Ask) -> bytes:
    raise RuntimeError("a mistake of ours")


def take(_ask: Ask, size: int) -> bytes:
    """Take memory, and write to all of it."""
    held = bytearray(size)
    held[::4096] = b"x" * len(held[::4096])
    return b"taken"


def take_at_once(_ask: Ask) -> bytes:
    raise MemoryError


def burn(_ask: Ask) -> bytes:
    while True:
        pass


def abort(_ask: Ask) -> bytes:
    os.abort()


def over_its_processor_time(_ask: Ask) -> bytes:
    os.kill(os.getpid(), signal.SIGXCPU)
    return b""


def tell_and_wait(ask: Ask) -> bytes:
    """Tell the process, and wait for ever."""
    ask(str(os.getpid()).encode())
    threading.Event().wait()
    return b""


def send(_ask: Ask, data: bytes) -> bytes:
    """Send bytes past the protocol, and wait for ever."""
    [end] = forkserver.get_inherited_fds()
    line = socket.socket(fileno=end)
    line.sendall(data)
    threading.Event().wait()
    return b""


def head(mark: bytes, size: int) -> bytes:
    """The head of a frame."""
    return struct.pack("<cQ", mark, size)


def write(_ask: Ask, file: Path) -> bytes:
    """Write a file, and open many; what happens."""
    said = []
    try:
        file.write_bytes(b"x")
    except OSError as error:
        said.append(os.strerror(error.errno or 0))
    try:
        for _ in range(100):
            os.open("/dev/null", os.O_RDONLY)
    except OSError as error:
        said.append(os.strerror(error.errno or 0))
    return "; ".join(said).encode()


def own(_ask: Ask) -> bytes:
    """The names of its files."""
    names = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            names.append(str(number.readlink()))
    return "\n".join(names).encode()


def folder(_ask: Ask) -> bytes:
    """The folder in which it works."""
    return str(Path.cwd()).encode()


def environment(_ask: Ask) -> bytes:
    """All that it knows of an environment: its own, and that with which its process began."""
    began = Path(f"/proc/{os.getpid()}/environ").read_bytes() + Path(f"/proc/{os.getppid()}/environ").read_bytes()
    return began + repr(os.environ).encode()


def numbers(ask: Ask, stop: int) -> Iterator[bytes]:
    """Numbers, each as a question of it is answered."""
    for number in range(stop):
        yield ask(str(number).encode())


def one_then(_ask: Ask, what: str) -> Iterator[bytes]:
    """One piece, and then no more."""
    yield b"one"
    if what == "wrong":
        wrong(_ask)
    if what == "abort":
        abort(_ask)
    if what == "burn":
        burn(_ask)
    yield take(_ask, 1 << 30) if what == "take" else bytes(FRAME_BYTES_MAX + 1)


def pids(_ask: Ask) -> Iterator[bytes]:
    """The number of the process, without an end."""
    while True:
        yield str(os.getpid()).encode()
