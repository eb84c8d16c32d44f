"""Masks of schedules: readers see their inputs as they would see them in a run, and may send back what they saw.

    GetScheduledWfRun ─▶ inputs, secrets masked ─▶ ScheduleWf of the same id and workflow ─▶ each mask is what it hid

Invariants:
* an input is masked that the workflow masks in the schedule's version, or in its newest one; and one of which nobody
  knows: neither has it, or it is of another type;
* a mask that is sent back never replaces the value that it hid, and never brings it to another workflow.
"""

from __future__ import annotations

from typing import Any

from littlehorse.model import (
    ScheduledWfRun,
    ScheduleWfRequest,
    TypeDefinition,
    Variable,
    VariableId,
    VariableValue,
    WfSpec,
)

from millpond.json_forms import FormError, parse_object, to_json
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.keys import key_of
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.values.conversions import fits, type_of_def
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.engine.work import Work, copied, find_spec

__all__ = ("put_again", "shown_schedule")


def shown_schedule(work: Work, schedule: ScheduledWfRun) -> ScheduledWfRun:
    """A schedule as readers see it."""
    masked = copied(schedule)
    if masked.variables:
        newest = find_spec(work, schedule.wf_spec_id.name)
        specs = [spec for spec in (work.rows.get(WfSpec, key_of(schedule.wf_spec_id)), newest) if spec is not None]
        for name in sorted(masked.variables):
            types = [type_ for spec in specs for type_ in _types(spec, name)]
            masked.variables[name].CopyFrom(_shown(work, name, schedule.variables[name], types))
    return masked


def put_again(work: Work, request: ScheduleWfRequest, before: ScheduledWfRun | None) -> ScheduleWfRequest:
    """A request with the values that masks in it stand for."""
    if before is None or before.wf_spec_id.name != request.wf_spec_name:
        return request
    clear, seen = copied(request), shown_schedule(work, before).variables
    for name in sorted({*request.variables} & {*seen}):
        _uncover(clear.variables[name], seen[name], before.variables[name])
    return clear


def _types(spec: WfSpec, name: str) -> list[TypeDefinition]:
    definitions = spec.thread_specs[spec.entrypoint_thread_name].variable_defs
    return [type_of_def(own.var_def) for own in definitions if own.var_def.name == name]


def _shown(work: Work, name: str, value: VariableValue, types: list[TypeDefinition]) -> VariableValue:
    hidden = not types or any(type_.masked or not fits(value, type_) for type_ in types)
    for type_ in types:
        try:
            value = settled(work, value, type_)
        except NodeFailed:  # no run can begin with it
            hidden = True
    return shown(Variable(id=VariableId(name=name), value=value, masked=hidden)).value


def _uncover(value: VariableValue, seen: VariableValue, hidden: VariableValue) -> None:
    """Replace each mask in a value by what it hid; `seen` is what `hidden` was shown as."""
    kinds = {own.WhichOneof("value") for own in (value, seen, hidden)}
    if value == seen:
        value.CopyFrom(hidden)
    elif kinds == {"json_obj"}:
        try:
            own, masks, old = (parse_object(part.json_obj) for part in (value, seen, hidden))
        except FormError:
            return
        value.json_obj = to_json(_uncovered(own, masks, old)).decode()
    elif kinds == {"struct"}:
        fields, shown_fields, old_fields = (part.struct.struct.fields for part in (value, seen, hidden))
        for name in sorted({*fields} & {*shown_fields} & {*old_fields}):
            _uncover(fields[name].value, shown_fields[name].value, old_fields[name].value)


def _uncovered(own: Any, seen: Any, hidden: Any) -> Any:
    if own == seen:
        return hidden
    if isinstance(own, dict) and isinstance(seen, dict) and isinstance(hidden, dict):
        both = seen.keys() & hidden.keys()
        return {
            name: _uncovered(part, seen[name], hidden[name]) if name in both else part for name, part in own.items()
        }
    return own
