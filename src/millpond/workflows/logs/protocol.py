"""A command log: bytes in partitions, each partition one order that all its readers see alike.

    append ─▶ the end of a partition ─▶ durable ─▶ everybody who follows it

What a driver must keep is written as tests in `millpond.testing.contracts.command_logs`.

Invariants every driver keeps:
* positions of a partition begin with 1 and rise; an entry never changes, nor its position;
* the position of an entry is given when the entry is durable, and nobody reads an entry that is not: what was read once
  is read by every later reader, until it is trimmed;
* the entries that one caller appends to a partition one after another come in that order;
* an append that failed with `Uncertain` was made or not, once at most; with any other error it was not made;
* only the oldest entries are trimmed; whoever follows from before them gets an error, and never skips one;
* `end` is not before any entry whose position was given to anybody before the call.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from millpond.errors import NotFound

__all__ = ("CommandLog", "Entry", "Following", "trimmed")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry in its place."""

    position: int
    data: bytes


class Following(Protocol):
    """A place in a partition, which moves on as entries are read. One thread uses it."""

    def next(self, limit: int, seconds: float) -> list[Entry]:
        """The entries that follow, at most `limit`; none when none came within some seconds.

        Raises:
            NotFound: kind `log_trimmed`: the next one is gone.
            Unavailable: the log cannot be reached now.
        """

    def close(self) -> None:
        """End it; to end it again is no error."""


class CommandLog(Protocol):
    """A log. Threads may share it."""

    @property
    def partitions(self) -> int:
        """The number of partitions; they are 0, 1, 2 …"""

    def append(self, partition: int, data: bytes) -> Future[int]:
        """Put an entry to the end of a partition; its position, when it is durable.

        Raises (the future): `Unavailable`: it was not made; `Uncertain`; `Invalid`: it is too large.
        """

    def follow(self, partition: int, after: int) -> Following:
        """The entries behind a position, and those to come.

        Raises:
            NotFound: kind `log_trimmed`: the next one is gone.
        """

    def end(self, partition: int) -> int:
        """The position of the last entry of a partition; 0 when there never was one.

        Raises:
            Unavailable: the log cannot be reached now.
        """

    def trim(self, partition: int, before: int) -> None:
        """Drop the entries before a position; what is behind the end stays to come."""

    def close(self) -> None:
        """Let go of everything; appends that are under way end with an error."""


def trimmed(partition: int, after: int, first: int | None) -> NotFound:
    """The error of a reader who is behind the oldest entry."""
    return NotFound(
        "the log no longer reaches back so far", kind="log_trimmed", partition=partition, after=after, first=first,
        hint="begin with a checkpoint",
    )  # fmt: skip
