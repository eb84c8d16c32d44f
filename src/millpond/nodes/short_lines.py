"""Short questions over kept sockets: the request and its answer are a packet each, and so is the work for them.

urllib3 does much for every request that a question for one value does not need, and takes several times as long for it
as the node for the answer. Here a GET is written and its answer is read, and nothing else: one status, one
`Content-Length`, one body.

Invariants:
* an answer that is in any other form, of a gateway perhaps, is not understood here; the caller asks by urllib3 then,
  and from then on;
* a socket is used by one question at a time, and kept only after a whole answer: nothing of another one is in it;
* a kept socket that was closed at the other end is no broken line; the next is taken, then a new one.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from urllib3.util.wait import wait_for_read

from millpond.nodes.lines import CONNECTIONS_KEPT, Broken

if TYPE_CHECKING:
    from millpond.settings import Settings

__all__ = ("Answered", "ShortLines")

READ_BYTES = 1 << 16
HEAD_BYTES_MAX = 1 << 16
_HEAD_ENDS = b"\r\n\r\n"


class Answered(NamedTuple):
    """A whole answer; names of headers in small letters."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class _Strange(Exception):
    """What came is no answer in the one form that is understood here."""


class ShortLines:
    """Sockets of this process to one node, over plain HTTP. Threads may share them; a fork opens its own."""

    def __init__(self, url: str, settings: Settings) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address = parts.hostname, parts.port or 80
        self._host = parts.netloc.rpartition("@")[2]
        self._url, self._settings = url, settings
        # Whoever can be reached by TLS only, or whose name is no ASCII, is asked by urllib3.
        self.usable = parts.scheme == "http" and self._host.isascii()
        self._kept: tuple[int, deque[socket.socket]] = os.getpid(), deque()

    def __getstate__(self) -> tuple[str, Settings]:
        return self._url, self._settings

    def __setstate__(self, state: tuple[str, Settings]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # sockets stay where they were opened

    def ask(self, path: str, headers: Mapping[str, str]) -> Answered | None:
        """What the node answers to a GET; None: ask it by urllib3, which also knows what is wrong.

        Raises: `Broken` when it does not answer in time.
        """
        request = _request(path, {"Host": self._host, **headers})
        if request is None:
            return None
        answered = None
        while self.usable and answered is None and (line := self._taken()) is not None:
            answered = self._over(line, request)
        if self.usable and answered is None and (line := self._opened()) is not None:
            answered = self._over(line, request)
        return answered

    def _taken(self) -> socket.socket | None:
        """A kept line, of those that nothing has come over meanwhile, not even its end."""
        kept = self._mine()
        while True:
            try:
                line = kept.pop()
            except IndexError:
                return None
            if not wait_for_read(line, 0):
                return line
            line.close()

    def _mine(self) -> deque[socket.socket]:
        process, kept = self._kept
        if process != os.getpid():
            # The sockets of the parent are closed here, and stay open there.
            process, kept = self._kept = os.getpid(), deque()
        return kept

    def _opened(self) -> socket.socket | None:
        settings = self._settings
        try:
            made = socket.create_connection(self._address, settings.connect_timeout / 1000)
        except TimeoutError:
            raise Broken(f"no connection within {settings.connect_timeout / 1000:g} s", sent=False) from None
        except (OSError, ValueError):
            return None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(settings.read_timeout / 1000)
        return made

    def _over(self, line: socket.socket, request: bytes) -> Answered | None:
        """The answer over a line, which is kept if it may be; None when it broke, or what came is strange."""
        whole = False
        try:
            line.sendall(request)
            answered = _answer(line)
            whole = answered.headers.get("connection", "keep-alive").lower() == "keep-alive"
        except TimeoutError:
            raise Broken("no answer in time", sent=True) from None
        except _Strange:
            self.usable = False
            return None
        except OSError:
            return None
        else:
            return answered
        finally:
            self._leave(line, whole)

    def _leave(self, line: socket.socket, whole: bool) -> None:
        kept = self._mine()
        if whole and len(kept) < CONNECTIONS_KEPT:
            kept.append(line)
        else:
            line.close()

    def close(self) -> None:
        """Close idle sockets; they are opened again when something is asked."""
        while (line := self._taken()) is not None:
            line.close()


def _request(path: str, headers: Mapping[str, str]) -> bytes | None:
    """The bytes of a GET; None when something in it cannot be sent as it is."""
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if not all(line.isascii() and line.isprintable() for line in lines) or " " in path:
        return None
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _answer(line: socket.socket) -> Answered:
    """One whole answer.

    Raises: `OSError` when the line breaks before its end; `_Strange`.
    """
    came = line.recv(READ_BYTES)
    while (end := came.find(_HEAD_ENDS)) < 0:
        if len(came) > HEAD_BYTES_MAX:
            raise _Strange
        came += _more(line) if came else _nothing()
    status, headers = _head(came[:end])
    size = _size(headers)
    body = came[end + len(_HEAD_ENDS) :]
    if len(body) < size:
        body = _rest(line, body, size)
    if len(body) > size:
        raise _Strange
    return Answered(status, headers, body)


def _head(told: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = told.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1" or not rest[:3].isdecimal() or not 200 <= int(rest[:3]) <= 599:
        raise _Strange
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(rest[:3]), headers


def _size(headers: Mapping[str, str]) -> int:
    told = headers.get("content-length", "")
    if not (told.isascii() and told.isdecimal()) or "transfer-encoding" in headers or "content-encoding" in headers:
        raise _Strange
    return int(told)


def _rest(line: socket.socket, body: bytes, size: int) -> bytes:
    whole = bytearray(body)
    while len(whole) < size:
        whole += _more(line)
    return bytes(whole)


def _more(line: socket.socket) -> bytes:
    return line.recv(READ_BYTES) or _nothing()


def _nothing() -> bytes:
    raise ConnectionError("it was closed at the other end")
