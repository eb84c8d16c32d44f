"""The tasks of pipelines: `millpond worker millpond.pipelines` works on them.

Their inputs are names, and JSON whose forms are in `requests`. Each is idempotent under retries: its key is that of the
task run, see `step`. The pond is that of the worker.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from littlehorse.worker import WorkerContext

from millpond.errors import NotFound
from millpond.events.event import NewEvent
from millpond.json_forms import plain, stable_json
from millpond.pipelines.attempt_logs import ATTEMPT_LOG_BYTES_MAX
from millpond.pipelines.attempt_threads import in_thread, to_its_end
from millpond.pipelines.driver import Drivers, SparkDriver
from millpond.pipelines.kinds import CHECK_FAILED, carried_out
from millpond.pipelines.rules import Finding, summary
from millpond.pipelines.step import Failed, Step, attempt
from millpond.pipelines.step_lineage import StepLineage
from millpond.pipelines.tickets import ticket_of, void
from millpond.workflows.engine.pipeline_starts import PARAMETERS
from millpond.workflows.tasks.progress import showing, words_of

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.pond import Pond

_DRIVER = "$driver"
"""The field of a checkpoint that holds where a driver is, and not the result of its job."""

__all__ = ("check", "condense", "enrich", "load", "notify", "retain", "step")


async def load(map: str, rows: dict[str, Any], options: dict[str, Any], context: WorkerContext) -> dict[str, Any]:
    """Load the rows of a query into a map, as one load that is entered once."""

    async def work(step: Step) -> dict[str, Any]:
        return await _job(step, "load", {"map": map, "rows": rows, "options": options})

    return await attempt(context, work, map=map)


async def check(map: str, rows: dict[str, Any], rules: dict[str, Any], context: WorkerContext) -> dict[str, Any]:
    """Hold rows against rules, or without rows those of the map; the report.

    Raises: the exception `check-failed`, with the report as its content.
    """

    async def work(step: Step) -> dict[str, Any]:
        report = await _job(step, "check", {"map": map, "rows": rows, "rules": rules})
        if not report["passed"]:
            findings = [Finding(**finding) for finding in report["findings"]]
            raise Failed(CHECK_FAILED, f"{map}: {summary(findings)}", report)
        return report

    return await attempt(context, work, map=map)


async def enrich(rows: dict[str, Any], lookups: list[Any], out: str, context: WorkerContext) -> dict[str, Any]:
    """Write rows with what maps know about each, as Parquet in a folder of its own below `out`."""

    async def work(step: Step) -> dict[str, Any]:
        return await _job(step, "enrich", {"rows": rows, "lookups": lookups, "out": out})

    return await attempt(context, work)


async def condense(map: str, before: str, context: WorkerContext) -> dict[str, Any]:
    """Drop the rows of a map that repeat the one before them, up to a time; without one, by the map's setting."""
    return await attempt(context, partial(_maintained, "condense", map, before), map=map)


async def retain(map: str, before: str, context: WorkerContext) -> dict[str, Any]:
    """Delete the rows of a map that are older than a time; without one, by the map's setting."""
    return await attempt(context, partial(_maintained, "retain", map, before), map=map)


async def notify(
    queue: str, job_set: str, kind: str, message: dict[str, Any], context: WorkerContext
) -> dict[str, Any]:  # fmt: skip
    """Append an event to a stream of the pond, once: its payload is the message as JSON."""

    async def work(step: Step) -> dict[str, Any]:
        def append(pond: Pond | RemotePond) -> dict[str, Any]:
            event = NewEvent(pond.clock.now_ms(), stable_json(message, compact=True), kind, {"job_id": step.key})
            # A stream that is the run's own holds the story under the key itself.
            source = f"notify:{step.key}"
            return plain(pond.events.append(queue, job_set, [event], source=source, positions=[1]))

        await step.of_pond(append)
        return {"queue": queue, "job_set": job_set, "kind": kind}

    return await attempt(context, work)


async def step(
    planned: dict[str, Any], values: dict[str, Any], program: dict[str, Any], context: WorkerContext
) -> dict[str, Any]:  # fmt: skip
    """A step of a pipeline that is a function: its output."""

    async def work(own: Step) -> dict[str, Any]:
        return await carried_out(own, planned, values, program, _job)

    log_bytes = planned.get("log_bytes", ATTEMPT_LOG_BYTES_MAX)  # a run of an earlier release names none
    lineage = StepLineage(planned, values)
    # The first step draws the key of the run; the values of a run of an earlier release have none.
    run_key = "" if planned["kind"] == PARAMETERS else values["run"].get("key", "")
    return await attempt(
        context, work, log_bytes=log_bytes, values=values, lineage=lineage, run_key=run_key,
        pipeline_step=planned["name"],
    )  # fmt: skip


async def _job(step: Step, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a job of Spark: of a checkpoint, of a driver that goes on with it, or of one that begins it."""
    location: dict[str, Any] | None = None
    while (row := await step.retained()) is not None:
        if _DRIVER not in row:
            result: dict[str, Any] = row
            return result
        location = row[_DRIVER]
    if location is not None and (driver := await asyncio.to_thread(_drivers().again, location)) is not None:
        with suppress(NotFound):  # it has forgotten a job that failed, or was stopped
            return await _done_by(driver, location, step, name, arguments, again=True)
    driver = _drivers().own()
    location = await in_thread(driver.location)
    location |= {"attempt": step.context.attempt_number, "ticket": ticket_of(step.key, step.context.attempt_number)}
    await step.keep({_DRIVER: location})  # before it has the job: one that no checkpoint names has none, and ends
    return await _done_by(driver, location, step, name, arguments)


async def _done_by(
    driver: SparkDriver, location: dict[str, Any], step: Step, name: str, arguments: dict[str, Any], *,
    again: bool = False,
) -> dict[str, Any]:  # fmt: skip
    ticket = location["ticket"]
    whole = {**arguments, "pond": step.pond, "key": step.key, "attempt": location["attempt"]}
    run = partial(driver.run, ticket, name, whole, step.watched(), again=again)
    try:
        with showing(step.context.task_run_id, step.context.attempt_number, partial(driver.status, ticket)):
            result = await asyncio.to_thread(run)
    except asyncio.CancelledError as cancelled:
        if far := words_of(driver.status(ticket)):
            cancelled.add_note(far)
        # The run was stopped or deleted, or the timeout is over: nothing of it enters a map afterwards.
        if await to_its_end(asyncio.to_thread(driver.cancel, ticket)) and name == "load":
            await step.outside(lambda pond: void(pond, ticket))
        raise
    else:
        await step.keep(result)  # whoever leaves a driver lets it forget
        await asyncio.to_thread(driver.forget, ticket)
    finally:
        _drivers().left(driver)
    return result


async def _maintained(what: str, map: str, before: str, step: Step) -> dict[str, Any]:
    def maintain(pond: Pond | RemotePond) -> dict[str, Any]:
        own = pond.map(map)
        return plain(own.condense(before or None) if what == "condense" else own.retain(before or None))

    result: dict[str, Any] = await step.of_pond(maintain)
    return result


@cache
def _drivers() -> Drivers:
    return Drivers(os.environ.get("MILLPOND_SPARK_MASTER", "local[*]"), os.environ.get("MILLPOND_SPARK_SHARED", ""))
