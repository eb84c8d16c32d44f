"""The newest runs of a server, which lists the oldest first: windows of time are read, each further back and longer.

Invariants:
* the runs come newest first, each once, whatever is begun meanwhile;
* memory holds as many ids as are wanted, however many a window has.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("every_result", "newest_runs")

FIRST_MS = 60_000
LONGER = 8
"""Ten windows reach further back than any run."""
PAGE = 1_000


def newest_runs(call: Any, request: Any, limit: int, now_ms: int) -> list[Any]:
    """The ids of the `limit` newest runs that a `SearchWfRunRequest` wants; its `latest_start` is kept to."""
    ids: list[Any] = []
    until = request.latest_start.ToMilliseconds() if request.HasField("latest_start") else None
    span, since = FIRST_MS, (now_ms if until is None else until) - FIRST_MS
    while True:
        window = deque(_ids(call, request, max(0, since), until), maxlen=limit - len(ids))
        ids.extend(reversed(window))
        if len(ids) == limit or since <= 0:
            return ids
        span *= LONGER
        since, until = since - span, since - 1


def _ids(call: Any, search_request: Any, since: int, until: int | None) -> Iterator[Any]:
    """The ids of the runs begun in a window, both ends included, the oldest first."""
    request = type(search_request)()
    request.CopyFrom(search_request)
    request.limit = PAGE
    request.earliest_start.FromMilliseconds(since)
    if until is not None:
        request.latest_start.FromMilliseconds(until)
    return every_result(call, "SearchWfRun", request)


def every_result(call: Any, method: str, request: Any) -> Iterator[Any]:
    """The results of all pages of a search."""
    while True:
        page = call(method, request)
        yield from page.results
        if not page.HasField("bookmark"):
            return
        request.bookmark = page.bookmark
