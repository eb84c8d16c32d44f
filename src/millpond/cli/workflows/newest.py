"""The newest runs of a server, which lists the oldest first: windows of time are read, each further back and longer.

Invariants:
* the runs come newest first, each once, whatever is begun meanwhile;
* memory holds as many ids as are wanted, however many a window has.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from millpond.cli.workflows.server import every_result

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("newest_runs",)

FIRST_MS = 60_000
LONGER = 8
"""Ten windows reach further back than any run."""
PAGE = 1_000


def newest_runs(call: Any, request: Any, limit: int, now_ms: int) -> list[Any]:
    """The ids of the `limit` newest runs that a `SearchWfRunRequest` wants."""
    ids: list[Any] = []
    span, since, until = FIRST_MS, now_ms - FIRST_MS, None
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
