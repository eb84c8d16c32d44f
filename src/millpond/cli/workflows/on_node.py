"""Runs of pipelines whose engine is a node's, and whose steps are carried out in this process.

    node: run ─▶ queue of the run's own task ─▶ this process ─▶ report ─▶ …

Invariants:
* the steps of such a run are taken by no other worker, and this process takes those of no run that it does not carry:
  each has a task of its own, which goes when the run has ended, or when a later process looks for those that stayed;
* what is deployed under the pipeline's name, and begins by its schedule, stays as it is: the text of these runs is
  another specification, of `HERE`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from typing import Any

from google.protobuf.message import Message
from littlehorse.config import LHConfig
from littlehorse.model import (
    DeleteTaskDefRequest,
    ListTaskRunsRequest,
    RunWfRequest,
    SearchTaskDefRequest,
    TaskDefId,
    TaskRun,
    WfRun,
    WfRunId,
)
from littlehorse.utils import to_variable_value

from millpond.cli.options import existing_pond
from millpond.cli.workflows.server import connected, every_result, worker_config
from millpond.cli.workflows.task_worker import TaskWorker
from millpond.clock import SystemClock
from millpond.errors import AlreadyExists, NotFound, Unavailable
from millpond.maps.protocols import PondLike
from millpond.pipelines import tasks
from millpond.pipelines.compiled import compiled
from millpond.pipelines.declare import Declared
from millpond.pipelines.programs import Program
from millpond.pipelines.runs import Ended, RunsHere, carried_out_here
from millpond.workflows.engine.pipeline_starts import HERE, PARAMETERS, TASK, is_here, spec_name, task_of_run

__all__ = ("RunsOnNode", "on_node")

LOOK_SECONDS = 0.2
STAYED_SECONDS = 600.0
"""The age of a task, whose run is over or not there, from which nobody is about to begin or to rescue that."""


@contextmanager
def on_node(url: str, tell: Callable[[str], object]) -> Iterator[RunsOnNode]:
    """The runs of a node, while this lasts; `tell` gets a line for each event.

    Raises: as `connected`.
    """
    with connected(url, "default") as call, redirect_stdout(sys.stderr):  # standard output is the command's
        yield RunsOnNode(call, worker_config(url, "default", url), url, tell)


class RunsOnNode(RunsHere):
    """The runs of a node, whose methods `call` calls."""

    def __init__(
        self, call: Callable[[str, Any], Any], config: LHConfig, url: str, tell: Callable[[str], object]
    ) -> None:  # fmt: skip
        self._call, self._url, self._tell = call, url, tell
        self._worker = TaskWorker({}, config, tell, end_seconds=0)
        self._carried = set[str]()

    def run(
        self, declared: Declared, program: Program, inputs: Mapping[str, Any], run: str, *, rescues: bool = False
    ) -> Ended:
        if rescues:
            self._carry(run)
        return super().run(declared, program, inputs, run, rescues=rescues)

    def work(self, goes_on: Callable[[], bool]) -> None:
        try:
            carried_out_here(self._until(goes_on))
        finally:
            with suppress(Unavailable):
                self._leave_ended()

    async def _until(self, goes_on: Callable[[], bool]) -> None:
        def look() -> bool:
            is_on = goes_on()
            self._leave_ended()
            return is_on

        away, worker = False, self._worker
        working = asyncio.create_task(worker.run(lambda: None))
        while not working.done():
            try:
                if not await asyncio.to_thread(look):
                    break
                away = False
            except Unavailable as error:
                if not away:
                    self._tell(f"waiting for the node: {error}")
                away = True
            await asyncio.wait({working}, timeout=LOOK_SECONDS)
        is_stopped = worker.stopped
        worker.stop()
        await working
        if is_stopped:
            raise KeyboardInterrupt

    def _carry(self, run: str) -> None:
        self._worker.take(task_of_run(run), tasks.step)
        self._carried.add(run)

    def _leave_ended(self) -> None:
        """Take no more of runs that have ended, or are no more: their tasks go."""
        for run in tuple(self._carried):
            if not self.status(run) or self.is_over(run):
                self._carried.remove(run)
                self._worker.leave(task_of_run(run))
                with suppress(NotFound):
                    self._call("DeleteTaskDef", DeleteTaskDefRequest(id=TaskDefId(name=task_of_run(run))))

    def opened(self) -> AbstractContextManager[PondLike]:
        return existing_pond(self._url)

    def _collect(self) -> None:
        """Let the tasks go that processes left which were killed."""
        before = SystemClock().now_ms() - 1000 * STAYED_SECONDS
        for own in list(every_result(self._call, "SearchTaskDef", SearchTaskDefRequest(prefix=task_of_run("")))):
            run = own.name.removeprefix(task_of_run(""))
            with suppress(NotFound):
                is_old = self._call("GetTaskDef", own).created_at.ToMilliseconds() < before
                if is_old and run not in self._carried and (not self.status(run) or self.is_over(run)):
                    self._call("DeleteTaskDef", DeleteTaskDefRequest(id=own))

    def define(self, declared: Declared, program: Program) -> None:
        self._collect()
        self._send(compiled(declared.plan, program, here=True).compile())

    def begin(self, pipeline: str, run: str, inputs: Mapping[str, Any]) -> None:
        row = self._row(WfRun, WfRunId(id=run))
        if row is not None and not is_here(row.wf_spec_id.name):
            self._tell(f"{run} is a run of the pipeline that is deployed: workers of the node carry it out")
        elif row is None or not self.is_over(run):
            self._carry(run)
        if row is None:
            name, task = spec_name(f"{pipeline}{HERE}"), task_of_run(run)
            variables = {PARAMETERS: to_variable_value(dict(inputs)), TASK: to_variable_value(task)}
            with suppress(AlreadyExists):
                self._send(RunWfRequest(wf_spec_name=name, id=run, variables=variables))

    def _send(self, request: Message) -> Message | None:
        reply: Message | None = self._call(type(request).__name__.removesuffix("Request"), request)
        return reply

    def _row(self, kind: type[Any], name: Message) -> Any:
        try:
            return self._call(f"Get{kind.__name__}", name)
        except NotFound:
            return None

    def _tasks(self, run: str) -> list[TaskRun]:
        return list(every_result(self._call, "ListTaskRuns", ListTaskRunsRequest(wf_run_id=WfRunId(id=run))))
