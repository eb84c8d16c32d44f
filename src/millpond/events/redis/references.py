"""References: the first rows of open days, with which later rows of the same day are deflated.

A reference is the first entry of its day, so it is there as long as any row of that day is raw, and no failover takes
it without them. A script compares it with the head before a row is stored, so what a process knows may be outdated.
"""

from __future__ import annotations

import struct

from millpond.events.single import is_reference

__all__ = ("References",)

STREAMS_MAX = 4096
_ID_BYTES = 8
_NUMBERS = struct.Struct(">8sI")
_ROW = struct.Struct("<2xI")
_UNKNOWN = b"?"


class References:
    """The references of the streams to which a process appends. Threads may share them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[bytes, bytes]] = {}

    def of(self, head: bytes) -> tuple[bytes, bytes]:
        """The reference of a stream, empty when it is not known, and what the script is to compare, or to answer."""
        return self._rows.get(head, (b"", _UNKNOWN))

    def __contains__(self, head: bytes) -> bool:
        return head in self._rows

    def learn(self, head: bytes, answer: bytes, row: bytes) -> None:
        """Note what was answered about a reference: its id and the row, or only the id when it is the row appended."""
        content = answer[_ID_BYTES:] or row
        if is_reference(content):
            while len(self._rows) >= STREAMS_MAX:
                self._rows.pop(next(iter(self._rows)), None)
            self._rows[head] = content, _NUMBERS.pack(answer[:_ID_BYTES], *_ROW.unpack_from(content))

    def forget(self, head: bytes) -> None:
        """Drop a reference that is another one by now."""
        self._rows.pop(head, None)
