"""Names in words, for commands and pages: a status of runs, a workflow, a version of one, an answer to a question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from millpond.error_values import shown, some_of
from millpond.errors import Invalid, MillpondError, NotFound
from millpond.json_forms import to_json
from millpond.workflows.deferred import conversions, engine, pipeline_starts, protocol, start_inputs

__all__ = (
    "answer_in", "attempt_words", "fetch", "filters_of", "node_number", "run_of", "spec_of", "status_of", "version_of",
)  # fmt: skip

_WORKFLOWS_MAX = 50
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")


def status_of(text: str) -> Any:
    """A status of runs.

    Raises: `Invalid`, which names those that there are.
    """
    if text.upper() not in protocol.LHStatus.keys():  # noqa: SIM118, it is no dictionary
        raise Invalid("no run has this status", kind="run_status", status=text,
                      hint=f"one of {', '.join(protocol.LHStatus.keys())}")  # fmt: skip
    return protocol.LHStatus.Value(text.upper())


def spec_of(call: Any, workflow: str) -> Any:
    """The newest specification of a workflow.

    Raises: `NotFound`, which names the workflows that there are.
    """
    try:
        return call("GetLatestWfSpec", protocol.GetLatestWfSpecRequest(name=pipeline_starts.spec_name(workflow)))
    except NotFound:
        names = some_of({spec_id.name for spec_id in call("SearchWfSpec", protocol.SearchWfSpecRequest()).results})
        raise NotFound("no workflow has this name", kind="workflow_spec", workflow=workflow,
                       hint=f"one of: {names}" if names else "register one first") from None  # fmt: skip


def run_of(call: Any, run: str) -> Any:
    """The row of a run.

    Raises: `NotFound`.
    """
    try:
        return call("GetWfRun", engine.run_id(run))
    except NotFound:
        raise NotFound("no run has this id", kind="workflow_run", run=run, hint="list them: millpond runs") from None


def filters_of(call: Any, workflow: str, tags: Sequence[str]) -> list[Any]:
    """The values of variables that tags, `NAME=VALUE`, name: of those that the workflow declares as searchable.

    Raises: `Invalid`; `NotFound` for a workflow that is not there.
    """
    if not workflow:
        tagged = some_of(_workflows_with(call, tags[0].partition("=")[0].strip()))
        raise Invalid("a tag belongs to a workflow", kind="run_tag", tag=shown(tags[0]),
                      hint=f"name the workflow, too{f', one of: {tagged}' if tagged else ''}")  # fmt: skip
    spec = spec_of(call, workflow)
    declared = {own.var_def.name: own for own in spec.thread_specs[spec.entrypoint_thread_name].variable_defs}
    filters = []
    for tag in tags:
        name, equals, text = (part.strip() for part in tag.partition("="))
        own = declared.get(name)
        if not equals or own is None or not own.searchable:
            names = ", ".join(sorted(other for other, variable in declared.items() if variable.searchable))
            raise Invalid("runs have no such tag", kind="run_tag", tag=shown(tag),
                          hint=f"write NAME=VALUE of a searchable variable: {names or 'it has none'}")  # fmt: skip
        filters.append(
            protocol.VariableMatch(
                var_name=name, value=start_inputs.value_in(text, own.var_def.type_def.primitive_type)
            )
        )
    return filters


def _workflows_with(call: Any, tag: str) -> Iterator[str]:
    """The first workflows that declare a variable of this name as searchable."""
    with suppress(MillpondError):  # who may search for runs may perhaps not read specifications
        names = {spec_id.name for spec_id in call("SearchWfSpec", protocol.SearchWfSpecRequest()).results}
        for name in islice(sorted(names), _WORKFLOWS_MAX):
            spec = call("GetLatestWfSpec", protocol.GetLatestWfSpecRequest(name=name))
            variables = spec.thread_specs[spec.entrypoint_thread_name].variable_defs
            if any(own.searchable and own.var_def.name == tag for own in variables):
                yield name


def version_of(text: str) -> tuple[int, int]:
    """The numbers of a version.

    Raises: `Invalid`.
    """
    numbers = _VERSION.fullmatch(text)
    if numbers is None:
        raise Invalid("a version is two numbers", kind="workflow_version", version=text, hint="such as 0.1")
    return int(numbers[1]), int(numbers[2])


def fetch(call: Any, method: str, name: Any, thing: str, value: str) -> Any:
    """The thing that a method gets by its name.

    Raises: `NotFound`, in words; `millpond THING list` lists them.
    """
    try:
        return call(method, name)
    except NotFound:
        raise NotFound(f"there is no such {thing.replace('-', ' ')}", kind="workflow_missing", type=thing, id=value,
                       hint=f"list them: millpond {thing} list") from None  # fmt: skip


def node_number(name: str) -> tuple[int, str]:
    """The order of a node among those of its thread: the number that begins its name, such as `1-greet-TASK`."""
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() and len(digits) < 10 else 0, name


def attempt_words(attempt: Any, cut: Callable[[str], str] = str, reason: Callable[[str], str] = str) -> str:
    """The progress of an attempt that runs, else its output, or why it failed; `cut` and `reason` shorten them."""
    from millpond.workflows.tasks.progress import words_of

    if attempt.status == protocol.TaskStatus.TASK_RUNNING and attempt.HasField("log_output"):
        return words_of(conversions.plain(attempt.log_output))
    if attempt.HasField("output"):
        return cut(to_json(conversions.plain(attempt.output)).decode())
    if attempt.HasField("exception"):
        return f"{attempt.exception.name} {reason(attempt.exception.message)}"
    return reason(attempt.error.message)


def answer_in(call: Any, task: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an answer to a user task run, each of its type."""
    fields = call("GetUserTaskDef", task.user_task_def_id).fields
    types = {field.name: field.type for field in fields}
    return {
        field: start_inputs.value_in(text, types.get(field, protocol.VariableType.STR)) for field, text in texts.items()
    }
