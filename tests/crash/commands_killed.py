"""Applies commands to a partition: `… FOLDER`. Each that is acknowledged is a line of output; its steps may kill it."""

from __future__ import annotations

import sys

from littlehorse.model import (
    CorrelatedEventConfig,
    ExternalEventDefId,
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    PutTaskDefRequest,
    ReportTaskRun,
    RunWfRequest,
    TaskRunId,
    TaskStatus,
    VariableValue,
    WfRunId,
)

from millpond.clock import ManualClock
from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import arm
from millpond.workflows.engine import Request, TaskClaim
from millpond.workflows.processor import Processor
from tests.models.workflows.specs import request

RUNS = 4


def commands() -> list[Request]:
    """Commands of which each changes something."""
    found: list[Request] = [PutTaskDefRequest(name="work"), request("retried")]
    for at in range(RUNS):
        task = TaskRunId(wf_run_id=WfRunId(id=f"run-{at}"), task_guid="0-1")
        found.append(RunWfRequest(wf_spec_name="retried", id=f"run-{at}"))
        found.append(TaskClaim(task, "worker"))
        status = TaskStatus.TASK_SUCCESS if at % 2 else TaskStatus.TASK_FAILED
        found.append(ReportTaskRun(task_run_id=task, attempt_number=0, status=status))
    return [*found, *_correlated()]


def _correlated() -> list[Request]:
    """A run that waits for an event by a key, and the event: each causes commands of its own."""
    event, key = ExternalEventDefId(name="paid"), VariableValue(str="k")
    return [
        PutExternalEventDefRequest(name="paid", correlated_event_config=CorrelatedEventConfig()),
        request("correlates"),
        RunWfRequest(wf_spec_name="correlates", id="waits", variables={"key": key}),
        PutCorrelatedEventRequest(key="k", external_event_def_id=event),
        RunWfRequest(wf_spec_name="correlates", id="later", variables={"key": key}),
    ]


def main(folder: str) -> None:
    space = LmdbSpace(folder)
    processor = Processor(space, ManualClock(1_700_000_000_000), lambda _: None)
    with arm():
        processor.start()
        futures = [processor.submit("acme", command) for command in commands()[:2]]
        futures += [processor.submit("acme", command) for command in commands()[2:]]
        for future in futures:
            future.result(60)
            print("done", flush=True)
        processor.stop()
    space.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
