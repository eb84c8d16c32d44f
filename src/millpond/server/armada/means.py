"""The means of Armada's API: the streams, queues and jobs of a node's pond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.events.jobs.active import ActiveJobs
from millpond.events.jobs.queues import Queues
from millpond.events.jobs.submissions import Submissions
from millpond.events.shared_jobs import HoldsJobs
from millpond.server.armada.job_records import JobRecords

if TYPE_CHECKING:
    from millpond.events.events import Events
    from millpond.nodes.node import Node
    from millpond.server.armada.watching import Watching

__all__ = ("SURFACE", "Means", "make_means")

SURFACE = "armada"
"""The name of this API in metrics."""


@dataclass(slots=True)
class Means:
    """The means of the services of a node."""

    node: Node
    events: Events
    queues: Queues
    submissions: Submissions
    active: ActiveJobs
    records: JobRecords
    watching: Watching

    def need_queue(self, name: str) -> None:
        """Insist that a queue is there: created, or with a stream.

        Raises:
            NotFound: it is not.
        """
        if not self.events.store.streams(name, limit=1):
            self.queues.get(name)


def make_means(node: Node, watching: Watching) -> Means:
    """The means of the services: the streams and the space of a node's pond."""
    events = node.events
    store, volume = events.store, events.volumes.of(SURFACE)
    assert isinstance(store, HoldsJobs), "both backends of streams hold the rows of jobs"
    tables = store.job_rows
    submissions = Submissions(tables, store, node.clock, volume.count)
    records = JobRecords(tables.jobs, store)
    return Means(node, events, Queues(tables.queues), submissions, ActiveJobs(store, volume), records, watching)
