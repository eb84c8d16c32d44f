"""Claims of clients' ids that are changed apart from the streams: settled in three steps, by one submission at a time.

    claim      a row: queue, client id → job id, and the last id of the stream before the append
    take       the right to settle it, for `TURN_SECONDS`: a holder that died loses it
    append     the rows of all jobs of the submission, and their events in one batch
    confirm    the row says that the events are stored

Invariants:
* a row that was claimed and not confirmed, because the node died, is settled by whoever comes next: the stream is read
  from where it ended before the append;
* a row is settled by one submission at a time. In a process those to one queue take turns; machines that share rows
  take each claim for `TURN_SECONDS`, and end what they are at in half of that, or leave it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.error_values import shown
from millpond.errors import Unavailable, Uncertain
from millpond.events.filters import JOB_HEADER
from millpond.events.names import StreamName
from millpond.events.shared_jobs import TURN_SECONDS, BegunOf, Claim, ClaimRows, JobRows, Settled
from millpond.kernel.turns import Turns

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.event import Page
    from millpond.events.protocol import StreamStore

__all__ = ("TurnedClaims", "stored_clients")

PATIENCE_SECONDS = 45.0
"""For how long a submission waits for claims that others settle, or died at."""
_PAUSE_SECONDS = 0.02


class TurnedClaims:
    """`Claims` on rows that machines share."""

    def __init__(self, rows: ClaimRows, jobs: JobRows, store: StreamStore, clock: Clock) -> None:
        self.rows, self._jobs, self._store, self._clock = rows, jobs, store, clock
        self._turns = Turns()

    def settle(self, stream: StreamName, drawn: Mapping[str, Claim], begun_of: BegunOf) -> Settled:
        with self._turns.of(stream.queue), self._claimed(stream.queue, drawn) as claims:
            batch, locations = begun_of(claims)
            batches = [batch] if batch.events else []
            if batches:
                self._jobs.note(locations)
            outcomes = self._store.append(batches) if batches else []
            new = {client: replace(claim, stored=True) for client, claim in claims.items() if not claim.stored}
            if new:
                self.rows.confirm(stream.queue, new)
            return Settled({**claims, **new}, batches, outcomes)

    @contextmanager
    def _claimed(self, queue: str, drawn: Mapping[str, Claim]) -> Iterator[dict[str, Claim]]:
        """The claims of ids of clients, to be settled inside; those that are `stored` have their events."""
        claims = self._taken(queue, drawn)
        due = self._clock.monotonic() + TURN_SECONDS / 2
        taken = [claim.job_id for claim in claims.values() if not claim.stored]
        try:
            old = {client: claim for client, claim in claims.items() if not claim.stored and claim != drawn[client]}
            stored = stored_clients(self._store.read, queue, old)
            self._check_time(queue, due)
            yield {
                client: replace(claim, stored=True) if client in stored else claim for client, claim in claims.items()
            }
        except Uncertain:
            raise  # what may yet come is waited for
        except BaseException:
            self.rows.give_back(queue, taken)
            raise

    def _check_time(self, queue: str, due: float) -> None:
        if self._clock.monotonic() >= due:
            raise Unavailable(
                "jobs with these ids of the client are being submitted elsewhere", kind="submission_busy",
                queue=shown(queue), hint="submit them again in a moment",
            )  # fmt: skip

    def _taken(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        """The claims of clients, when each is stored, or this submission's to settle."""
        holder, due = self._clock.random_id(), self._clock.monotonic() + PATIENCE_SECONDS
        pause = _PAUSE_SECONDS * (1 + int(holder, 16) % 5)  # two that take some of the same do not meet for ever
        claims = self.rows.claim(queue, drawn)
        while True:
            unstored = {claim.job_id for claim in claims.values() if not claim.stored}
            taken = self.rows.take(queue, unstored, holder)
            if taken == unstored:
                return claims
            self.rows.give_back(queue, taken)
            self._check_time(queue, due)
            self._clock.wait(threading.Event(), self._clock.monotonic() + pause)
            claims = self.rows.claim(queue, claims)


def stored_clients(read: Callable[[StreamName, int], Page], queue: str, unsettled: Mapping[str, Claim]) -> set[str]:
    """The clients' ids whose jobs are in their streams, although no row says so: whoever appended them died."""
    stored: set[str] = set()
    by_job_set: dict[str, dict[str, str]] = {}
    for client, claim in unsettled.items():
        by_job_set.setdefault(claim.job_set, {})[claim.job_id] = client
    for job_set, clients in by_job_set.items():
        after = min(claim.after for claim in unsettled.values() if claim.job_set == job_set)
        page = read(StreamName(queue, job_set), after)
        while page.events:
            stored.update(
                clients[job] for event in page.events if (job := event.headers.get(JOB_HEADER, "")) in clients
            )
            page = read(StreamName(queue, job_set), page.after)
    return stored
