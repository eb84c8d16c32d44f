"""Rights on streams of events: patterns of tokens with a slash, `QUEUE/JOB SET`, of the shell.

    etl/*          all job sets of the queue etl
    etl/nightly-*  those that begin so
    *              everything, maps as well

`read` allows to watch, `write` to append, `admin` to compress and to expire.

Invariants:
* a pattern without a slash opens no stream, except `*`: a right on the maps `weather*` is none on a queue `weather`;
* queue and job set are compared one by one: no queue with a slash in its name is taken for another.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from millpond.errors import Denied
from millpond.events.names import StreamName
from millpond.nodes.tokens import Caller

__all__ = ("may_see_queue", "may_stream", "need_queue", "need_stream")


def may_stream(caller: Caller, right: str, stream: StreamName) -> bool:
    """True when a caller has a right on a stream.

    >>> from millpond.nodes.tokens import Caller
    >>> etl = Caller("etl", {"write": ("etl/nightly*",)})
    >>> may_stream(etl, "read", StreamName("etl", "nightly-1")), may_stream(etl, "read", StreamName("etl", "x"))
    (True, False)
    """
    for pattern in caller.patterns(right):
        queue, slash, job_set = pattern.partition("/")
        if pattern == "*" or (slash and fnmatchcase(stream.queue, queue) and fnmatchcase(stream.job_set, job_set)):
            return True
    return False


def need_stream(caller: Caller, right: str, stream: StreamName) -> None:
    """Insist on a right on a stream.

    Raises: `Denied`.
    """
    if not may_stream(caller, right, stream):
        raise Denied(
            "the token does not carry this right", kind="right_missing", token=caller.name, right=right, on=stream,
            hint="use a token that does, or ask who runs the node: millpond token add",
        )  # fmt: skip


def may_see_queue(caller: Caller, queue: str) -> bool:
    """True when a caller may read any stream of a queue."""
    patterns = (pattern.partition("/") for pattern in caller.patterns("read"))
    return any((queues == "*" and not slash) or (slash and fnmatchcase(queue, queues)) for queues, slash, _ in patterns)


def need_queue(caller: Caller, right: str, queue: str) -> None:
    """Insist on a right on all streams of a queue: the pattern `QUEUE/*`.

    Raises: `Denied`.
    """
    for pattern in caller.patterns(right):
        queues, slash, job_sets = pattern.partition("/")
        if pattern == "*" or (slash and job_sets == "*" and fnmatchcase(queue, queues)):
            return
    raise Denied(
        "the token does not carry this right", kind="right_missing", token=caller.name, right=right, on=f"{queue}/*",
        hint="use a token that does, or ask who runs the node: millpond token add",
    )  # fmt: skip
