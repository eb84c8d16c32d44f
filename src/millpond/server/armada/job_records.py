"""Records of jobs: the state, the runs and the error of each, as its events say.

                    ┌─ leased ─▶ LEASED ─ pending ─▶ PENDING ─ running ─▶ RUNNING ─ succeeded ─▶ SUCCEEDED
    submitted ─ queued ▶ QUEUED                                              └─ failed ─▶ FAILED, or REJECTED
                    └── lease_returned, lease_expired, a failure that is retried: queued again

A run is an attempt: it begins with `leased`, or with the first event of an attempt that has none. Events name no runs,
so an id of a run is `JOB ID.NUMBER`, counted from 1.

Invariants:
* a record is a function of the job's events in their order; what is held here can be had again from them;
* an event that ends a job is final: those after it change nothing, as in `events/jobs/active.py`;
* a record holds the newest `RUNS_MAX` runs, and the newest error, cut to `ERROR_CHARS_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import Invalid
from millpond.events.event import Event
from millpond.events.job_ids import is_job_id
from millpond.events.jobs.active import ends_job
from millpond.events.jobs.submissions import JOB_ID
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore
from millpond.events.shared_jobs import JobLocation, JobRows
from millpond.kernel.cache import Cache
from millpond.kernel.patience import check_patience
from millpond.kernel.turns import Turns
from millpond.server.armada.messages import api_event
from millpond.server.armada.wire import armada_pb2 as pb

__all__ = ("ANSWER_BYTES_MAX", "ERROR_CHARS_MAX", "HELD_BYTES", "RUNS_MAX", "JobRecord", "JobRecords", "run_of")

RUNS_MAX = 50
ERROR_CHARS_MAX = 2_048
HELD_BYTES = 32 << 20
"""Records that are held, so that who asks again reads only what came since: a job may have megabytes of annotations."""
ANSWER_BYTES_MAX = 64 << 20
"""The records of one question."""
_RECORD_BYTES = 1_600
"""A small record takes about so much."""
_STATES = {
    "submitted": pb.JobState.SUBMITTED, "queued": pb.JobState.QUEUED, "lease_returned": pb.JobState.QUEUED,
    "lease_expired": pb.JobState.QUEUED, "leased": pb.JobState.LEASED, "pending": pb.JobState.PENDING,
    "running": pb.JobState.RUNNING, "succeeded": pb.JobState.SUCCEEDED, "failed": pb.JobState.FAILED,
    "preempted": pb.JobState.PREEMPTED, "cancelled": pb.JobState.CANCELLED,
}  # fmt: skip
_RUN_STATES = {
    "leased": pb.JobRunState.RUN_STATE_LEASED, "pending": pb.JobRunState.RUN_STATE_PENDING,
    "running": pb.JobRunState.RUN_STATE_RUNNING, "succeeded": pb.JobRunState.RUN_STATE_SUCCEEDED,
    "failed": pb.JobRunState.RUN_STATE_FAILED, "preempted": pb.JobRunState.RUN_STATE_PREEMPTED,
    "cancelled": pb.JobRunState.RUN_STATE_CANCELLED, "lease_expired": pb.JobRunState.RUN_STATE_LEASE_EXPIRED,
    "lease_returned": pb.JobRunState.RUNS_STATE_LEASE_RETURNED,
}  # fmt: skip
_TIMES = {"leased": "leased_ts", "pending": "pending_ts", "running": "started_ts"}
"""The kinds of events at which a run goes on, which also begin one; after the other kinds of runs it is over."""
_KINDS = frozenset((*_STATES, "cancelling", "preempting", "ingress_info"))


@dataclass(slots=True)
class JobRecord:
    """A job, after its events up to the id `after`."""

    details: pb.JobDetails = field(default_factory=lambda: pb.JobDetails(state=pb.JobState.UNKNOWN))
    error: str = ""
    runs: int = 0
    ended: bool = False
    after: int = 0

    @property
    def is_seen(self) -> bool:
        """False while no event of the job was seen."""
        return bool(self.details.job_id)

    @property
    def size(self) -> int:
        """The memory that it takes."""
        return _RECORD_BYTES + self.details.ByteSize()

    def apply(self, stream: StreamName, event: Event) -> None:
        """Apply the next event of the job."""
        if event.kind not in _KINDS or self.ended:
            return
        message = api_event(stream, event)
        assert message is not None, "all of these kinds are the API's"
        inner: Any = getattr(message, event.kind)
        details = self.details
        details.job_id, details.queue, details.jobset = inner.job_id, stream.queue, stream.job_set
        if event.kind == "submitted":
            details.submitted_ts.CopyFrom(inner.created)
            details.namespace = inner.job.namespace
            details.job_spec.CopyFrom(inner.job)
        elif event.kind == "cancelling" or (event.kind == "cancelled" and not details.HasField("cancel_ts")):
            details.cancel_ts.CopyFrom(inner.created)
            details.cancel_user, details.cancel_reason = inner.requestor, inner.reason
        if event.kind in _STATES:
            self._change(event, inner)
        self._change_run(event.kind, inner)

    def _change(self, event: Event, inner: Any) -> None:
        kind = event.kind
        self.ended = ends_job(kind, event.headers)
        retried = kind == "failed" and not self.ended
        self.details.state = pb.JobState.QUEUED if retried else _STATES[kind]
        self.details.last_transition_ts.CopyFrom(inner.created)
        if kind in ("failed", "preempted", "lease_returned"):
            self.error = inner.reason[:ERROR_CHARS_MAX]
        if self.ended and kind == "failed" and inner.cause == pb.Cause.Rejected:
            self.details.state = pb.JobState.REJECTED

    def _change_run(self, kind: str, inner: Any) -> None:
        runs = self.details.job_runs
        run = runs[-1] if runs and not runs[-1].HasField("finished_ts") else None
        if run is None or kind == "leased":
            if kind not in _TIMES:
                return
            self.runs += 1
            run = runs.add(run_id=f"{inner.job_id}.{self.runs}", job_id=inner.job_id)
            self.details.latest_run_id = run.run_id
            del runs[:-RUNS_MAX]
            run = runs[-1]
        run.state = _RUN_STATES.get(kind, run.state)
        run.cluster = getattr(inner, "cluster_id", "") or run.cluster
        run.node = getattr(inner, "node_name", "") or run.node
        if kind in _TIMES:
            getattr(run, _TIMES[kind]).CopyFrom(inner.created)
        elif kind == "ingress_info":
            run.ingress_addresses.update(inner.ingress_addresses)
        elif kind in _RUN_STATES:
            run.finished_ts.CopyFrom(inner.created)


def run_of(run_id: str) -> str:
    """The id of the job of a run; empty when this is no id of a run.

    >>> run_of("01hf7yat000000000000000002.3"), run_of("3")
    ('01hf7yat000000000000000002', '')
    """
    job_id, dot, number = run_id.partition(".")
    return job_id if dot and number.isdecimal() and is_job_id(job_id) else ""


@dataclass(slots=True)
class _Room:
    """The bytes that are left to the records of a question."""

    left: int

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Invalid("the answer is larger than one may be", kind="answer_too_large",
                          bytes_max=ANSWER_BYTES_MAX, hint="ask for fewer jobs at once")  # fmt: skip


class JobRecords:
    """The records of the jobs that were submitted to a store."""

    def __init__(self, rows: JobRows, store: StreamStore) -> None:
        self._rows, self._store = rows, store
        self._held: Cache[str, JobRecord] = Cache(HELD_BYTES, lambda record: record.size)
        self._turns = Turns()

    def named(self, stream: StreamName, uri: str) -> list[str]:
        """The ids of the jobs of a stream with an external URI, oldest first."""
        return self._rows.named(stream, uri)

    def locations(self, job_ids: Iterable[str]) -> dict[str, JobLocation]:
        """The places of jobs, of those that were submitted."""
        return self._rows.find(dict.fromkeys(filter(is_job_id, job_ids)))

    def of(self, locations: Mapping[str, JobLocation]) -> dict[str, JobRecord]:
        """The records of jobs as of now; those whose events are gone are left out.

        Raises:
            Corrupt: what is stored is damaged.
            Invalid: they are more bytes than one question may have.
            Unavailable: the storage is out of reach.
        """
        by_stream: dict[StreamName, dict[str, JobLocation]] = {}
        for job_id, location in locations.items():
            by_stream.setdefault(location.stream, {})[job_id] = location
        records: dict[str, JobRecord] = {}
        room = _Room(ANSWER_BYTES_MAX)
        for stream, jobs in by_stream.items():
            check_patience()
            with self._turns.of(str(stream)):
                records |= self._of_stream(stream, jobs, room)
        return records

    def _of_stream(self, stream: StreamName, jobs: Mapping[str, JobLocation], room: _Room) -> dict[str, JobRecord]:
        index = self._store.index(stream)
        if index is None:
            return {}
        records: dict[str, JobRecord] = {}
        for job_id, job in jobs.items():
            record = self._held.get(job_id)
            if record is None or not max(index.dropped_id, job.after) <= record.after <= index.last_id:
                record = JobRecord(after=job.after)
            room.take(record.size)
            records[job_id] = record
        self._read_on(stream, {job_id: record for job_id, record in records.items() if not record.ended}, room)
        for job_id, record in records.items():
            self._held.put(job_id, record)
        return {job_id: record for job_id, record in records.items() if record.is_seen}

    def _read_on(self, stream: StreamName, records: Mapping[str, JobRecord], room: _Room) -> None:
        after = min((record.after for record in records.values()), default=None)
        if after is None:
            return
        page = self._store.read(stream, after)
        while page.events:
            for event in page.events:
                record = records.get(event.headers.get(JOB_ID, ""))
                if record is not None and event.number > record.after:
                    room.take(len(event.payload))
                    record.apply(stream, event)
            check_patience()
            page = self._store.read(stream, page.after)
        for record in records.values():
            record.after = max(record.after, page.after)
