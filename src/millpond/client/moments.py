"""The moment of a pond in a bucket that a client has seen: each node shows it that, see `server/moments.py`."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ("MOMENT_HEADER", "Moments")

MOMENT_HEADER = "Millpond-Moment"


class Moments:
    """The greatest moment that the nodes of one pond have answered. Threads may share it."""

    def __init__(self) -> None:
        self._seen = 0

    def see(self, headers: Mapping[str, str]) -> None:
        """Remember the moment of an answer; nodes with folders of their own name none."""
        text = headers.get(MOMENT_HEADER, "")
        if text.isdigit():
            self._seen = max(self._seen, int(text))

    def headers(self) -> dict[str, str]:
        """The headers of a request."""
        return {MOMENT_HEADER: str(self._seen)} if self._seen else {}
