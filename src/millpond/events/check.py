"""Checking streams through their protocol, wherever they live: what can be read is what the index says.

Every batch is read, so its header and its checksum are looked at. Streams may be appended to, compressed and dropped
meanwhile: a stream in which something is wrong is looked at again while its index is another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.events.days import DAY_MAX, format_day
from millpond.events.event import Event
from millpond.events.index import State, StreamIndex, day_faults, forget_day
from millpond.events.names import StreamName
from millpond.events.protocol import HIDDEN_DAY, StreamStore, Work
from millpond.kernel.page import all_behind
from millpond.kernel.verify import Report, attempt, checked, problem

__all__ = ("check_store",)

_REMEDY = "restore the streams from a copy of their server"
_LOOKS = 5
_PAGE = 500


def check_store(store: StreamStore) -> Report:
    """Check every stream of a store, and its registry of work."""
    report = Report()
    for stream in all_behind(lambda after: store.streams(None, after, limit=_PAGE)):
        report += attempt("stream", str(stream), lambda stream=stream: _check(store, stream), _REMEDY)  # type: ignore[misc]
    for work in Work:
        report += attempt("registry", work.value, lambda work=work: _check_registry(store, work), _REMEDY)  # type: ignore[misc]
    return report


def _check(store: StreamStore, stream: StreamName) -> Iterator[Report]:
    for look in range(_LOOKS):
        index = store.index(stream)
        faults = [] if index is None else list(_faults(store, index))
        if not faults or (look and store.index(stream) == index):
            break
    yield checked("stream")
    for fault in faults:
        yield problem("stream", str(stream), fault, _REMEDY, counted=False)


def _faults(store: StreamStore, index: StreamIndex) -> Iterator[str]:
    days = [day for day, state in index.days() if state is not State.EXPIRED]
    return day_faults(days, index.dropped_id, _events(store, index) if days else ())


def _events(store: StreamStore, index: StreamIndex) -> Iterator[Event]:
    """The events that an index knows of, page by page."""
    after, more = index.dropped_id, True
    while more:
        page = store.read(index.stream, after)
        yield from (event for event in page.events if event.number <= index.last_id)
        after, more = page.after, page.more and page.after < index.last_id


def _check_registry(store: StreamStore, work: Work) -> Iterator[Report]:
    """Each entry is of a stream that has such work, on that day."""
    after = None
    while page := store.due(work, DAY_MAX, after, limit=_PAGE):
        for due in page:
            index = store.index(due.stream)
            hidden = work is Work.EXPIRE and due.day == HIDDEN_DAY  # what is deleted has no index any more
            if index is None or (due.day != _oldest(index, work) and not hidden):
                again = store.due(work, DAY_MAX, after, limit=_PAGE)
                if due in again and store.index(due.stream) == index:
                    fault = f"{due.stream} has no such work on {format_day(due.day)}"
                    yield problem("registry", work.value, fault, _REMEDY)
                    continue
            yield checked("registry")
        after = page[-1]


def _oldest(index: StreamIndex, work: Work) -> int | None:
    if work is Work.FORGET:
        return None if index.segments else forget_day(index.last_id, index.last_day)
    raw = (State.OPEN, State.CLOSED)
    days = [day.day for day, state in index.days() if work is Work.EXPIRE or state in raw]
    return days[0] if days else None
