"""The jobs of claims that are in their streams, although no row says so: whoever appended them died."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from millpond.events.jobs.submissions import JOB_ID
from millpond.events.names import StreamName

if TYPE_CHECKING:
    from millpond.events.event import Page
    from millpond.events.shared_jobs import Claim

__all__ = ("stored_clients",)


def stored_clients(read: Callable[[StreamName, int], Page], queue: str, unsettled: Mapping[str, Claim]) -> set[str]:
    """The clients' ids whose jobs have events behind where their stream ended when they were claimed."""
    stored: set[str] = set()
    by_job_set: dict[str, dict[str, str]] = {}
    for client, claim in unsettled.items():
        by_job_set.setdefault(claim.job_set, {})[claim.job_id] = client
    for job_set, wanted in by_job_set.items():
        after = min(claim.after for claim in unsettled.values() if claim.job_set == job_set)
        page = read(StreamName(queue, job_set), after)
        while page.events:
            stored.update(wanted[job] for event in page.events if (job := event.headers.get(JOB_ID, "")) in wanted)
            page = read(StreamName(queue, job_set), page.after)
    return stored
