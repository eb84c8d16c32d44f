"""Rights on streams of events: patterns of tokens, `stream:QUEUE/JOB SET`, of the shell.

    stream:etl            all job sets of the queue etl
    stream:etl/nightly-*  those that begin so
    *                     everything, maps as well

`read` allows to watch, `write` to append, `admin` to delete and to set ages; on everything, to compress and to expire.

Invariants:
* a pattern of another kind, or of none, opens no stream, except `*`: a right on the maps `weather*`, or on workflows
  of the tenant `weather`, is none on a queue `weather`;
* queue and job set are compared one by one: no queue with a slash in its name is taken for another;
* a page of a list goes on after a stream of its reader: the names of others are for theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore
from millpond.kernel.page import all_behind
from millpond.nodes.tokens import Caller, split_pattern

__all__ = ("may_see_queue", "may_stream", "need_queue", "need_stream", "readable_streams")

_READ_MIN = 100


def may_stream(caller: Caller, right: str, stream: StreamName) -> bool:
    """True when a caller has a right on a stream.

    >>> from millpond.nodes.tokens import Caller
    >>> etl = Caller("etl", {"write": ("stream:etl/nightly*",)})
    >>> may_stream(etl, "read", StreamName("etl", "nightly-1")), may_stream(etl, "read", StreamName("etl", "x"))
    (True, False)
    """
    return any(
        fnmatchcase(stream.queue, queue) and fnmatchcase(stream.job_set, job_set)
        for queue, job_set in _patterns(caller, right)
    )


def need_stream(caller: Caller, right: str, stream: StreamName) -> None:
    """Insist on a right on a stream.

    Raises: `Denied`.
    """
    if not may_stream(caller, right, stream):
        raise caller.denied(right, f"stream:{stream}")


def readable_streams(
    store: StreamStore, caller: Caller, queue: str | None, after: StreamName | None, limit: int
) -> tuple[list[StreamName], StreamName | None]:
    """A page of the streams that a caller may read, of one queue or of all, and the one after which the next begins."""
    streams = all_behind(lambda last: store.streams(queue, last, limit=max(limit + 1, _READ_MIN)), after)
    page = list(islice((stream for stream in streams if may_stream(caller, "read", stream)), limit + 1))
    return page[:limit], page[limit - 1] if len(page) > limit else None


def may_see_queue(caller: Caller, queue: str) -> bool:
    """True when a caller may read any stream of a queue."""
    return any(fnmatchcase(queue, queues) for queues, _ in _patterns(caller, "read"))


def need_queue(caller: Caller, right: str, queue: str) -> None:
    """Insist on a right on all streams of a queue: the pattern `stream:QUEUE`.

    Raises: `Denied`.
    """
    if not any(job_sets == "*" and fnmatchcase(queue, queues) for queues, job_sets in _patterns(caller, right)):
        raise caller.denied(right, f"stream:{queue}/*")


def _patterns(caller: Caller, right: str) -> Iterator[tuple[str, str]]:
    return map(split_pattern, caller.patterns(right, "stream"))
