"""The newest runs of a server, which lists the oldest first: windows of time are read, each further back and longer.

A window that has more runs than a page is cut in halves, of which the newer one is looked at first.

Invariants:
* the runs come newest first, each once, whatever is begun meanwhile;
* however many runs there are, some pages are read: none of a window that has more, but those of one millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

__all__ = ("every_result", "newest_runs")

FIRST_MS = 60_000
LONGER = 8
"""Ten windows reach further back than any run."""
PAGE = 100


def newest_runs(call: Any, request: Any, limit: int, now_ms: int) -> list[Any]:
    """The ids of the `limit` newest runs that a `SearchWfRunRequest` wants; its times are kept to."""
    ids: list[Any] = []
    until = request.latest_start.ToMilliseconds() if request.HasField("latest_start") else None
    earliest = request.earliest_start.ToMilliseconds() if request.HasField("earliest_start") else 0
    span, since = FIRST_MS, (now_ms if until is None else until) - FIRST_MS
    while True:
        for window in _windows(call, request, max(earliest, since), until, now_ms):
            ids.extend(reversed(deque(window, maxlen=limit - len(ids))))
            if len(ids) == limit:
                return ids
        if since <= earliest:
            return ids
        span *= LONGER
        since, until = since - span, since - 1


def _windows(call: Any, request: Any, since: int, until: int | None, now_ms: int) -> Iterator[Iterator[Any]]:
    """The ids of the runs begun in a window, both ends included, in shorter windows of which the newest comes first.

    Those of each are the oldest first. Without `until` it has no end.
    """
    windows = [(since, until)]
    while windows:
        first, last = windows.pop()
        search = _search(request, first, last)
        page = call("SearchWfRun", search)
        end = max(first, now_ms) if last is None else last
        if not page.HasField("bookmark"):
            yield iter(page.results)
        elif first == last or (last is None and first > now_ms):
            yield every_result(call, "SearchWfRun", search)
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
