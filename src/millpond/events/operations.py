"""The part of the interface of streams that is declared: each method is one request, see `kernel/operations.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.deferred import DeferredModule
from millpond.kernel.operations import declared, operation

if TYPE_CHECKING:
    from millpond.events import maintenance
else:
    maintenance = DeferredModule("millpond.events.maintenance")

__all__ = ("EventsOperations",)

_WORDS = {
    "queue": "the queue", "job_set": "the job set", "job": "only the events whose header `job_id` is this",
    "after": "days that ended so long ago", "bytes_per_second": "compressed bytes that are written; 0: any number",
}  # fmt: skip


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

    @operation(
        "POST", "/v1/events/compress", right="admin", sent={"after": "after_ms"}, needed=("after",), words=_WORDS,
        large=True, repeatable=True,
    )  # fmt: skip
    def compress(self, after: str | int = "2d", *, bytes_per_second: int = 0) -> maintenance.MaintenanceReport:
        """Compress old days now, see `Events.compress`. The faults of single streams are in the report."""
        declared()

    @operation(
        "POST", "/v1/events/expire", right="admin", sent={"after": "after_ms"}, needed=("after",), words=_WORDS,
        large=True, repeatable=True,
    )  # fmt: skip
    def expire(self, after: str | int = "14d") -> maintenance.MaintenanceReport:
        """Drop old days now, see `Events.expire`. They are dropped whole, with their events."""
        declared()
