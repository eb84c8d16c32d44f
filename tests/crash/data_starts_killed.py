"""Loads a map and looks for data: `… FOLDER`. Its steps may kill it; the same again goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from littlehorse.model import ScheduledWfRun, ScheduleWfRequest, WfSpec
from littlehorse.workflow import Workflow, WorkflowThread

import millpond
from millpond.clock import SystemClock
from millpond.nodes.data_starts import DataStarts
from millpond.pond import Pond
from millpond.server.workflows.data_watch import at_cursor
from millpond.testing.faults import arm
from millpond.workflows.engine import Request
from millpond.workflows.engine.cron import Cron
from millpond.workflows.processor import Processor, read_rows

LOADS = 4
CRON = Cron("", on="loaded:weather", missed="all", overlap=False)


def body(thread: WorkflowThread) -> None:
    thread.declare_str("nothing")


def main(folder: str) -> None:
    with millpond.open(folder, create=True) as pond:
        assert isinstance(pond, Pond)
        pond.create_map("weather", kind="state", value="temp double", exist_ok=True)
        processor = Processor(pond.space, SystemClock(), lambda _: None)

        def send(request: Request) -> None:
            reply = processor.submit("default", request)
            while not reply.done():
                processor.turn()
            reply.result()

        if read_rows(processor, "default", lambda rows: rows.get(WfSpec, ("flow", 0, 0))) is None:
            send(Workflow("flow", body).compile())
        if read_rows(processor, "default", lambda rows: rows.get(ScheduledWfRun, ("flow",))) is None:
            send(at_cursor(pond, ScheduleWfRequest(wf_spec_name="flow", id="flow", cron_expression=CRON.text())))
        with arm():
            for number in range(LOADS):
                pond.map("weather").load([{"key": "a", "temp": float(number)}])  # the same rows again are one load
                look(pond, processor, send)


def look(pond: Pond, processor: Processor, send: Callable[[Request], None]) -> None:
    starts = DataStarts(pond)
    while arrived := starts.look(processor):
        for _, request in arrived:
            send(request)


if __name__ == "__main__":
    main(*sys.argv[1:])
