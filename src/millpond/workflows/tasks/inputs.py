"""Inputs of task runs, as pages and commands show them.

| a task | its inputs |
|---|---|
| of a workflow | its variables, by name |
| a step of a pipeline | those of its plan, with the values of the run in them, its `over` and `when` |

Invariant: a text is of `INPUT_CHARACTERS_MAX` letters at most, and no secret is in it that the row of the task masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from littlehorse.model import TaskRun

from millpond.json_forms import to_json
from millpond.workflows.engine.pipeline_starts import PARAMETERS, VALUES, is_step
from millpond.workflows.engine.values.conversions import plain

__all__ = ("inputs_of_task",)

INPUT_CHARACTERS_MAX: Final = 1_000
_STEP = "step"


def inputs_of_task(task: TaskRun) -> dict[str, str]:
    """The texts of the inputs of a task, by name; other values than text as JSON.

    The row is one that a service showed, with its masks.
    """
    inputs = {variable.var_name: plain(variable.value) for variable in task.input_variables}
    planned, values = inputs.get(_STEP), inputs.get(VALUES)
    if is_step(task.task_def_id.name) and isinstance(planned, dict) and isinstance(values, dict):
        inputs = values if planned.get("kind") == PARAMETERS else _inputs_of_step(planned, values)
    return {name: _text(value) for name, value in inputs.items()}


def _inputs_of_step(planned: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a plan's step with the values that they take; of those of an item, the names."""
    more = {name: planned[name] for name in ("over", "when") if planned.get(name) is not None}
    return {name: _filled(template, values) for name, template in {**planned.get("inputs", {}), **more}.items()}


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    match template:
        case {"$value": [*path], **more}:
            return _value(path, str(more.get("format", "")), values)
        case {"$text": [*parts]}:
            return "".join(part if isinstance(part, str) else _text(_filled(part, values)) for part in parts)
        case {"$test": [sign, left, right]}:
            return f"{_text(_filled(left, values))} {sign} {_text(_filled(right, values))}"
        case Mapping():
            return {name: _filled(inner, values) for name, inner in template.items()}
        case list():
            return [_filled(inner, values) for inner in template]
    return template


def _value(path: list[str], form: str, values: Any) -> Any:
    """A value of the run, in its format; its name where it is not there, as the item of a loop."""
    value = values
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return f"{{{'.'.join(path)}}}"
        value = value[name]
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) and "%" in form else value
        return format(instant, form) if form else value
    except (TypeError, ValueError):  # the step says so, when it is carried out
        return value


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value).decode()
    more = len(text) - INPUT_CHARACTERS_MAX
    return text if more <= 0 else f"{text[:INPUT_CHARACTERS_MAX]}… and {more:,} more letters"
