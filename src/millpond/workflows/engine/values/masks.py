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
    found = copied(row)
    match found:
        case Variable():
            if found.masked:
                _mask(found.value)
            else:
                _mask_fields(found.value)
        case TaskRun():
            _mask_task(found)
        case NodeRun():
            if found.external_event.mask_correlation_key:
                found.external_event.correlation_key = MASK
    return found


def _mask_task(task: TaskRun) -> None:
    for given in task.input_variables:
        if given.masked:
            _mask(given.value)
        else:
            _mask_fields(given.value)
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
