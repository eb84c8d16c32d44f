"""The kinds of steps, carried out: inputs in, an output of JSON out. Each is idempotent under the key of its step."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from errno import ENOENT
from functools import partial
from io import FileIO, IncrementalNewlineDecoder
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from shutil import which
from typing import TYPE_CHECKING, Any, cast

import urllib3

from millpond.clock import SystemClock
from millpond.errors import Invalid, Unavailable
from millpond.events.event import NewEvent
from millpond.json_forms import plain, stable_json
from millpond.pipelines.attempt_logs import current_log
from millpond.pipelines.attempt_threads import in_own_thread, while_it_lasts
from millpond.pipelines.branches import begin_branch, checked_head, exceeded, load_on, merge_branch, on_branch, stays
from millpond.pipelines.declare import COMPUTED, notified
from millpond.pipelines.programs import call_function
from millpond.pipelines.queries import is_table, query_rows, row_text, write_rows
from millpond.pipelines.reads import commit_of, map_of, maps_among, paths_among, pinned, tables_among
from millpond.pipelines.requests import Target
from millpond.pipelines.stated import ITEMS_MAX
from millpond.pipelines.step import Failed, Step
from millpond.pipelines.targets import map_for_load
from millpond.pipelines.tickets import earlier_load, refuse_void, ticket_of, void
from millpond.pipelines.values import filled, without_skipped
from millpond.reports.alerts import read_alert
from millpond.tracing import trace_headers
from millpond.workflows.engine.cron import instant_of, zone_of
from millpond.workflows.engine.data_starts import mark_of
from millpond.workflows.engine.pipeline_starts import BRANCH, PARAMETERS, checked_parameters

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.client.pond import RemotePond
    from millpond.pond import Pond

__all__ = ("CHECK_FAILED", "carried_out")

CHECK_FAILED = "check-failed"
"""The exception of a check whose rules do not all hold, or whose query finds rows."""
_ROWS_SHOWN = 5
_OUTPUT_CHARACTERS, _READ_BYTES = 10_000, 65_536
_WATCH = 'read group && { read over || kill -s KILL -- "-$group"; }'
"""Ends the programs of a group when nobody says that they are over before the pipe ends, as when its process is killed.
"""
_BEGIN = """trap '' PIPE; echo $$ >&0 2>/dev/null; trap - PIPE; exec "$@" </dev/null"""
"""A program that tells its group itself, before it begins: whoever starts it may be killed at any moment."""
_SKIPPED = {"$skipped": True}
_LISTS = {"maps", "loads", "seen"}
"""Inputs that are lists of outputs, of which some may be of steps that were skipped."""

Job = Callable[[Step, str, dict[str, Any]], Awaitable[dict[str, Any]]]
Kind = Callable[[Step, dict[str, Any], dict[str, Any]], Awaitable[dict[str, Any]]]


async def carried_out(
    step: Step, planned: dict[str, Any], values: dict[str, Any], program: dict[str, Any], job: Job
) -> dict[str, Any]:
    """The output of a step; `job` runs one of Spark's.

    Raises: `Failed` for a check that does not hold; as the kind.
    """
    if planned["kind"] == PARAMETERS:
        if "map" not in planned:
            return await step.once(partial(_parameters, planned, values, step))
        output: dict[str, Any] = await step.of_pond(partial(_parameters, planned, values, step))
        return output
    if planned["when"] is not None and not filled(planned["when"], values):
        return _SKIPPED
    planned = {**planned, "program": program, "job": job}
    kind = _KINDS[planned["kind"]]
    branch = values["run"].get("branch", "")

    def inputs_of(own: dict[str, Any]) -> dict[str, Any]:
        templates = dict(planned["inputs"])
        for name in _LISTS & set(templates):
            templates[name] = without_skipped(templates[name], own)
        if templates.get("maps") != planned["inputs"].get("maps"):  # what is checked is there, or the check says why
            templates["maps"] = templates["maps"] or planned["inputs"]["maps"]
        inputs: dict[str, Any] = filled(templates, own)
        inputs |= {"tables": tables_among(templates["maps"], inputs["maps"])} if planned["kind"] == "check" else {}
        return on_branch(planned["kind"], inputs, branch) if branch else inputs

    if planned["over"] is None:
        return await _in_time(planned, kind(step, planned, inputs_of(values)))
    items = filled(planned["over"], values)
    if not isinstance(items, list) or len(items) > ITEMS_MAX:
        size = len(items) if isinstance(items, list) else type(items).__name__
        raise Invalid("a step is done for each item of a list", kind="pipeline_value", step=planned["name"],
                      items=size, limit=ITEMS_MAX, hint="give more to one function, as a list")  # fmt: skip
    outputs = []
    for number, item in enumerate(items):  # one after another: a checkpoint holds each
        own = Step(step.context, step.pond, f"{step.key}-{number}")
        work = kind(own, planned, inputs_of({**values, "item": item}))
        outputs.append(await _in_time(planned, work, f"{number} of {len(items)} items"))
    return {"items": outputs, "count": len(outputs)}


async def _in_time(planned: dict[str, Any], work: Awaitable[dict[str, Any]], *done: str) -> dict[str, Any]:
    """The output of work that has the timeout of its step: each item of a loop has it for itself. What is `done`, and
    what its cancellation notes, says how far it was.
    """
    seconds = planned["timeout_ms"] / 1000 if "timeout_ms" in planned else None
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError as over:
        if not limit.expired():
            raise
        far = ", ".join((*done, *getattr(over.__cause__, "__notes__", ())))
        how_far = {"done": far} if far else {}
        raise Unavailable("the timeout of the step is over, and it was at work", kind="step_timeout", seconds=seconds,
                          **how_far, hint="state a longer timeout at the step") from None  # fmt: skip


def _parameters(
    planned: dict[str, Any], inputs: dict[str, Any], step: Step, pond: Pond | RemotePond | None = None
) -> dict[str, Any]:
    """The values of parameters: of their types, with defaults where none is given; an alert is one of the pond's."""
    branch = inputs.get(BRANCH, "")
    stated = checked_parameters(planned["parameters"], inputs)
    zone = zone_of(planned.get("time_zone") or "UTC")  # a run of an earlier release has none
    began = datetime.fromtimestamp(step.context.scheduled_time.timestamp(), zone)  # by the clock of the engine
    at = (instant_of(step.context.wf_run_id.id) or began).astimezone(zone)
    run = {"id": step.context.wf_run_id.id, "began": began.astimezone(UTC).isoformat()}
    values: dict[str, Any] = {"run": {**run, "key": SystemClock().random_id()}}
    if branch:
        values["run"]["branch"] = branch
    mark = mark_of(values["run"]["id"])
    for own in planned["parameters"]:
        name, default = own["name"], own["default"]
        if name in stated:
            default = stated[name]
        elif default == "alert" and own["computed"]:
            default = read_alert(pond.events, planned["map"], mark) if pond is not None and mark else {}
        elif own["computed"]:
            default = mark if default == "arrived" else str(COMPUTED[default](at))
        values[name] = default
    return values


# -- kinds --------------------------------------------------------------------------------------------


def _files(step: Step) -> Path:
    """The folder for the tables of a step's run."""
    folder = os.environ.get("MILLPOND_PIPELINE_FILES", "pipeline-files")
    return Path(folder).absolute() / step.context.wf_run_id.id


def _name_of(map: Any) -> str:
    return str(map["map"] if isinstance(map, Mapping) else map)


def _branch_of(branch: Any) -> str:
    return str(branch["branch"] if isinstance(branch, Mapping) else branch)


async def _load(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    attempt = step.context.attempt_number
    ticket = ticket_of(step.key, attempt)

    def work(pond: Pond | RemotePond) -> dict[str, Any]:
        name, files = inputs["map"], paths_among(inputs["files"])
        if (entered := earlier_load(pond, step.key, attempt)) is not None:
            return {"map": name, **entered}
        if "branch" in inputs:
            return load_on(pond, _branch_of(inputs["branch"]), ticket, {**inputs, "files": files})
        target = Target(kind=inputs["kind"], value=inputs["value"])
        with while_it_lasts() as look, map_for_load(pond, name, target):
            result = pond.load_files(
                files, name, columns=inputs.get("columns"), written=inputs.get("format"),
                max_rejects=inputs["max_rejects"], source=step.key, load_id=ticket, advance=look,
            )  # fmt: skip
            refuse_void(pond, ticket, result)
        return {"map": name, "load": result.load, "rows": result.rows, "rejected": result.rejected,
                "position": result.position}  # fmt: skip

    try:
        output: dict[str, Any] = await step.of_pond(work)
    except asyncio.CancelledError:  # the run was stopped, or the timeout is over, and its thread goes on
        await step.outside(lambda pond: void(pond, ticket))
        raise
    return output


async def _sql(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    if inputs["engine"] == "spark":
        out = str(_files(step))
        inputs = await _pinned(step, inputs)
        output: dict[str, Any] = await planned["job"](step, "query", {**inputs, "out": out, "first_rows": 0})
        return output
    file = _files(step) / f"{step.key}.parquet"

    def work(pond: Pond | RemotePond) -> dict[str, Any]:
        rows = query_rows(pond, inputs["query"], inputs["inputs"], lambda reader: write_rows(reader, file))
        return {"path": str(file), "rows": rows}

    result: dict[str, Any] = await step.of_pond(work)
    return result


async def _check(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    while True:
        report = await _checked(step, planned, inputs)
        if report["passed"] or not inputs.get("fails", True):  # a run of an earlier release fails
            return report
        if await step.retained() is None:
            words = f"{report['reason']}{stays(report)}"
            await step.keep({"failed": words})  # an attempt that somebody asks for afterwards looks again
            raise Failed(CHECK_FAILED, words, {"check": planned["name"], "query": inputs["query"], **report})


async def _checked(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """The report of a check; why it does not hold, and the first rows of its query then."""

    def shown(reader: pa.RecordBatchReader) -> list[str]:
        return [row_text(row) for row in reader.read_all().to_pylist()]

    inputs = await _pinned(step, inputs)
    maps, tables, limits = inputs["maps"], inputs["tables"], inputs["limits"]
    inputs = {**inputs, "inputs": {**tables, **inputs["inputs"]}}
    about, odd, words = commit_of([*maps, *inputs["inputs"].values()]), list[str](), list[str]()
    if inputs["query"]:
        if inputs["engine"] == "spark":
            odd = (await planned["job"](step, "query", {**inputs, "first_rows": _ROWS_SHOWN}))["first"]
        else:
            odd = await step.of_pond(
                lambda pond: query_rows(pond, inputs["query"], inputs["inputs"], shown, maps, _ROWS_SHOWN)
            )
        if bool(odd) is inputs["finds_nothing"]:
            words = [f"the check finds rows: {'; '.join(odd)}" if odd else "the check finds no rows"]
    if limits:
        words += await step.of_pond(lambda pond: exceeded(pond, [*maps, *tables.values()], limits))
    first = odd if words else []
    return {"passed": not words, "rows": len(odd), "first": first, "reason": "; ".join(words), **about}


async def _pinned(step: Step, inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs whose maps on branches are at one commit, which is the same in all attempts."""
    tables = maps_among(inputs.get("maps", []))
    values = [*tables, *inputs["inputs"].values()]
    if any(isinstance(value, Mapping) and value.get("branch") for value in values):
        values = await step.of_pond(lambda pond: [pinned(pond, value) for value in values])
    named = dict(zip(inputs["inputs"], values[len(tables) :], strict=True))
    return {**inputs, "maps": values[: len(tables)], "inputs": named}


async def _branch(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", inputs["name"]) if inputs["free"] else inputs["name"]
    output: dict[str, Any] = await step.of_pond(
        lambda pond: begin_branch(pond, name, inputs["from"], anew=inputs["anew"])
    )
    return output


async def _merge(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    branch = _branch_of(inputs["branch"])
    commit = await step.of_pond(lambda pond: checked_head(pond, branch, inputs["seen"]))
    merged = await step.of_pond(
        lambda pond: merge_branch(
            pond, branch, commit, inputs["into"], strategy=inputs["strategy"], keep=inputs["keep"]
        )
    )
    loads = maps_among(inputs["loads"])
    of_map = {"map": loads[0]["map"]} if len({load["map"] for load in loads}) == 1 else {}
    on = {} if inputs["into"] == "main" else {"branch": inputs["into"]}
    return {**merged, **of_map, **on, "rows": sum(load["rows"] for load in loads)}


async def _enrich(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    rows = inputs["rows"]
    if is_table(rows):
        view: dict[str, Any] = {"files": [rows["path"]], "format": "parquet"}
    else:
        files = rows if isinstance(rows, list) else [rows]
        form = inputs["format"] or Path(files[0]).suffix.lstrip(".")
        view = {"files": files, "format": "json" if form == "jsonl" else form}
        view["options"] = {"header": "true", "inferSchema": "true"} if form == "csv" else {}
    own = inputs["map"]
    if isinstance(own, Mapping) and own.get("branch"):
        own = await step.of_pond(lambda pond: pinned(pond, inputs["map"]))
    at = {"ref": own["ref"]} if isinstance(own, Mapping) and "ref" in own else {}
    lookup = {"map": _name_of(own), "key": inputs["key"], "at": inputs["at"], "into": inputs["into"]}
    arguments = {
        "rows": {"sql": "select * from step_rows", "views": {"step_rows": view}}, "lookups": [lookup],
        "out": str(_files(step)), **at,
    }  # fmt: skip
    output: dict[str, Any] = await planned["job"](step, "enrich", arguments)
    return output


async def _python(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    function = partial(call_function, planned["program"], planned["pipeline"], planned["name"], inputs["arguments"])
    output: dict[str, Any] = await step.once(function, in_own_thread)
    return output


async def _spark(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    arguments = {"program": planned["program"], "pipeline": planned["pipeline"], "step": planned["name"], **inputs}
    output: dict[str, Any] = await planned["job"](step, "function", arguments)
    return output


async def _shell(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    output: dict[str, Any] | None = await step.retained()
    if output is None:
        output = await _program_run([str(word) for word in inputs["command"]], inputs["env"])
        await step.keep(output)
    return output


async def _program_run(words: list[str], variables: Mapping[str, Any]) -> dict[str, Any]:
    """The output of a program. It ends, with those that it began, when the attempt is over or this process is gone."""
    with subprocess.Popen(
        ["sh", "-c", _WATCH], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, bufsize=0,
    ) as watch:  # fmt: skip
        stdin = cast("FileIO", watch.stdin)
        try:
            return await _watched_run(words, variables, stdin)
        finally:
            with suppress(OSError):  # it was killed
                stdin.write(b"over\n")


async def _watched_run(words: list[str], variables: Mapping[str, Any], watch: FileIO) -> dict[str, Any]:
    env = {**os.environ, **_caller(), **{name: str(value) for name, value in variables.items()}}
    try:
        if which(words[0], path=env.get("PATH")) is None:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), words[0])
        process = subprocess.Popen(
            ["sh", "-c", _BEGIN, "sh", *words], env=env, start_new_session=True, stdin=watch, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, bufsize=0,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise Invalid("the program does not begin", kind="pipeline_program_failed", program=words[0], reason=error,
                      hint="name a program that the worker has on its PATH") from None  # fmt: skip
    over, end = os.pipe()
    try:
        said_by = partial(copy_context().run, _said, process, over)
        # An attempt that is over before the thread begins leaves it to close the pipes: no thread would, of a task.
        output = await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, said_by))
    except BaseException:
        with suppress(ProcessLookupError):  # also where it has ended, and those that it began go on
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        os.close(end)
    if process.wait():
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        said = {"line": last} if last else {}
        raise Unavailable("a program failed", kind="pipeline_program_failed", program=words[0],
                          status=process.returncode, **said)  # fmt: skip
    return {"status": 0, "output": output}


def _caller() -> dict[str, str]:
    """The variable by which a program that makes spans finds the one that it is within."""
    return {name.upper(): value for name, value in trace_headers().items()}


def _said(process: subprocess.Popen[bytes], over: int) -> str:
    """The last characters of what a program writes until it, and those that it began, have ended, or the attempt is
    over, as the end of the pipe `over` says; all of it is in the log of the attempt.
    """
    log, output, data = current_log(), "", b"-"
    decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("replace"), translate=True)
    with cast("FileIO", process.stdout) as written, os.fdopen(over, "rb", 0) as ended, DefaultSelector() as ready:
        for pipe in (written, ended):
            ready.register(pipe, EVENT_READ)
        while data:
            pipes = [key.fileobj for key, _ in ready.select()]
            data = b"" if ended in pipes else written.read(_READ_BYTES) or b""
            text = decoder.decode(data, final=not data)
            if log is not None:
                log.write(text)
            output = (output + text)[-_OUTPUT_CHARACTERS:]
    return output


async def _notify(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    place, body = notified(inputs["place"]), stable_json(inputs["fields"], compact=True)

    def append(pond: Pond | RemotePond) -> dict[str, Any]:
        queue, _, job_set = place.removeprefix("stream:").partition("/")
        event = NewEvent(pond.clock.now_ms(), body, planned["name"], {"job_id": step.key})
        return plain(pond.events.append(queue, job_set, [event], source=f"notify:{step.key}", positions=[1]))

    def post() -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": step.key}
        try:
            answer = urllib3.request("POST", place, body=body, headers=headers, timeout=30, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable("nobody answers there", kind="pipeline_notify", place=place, reason=error) from None
        if answer.status >= 500 or answer.status == 429:
            raise Unavailable("it could not be told", kind="pipeline_notify", place=place, status=answer.status)
        if answer.status >= 300:  # where it is elsewhere, nobody was told
            raise Invalid("it is refused there", kind="pipeline_notify", place=place, status=answer.status)
        return {"status": answer.status}

    await (step.of_pond(append) if place.startswith("stream:") else step.once(post))
    return {"place": place}


def _maintained(what: str) -> Kind:
    async def maintain(step: Step, planned: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        def work(pond: Pond | RemotePond) -> dict[str, Any]:
            own, before = map_of(pond, inputs["map"]), inputs["before"] or None
            return {"map": own.name, **plain(own.condense(before) if what == "condense" else own.retain(before))}

        output: dict[str, Any] = await step.of_pond(work)
        return output

    return maintain


_KINDS: dict[str, Kind] = {
    "load": _load, "sql": _sql, "check": _check, "enrich": _enrich, "python": _python, "spark": _spark,
    "shell": _shell, "notify": _notify, "condense": _maintained("condense"), "retain": _maintained("retain"),
    "branch": _branch, "merge": _merge,
}  # fmt: skip
