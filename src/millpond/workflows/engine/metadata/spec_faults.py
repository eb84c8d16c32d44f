"""Mistakes of a specification: how each is told, with its way out."""

from __future__ import annotations

from functools import partial
from typing import Final, NoReturn

from littlehorse.model import WfSpec

from millpond.errors import Invalid
from millpond.workflows.engine.metadata.assignment_types import (
    BUILT,
    CAST,
    CONTENT,
    ENTRY,
    FIELD,
    INPUT_TYPE,
    LACKING,
    MUTATION,
    OPERAND,
    Types,
)
from millpond.workflows.engine.work import Work

__all__ = ("Check",)

_WAYS_OUT: Final[dict[str, str]] = {
    "a variable is not declared": "declare it in this thread or in one that starts it",
    "the variable is declared twice": "give one of the two another name; only INPUT may repeat",
    "no node has this name": "read the output of a node of the same thread",
    "an edge leads to no node": "name a node of the same thread",
    "a node other than an exit has an outgoing edge": "add an edge, or make the node an exit",
    "an edge leads back to its own node": "put a node between",
    "Refers to nonexistent TaskDef {task}": "register the task before the specification",
    "For TaskDef {task} we need {takes} input vars, but we have {given}": "give one value for each input of the task",
    "Specified UserTaskDef {user_task} not found": "register the user task before the specification",
    "Must specify userGroup or userId": "give user_id, user_group or both",
    "Refers to nonexistent ExternalEventDef {event}": "register the event before the specification",
    "Refers to missing workflowEventDef {event}": "register the event before the specification",
    "Could not find WfSpec {child}": "register the child's specification first",
    "an event is used by one thread's interrupt alone": "define another event for the other use",
    "a handler is given no such variable": "require INPUT alone, and only where there is content: errors have none",
    "a handler takes another type than its event has": "declare INPUT with the type of the event",
    CAST: "convert it in a task",
    ENTRY: "cast the value, or build a map of its type",
    MUTATION: "cast the value, or declare the variable with its type",
    OPERAND: "cast the value, or change a variable that takes its type",
    CONTENT: "cast the value, or throw an event of another type",
    INPUT_TYPE: "cast the value, or declare the input with its type",
    "the exits of a thread returned different output types": "let every exit return the same type",
    "one exit of a thread returns void, and another returns non-void": "return a value at every exit, or at none",
    FIELD: "name a field of its definition",
    BUILT: "cast the value, or give one of the field's type",
    LACKING: "give the field, or define a default for it",
    "the child takes no such input": "declare it in the thread that is started, or in the child's entrypoint",
    "the child needs an input that it is not given": "give it, or let the child not require it",
    "an exit throws a failure with its own valid name": "use letters, digits and inner hyphens, and no reserved name",
}
"""The way out of a mistake, by its problem. A problem names its values in braces."""


class Check:
    """The check of one specification."""

    def __init__(self, work: Work, spec: WfSpec) -> None:
        self.work = work
        self.spec = spec
        self.variables = {v.var_def.name for thread in spec.thread_specs.values() for v in thread.variable_defs}

    def fail(self, problem: str, thread: str, node: str = "", **values: object) -> NoReturn:
        """Raise for a thread, and a node of it."""
        if node:
            values = {"node": node, **values}
        raise Invalid(
            problem.format_map(values),
            kind="workflow_spec_invalid",
            hint=_WAYS_OUT.get(problem),
            spec=self.spec.id.name,
            thread=thread,
            **values,
        )

    def types(self, thread: str, node: str) -> Types:
        """The types of a thread's assignments, whose faults are told of a node."""
        return Types(self.work, self.spec, thread, partial(self.fail, thread=thread, node=node))
