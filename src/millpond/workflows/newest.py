"""The newest runs of a server, which lists the oldest first: windows of time are read, each further back and longer.

A window that has more runs than a page is cut in halves, of which the newer one is looked at first.

Invariants:
* the runs come newest first, each once, whatever is begun meanwhile;
* however many runs there are, some pages are read: none of a window that has more, but those of one millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ("every_result", "newest", "newest_runs")

FIRST_MS = 60_000
LONGER = 8
"""Ten windows reach further back than any run."""
PAGE = 100

T = TypeVar("T")
_Window = Callable[[int, int | None], tuple[Iterable[T], bool]]
"""The first runs begun in a window, both ends included, the oldest first; True when there are more. Without an end it
has none.
"""


def newest(
    first_of: _Window[T], all_of: Callable[[int, int | None], Iterator[T]], limit: int, now_ms: int,
    earliest: int = 0, until: int | None = None,
) -> list[T]:  # fmt: skip
    """The `limit` newest runs that began between two instants; `all_of` has all runs of a window."""
    runs: list[T] = []
    span, since = FIRST_MS, (now_ms if until is None else until) - FIRST_MS
    while True:
        for window in _windows(first_of, all_of, max(earliest, since), until, now_ms):
            runs.extend(reversed(deque(window, maxlen=limit - len(runs))))
            if len(runs) == limit:
                return runs
        if since <= earliest:
            return runs
        span *= LONGER
        since, until = since - span, since - 1


def newest_runs(call: Any, request: Any, limit: int, now_ms: int) -> list[Any]:
    """The ids of the `limit` newest runs that a `SearchWfRunRequest` wants; its times are kept to."""

    def first_of(first: int, last: int | None) -> tuple[Iterable[Any], bool]:
        page = call("SearchWfRun", _search(request, first, last))
        return page.results, page.HasField("bookmark")

    def all_of(first: int, last: int | None) -> Iterator[Any]:
        return every_result(call, "SearchWfRun", _search(request, first, last))

    until = request.latest_start.ToMilliseconds() if request.HasField("latest_start") else None
    earliest = request.earliest_start.ToMilliseconds() if request.HasField("earliest_start") else 0
    return newest(first_of, all_of, limit, now_ms, earliest, until)


def _windows(
    first_of: _Window[T], all_of: Callable[[int, int | None], Iterator[T]], since: int, until: int | None, now_ms: int
) -> Iterator[Iterable[T]]:  # fmt: skip
    """The runs of a window, in shorter windows of which the newest comes first; those of each are the oldest first."""
    windows = [(since, until)]
    while windows:
        first, last = windows.pop()
        rows, has_more = first_of(first, last)
        end = max(first, now_ms) if last is None else last
        if not has_more:
            yield rows
        elif first == last or (last is None and first > now_ms):
            yield all_of(first, last)
        else:
            middle = (first + end) // 2
            windows += [(first, middle), (middle + 1, last)]


def _search(request: Any, since: int, until: int | None) -> Any:
    search = type(request)()
    search.CopyFrom(request)
    search.limit = PAGE
    search.earliest_start.FromMilliseconds(since)
    if until is not None:
        search.latest_start.FromMilliseconds(until)
    return search


def every_result(call: Any, method: str, request: Any) -> Iterator[Any]:
    """The results of all pages of a search."""
    while True:
        page = call(method, request)
        yield from page.results
        if not page.HasField("bookmark"):
            return
        request.bookmark = page.bookmark
