"""Random specifications against an interpreter that just runs the statements.

A program is a list of statements; the client's language makes a specification of it, and a driver answers every task
with the outcome that its input names. The interpreter knows nothing of threads, nodes or handlers: a failure is an
exception, a handler an `except`, a child a call. Each child has a variable of its own, so that the order in which
children run does not matter. Where a child failed, its siblings may have been halted anywhere: their variables, and
which of several failures came first, are left open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

pytest.importorskip("littlehorse")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    FailureHandlerDef,
    LHStatus,
    PutTaskDefRequest,
    TypeDefinition,
    Variable,
    VariableDef,
    VariableType,
    VariableValue,
    WfRun,
)
from littlehorse.workflow import SpawnedThreads, WfRunVariable, Workflow, WorkflowThread

from millpond.workflows.engine import Command, apply, thread_queue
from millpond.workflows.engine.limits import THREADS_ACTIVE_MAX
from tests.models.workflows.rows import MemoryRows
from tests.models.workflows.stage import Stage
from tests.rings.sampling import examples


@dataclass(frozen=True)
class Change:
    operation: str
    operand: int


@dataclass(frozen=True)
class Task:
    outcome: str  # done, failed or the name of an exception
    handled: str | None  # any, error, exception
    change: int
    in_handler: int


@dataclass(frozen=True)
class If:
    limit: int
    then: tuple[object, ...]
    other: tuple[object, ...]


@dataclass(frozen=True)
class Spawn:
    children: tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Fail:
    name: str


numbers = st.integers(-5, 5)
changes = st.builds(Change, st.sampled_from(["add", "subtract", "multiply", "divide"]), numbers)
tasks = st.builds(
    Task,
    st.sampled_from(["done", "done", "failed", "sad"]),
    st.sampled_from([None, "any", "error", "exception"]),
    numbers,
    numbers,
)
fails = st.builds(Fail, st.sampled_from(["sad", "angry"]))
leaves = st.one_of(changes, tasks, changes, tasks, fails)
bodies = st.lists(leaves, max_size=3).map(tuple)
ifs = st.builds(If, numbers, bodies, bodies)
inner = st.lists(st.one_of(leaves, ifs), max_size=4).map(tuple)
spawns = st.builds(Spawn, st.lists(inner, min_size=1, max_size=3).map(tuple))
programs = st.lists(st.one_of(leaves, ifs, spawns), max_size=5).map(tuple)


# ------------------------------------------------------------------------------------------ interpreter


class Failed(Exception):
    """The failure of a thread, with the names that it may have."""

    def __init__(self, names: set[str]) -> None:
        self.names = names


@dataclass
class Interpreter:
    values: dict[str, int] = field(default_factory=lambda: {"v": 1})
    unknown: set[str] = field(default_factory=set)
    children: int = 0

    def run(self, statements: tuple[object, ...], name: str) -> None:
        for statement in statements:
            match statement:
                case Change():
                    self.values[name] = self.changed(self.values[name], statement)
                case Task():
                    self.task(statement, name)
                case If():
                    taken = statement.then if self.values[name] < statement.limit else statement.other
                    self.run(taken, name)
                case Spawn():
                    self.spawn(statement)
                case Fail():
                    raise Failed({statement.name})

    def changed(self, value: int, change: Change) -> int:
        match change.operation:
            case "add":
                return value + change.operand
            case "subtract":
                return value - change.operand
            case "multiply":
                return value * change.operand
        if change.operand == 0:
            raise Failed({"VAR_SUB_ERROR"})
        return int(value / change.operand)

    def task(self, task: Task, name: str) -> None:
        if task.outcome == "done":
            self.values[name] += task.change
            return
        failure, kind = ("TASK_FAILURE", "error") if task.outcome == "failed" else (task.outcome, "exception")
        if task.handled not in ("any", kind):
            raise Failed({failure})
        self.values[name] += task.in_handler

    def spawn(self, spawn: Spawn) -> None:
        names, failed = [], set()
        for _body in spawn.children:
            self.children += 1
            names.append(f"c{self.children}")
        for name, body in zip(names, spawn.children, strict=True):
            self.values[name] = 1
            try:
                self.run(body, name)
            except Failed as child:
                failed |= {found if found in ("sad", "angry") else "CHILD_FAILURE" for found in child.names}
        if failed:
            self.unknown |= set(names)
            raise Failed(failed)


# -------------------------------------------------------------------------------------- the same, as a spec


class Writer:
    """The specification of a program."""

    def __init__(self, program: tuple[object, ...]) -> None:
        self.children = 0
        self.handlers = 0
        self.request = Workflow("random", lambda wf: self.thread(wf, program)).compile()

    def thread(self, wf: WorkflowThread, program: tuple[object, ...]) -> None:
        total = sum(len(part.children) for part in program if isinstance(part, Spawn))
        variables = {name: wf.declare_int(name, 1) for name in ("v", "one", *(f"c{at + 1}" for at in range(total)))}
        self.write(wf, program, "v", variables)

    def write(
        self, wf: WorkflowThread, body: tuple[object, ...], name: str, variables: dict[str, WfRunVariable]
    ) -> None:
        variable = variables[name]
        for part in body:
            match part:
                case Change():
                    # mutations of one edge happen all or none, so every change has an edge of its own
                    wf.do_if(variables["one"].is_equal_to(1), lambda _inner, part=part: self.change(variable, part))
                case Task():
                    self.task(wf, part, variable)
                case If():
                    wf.do_if(
                        variable.is_less_than(part.limit),
                        lambda inner, part=part: self.write(inner, part.then, name, variables),
                        lambda inner, part=part: self.write(inner, part.other, name, variables),
                    )
                case Spawn():
                    self.spawn(wf, part, variables)
                case Fail():
                    # behind a failure nothing may follow, so it stands under a condition that always holds
                    wf.do_if(variables["one"].is_equal_to(1), lambda inner, part=part: inner.fail(part.name, "failed"))

    def change(self, variable: WfRunVariable, change: Change) -> None:
        variable.assign(getattr(variable, change.operation)(change.operand))

    def task(self, wf: WorkflowThread, task: Task, variable: WfRunVariable) -> None:
        node = wf.execute("work", task.outcome)
        variable.assign(variable.add(task.change))

        def handler(inner: WorkflowThread) -> None:
            variable.assign(variable.add(task.in_handler))

        if task.handled is None:
            return
        # not by the client's functions: they give handlers of different threads the same name
        self.handlers += 1
        definition = FailureHandlerDef(handler_spec_name=f"handler-{self.handlers}")
        if task.handled != "any":
            definition.any_failure_of_type = FailureHandlerDef.LHFailureType.Value(
                f"FAILURE_TYPE_{task.handled.upper()}"
            )
        wf._workflow.add_sub_thread(definition.handler_spec_name, handler)
        wf._find_node(node.node_name).failure_handlers.append(definition)

    def spawn(self, wf: WorkflowThread, spawn: Spawn, variables: dict[str, WfRunVariable]) -> None:
        started = []
        for body in spawn.children:
            self.children += 1
            name = f"c{self.children}"
            started.append(
                wf.spawn_thread(
                    lambda inner, body=body, name=name: self.write(inner, body, name, variables), f"thread-{name}"
                )
            )
        wf.wait_for_threads(SpawnedThreads.from_list(*started))


def driven(stage: Stage) -> None:
    """Answer every task with the outcome that its input names."""
    while stage.queues.get("work"):
        task = stage.claim("work")
        assert task is not None
        outcome = task.variables[0].value.str
        stage.report("r", task.task_run_id.task_guid, task.attempt_number, outcome, VariableValue(), "failed")


def check(program: tuple[object, ...], threads_active_max: int) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(thread_queue, "THREADS_ACTIVE_MAX", threads_active_max)
        _check(program)


def _check(program: tuple[object, ...]) -> None:
    stage, model = Stage(), Interpreter()
    text = TypeDefinition(primitive_type=VariableType.STR)
    stage.do(PutTaskDefRequest(name="work", input_vars=[VariableDef(name="outcome", type_def=text)]))
    stage.do(Writer(program).request)
    stage.run("random", "r", {})
    driven(stage)
    run = stage.rows.get(WfRun, ("r",))
    assert run is not None
    try:
        model.run(program, "v")
        expected = {"COMPLETED"}
    except Failed as failed:
        expected = {"EXCEPTION" if name in ("sad", "angry") else "ERROR" for name in failed.names}
    assert LHStatus.Name(run.status) in expected, stage.show("r")
    for name, value in model.values.items():
        row = stage.rows.get(Variable, ("r", 0, name))
        assert row is not None
        assert name in model.unknown or row.value.int == value, (name, stage.show("r"))
    replay(stage)


def replay(stage: Stage) -> None:
    """Apply the recorded commands to empty rows: every row must come out the same."""
    rows = MemoryRows()
    for command, now in stage.commands:
        rows.write(apply(rows, Command(command.id, command.request), now))
    assert rows.bytes == stage.rows.bytes


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(25, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs, st.sampled_from([2, 3, THREADS_ACTIVE_MAX]))
def test_random_specifications_end_as_the_interpreter_says(
    program: tuple[object, ...], threads_active_max: int
) -> None:
    check(program, threads_active_max)


@pytest.mark.full
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs, st.sampled_from([2, 3, THREADS_ACTIVE_MAX]))
def test_many_random_specifications(program: tuple[object, ...], threads_active_max: int) -> None:
    check(program, threads_active_max)
