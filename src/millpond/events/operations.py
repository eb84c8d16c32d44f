"""The part of the interface of streams that is declared: each method is one request, see `kernel/operations.py`."""

from __future__ import annotations

from typing import Protocol

from millpond.kernel.operations import declared, operation

__all__ = ("EventsOperations",)


class EventsOperations(Protocol):
    """The streams of a pond, as requests."""

    @operation(
        "DELETE",
        "/v1/events",
        right="admin",
        answer="events",
        large=True,
        words={"queue": "the queue", "job_set": "the job set", "job": "only the events whose header `job_id` is this"},
    )
    def delete(self, queue: str, job_set: str, *, job: str | None = None) -> int:
        """Delete a job set, or a job of it, see `Events.delete`; the number of events.

        It is not done again when the answer is lost: more may have been appended since. Ids are not used again.
        """
        declared()
