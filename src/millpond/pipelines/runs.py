"""Runs of pipelines that this process begins and carries out, wherever their engine is.

Invariant: the same command goes on with the run of its id, in this process or another, until that has ended.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from littlehorse.model import (
    LHStatus,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    TaskRun,
    TaskStatus,
    Variable,
    VariableId,
    WfRun,
    WfRunId,
)
from littlehorse.utils import extract_value

from millpond.error_values import ShownAsTable
from millpond.errors import Denied, Invalid
from millpond.json_forms import plain
from millpond.maps.protocols import PondLike
from millpond.pipelines.declare import Declared
from millpond.pipelines.pond_check import check_pond
from millpond.pipelines.programs import Program
from millpond.workflows.engine.pipeline_starts import BRANCH, PARAMETERS, PROGRAM, VALUES, checked_parameters
from millpond.workflows.engine.values.masks import shown

__all__ = ("Calls", "Ended", "RunsHere", "carried_out_here")

_FAILED = (TaskStatus.TASK_FAILED, TaskStatus.TASK_TIMEOUT, TaskStatus.TASK_EXCEPTION)
_OPEN = ("STARTING", "RUNNING", "HALTING")
_OVER = (LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION)


@dataclass(frozen=True, slots=True)
class Ended(ShownAsTable):
    """A run that has ended: its id, its status, and the outputs of its steps by their names, secrets masked."""

    run: str
    status: str
    values: dict[str, Any]


def carried_out_here(work: Coroutine[Any, Any, None]) -> None:
    """Run what carries out steps. Interrupted, it waits for no thread of a step: whoever began it ends the process.

    Raises: what the work raises.
    """
    with ExitStack() as stack:
        runner = asyncio.Runner()
        stack.callback(runner.close)
        try:
            runner.run(work)
        except KeyboardInterrupt:
            stack.pop_all()
            raise


class RunsHere(ABC):
    """An engine, and a worker of this process for the steps of its runs."""

    _tell: Callable[[str], object]
    _url = ""
    """The node of the engine; nothing where that is this process."""

    @abstractmethod
    def work(self, goes_on: Callable[[], bool]) -> None:
        """Carry out steps, while `goes_on` says so.

        Raises: `KeyboardInterrupt` when the process is told to stop; threads of steps may then go on.
        """

    @abstractmethod
    def opened(self) -> AbstractContextManager[PondLike]:
        """The pond of the runs, as they see it."""

    def check(self, declared: Declared, inputs: Mapping[str, Any]) -> None:
        """Refuse a run, and each that begins by itself, which the pond as it is would make fail.

        Raises: as `check_pond`, and for parameters as the engine.
        """
        parameters = declared.plan.parameters
        values = {own.name: own.default for own in parameters if not (own.required or own.computed)}
        values |= checked_parameters([plain(own) for own in parameters], inputs)
        with self.opened() as pond:
            try:
                check_pond(pond, declared.plan, values, branch=inputs.get(BRANCH, ""))
            except Denied as error:
                self._tell(f"the maps of the pond were not looked at: {error}")

    @abstractmethod
    def define(self, declared: Declared, program: Program) -> None:
        """Let runs begin of a pipeline as it is now."""

    @abstractmethod
    def begin(self, pipeline: str, run: str, inputs: Mapping[str, Any]) -> None:
        """Begin a run of a pipeline, or carry on one that is there and open."""

    @abstractmethod
    def _send(self, request: Message) -> Message | None:
        """The reply of the engine to a request."""

    @abstractmethod
    def _row(self, kind: type[Any], name: Message) -> Any:
        """A row of the engine; None when there is none."""

    @abstractmethod
    def _tasks(self, run: str) -> list[TaskRun]:
        """The task runs of a run."""

    def run(
        self, declared: Declared, program: Program, inputs: Mapping[str, Any], run: str, *, rescues: bool = False
    ) -> Ended:
        """Run a pipeline to its end, or go on with the run of this id, also with one that was stopped.

        With `rescues` the step at which it failed tries again, and has what its checkpoints hold.

        Raises: `Invalid`, kind `pipeline_failed`, with the step that failed; as the engine, and as `check`.
        """
        if not self.status(run):
            self.check(declared, inputs)
        if self._url and (rescues or not self.is_over(run)):
            self._tell(f"{run} on {self._url}: millpond run show {run} --pond {self._url}")
        self.define(declared, program)
        self.begin(declared.plan.name, run, inputs)
        if self.status(run) != "COMPLETED" and self._variable(run, PROGRAM)["source"] != program["source"]:
            self._tell(f"{run} has the text with which it began, and the file another by now; --again takes that")
        if self.status(run) in ("HALTING", "HALTED"):
            self._send(ResumeWfRunRequest(wf_run_id=WfRunId(id=run)))
        elif rescues and self.status(run) in ("ERROR", "EXCEPTION"):
            self._send(RescueThreadRunRequest(wf_run_id=WfRunId(id=run)))
        self.work(lambda: self._is_open(run))
        row = self._row(WfRun, WfRunId(id=run))
        if row is None or row.status not in _OVER:
            raise Invalid("the run was stopped, or deleted", kind="pipeline_stopped", run=run,
                          status=self.status(run) or "deleted", hint="the same command goes on")  # fmt: skip
        values = self._variable(run, VALUES)
        if row.status != LHStatus.COMPLETED:
            failure = values.get("failure", {})  # of a run with on_failure; else the thread has it
            of_engine = f"{failure['step']}: {failure['reason']}" if "reason" in failure else ""
            reason = self._failure_of(declared, run) or of_engine or row.thread_runs[0].error_message
            raise Invalid("the run failed", kind="pipeline_failed", run=run, reason=reason,
                          hint="millpond pipeline run FILE --rescue lets the step try again, with the text that the run"
                          " began with; --again begins another run, with the file as it is")  # fmt: skip
        return Ended(run, LHStatus.Name(row.status), values)

    def status(self, run: str) -> str:
        """The status of a run; nothing when there is none."""
        row = self._row(WfRun, WfRunId(id=run))
        return "" if row is None else LHStatus.Name(row.status)

    def _is_open(self, run: str) -> bool:
        """True when there is a run of this id, which goes on."""
        return self.status(run) in _OPEN

    def is_over(self, run: str) -> bool:
        """True when there is a run of this id, and it has ended."""
        row = self._row(WfRun, WfRunId(id=run))
        return row is not None and row.status in _OVER

    def _variable(self, run: str, name: str) -> dict[str, Any]:
        row = self._row(Variable, VariableId(wf_run_id=WfRunId(id=run), thread_run_number=0, name=name))
        values: dict[str, Any] = {} if row is None else extract_value(shown(row).value)
        return values

    def _failure_of(self, declared: Declared, run: str) -> str:
        """The step at which a run failed, and the words of its last attempt; nothing when it was none."""
        names = {PARAMETERS, *(step.name for step in declared.plan.steps)}
        for task in self._tasks(run):
            name = extract_value(task.input_variables[0].value)["name"]
            if task.status in _FAILED and name in names:
                last = task.attempts[-1]
                words = last.exception.message if last.HasField("exception") else last.error.message
                number = f" attempt {len(task.attempts) - 1}" * (len(task.attempts) > 1)
                return f"{name}{number}: {words}"
        return ""


@dataclass(frozen=True, slots=True)
class Calls:
    """The client's configuration, and the stub that it gives, whose calls a function makes by their names."""

    send: Callable[[str, Any], Any]

    def stub(self, *_: Any, **__: Any) -> Calls:
        """Its methods."""
        return self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(request: Any, **_: Any) -> Any:
            return self.send(method, request)

        return call
