"""The lines that a node sends to a watch; after a lost connection the response is begun anew.

Invariant: a line is given once and whole. The rest of a line that was cut off is dropped with its response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from millpond.client.body import Body
from millpond.errors import Unavailable

__all__ = ("WatchedLines",)


class WatchedLines:
    """The lines of a watch. `begin` requests a response that goes on where the lines that were taken end."""

    def __init__(self, begin: Callable[[], Body], *, follow: bool) -> None:
        self._begin, self.follow = begin, follow
        self._body: Body | None = None
        self._rest = b""
        self._again: deque[bytes] = deque()
        self.caught_up = False

    def take(self) -> list[bytes]:
        """The next lines; none at the end of a response that does not follow.

        Raises:
            Unavailable: the node cannot be reached. Denied: the token may not watch.
        """
        lines, self._again = self._again, deque()
        while not lines:
            if self._body is None:
                self._body = self._begin()
            try:
                data = self._body.read_some()
            except Unavailable:
                self.close()  # the next one begins after the last event
                continue
            if not data:
                self.close()
                if self.follow:
                    continue
                self.caught_up = True
                break
            *whole, self._rest = (self._rest + data).split(b"\n")
            lines.extend(whole)
        return list(lines)

    def take_again(self, line: bytes) -> None:
        """Let a line be taken again, alone: what came before it is delivered first."""
        self._again.append(line)

    def note(self, line: Mapping[str, Any]) -> Any:
        """Note a line about the reading; up to where all was sent, if it says so: an id, or one for each stream.

        It does not say so with a `gap`, which comes before the events that were read with it.

        Raises:
            Unavailable: the node ended the watch.
        """
        if "error" in line:
            raise Unavailable("the node ended the watch", kind="watch_ended", reason=line["error"].get("message"))
        self.caught_up = self.caught_up or "caught_up" in line
        return line.get("caught_up", line.get("alive"))

    def close(self) -> None:
        """Let go of the response; closing twice is harmless."""
        body, self._body, self._rest = self._body, None, b""
        if body is not None:
            body.close()
