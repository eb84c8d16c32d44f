"""Limits of a node that no pond has a reason to change, and the pace of its jobs."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.errors import Invalid
from millpond.events.watchers import WATCHERS_MAX
from millpond.settings import Settings

__all__ = ("INTERVALS_MS", "LIMITS", "NodeLimits", "intervals_ms")

INTERVALS_MS = {
    "merge": 1_000, "condense": 600_000, "retain": 600_000, "compact": 3_600_000, "snapshot": 600_000,
    "cleanup": 600_000, "events": 600_000, "orphans": 3_600_000, "replicate": 5_000, "compare": 3_600_000, "verify": 0,
    "backups": 3_600_000, "garbage": 21_600_000,
}  # fmt: skip
"""The usual pause between the runs of each job; 0: it runs on request alone."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The limits of one node. All nodes have `LIMITS`; tests of what lies beyond a limit give lower ones."""

    upload_bytes_max: int = 2 << 30  # the largest part that is taken, as it is sent
    part_bytes_max: int = 8 << 30  # the largest part, unpacked
    upload_idle_ms: int = 3_600_000  # an upload that no load enters is removed after this
    files_idle_ms: int = 60_000  # files of a map stay open so long without use
    head_bytes_max: int = 64 << 10  # bytes of a request's head: its address and headers
    head_seconds: float = 15.0  # the time in which a client sends the head of a request
    body_seconds: float = 300.0  # the time in which a client sends a body, and a second more for every 16 KiB of it
    idle_seconds: float = 75.0  # a connection without requests is closed after this
    requests_queued_max: int = 256  # large requests that wait for memory; one more is sent again later
    queue_seconds: float = 20.0  # the time that a large request waits for memory; clients wait longer
    question_seconds: float = 60.0  # the time that a scan or another large question may work on its next piece
    threads: int = 64  # requests that are worked on at once; more of them wait
    large_threads: int = 4  # of large requests, so many are worked on at once; more take turns, batch by batch
    watchers_max: int = WATCHERS_MAX  # watches of streams that are open at once
    connection_bytes: int = 64 << 10  # so much of the memory for requests is one connection of those open at once
    shutdown_seconds: float = 10.0  # the time in which the requests of a node that ends may finish
    client_silent_ms: int = 86_400_000  # a job whose client reports nothing for so long counts as failed


LIMITS = NodeLimits()


def intervals_ms(settings: Settings) -> dict[str, int]:
    """The interval of each job: its usual one, or the one that the settings say.

    Raises: `Invalid` for an interval of something that is no job.
    """
    own = dict(settings.nodes.intervals)
    if unknown := ", ".join(own.keys() - INTERVALS_MS.keys()):
        raise Invalid(
            "the interval is of no job", kind="setting_value", setting="nodes.intervals", value=unknown,
            hint=f"jobs are {', '.join(INTERVALS_MS)}",
        )  # fmt: skip
    return {**INTERVALS_MS, **own}
