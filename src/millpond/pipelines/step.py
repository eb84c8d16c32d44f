"""An attempt at a step: its key, its checkpoints, its story, and its failures as workflows understand them.

Invariants:
* the key of a task run is the same in all its attempts: in a pipeline it is made of the key of the run, which the first
  step draws; else its first checkpoint draws it. That of another run is another, also when a run was deleted and its id
  is used again;
* what a checkpoint holds is not done again by a later attempt;
* an error that a repetition cannot mend is an exception with the name of its kind, which handlers of the workflow
  catch; any other fails the attempt, and is tried again as the workflow says.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import grpc
from littlehorse.exceptions import LHTaskException
from littlehorse.model import VariableValue
from littlehorse.worker import WorkerContext

from millpond.client.location import NodesLocation, parse_location
from millpond.clock import SystemClock
from millpond.error_values import shown
from millpond.errors import Closed, Conflict, Fenced, Internal, Invalid, MillpondError, Unavailable
from millpond.json_forms import to_json
from millpond.lineage import PARENT
from millpond.pipelines.attempt_logs import ATTEMPT_LOG_BYTES_MAX, AttemptLog, collecting
from millpond.pipelines.attempt_threads import in_thread, to_its_end
from millpond.pipelines.step_lineage import StepLineage
from millpond.reports.steps import StepReports
from millpond.workflows.engine.keys import run_path
from millpond.workflows.tasks.failures import TaskFailed

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.pond import Pond

__all__ = ("Failed", "Step", "attempt", "held", "classify_error")

Runs = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
_LASTING = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError, FileNotFoundError)
_SHORT_SECONDS = 0.05
"""The time after which the story of an attempt says that it runs: of a shorter one, its end says so, too."""
_RUN_CHARS = 48
"""Characters of a run's id in the key; what follows them makes it unique."""


class Failed(Exception):
    """The work found that the run must not go on: an exception `name` of the workflow, with a report as its content."""

    def __init__(self, name: str, message: str, report: Mapping[str, object]) -> None:
        super().__init__(message)
        self.name, self.message, self.report = name, message, report


class _Unknown(Exception):
    """No checkpoint holds it yet."""


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt, as its work sees it. `pond` is the place of the pond."""

    context: WorkerContext
    pond: str
    key: str

    async def once(self, work: Callable[[], Any], runs: Runs = in_thread) -> Any:
        """The result of the work, which `runs` in a thread; that of an earlier attempt when a checkpoint holds it.

        Raises: what the work raises; `Unavailable` when the checkpoint cannot be stored.
        """
        return await _once(self.context, work, runs)

    async def retained(self) -> Any:
        """The value of the next checkpoint of an earlier attempt; None when there is none."""
        with suppress(_Unknown):
            return await _checkpoint(self.context, _unknown)
        return None

    async def keep(self, value: Any) -> None:
        """Store a checkpoint behind those that `retained` gave.

        Raises: `Unavailable` when it cannot be stored.
        """
        await _checkpoint(self.context, lambda _: value)

    def watched(self) -> dict[str, Any] | None:
        """The name of this attempt with the server of workflows; None where the engine is in this process."""
        if self.pond in _HELD:
            return None
        return {
            "run": run_path(self.context.wf_run_id), "task": self.context.task_run_id.task_guid,
            "thread": self.context.node_run_id.thread_run_number, "attempt": self.context.attempt_number,
        }  # fmt: skip

    async def of_pond(self, work: Callable[[Pond | RemotePond], Any]) -> Any:
        """The result of work on the open pond, once."""
        return await self.once(lambda: _with_pond(self.pond, work))

    async def outside(self, work: Callable[[Pond | RemotePond], Any]) -> Any:
        """The result of work on the open pond that no checkpoint holds: what ends an attempt.

        Raises: what the work raises.
        """
        return await to_its_end(asyncio.to_thread(_with_pond, self.pond, work))


async def attempt(
    context: WorkerContext, work: Callable[[Step], Coroutine[Any, Any, dict[str, Any]]], *,
    log_bytes: int = ATTEMPT_LOG_BYTES_MAX, values: Mapping[str, Any] | None = None,
    lineage: StepLineage | None = None, run_key: str = "", **about: str,
) -> dict[str, Any]:  # fmt: skip
    """Make an attempt at a step, tell its story and lineage, and keep its log; `about` are facts of all its events.

    A run with a `run_key`, which no other run has, needs no checkpoint for the keys of its steps.

    Raises: `LHTaskException` where a repetition cannot help; else an error whose text is one sentence.
    """
    log = AttemptLog(log_bytes, values)
    try:
        with collecting(log):
            return await _attempt(context, work, log, lineage, about, run_key)
    finally:
        if text := log.text():
            context.log(text)


async def _attempt(
    context: WorkerContext, work: Callable[[Step], Coroutine[Any, Any, dict[str, Any]]], log: AttemptLog,
    lineage: StepLineage | None, about: Mapping[str, str], run_key: str,
) -> dict[str, Any]:  # fmt: skip
    pond = os.environ.get("MILLPOND_POND", "pond")
    story: StepReports | None = None
    try:
        key, context = await _key_of(context, run_key)
        story = replace(_story(context, key, about, lineage), masked=log.masked)
        if lineage is not None:
            PARENT.set((f"{key}.{context.attempt_number}", lineage.job))
        result = await _carried_out(work(Step(context, pond, key)), pond, story)
        await asyncio.to_thread(_with_pond, pond, lambda opened: _succeeded(story, opened, result))
    except asyncio.CancelledError:
        stopped = Closed("the step was stopped", kind="step_stopped")
        await _report_failure(pond, story, stopped, retryable=True)
        raise
    except Failed as failed:
        refused = Internal(failed.message, kind=failed.name.replace("-", "_"))
        await _report_failure(pond, story, refused, retryable=False)
        report = VariableValue(json_obj=to_json(log.masked_in(failed.report)).decode())
        raise LHTaskException(failed.name, log.masked(failed.message), report) from None
    except Exception as raised:
        error = classify_error(raised)
        retryable = _is_retryable(error)
        log.write(_traced(raised))
        await _report_failure(pond, story, error, retryable=retryable)
        if retryable:
            raise TaskFailed(log.masked(str(error)), is_timeout=error.kind == "step_timeout") from None
        raise LHTaskException(error.kind.replace("_", "-"), log.masked(str(error))) from None
    return result


async def _carried_out(work: Coroutine[Any, Any, dict[str, Any]], pond: str, story: StepReports) -> dict[str, Any]:
    """The result of the work of an attempt, of which the story says that it runs, if it is no short one."""
    task = asyncio.create_task(work)
    try:
        ended, _ = await asyncio.wait({task}, timeout=_SHORT_SECONDS)
        if not ended:
            with suppress(MillpondError):  # its end will say so, if it can
                await asyncio.to_thread(_with_pond, pond, story.running)
        return await task
    finally:
        if task.cancel():  # the attempt was stopped
            await to_its_end(asyncio.wait({task}))


def _traced(error: Exception) -> str:
    """The words of a log about an error: of ours its sentence, of others the traceback."""
    cause = error.__cause__ or error
    if isinstance(cause, MillpondError):
        return f"{error}\n"
    return "".join(traceback.format_exception(cause))


def classify_error(error: Exception) -> MillpondError:
    """An error as one of ours: of the system's, those that stay are `Invalid`, others `Unavailable`."""
    if isinstance(error, MillpondError):
        return error
    if not isinstance(error, OSError):
        return Internal(f"unexpected {type(error).__name__}: {shown(str(error))}", kind="unexpected",
                        hint="this is our mistake: report it with the worker's log")  # fmt: skip
    reason, lasting = error.strerror or type(error).__name__, isinstance(error, _LASTING)
    if lasting:
        return Invalid("the system refused", kind="pipeline_place", reason=reason, path=error.filename,
                       hint="name a place that the worker may read or write")  # fmt: skip
    return Unavailable("the system refused", kind="system", reason=reason, path=error.filename)


def _is_retryable(error: MillpondError) -> bool:
    return isinstance(error, Unavailable | Conflict | Closed) and not isinstance(error, Fenced)


async def _key_of(context: WorkerContext, run_key: str) -> tuple[str, WorkerContext]:
    """The key of a task run, and the context in which its checkpoints behind that begin."""
    if not run_key:
        return await _checkpoint(context, lambda _: _key(context, SystemClock().random_id())), context
    key = _key(context, run_key)
    if not context.attempt_number:
        return key, context
    try:
        first = await _checkpoint(context, _unknown)
    except _Unknown:
        return key, context
    if isinstance(first, str) and first.startswith(_key(context, "")):
        return first, context  # an attempt by a worker of an earlier release drew it
    return key, cast("WorkerContext", _Peeked(context, first))


def _key(context: WorkerContext, drawn: str) -> str:
    run = run_path(context.wf_run_id)[:_RUN_CHARS]
    return f"{run}_{context.task_run_id.task_guid}_{drawn}"


class _Peeked:
    """The context of a repeated attempt, of which the first checkpoint was read already."""

    def __init__(self, context: WorkerContext, first: object) -> None:
        self._context, self._first = context, [first]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def execute_and_checkpoint(self, work: Callable[..., Any]) -> Any:
        """The first checkpoint, then those that follow."""
        return self._first.pop() if self._first else await self._context.execute_and_checkpoint(work)


def _story(context: WorkerContext, key: str, about: Mapping[str, str], lineage: StepLineage | None) -> StepReports:
    queue = os.environ.get("LHC_TENANT_ID", "default")
    facts = {"step": context.task_def_name, **about}
    began = SystemClock().monotonic()
    return StepReports(queue, run_path(context.wf_run_id), key, facts, context.attempt_number, began, lineage=lineage)


def _succeeded(story: StepReports | None, pond: Pond | RemotePond, result: Mapping[str, Any]) -> None:
    assert story is not None
    story.succeeded(pond, result)


_HELD: dict[str, Pond | RemotePond] = {}


@contextmanager
def held(address: str, pond: Pond | RemotePond) -> Iterator[None]:
    """Let the steps of this process use an open pond where they would open its place, while this lasts."""
    _HELD[address] = pond
    try:
        yield
    finally:
        del _HELD[address]


def _with_pond(address: str, work: Callable[[Pond | RemotePond], Any]) -> Any:
    if address in _HELD:
        return work(_HELD[address])
    location = parse_location(address)
    if isinstance(location, NodesLocation):
        return work(_of_nodes(location))
    with location.open_existing() as pond:  # a folder is not held: other processes work on it
        return work(pond)


@cache
def _of_nodes(location: NodesLocation) -> RemotePond:
    """A pond on nodes, which stays open: its connections serve all steps of this process."""
    pond = location.open_existing()
    atexit.register(pond.close)
    return pond


async def _report_failure(pond: str, story: StepReports | None, error: MillpondError, *, retryable: bool) -> None:
    """Tell of a failure where that is possible: the pond itself may be what failed."""
    if story is None:
        return
    with suppress(MillpondError):
        report = asyncio.to_thread(_with_pond, pond, lambda opened: story.failed(opened, error, retryable=retryable))
        await to_its_end(report)


async def _once(context: WorkerContext, work: Callable[[], Any], runs: Runs) -> Any:
    with suppress(_Unknown):
        return await _checkpoint(context, _unknown)
    # The client runs the work of a checkpoint on its event loop, where it would stop heartbeats.
    result = await runs(work)
    return await _checkpoint(context, lambda _: result)


async def _checkpoint(context: WorkerContext, value: Callable[[object], Any]) -> Any:
    """The value of the next checkpoint, or the one that is stored as it."""
    try:
        return await context.execute_and_checkpoint(value)
    except grpc.RpcError as error:
        raise Unavailable(
            "the server of workflows does not answer about a checkpoint", kind="checkpoint_lost",
            status=error.code().name, hint="the task is tried again",
        ) from None  # fmt: skip


def _unknown(_: object) -> Any:
    raise _Unknown
