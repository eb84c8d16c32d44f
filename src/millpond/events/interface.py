"""The interface of streams for their users, the same for a pond in a folder and for one on nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from millpond.events.event import Appended, Event, NewEvent

__all__ = ("EventsLike", "WatchLike")


class WatchLike(Protocol):
    """A reader that waits for more: see `events.watchers.Watch`."""

    @property
    def after(self) -> str: ...
    @property
    def caught_up(self) -> bool: ...
    @property
    def gap(self) -> bool: ...
    def next_batch(self, due: float | None) -> list[Event]: ...
    def __iter__(self) -> Iterator[Event]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class EventsLike(Protocol):
    """The streams of a pond: see `events.events.Events`."""

    def append(
        self, queue: str, job_set: str, events: Iterable[NewEvent | bytes], *, source: str = "",
        positions: Sequence[int] = (),
    ) -> Appended: ...  # fmt: skip
    def read(self, queue: str, job_set: str, after: str = "") -> Iterator[Event]: ...
    def watch(self, queue: str, job_set: str, after: str = "") -> WatchLike: ...
