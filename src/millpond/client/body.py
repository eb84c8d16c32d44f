"""The body of an answer that is read as it comes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import urllib3

from millpond.client.connections import Broken, breaking, unreachable

if TYPE_CHECKING:
    from millpond.settings import Settings

__all__ = ("Body",)


class Body(io.RawIOBase):
    """An answer that is being read."""

    def __init__(self, node: str, answer: urllib3.BaseHTTPResponse, settings: Settings) -> None:
        super().__init__()
        self.node, self.status, self.headers = node, answer.status, answer.headers
        self._answer, self._settings = answer, settings

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """As of any file.

        Raises: `Unavailable` kind `node_unreachable` when the connection is lost.
        """
        try:
            with breaking(self._settings):
                return self._answer.read(None if size is None or size < 0 else size)
        except Broken as broken:
            raise unreachable(self.node, broken) from None

    def read_some(self) -> bytes:
        """The bytes that have come, at least one; none at the end.

        Raises: as `read`.
        """
        try:
            with breaking(self._settings):
                return self._answer.read1()
        except Broken as broken:
            raise unreachable(self.node, broken) from None

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Let go: of the connection, too, when not all of it was read."""
        if not self.closed:
            self._answer.close()
            self._answer.release_conn()
        super().close()
