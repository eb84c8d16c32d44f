"""The newest runs of a server, which lists the oldest first: windows of time are read, each further back and longer.

Invariants:
* the runs come newest first, each once, whatever is begun meanwhile;
* memory holds as many ids as are wanted, however many a window has.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("newest_runs",)

FIRST_MS = 60_000
LONGER = 8
"""Ten windows reach further back than any run."""
PAGE = 1_000


def newest_runs(search: Callable[[Any], Any], request: Any, limit: int, now_ms: int) -> list[Any]:
    """The ids of the `limit` newest runs that a `SearchWfRunRequest` wants, by way of the method `search`."""
    ids: list[Any] = []
    span, since, until = FIRST_MS, now_ms - FIRST_MS, None
    while True:
        window = deque(_ids(search, request, max(0, since), until), maxlen=limit - len(ids))
        ids.extend(reversed(window))
        if len(ids) == limit or since <= 0:
            return ids
        span *= LONGER
        since, until = since - span, since - 1


def _ids(search: Callable[[Any], Any], search_request: Any, since: int, until: int | None) -> Iterator[Any]:
    """The ids of the runs begun in a window, both ends included, the oldest first."""
    request = type(search_request)()
    request.CopyFrom(search_request)
    request.limit = PAGE
    request.earliest_start.FromMilliseconds(since)
    if until is not None:
        request.latest_start.FromMilliseconds(until)
    while True:
        page = search(request)
        yield from page.results
        if not page.HasField("bookmark"):
            return
        request.bookmark = page.bookmark
