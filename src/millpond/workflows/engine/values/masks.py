"""Masks: rows as readers see them. Values of masked types are stored in clear, for workers need them."""

from __future__ import annotations

from typing import Final

from littlehorse.model import NodeRun, TaskRun, Variable, VariableValue

from millpond.workflows.engine.work import M, copied

__all__ = (
    "MASK",
    "shown",
)

MASK: Final = "*****"


def shown(row: M) -> M:
    """A row with every masked value replaced; a row without any is a copy of itself.

    >>> shown(Variable(value=VariableValue(int=7), masked=True)).value.str
    '*****'
    """
    masked = copied(row)
    match masked:
        case Variable():
            if masked.masked:
                _mask(masked.value)
            else:
                _mask_fields(masked.value)
        case TaskRun():
            _mask_task(masked)
        case NodeRun():
            if masked.external_event.mask_correlation_key:
                masked.external_event.correlation_key = MASK
    return masked


def _mask_task(task: TaskRun) -> None:
    for variable in task.input_variables:
        if variable.masked:
            _mask(variable.value)
        else:
            _mask_fields(variable.value)
    for attempt in task.attempts:
        if attempt.WhichOneof("result") != "output":
            continue
        if attempt.masked_value:
            _mask(attempt.output)
        else:
            _mask_fields(attempt.output)


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
