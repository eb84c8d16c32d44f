"""Runs of pipelines that are functions, in the process of a test: on its pond, and on the pond's clock.

    with temporary_pond() as pond:
        runs = PipelineRuns(pond)
        runs.deploy("nightly.py")
        runs.pass_time(timedelta(days=365))               its schedule fires, each time at its own instant
        runs.look_for_data()                              what waits for loads, alerts or commits begins
        run = runs.run("nightly", day="2026-01-01")

Steps are carried out as by a worker. Each stores checkpoints; a worker may be lost at any of them: its work is done
then, and nobody knows it.

    for number in range(runs.checkpoints):                as many as an earlier run of the same had
        with runs.worker_lost_at(number):
            …
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch  # of the environment alone

from millpond.extras import need

need("littlehorse")

from littlehorse.model import PutCheckpointRequest, ScheduleWfRequest
from littlehorse.worker import WorkerContext

from millpond.clock import ManualClock
from millpond.nodes.data_starts import DataStarts
from millpond.pipelines import tasks
from millpond.pipelines.compiled import compiled
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.pipelines.step import held
from millpond.server.workflows.data_watch import at_cursor
from millpond.testing.replays import Replay, replayed
from millpond.testing.workflow_replays import recorded
from millpond.testing.workflows import WorkerLost, WorkflowRuns
from millpond.workflows.engine import Request
from millpond.workflows.engine.pipeline_starts import spec_name

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.pond import Pond

__all__ = ("PipelineRuns", "Replay", "recorded", "replayed")


class PipelineRuns(WorkflowRuns):
    """Runs on a pond with a manual clock. `checkpoints` counts what steps have stored."""

    def __init__(self, pond: Pond) -> None:
        assert isinstance(pond.clock, ManualClock), "a temporary pond has a clock that the test moves"
        super().__init__(clock=pond.clock)
        self._pond, self._lost_at = pond, -1
        self.checkpoints = 0

    def deploy(self, file: str | Path) -> None:
        """Take the pipelines of a file, and their schedules, as a node does. Runs that are open end with its old text.

        Raises: `Invalid` for a pipeline that cannot work.
        """
        program = read_program(file)
        for declared in pipelines_of(program).values():
            self.register(compiled(declared.plan, program), self._task())
            if (cron := declared.plan.cron()) is not None:
                name = spec_name(declared.plan.name)
                schedule = ScheduleWfRequest(id=name, wf_spec_name=name, cron_expression=cron.text())
                self.send(at_cursor(self._pond, schedule))

    def look_for_data(self) -> None:
        """Begin the runs for which loads, alerts and commits of the pond have come, and do what there is to do."""
        starts = DataStarts(self._pond)
        while arrived := starts.look(self._processor):
            for _, request in arrived:
                self.send(request)

    def run(self, pipeline: str, **parameters: Any) -> str:
        """Start a run, and do what there is to do now; its id."""
        return self.start(spec_name(pipeline), parameters=parameters)

    def outputs(self, run: str) -> dict[str, Any]:
        """Parameters of a run, and outputs of its steps so far, by their names."""
        values: dict[str, Any] = self.variable(run, "values")
        return values

    @contextmanager
    def worker_lost_at(self, number: int) -> Iterator[None]:
        """Lose the worker at the checkpoint of this number, from here: it is not stored, the work is done."""
        self._lost_at = self.checkpoints + number
        try:
            yield
        finally:
            self._lost_at = -1

    def send(self, request: Request) -> Message | None:
        """As `WorkflowRuns.send`; checkpoints are counted."""
        if isinstance(request, PutCheckpointRequest):
            self.checkpoints += 1
            if self._lost_at == self.checkpoints - 1:
                raise WorkerLost
        return super().send(request)

    def _task(self) -> Any:
        location = str(self._pond.folder)
        own = {"MILLPOND_POND": location, "MILLPOND_PIPELINE_FILES": f"{location}-files"}

        async def step(
            planned: dict[str, Any], values: dict[str, Any], program: dict[str, Any], context: WorkerContext
        ) -> dict[str, Any]:
            with patch.dict(os.environ, own), held(location, self._pond):
                return await tasks.step(planned, values, program, context)

        return step
