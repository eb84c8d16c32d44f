"""Topics that others read: records by a key, of which each is there once.

    open ─▶ the place of the last page ─▶ write a page with its place ─▶ write …

Invariants every driver keeps:
* whoever reads finds a page whole, once, or not at all; `open` tells which it was;
* of several writers the one that was opened last writes: the others get an error, and open anew;
* records of one key are in the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

__all__ = ("RECORD_BYTES_MAX", "TopicRecord", "Topics")

RECORD_BYTES_MAX: Final = 1_000_000
"""A broker takes 1 MiB by default, with what Kafka adds."""


class TopicRecord(NamedTuple):
    """A record for a topic; without data the topic alone is made."""

    topic: str
    key: str = ""
    data: bytes = b""


class Topics(Protocol):
    """A writer. One thread uses it."""

    @property
    def is_open(self) -> bool:
        """True between `open` and an error."""

    def open(self) -> tuple[int, int]:
        """Begin to write, in place of every earlier writer: the place of the last page, (0, 0) for none.

        Raises:
            Unavailable: kind `output_unreachable`.
        """

    def write(self, records: Sequence[TopicRecord], position: tuple[int, int]) -> None:
        """Write a page; places rise.

        Raises:
            Unavailable: kind `output_unreachable`: it was written, or not. `open` tells which.
        """
