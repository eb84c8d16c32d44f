"""The work of a processor for a run of one task, counted: calls of functions, and writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import LHStatus, PutTaskDefRequest, ReportTaskRun, RunWfRequest, ScheduledTask, TaskStatus

from millpond.clock import ManualClock, SystemClock
from millpond.stores.memory import MemorySpace
from millpond.workflows.engine import Request
from millpond.workflows.processor import Applied, Processor, processor
from millpond.workflows.tasks.queues import Worker
from tests.harness.call_counts import counted_calls
from tests.models.workflows.specs import request

QUEUE, SECONDS = ("acme", "work"), 20
RUNS = 10
CALLS_PER_RUN_MAX = 1_950
"""The calls of Python's functions for a run of one task, from RunWf over claim and report to its end."""


def begun(passed_on: Callable[[Sequence[Applied]], None], clock: ManualClock | SystemClock) -> Processor:
    made = Processor(MemorySpace(), clock, passed_on, stories=True)
    for definition in (PutTaskDefRequest(name="work"), request("retried")):
        made.submit("acme", definition)
    return made


def report_of(end: Applied) -> ReportTaskRun:
    assert isinstance(end.reply, ScheduledTask)
    return ReportTaskRun(task_run_id=end.reply.task_run_id, status=TaskStatus.TASK_SUCCESS, attempt_number=0)


def test_a_run_of_one_task_takes_few_calls() -> None:
    ends: list[Applied] = []
    made = begun(ends.extend, ManualClock(1_700_000_000_000))

    def do(requests: Sequence[Request]) -> None:
        for one in requests:
            made.submit("acme", one)
        while made.turn():
            pass

    def run(name: str) -> None:
        for number in range(RUNS):
            made.workers.wait(Worker(QUEUE, f"worker-{number}"))
        do([RunWfRequest(wf_spec_name="retried", id=f"{name}-{number}") for number in range(RUNS)])
        claimed = [end for end in ends if end.worker is not None]
        assert len(claimed) == RUNS
        ends.clear()
        do([report_of(end) for end in claimed])
        assert [end.error for end in ends] == [None] * RUNS

    run("first")
    with counted_calls() as counts:
        run("second")
    assert counts.total() / RUNS < CALLS_PER_RUN_MAX, counts.most_common(20)
    # The client's own look-up of a value of an enumeration costs thirty times as much as an attribute.
    assert counts["EnumTypeWrapper.__getattr__"] == 0
    assert LHStatus.Value("COMPLETED") == LHStatus.COMPLETED


def test_the_next_claim_of_a_worker_shares_a_write_with_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "GATHER_SECONDS", SECONDS)
    handed, came = list[Applied](), threading.Semaphore(0)

    def pass_on(ends: Sequence[Applied]) -> None:
        for end in ends:
            if end.worker is not None:
                handed.append(end)
                came.release()

    made = begun(pass_on, SystemClock())
    made.start()
    try:
        for number in range(3):
            made.submit("acme", RunWfRequest(wf_spec_name="retried", id=f"run-{number}")).result(SECONDS)
        made.workers.wait(Worker(QUEUE, "worker"))
        made.submit("acme", PutTaskDefRequest(name="another")).result(SECONDS)
        assert came.acquire(timeout=SECONDS)
        before = made.measures.writes
        made.workers.wait(Worker(QUEUE, "worker"))
        assert not came.acquire(timeout=0.05)  # it waits for the report of this worker
        made.submit("acme", report_of(handed[0])).result(SECONDS)
        assert came.acquire(timeout=SECONDS)
        assert made.measures.writes == before + 1
    finally:
        made.stop()
