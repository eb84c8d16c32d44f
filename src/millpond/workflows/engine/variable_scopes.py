"""Scopes of variables: a thread sees its own, then those of its parents; an inherited one belongs to the parent run.

Invariant: a write goes to the thread that declared the variable, so that all threads that see it share it.
"""

from __future__ import annotations

from collections.abc import Mapping

from littlehorse.model import (
    ThreadRun,
    ThreadVarDef,
    Variable,
    VariableId,
    VariableValue,
    WfRunVariableAccessLevel,
)

from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.keys import key_of, run_path
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.runs import Run, load
from millpond.workflows.engine.values.conversions import check_size, coerced, is_null, type_of_def
from millpond.workflows.engine.work import Work

__all__ = (
    "INHERITED",
    "PRIVATE",
    "find",
    "write",
    "declare",
    "make",
    "check_inputs",
)

INHERITED = WfRunVariableAccessLevel.INHERITED_VAR
PRIVATE = WfRunVariableAccessLevel.PRIVATE_VAR


def find(run: Run, thread: ThreadRun, name: str) -> tuple[Variable, ThreadVarDef]:
    """The variable that a thread sees under a name, with its declaration.

    Raises:
        NodeFailed: VAR_SUB_ERROR; the name is out of scope.
    """
    thread_run: ThreadRun | None = thread
    while thread_run is not None:
        for declared in run.thread_spec(thread_run).variable_defs:
            if declared.var_def.name == name:
                return _declared(run, thread_run, declared)
        thread_run = run.threads.get(thread_run.parent_thread_id) if thread_run.HasField("parent_thread_id") else None
    raise substitution(f"no variable {name} is in the scope of thread {thread.number}")


def _declared(run: Run, thread: ThreadRun, declared: ThreadVarDef) -> tuple[Variable, ThreadVarDef]:
    name = declared.var_def.name
    if declared.access_level == INHERITED:
        parent = load(run.work, run_path(run.row.id.parent_wf_run_id))
        if parent is None:
            raise substitution(f"the parent run of variable {name} is gone")
        variable, above = find(parent, parent.thread(0), name)
        if above.access_level == PRIVATE:
            raise substitution(f"variable {name} of the parent run is private")
        return variable, above
    row = run.work.rows.get(Variable, (run.path, thread.number, name))
    if row is None:
        raise substitution(f"variable {name} of thread {thread.number} has not been set")
    return row, declared


def write(run: Run, thread: ThreadRun, name: str, value: VariableValue) -> None:
    """Write a variable that a thread sees."""
    row, _declared_as = find(run, thread, name)
    row.value.CopyFrom(value)
    run.variables_changed = True
    run.work.rows.put(key_of(row.id), row)


def declare(run: Run, thread: ThreadRun, inputs: Mapping[str, VariableValue]) -> None:
    """Make the variables of a new thread from its inputs and the defaults.

    Raises:
        NodeFailed: VAR_SUB_ERROR; an input is unknown, missing or of another type.
    """
    spec = run.thread_spec(thread)
    check_inputs(run.work, list(spec.variable_defs), inputs)
    for declared in spec.variable_defs:
        if declared.access_level != INHERITED:
            make(run, thread, declared, inputs)


def check_inputs(work: Work, declared: list[ThreadVarDef], inputs: Mapping[str, VariableValue]) -> None:
    """Raise NodeFailed for inputs that a thread with these variables cannot start with."""
    variables = {variable.var_def.name: variable for variable in declared if variable.access_level != INHERITED}
    for name in sorted(inputs):
        if name not in variables:
            raise substitution(f"no variable {name} is declared")
    for name, variable in variables.items():
        value = inputs.get(name, VariableValue())
        if variable.required and is_null(value):
            raise substitution(f"the required variable {name} is missing")
        try:
            settled(work, coerced(value, type_of_def(variable.var_def)), type_of_def(variable.var_def))
        except NodeFailed as wrong:
            raise substitution(f"{wrong.message}, in the variable {name}") from wrong
        check_size(f"variable {name}", value)


def make(run: Run, thread: ThreadRun, declared: ThreadVarDef, inputs: Mapping[str, VariableValue]) -> None:
    """Make a variable of a thread from its input, or its default."""
    definition = declared.var_def
    value = inputs.get(definition.name, VariableValue())
    if is_null(value) and definition.HasField("default_value"):
        value = definition.default_value
    type_ = type_of_def(definition)
    name = VariableId(wf_run_id=run.row.id, thread_run_number=thread.number, name=definition.name)
    row = Variable(
        id=name,
        value=settled(run.work, coerced(value, type_), type_),
        # Searches look for the variables of the first thread at the time of their run, also for those that a migration
        # adds.
        created_at=run.work.instant() if thread.number else run.row.start_time,
        wf_spec_id=run.spec.id,
        masked=type_.masked,
    )
    run.work.rows.put(key_of(name), row)
