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
    for attempt in task.attempts:
        if attempt.masked_value and attempt.WhichOneof("result") == "output":
            _mask(attempt.output)


def _mask(value: VariableValue) -> None:
    value.CopyFrom(VariableValue(str=MASK))
