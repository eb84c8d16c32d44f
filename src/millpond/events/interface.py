"""The interface of streams for their users, the same for a pond in a folder and for one on nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from millpond.events.appender import LINGER, Appender
from millpond.events.operations import EventsOperations

if TYPE_CHECKING:
    from millpond.events.age_settings import AgeSettings
    from millpond.events.event import Appended, Event, NewEvent
    from millpond.events.export import Exported
    from millpond.events.filters import Filters
    from millpond.events.index import StreamIndex
    from millpond.events.many_watch import StreamEvent, Streams
    from millpond.events.names import StreamName

__all__ = ("EventsLike", "ManyWatchLike", "WatchLike")


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


class ManyWatchLike(Protocol):
    """A reader of several streams: see `events.many_watch.ManyWatch`."""

    @property
    def after(self) -> dict[StreamName, str]: ...
    @property
    def caught_up(self) -> bool: ...
    @property
    def gaps(self) -> frozenset[StreamName]: ...
    def next_batch(self, due: float | None) -> list[StreamEvent]: ...
    def __iter__(self) -> Iterator[StreamEvent]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class EventsLike(EventsOperations, Protocol):
    """The streams of a pond: see `events.events.Events`."""

    def append(
        self, queue: str, job_set: str, events: Iterable[NewEvent | bytes], *, source: str = "",
        positions: Sequence[int] = (),
    ) -> Appended: ...  # fmt: skip
    def appender(self, linger: str | int = LINGER) -> Appender: ...
    def read(
        self, queue: str, job_set: str, after: str = "", *, filters: Filters | None = None
    ) -> Iterator[Event]: ...  # fmt: skip
    def watch(self, queue: str, job_set: str, after: str = "", *, filters: Filters | None = None) -> WatchLike: ...
    def watch_many(self, streams: Streams, *, filters: Filters | None = None) -> ManyWatchLike: ...
    def index(self, queue: str, job_set: str) -> StreamIndex | None: ...
    def indexes(self, queue: str | None = None) -> Iterator[StreamIndex]: ...
    def streams(self, queue: str | None = None) -> Iterator[StreamName]: ...
    def export(
        self, out: str | os.PathLike[str], queue: str | None = None, job_sets: str | Iterable[str] = (), *,
        after: str = "", until: str = "", filters: Filters | None = None, advance: Callable[[int], object] = ...,
    ) -> Exported: ...  # fmt: skip
    @property
    def settings(self) -> AgeSettings: ...
