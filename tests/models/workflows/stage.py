"""A stage for the engine: rows, an instant that moves by command, timers that fire, queues that workers take from.

Every command is applied twice; the two outcomes must be the same, byte for byte.
"""

from __future__ import annotations

from collections import deque

from google.protobuf.message import Message
from littlehorse.model import (
    ExternalEvent,
    ExternalEventDefId,
    InactiveThreadRun,
    LHErrorType,
    LHStatus,
    LHTaskError,
    LHTaskException,
    NodeRun,
    PutExternalEventRequest,
    ReportTaskRun,
    RunWfRequest,
    ScheduledTask,
    TaskRun,
    TaskRunId,
    TaskStatus,
    ThreadHaltReason,
    ThreadRun,
    Variable,
    VariableValue,
    WfRun,
    WorkflowEvent,
)

from millpond.errors import MillpondError
from millpond.workflows.engine import (
    Command,
    CommandCaused,
    Key,
    Outcome,
    Request,
    TaskClaim,
    TaskQueued,
    TaskWithdrawn,
    TimerCancelled,
    TimerSet,
    TimersOfRunCancelled,
    Write,
    apply,
    caused_id,
    key_of,
    run_id,
)
from millpond.workflows.engine.advance import advance
from millpond.workflows.engine.commands import RunMigrationDue
from millpond.workflows.engine.runs import load
from millpond.workflows.engine.values.conversions import plain
from millpond.workflows.engine.work import Work
from millpond.workflows.processor.partition import CAUSED_PER_COMMAND
from millpond.workflows.verify import faults_of_threads
from tests.models.workflows.rows import MemoryRows

THREADS_CHECKED_MAX = 30
START = 1_700_000_000_000


def as_bytes(outcome: Outcome) -> list[object]:
    """An outcome in a form that compares byte for byte."""
    found: list[object] = [None if outcome.reply is None else outcome.reply.SerializeToString(deterministic=True)]
    for write in outcome.writes:
        if isinstance(write, Write):
            row = None if write.row is None else write.row.SerializeToString(deterministic=True)
            found.append((write.kind.__name__, write.key, row))
        else:
            found.append(write)
    return [*found, *map(repr, outcome.effects)]


def _caused(outcome: Outcome) -> list[Request]:
    return [effect.request for effect in outcome.effects if isinstance(effect, CommandCaused)]


class Stage:
    """One partition on a clock of its own."""

    def __init__(self) -> None:
        self.rows = MemoryRows()
        self.now = START
        self.timers: dict[Key, TimerSet] = {}
        self.queues: dict[str, list[TaskRunId]] = {}
        self.commands: list[tuple[Command, int]] = []
        self.unheard: list[MillpondError] = []

    def do(self, request: Request) -> Message | None:
        """Apply a request and what it causes, write the rows, and take the effects over."""
        command = Command(f"command-{len(self.commands)}", request)
        self.commands.append((command, self.now))
        first = self._apply(command)
        caused, number = deque(_caused(first)), 0
        while caused:
            follower = Command(caused_id(command.id, number), caused.popleft())
            number += 1
            if number > CAUSED_PER_COMMAND:
                name = ("caused", follower.id)
                self.timers[name] = TimerSet(name, self.now, follower.request)
                continue
            try:
                caused.extend(_caused(self._apply(follower)))
            except MillpondError as error:
                self.unheard.append(error)
        self.check()
        return first.reply

    def _apply(self, command: Command) -> Outcome:
        outcome = apply(self.rows, command, self.now)
        again = apply(self.rows, command, self.now)
        assert as_bytes(outcome) == as_bytes(again), "a command gives the same outcome whenever it is applied"
        self.rows.write(outcome)
        for effect in outcome.effects:
            self._take_over(effect)
        self._check_settled(outcome)
        return outcome

    def _check_settled(self, outcome: Outcome) -> None:
        """Check and advance all threads of the runs that a command wrote: nothing may be left for them to do."""
        paths = [write.key[0] for write in outcome.writes if isinstance(write, Write) and write.kind is WfRun]
        for path in paths[:3]:
            work = Work(self.rows, Command("settled", WfRun()), self.now)
            run = load(work, str(path))
            if run is None or len(run.threads) > THREADS_CHECKED_MAX:
                continue
            assert not list(faults_of_threads(self.rows, run.path, run.row)), path
            advance(run)
            left = work.outcome(None)
            tries = [effect for effect in left.effects if isinstance(effect, CommandCaused)]  # of a run that stays
            assert left.effects == tuple(tries), (path, left.effects)
            assert all(isinstance(effect.request, RunMigrationDue) for effect in tries), path
            for write in left.writes:
                assert isinstance(write, Write)
                assert write.row == self.rows.get(write.kind, write.key), (path, write.kind.__name__, write.key)

    def _take_over(self, effect: object) -> None:
        match effect:
            case TimerSet():
                self.timers[effect.name] = effect
            case TimerCancelled():
                self.timers.pop(effect.name, None)
            case TimersOfRunCancelled():
                for name in [name for name in self.timers if name[0] == effect.run]:
                    del self.timers[name]
            case TaskQueued():
                self.queues.setdefault(effect.task_def_id.name, []).append(effect.task_run_id)
            case TaskWithdrawn():
                self.queues[effect.task_def_id.name].remove(effect.task_run_id)

    def check(self) -> None:
        """Compare the queues with the rows: each queued attempt has its row, and each row its attempt."""
        queued = sorted(key_of(task) for queue in self.queues.values() for task in queue)
        rows = [row for _key, row in self.rows.list(ScheduledTask, ())]
        assert sorted(key_of(row.task_run_id) for row in rows) == queued
        for row in rows:
            task = self.rows.get(TaskRun, key_of(row.task_run_id))
            assert task is not None and task.attempts[row.attempt_number].status == TaskStatus.TASK_SCHEDULED

    def pass_time(self, ms: int) -> None:
        """Let time go by; timers fire at their instants."""
        until = self.now + ms
        while due := [timer for timer in self.timers.values() if timer.at <= until]:
            timer = min(due, key=lambda found: (found.at, str(found.name)))
            del self.timers[timer.name]
            self.now = max(self.now, timer.at)
            self.do(timer.request)
        self.now = until

    def claim(self, task: str) -> ScheduledTask | None:
        """Take the first queued task of a definition."""
        queue = self.queues.get(task, [])
        if not queue:
            return None
        found = self.do(TaskClaim(queue.pop(0), "worker-1", "v1"))
        assert found is None or isinstance(found, ScheduledTask)
        return found

    def report(self, path: str, guid: str, attempt: int, result: str, value: VariableValue, text: str = "") -> None:
        """Report the end of an attempt: done, failed, or thrown with the name of an exception."""
        request = ReportTaskRun(
            task_run_id=TaskRunId(wf_run_id=run_id(path), task_guid=guid), attempt_number=attempt, time={"seconds": 1}
        )
        if result == "done":
            request.status = TaskStatus.TASK_SUCCESS
            request.output.CopyFrom(value)
        elif result == "failed":
            request.status = TaskStatus.TASK_FAILED
            request.error.CopyFrom(LHTaskError(type=LHErrorType.TASK_FAILURE, message=text))
        else:
            request.status = TaskStatus.TASK_EXCEPTION
            request.exception.CopyFrom(LHTaskException(name=result, message=text, content=value))
        self.do(request)

    def run(self, spec: str, path: str, inputs: dict[str, VariableValue]) -> WfRun:
        """Start a run."""
        found = self.do(RunWfRequest(wf_spec_name=spec, id=path, variables=inputs))
        assert isinstance(found, WfRun)
        return found

    def event(self, path: str, name: str, value: VariableValue, guid: str) -> None:
        """Post an external event."""
        definition = ExternalEventDefId(name=name)
        self.do(
            PutExternalEventRequest(wf_run_id=run_id(path), external_event_def_id=definition, guid=guid, content=value)
        )

    # ------------------------------------------------------------------------------------ readable state

    def show(self, path: str) -> str:
        """A run as text: one line for the run, and one for each thread and each of its node runs."""
        run = self.rows.get(WfRun, (path,))
        if run is None:
            return f"{path} is gone"
        lines = [f"{path} {LHStatus.Name(run.status)}"]
        for thread in run.thread_runs:
            lines.append(_thread_line(thread))
            lines += [f"    {self._node_line(row)}" for _key, row in self.rows.list(NodeRun, (path, thread.number))]
        for _key, variable in self.rows.list(Variable, (path,)):
            thread = variable.id.thread_run_number
            lines.append(f"  {thread}/{variable.id.name} = {shown(variable.value)}")
        for _key, event in self.rows.list(ExternalEvent, (path,)):
            claimed = "claimed" if event.claimed else "unclaimed"
            lines.append(f"  event {event.id.external_event_def_id.name}/{event.id.guid} {claimed}")
        for _key, thrown in self.rows.list(WorkflowEvent, (path,)):
            name = f"{thrown.id.workflow_event_def_id.name}/{thrown.id.number}"
            lines.append(f"  thrown {name} = {shown(thrown.content)}")
        return "\n".join(lines)

    def _node_line(self, row: NodeRun) -> str:
        parts = [f"{row.id.position} {row.node_name.split('-', 1)[-1]} {LHStatus.Name(row.status)}"]
        for failure in row.failures:
            handler = failure.failure_handler_threadrun_id if failure.HasField("failure_handler_threadrun_id") else "-"
            parts.append(f"[{failure.failure_name}: {failure.message} | handler {handler}]")
        for waited in row.wait_for_threads.threads:
            name = row.wait_for_threads.WaitingThreadStatus.Name(waited.waiting_status)
            parts.append(f"({waited.thread_run_number} {LHStatus.Name(waited.thread_status)} {name})")
        if row.WhichOneof("node_type") == "sleep":
            parts.append(f"until {(row.sleep.maturation_time.ToMilliseconds() - START) / 1000:g} s")
        if row.task.HasField("task_run_id"):
            task = self.rows.get(TaskRun, key_of(row.task.task_run_id))
            assert task is not None
            parts += [TaskStatus.Name(attempt.status).removeprefix("TASK_").lower() for attempt in task.attempts]
        return " ".join(parts)


def _thread_line(thread: ThreadRun) -> str:
    reasons = [_reason(reason) for reason in thread.halt_reasons]
    output = f" -> {shown(thread.output)}" if thread.HasField("output") else ""
    halted = f" ({', '.join(reasons)})" if reasons else ""
    return f"  {thread.number} {thread.thread_spec_name} {LHStatus.Name(thread.status)}{halted}{output}"


def archived_lines(stage: Stage, path: str) -> list[str]:
    """The archived threads of a run."""
    rows = stage.rows.list(InactiveThreadRun, (path,))
    return [_thread_line(row.thread_run) for _key, row in rows if row.WhichOneof("inactive_reason") == "archived"]


def _reason(reason: ThreadHaltReason) -> str:
    return (reason.WhichOneof("reason") or "?").replace("_", " ")


def shown(value: VariableValue) -> str:
    """A value as text."""
    return repr(plain(value))
