"""Reports of work that a client does for a pond on nodes, such as a load through Spark: appended to the node's streams.

Invariants:
* the client never waits for its reports, and fails for none: see `millpond.reports.reporter`;
* a token without the right to append to the queue `millpond` reports nothing; then the node reports what it sees;
* a job that a client reports is not reported by the node again. Its failure is stored once, whichever of the client's
  processes reports it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.errors import Denied
from millpond.reports.open_jobs import NoMarks
from millpond.reports.reporter import Reporter

if TYPE_CHECKING:
    from millpond.client.events import RemoteEvents
    from millpond.clock import Clock
    from millpond.events.event import EventBatch

__all__ = ("remote_reporter",)

_LOG = logging.getLogger(__name__)


def remote_reporter(events: RemoteEvents, clock: Clock) -> Reporter:
    """The place that the jobs of a client report to."""
    return Reporter(_NodeStreams(events), clock, NoMarks())


class _NodeStreams:
    """The streams on a node, for one who may not be allowed to append to them."""

    def __init__(self, events: RemoteEvents) -> None:
        self._events, self._denied = events, False

    def append(self, batches: Sequence[EventBatch]) -> None:
        """Append batches; nothing once the node has denied it."""
        try:
            for batch in batches if not self._denied else ():
                self._append(batch)
        except Denied:
            self._denied = True
            _LOG.info("the token may not append to the queue of reports: the node reports this work from its commit on")

    def _append(self, batch: EventBatch) -> None:
        queue, job_set = batch.stream
        failed = [event for event in batch.events if event.kind == "failed"]
        others = [event for event in batch.events if event.kind != "failed"]
        if others:
            self._events.append(queue, job_set, others)
        for event in failed:
            self._events.append(queue, job_set, [event], source=f"failed:{event.headers['job_id']}", positions=[1])
