"""The rows of jobs as all backends have them: queues, and the claims of clients' ids.

Machines that share streams share these rows.

A job that was submitted has a row with the stream of its events, so that it is found by its id alone.

Invariants:
* a claim that is there stays as it is, whoever draws another one;
* a claim is forgotten `CLIENT_DAYS` after it was made: in a space by those who make others;
* the row of a job is there before its first event, and is collected once the day of its events was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from millpond.errors import Unavailable
from millpond.events.event import Appended, EventBatch
from millpond.events.names import StreamName
from millpond.json_forms import JsonForm

__all__ = (
    "CLAIM", "CLIENT_DAYS", "JOB_LOCATION", "QUEUES_MAX", "TURN_SECONDS", "Begun", "BegunOf", "Claim", "ClaimRows",
    "Claims", "HoldsJobs", "JobLocation", "JobRows", "JobTables", "QueueRows", "Settled", "queues_full",
)  # fmt: skip

QUEUES_MAX = 10_000
CLIENT_DAYS = 14
"""The days for which the ids of clients are remembered."""
TURN_SECONDS = 40.0
"""The time for which a process may settle a claim, before others may."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The row of a client's id. `after` is the last id of the stream of `job_set` before the job's events."""

    job_id: str
    job_set: str
    day: int
    after: int
    stored: bool = False


CLAIM = JsonForm(Claim)


@dataclass(frozen=True, slots=True)
class JobLocation:
    """The row of a job: its stream, whose last id before the job's first event was `after`, and the day of that event.

    `uri`: the name that the client has for it elsewhere, its `external_job_uri`.
    """

    queue: str
    job_set: str
    after: int
    day: int
    uri: str = ""

    @property
    def stream(self) -> StreamName:
        """The stream of its events."""
        return StreamName(self.queue, self.job_set)


JOB_LOCATION = JsonForm(JobLocation)


class QueueRows(Protocol):
    """The rows of queues, by their names."""

    def get(self, name: str) -> bytes | None:
        """The row of a queue."""

    def swap(self, name: str, before: bytes | None, row: bytes) -> bool:
        """Put a row in the place of the one before, or where none is; False when another one is there.

        Raises:
            Unavailable: there are as many as may be.
        """

    def delete(self, name: str) -> None:
        """Delete a row, if it is there."""

    def list(self, after: str | None, limit: int) -> list[bytes]:
        """Some rows in the order of their place, from behind a name."""


class Begun(NamedTuple):
    """The first events of jobs, and their rows by the jobs' ids."""

    batch: EventBatch
    locations: Mapping[str, JobLocation]


BegunOf: TypeAlias = "Callable[[Mapping[str, Claim]], Begun]"
"""The jobs to be stored where claims hold: for those that are not `stored`, and for jobs without an id of a client."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Claims that hold, by client, whose jobs are stored; and what was appended for those that were not."""

    claims: Mapping[str, Claim]
    batches: Sequence[EventBatch] = ()
    outcomes: Sequence[Appended] = ()


class Claims(Protocol):
    """The claims of clients' ids: each is settled once, whichever processes and machines meet."""

    def settle(self, stream: StreamName, drawn: Mapping[str, Claim], begun_of: BegunOf) -> Settled:
        """Let claims hold: those that were there, or else these; and store what is begun where they do.

        Raises: as `StreamStore.append`. `Unavailable` also when others settle some of them, and do not end.
        """


class ClaimRows(Protocol):
    """The claims of clients' ids where they and the streams are not changed together: see `turned_claims.py`."""

    def claim(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        """The claims that hold, by client: those that were there, or else these."""

    def take(self, queue: str, jobs: Iterable[str], holder: str) -> set[str]:
        """The jobs whose claims this holder may settle now; others are settled by somebody else."""

    def give_back(self, queue: str, jobs: Iterable[str]) -> None:
        """Let others settle the claims of jobs that were taken."""

    def confirm(self, queue: str, claims: Mapping[str, Claim]) -> None:
        """Say that the events of these claims are stored."""


class JobRows(Protocol):
    """The rows of jobs that were submitted, by their ids."""

    def note(self, jobs: Mapping[str, JobLocation]) -> None:
        """Put the rows of jobs, before their first events."""

    def find(self, job_ids: Iterable[str]) -> dict[str, JobLocation]:
        """The rows of jobs, of those that have one."""

    def named(self, stream: StreamName, uri: str) -> list[str]:
        """The ids of the jobs of a stream that have this external URI, in their order."""

    def delete(self, jobs: Mapping[str, JobLocation]) -> None:
        """Delete the rows of jobs."""

    def collect(self, before: int, is_gone: Callable[[JobLocation], bool]) -> int:
        """Delete the rows of jobs that were noted before a day, and whose events are gone; how many."""


class JobTables(NamedTuple):
    """All rows of jobs of a place."""

    queues: QueueRows
    claims: Claims
    jobs: JobRows


@runtime_checkable
class HoldsJobs(Protocol):
    """A backend with the rows of jobs beside the streams."""

    job_rows: JobTables


def queues_full() -> Unavailable:
    """The error for one queue too many."""
    return Unavailable(
        "there are as many queues as there may be", kind="queues_full", queues_max=QUEUES_MAX,
        hint="delete some; a queue holds any number of job sets",
    )  # fmt: skip
