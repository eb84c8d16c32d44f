"""Masks: rows as readers see them. Values of masked types are stored in clear, for workers need them.

So are parameters of pipelines whose names say that they are secrets, and outputs of steps in which one of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial, reduce
from typing import Any, Final

from littlehorse.model import InactiveThreadRun, NodeRun, TaskRun, Variable, VariableValue

from millpond.json_forms import FormError, parse_object, to_json
from millpond.workflows.engine.pipeline_starts import (
    NAME_OF_SECRET,
    PARAMETERS,
    VALUES,
    hides_within,
    is_step,
    secret_texts,
)
from millpond.workflows.engine.work import M, copied

__all__ = (
    "MASK",
    "shown",
)

MASK: Final = "*****"
_MASKED: Final = (Variable, TaskRun, NodeRun, InactiveThreadRun)


def shown(row: M) -> M:
    """A copy of a row with every masked value replaced; a row of a kind that has none is itself.

    >>> shown(Variable(value=VariableValue(int=7), masked=True)).value.str
    '*****'
    """
    if not isinstance(row, _MASKED):
        return row
    masked = copied(row)
    match masked:
        case Variable():
            if masked.masked:
                _mask(masked.value)
            else:
                _mask_fields(masked.value)
                if masked.id.name in (PARAMETERS, VALUES):
                    _mask_secrets(masked.value, _secrets_of(masked.value))
        case TaskRun():
            _mask_task(masked)
        case NodeRun():
            if masked.external_event.mask_correlation_key:
                masked.external_event.correlation_key = MASK
        case InactiveThreadRun():
            for value in masked.queued.input_vars.values():  # their variables do not exist yet, nor do their masks
                _mask(value)
    return masked


def _mask_task(task: TaskRun) -> None:
    mask_inside = _mask_fields
    if is_step(task.task_def_id.name):
        secrets = [text for variable in task.input_variables for text in _secrets_of(variable.value)]
        mask_inside = partial(_mask_secrets, secrets=secrets)
    for variable in task.input_variables:
        if variable.masked:
            _mask(variable.value)
        else:
            mask_inside(variable.value)
    for attempt in task.attempts:
        if attempt.WhichOneof("result") != "output":
            continue
        if attempt.masked_value:
            _mask(attempt.output)
        else:
            mask_inside(attempt.output)


def _secrets_of(value: VariableValue) -> tuple[str, ...]:
    """The secrets in an object of a pipeline."""
    with suppress(FormError):  # a list, of a task of the same name
        if value.WhichOneof("value") == "json_obj" and NAME_OF_SECRET.search(value.json_obj):
            return secret_texts(parse_object(value.json_obj))
    return ()


def _mask_secrets(value: VariableValue, secrets: Sequence[str]) -> None:
    """Replace the values in an object of a pipeline whose names say that they are secrets, and what has one in it."""
    if value.WhichOneof("value") == "json_obj" and (secrets or NAME_OF_SECRET.search(value.json_obj)):
        with suppress(FormError):
            value.json_obj = to_json(_without_secrets(parse_object(value.json_obj), secrets)).decode()


def _without_secrets(value: Any, secrets: Sequence[str], *, hides: bool = False) -> Any:
    match value:
        case dict():
            return {_without_secrets(name, secrets): _without_secrets(own, secrets, hides=hides_within(name, value,
                    hides=hides)) for name, own in value.items()}  # fmt: skip
        case list():
            return [_without_secrets(own, secrets, hides=hides) for own in value]
        case str() | int() | float() if hides:
            return MASK
        case str():
            return reduce(lambda text, secret: text.replace(secret, MASK), secrets, value)
    return value


def _mask_fields(value: VariableValue) -> None:
    """Replace the masked fields of the structs in a value."""
    match value.WhichOneof("value"):
        case "struct":
            for field in value.struct.struct.fields.values():
                if field.masked:
                    _mask(field.value)
                else:
                    _mask_fields(field.value)
        case "array":
            for item in value.array.items:
                _mask_fields(item)
        case "map":
            for entry in value.map.entries:
                _mask_fields(entry.value)


def _mask(value: VariableValue) -> None:
    value.CopyFrom(VariableValue(str=MASK))
