"""Records of jobs against a brute-force reading of all of their events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.jobs.active import ActiveJobs
from millpond.events.jobs.submissions import NewJob, Submissions
from millpond.events.names import StreamName
from millpond.server.armada import job_records
from millpond.server.armada.job_records import RUNS_MAX, JobRecords
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.stores.memory import MemorySpace

STREAM = StreamName("etl", "night")
BEGIN = 1_700_000_000_000
KINDS = (
    "queued", "leased", "pending", "running", "lease_returned", "lease_expired", "succeeded", "failed", "retried",
    "said_retried", "cancelling", "cancelled", "preempting", "preempted", "reprioritized", "utilisation", "ours",
)  # fmt: skip
ENDED = {"succeeded", "failed", "said_retried", "cancelled", "preempted"}
STATES = {
    "queued": "QUEUED", "leased": "LEASED", "pending": "PENDING", "running": "RUNNING", "lease_returned": "QUEUED",
    "lease_expired": "QUEUED", "succeeded": "SUCCEEDED", "failed": "FAILED", "retried": "QUEUED",
    "said_retried": "FAILED", "cancelled": "CANCELLED", "preempted": "PREEMPTED",
}  # fmt: skip


def expected_of(kinds: list[str]) -> tuple[str, int, bool]:
    """The state of a job after its events, the number of its runs, and whether the last one goes on."""
    state, runs, running = "QUEUED", 0, False
    for kind in kinds:
        if kind == "leased" or (kind in ("pending", "running") and not running):
            runs, running = runs + 1, True
        state = STATES.get(kind, state)
        if kind in ENDED or kind in ("retried", "lease_returned", "lease_expired"):
            running = False
        if kind in ENDED:
            break
    return state, runs, running


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS)), max_size=60),
    read_at=st.sets(st.integers(0, 60)),
)
def test_a_record_is_what_all_events_say(events: list[tuple[int, str]], read_at: set[int]) -> None:
    clock = ManualClock(BEGIN)
    store = EmbeddedStore(MemorySpace(), clock)
    ids = Submissions(store.job_rows, store, clock).submit(STREAM, [NewJob(_first)] * 3)
    records = JobRecords(store.job_rows.jobs, store)
    for number, (job, kind) in enumerate(events):
        if number in read_at:  # what is held goes on from here
            records.of(records.locations(ids))
        headers = {"job_id": ids[job], **({"retryable": "true"} if kind == "retried" else {})}
        payload = pb.Failed(retryable=True).SerializeToString() if kind == "said_retried" else b""
        event = NewEvent(BEGIN, payload, "failed" if "retried" in kind else kind, headers)
        store.append([EventBatch(STREAM, [event])])
    found, anew = (some.of(some.locations(ids)) for some in (records, JobRecords(store.job_rows.jobs, store)))
    with ActiveJobs(store).of(STREAM) as active:
        for job, job_id in enumerate(ids):
            details = found[job_id].details
            assert details == anew[job_id].details
            kinds = [kind for other, kind in events if other == job]
            state, runs, running = expected_of(kinds)
            assert (pb.JobState.Name(details.state), found[job_id].runs) == (state, runs)
            assert len(details.job_runs) == min(runs, RUNS_MAX)
            if runs:
                assert details.latest_run_id == f"{job_id}.{runs}"
                assert details.job_runs[-1].HasField("finished_ts") != running
            assert found[job_id].ended == (state in ("SUCCEEDED", "FAILED", "CANCELLED", "PREEMPTED"))
            if not found[job_id].ended:
                assert job_id in active
            elif "queued" not in kinds:  # which lets an ended job be active again
                assert job_id not in active


def _first(job_id: str) -> list[NewEvent]:
    return [NewEvent(BEGIN, b"", kind, {"job_id": job_id}) for kind in ("submitted", "queued")]


def test_jobs_with_much_in_them_are_neither_held_nor_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(BEGIN)
    store = EmbeddedStore(MemorySpace(), clock)
    job = pb.Submitted(job=pb.Job(annotations={"much": "x" * 100_000}))

    def events(job_id: str) -> list[NewEvent]:
        job.job_id = job_id
        return [NewEvent(BEGIN, job.SerializeToString(), "submitted", {"job_id": job_id})]

    ids = Submissions(store.job_rows, store, clock).submit(STREAM, [NewJob(events)] * 8)
    monkeypatch.setattr(job_records, "HELD_BYTES", 300_000)
    monkeypatch.setattr(job_records, "ANSWER_BYTES_MAX", 500_000)
    records = JobRecords(store.job_rows.jobs, store)
    for job_id in ids:
        assert records.of(records.locations([job_id]))[job_id].details.job_spec.annotations["much"]
    assert len(records._held) == 2
    assert len(records.of(records.locations(ids[:4]))) == 4
    for _ in range(2):
        with pytest.raises(Invalid) as caught:
            records.of(records.locations(ids))
        assert caught.value.kind == "answer_too_large"
