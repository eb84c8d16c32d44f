"""Connections to one server, which calls take and give back.

redis-py opens a connection: it knows TLS, users and passwords. What goes over it afterwards is packed and parsed by
hiredis alone: redis-py's own way around it takes longer than Redis takes to append an event.

Invariants:
* a connection is given back only when every answer was read, so that no call gets the answer of another;
* one that the server has closed meanwhile is not given out: a call that is lost at once would be `Uncertain`.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import hiredis
import redis
from redis.connection import Connection, DefaultParser

__all__ = ("Argument", "Connections", "Line")

READ_BYTES = 64 << 10
SEND_BYTES = 16 << 10
_LACKING = object()

Argument = bytes | int | str
_packed: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # it takes more than one


class Line:
    """A connection. Its methods raise redis-py's errors, or an `OSError` when it is lost."""

    def __init__(self, connection: Connection) -> None:
        self._opened = connection
        connection.connect()
        self._socket = cast("socket.socket", connection._sock)  # noqa: SLF001 - redis-py gives it to nobody
        self._reader = hiredis.Reader(replyError=DefaultParser.parse_error, notEnoughData=_LACKING)
        self._awaited = 0
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def send(self, commands: Iterable[tuple[Argument, ...]]) -> None:
        """Send commands; each has an answer. The server works on the first while the last are still made."""
        parts: list[bytes] = []
        size = 0
        for command in commands:
            parts.append(_packed(command))
            self._awaited, size = self._awaited + 1, size + len(parts[-1])
            if size >= SEND_BYTES:
                self._socket.sendall(b"".join(parts))
                parts, size = [], 0
        if parts:
            self._socket.sendall(b"".join(parts))

    def send_one(self, command: tuple[Argument, ...]) -> None:
        """Send a command."""
        self._awaited += 1
        self._socket.sendall(_packed(command))

    def receive(self) -> Any:
        """The next answer; an error of the server is raised."""
        reply = self._reader.gets()
        while reply is _LACKING:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise redis.exceptions.ConnectionError("the server closed the connection")
            self._reader.feed(data)
            reply = self._reader.gets()
        self._awaited -= 1
        if isinstance(reply, redis.exceptions.RedisError):
            raise reply
        return reply

    def call(self, *command: Argument) -> Any:
        """The answer to a command."""
        self.send_one(command)
        return self.receive()

    @property
    def is_clean(self) -> bool:
        """True when every answer was read."""
        return not self._awaited

    @property
    def is_quiet(self) -> bool:
        """True when the server sent nothing more, nor closed the connection."""
        return not self._poll.poll(0)

    def close(self) -> None:
        self._opened.disconnect()


class Connections:
    """The connections to one server; safe to share between threads, and left behind by a forked process."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._class: type[Connection] = self._options.pop("connection_class", Connection)
        self._free: list[Line] = []
        self._process = os.getpid()
        self._is_closed = False

    def take(self) -> Line:
        """A connection that is ready for use.

        Raises: redis-py's errors, when the server cannot be reached, or does not let the user in.
        """
        if self._process != os.getpid():
            self._free, self._process = [], os.getpid()
        while self._free:
            try:
                line = self._free.pop()
            except IndexError:  # another thread took it
                break
            if line.is_quiet:
                return line
            line.close()
        return Line(self._class(**self._options))

    def give_back(self, line: Line) -> None:
        """Leave a connection to others; one that is not clean is closed."""
        if self._is_closed or not line.is_clean:
            line.close()
        else:
            self._free.append(line)

    def close(self) -> None:
        """Close what is not in use; the rest is closed when it is given back."""
        self._is_closed = True
        while self._free:
            self._free.pop().close()
