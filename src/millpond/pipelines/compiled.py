"""A plan as a workflow of the engine: a task node for each step, in their order.

    parameters ─▶ step ─▶ step ─▶ …        each node is the task `step`; its output joins the variable `values`
                    └─ failure ─▶ the steps of `on_failure` ─▶ the run fails as before

| variable | holds |
|---|---|
| `parameters` | the inputs of the run, by name |
| `values` | parameters as they came out, and outputs of steps, by name |
| `program` | the text of the file, for steps that call its functions |
| `@task` | the task of a run that one process carries out; others have none |
| one of each parameter's name | its value, by which runs are found: no list, dictionary or secret |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from littlehorse.model import ExponentialBackoffRetryPolicy, VariableMutationType, VariableType
from littlehorse.workflow import NodeOutput, WfRunVariable, Workflow, WorkflowThread

from millpond.json_forms import plain
from millpond.pipelines.attempt_logs import attempt_bytes
from millpond.pipelines.plan import ALERTED, Plan, PlannedStep
from millpond.pipelines.programs import Program
from millpond.workflows.engine.pipeline_starts import (
    FAILURE,
    HERE,
    PARAMETERS,
    PROGRAM,
    STEP,
    TASK,
    VALUES,
    is_tag,
    spec_name,
)

__all__ = ("OF_PROGRAM", "compiled")

OF_PROGRAM = ("python", "spark")
"""The kinds of steps that call functions of the program."""
FAILED = "pipeline-failed"
GRACE_SECONDS = 10
"""The time after a step's timeout in which its worker, which measures that itself, ends it and reports its log."""
_DELAY_MAX_MS = 60_000
_TAG_TYPES = {"int": VariableType.INT, "float": VariableType.DOUBLE, "bool": VariableType.BOOL}


def compiled(plan: Plan, program: Program, *, here: bool = False) -> Workflow:
    """The workflow of a plan; of runs `here` the name of the task, whose steps one process carries out, is an input."""

    def body(thread: WorkflowThread) -> None:
        task = thread.declare_str(TASK, STEP) if here else STEP
        inputs = thread.declare_json_obj(PARAMETERS, {})
        code = thread.declare_json_obj(PROGRAM, dict(program))
        values = thread.declare_json_obj(VALUES, {})
        first = {"kind": PARAMETERS, "name": PARAMETERS, "time_zone": plan.time_zone,
                 PARAMETERS: plain(list(plan.parameters))}  # fmt: skip
        if plan.when.startswith(ALERTED):
            first["map"] = plan.when.removeprefix(ALERTED).partition("/")[0]
        outcome = thread.execute(task, first, inputs, {}, retries=3, timeout_seconds=60)
        values.assign(outcome)
        for parameter in plan.parameters:
            if is_tag(parameter.name, parameter.type):
                tag = thread.add_variable(parameter.name, _TAG_TYPES.get(parameter.type, VariableType.STR))
                tag.searchable().assign(outcome.with_json_path(f"$.{parameter.name}"))
        for step in plan.steps:
            output = _node(thread, task, plan, step, values, code)
            if plan.on_failure:
                thread.handle_any_failure(output, _handler(task, plan, step, values, code))
            values.with_json_path(f"$.{step.name}").assign(output)

    return Workflow(spec_name(f"{plan.name}{HERE}" if here else plan.name), body)


def _node(
    thread: WorkflowThread, task: str | WfRunVariable, plan: Plan, step: PlannedStep, values: WfRunVariable,
    code: WfRunVariable,
) -> NodeOutput:  # fmt: skip
    log_bytes = attempt_bytes(len(plan.steps) + len(plan.on_failure), step.retries)
    literal = {**plain(step), "pipeline": plan.name, "log_bytes": log_bytes}
    base = max(1, step.backoff_ms)  # the engine has no delay of nothing
    backoff = ExponentialBackoffRetryPolicy(
        base_interval_ms=base, multiplier=2.0, max_delay_ms=max(base, _DELAY_MAX_MS)
    )
    return thread.execute(
        task, literal, values, code if step.kind in OF_PROGRAM else {}, retries=step.retries,
        timeout_seconds=math.ceil(step.timeout_ms / 1000) + GRACE_SECONDS, exponential_backoff=backoff,
    )  # fmt: skip


def _handler(
    task: str | WfRunVariable, plan: Plan, failed: PlannedStep, values: WfRunVariable, code: WfRunVariable
) -> Callable[[WorkflowThread], Any]:
    def handle(thread: WorkflowThread) -> None:
        failure = thread.declare_json_obj(FAILURE, {})
        thread.mutate(values.with_json_path("$.failure"), VariableMutationType.ASSIGN, failure)
        thread.mutate(values.with_json_path("$.failure.step"), VariableMutationType.ASSIGN, failed.name)
        for step in plan.on_failure:
            output = _node(thread, task, plan, step, values, code)
            thread.mutate(values.with_json_path(f"$.{step.name}"), VariableMutationType.ASSIGN, output)
        thread.fail(FAILED, f"the step {failed.name} failed")

    return handle
