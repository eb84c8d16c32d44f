"""The types of specifications against their runs: whatever is refused fails in a run, and what is told of a type holds.

A refused specification is put into the store all the same, and run: the run has to end with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from google.protobuf.timestamp_pb2 import Timestamp
from littlehorse.model import (
    Comparator,
    InlineStructDef,
    LHStatus,
    Node,
    PutExternalEventDefRequest,
    PutStructDefRequest,
    PutTaskDefRequest,
    PutWfSpecRequest,
    PutWorkflowEventDefRequest,
    ReturnType,
    Struct,
    StructDefId,
    StructField,
    StructFieldDef,
    ThreadSpec,
    ThreadVarDef,
    TypeDefinition,
    VariableAssignment,
    VariableDef,
    VariableMutation,
    VariableMutationType,
    VariableType,
    VariableValue,
    WfSpec,
    WfSpecId,
    WorkflowEvent,
)

from millpond.errors import Invalid
from millpond.workflows.engine import Command
from millpond.workflows.engine.metadata.assignment_types import Types
from millpond.workflows.engine.values.conversions import assignable, coerced, is_null, type_of_value
from millpond.workflows.engine.work import Work
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_known_defects import found_run


def of(kind: VariableType) -> TypeDefinition:
    """A primitive type."""
    return TypeDefinition(primitive_type=kind)


INT, DOUBLE, STR, BOOL = (
    of(kind) for kind in (VariableType.INT, VariableType.DOUBLE, VariableType.STR, VariableType.BOOL)
)
PERSON = TypeDefinition(struct_def_id=StructDefId(name="person", version=0))
CAR = TypeDefinition(struct_def_id=StructDefId(name="car", version=0))


def struct(name: str, /, **fields: VariableValue) -> VariableValue:
    """A struct."""
    content = {field: StructField(value=value) for field, value in fields.items()}
    return VariableValue(struct=Struct(struct_def_id=StructDefId(name=name, version=0), struct={"fields": content}))


WHOLE = VariableValue(int=3)
VARIABLES: dict[str, tuple[TypeDefinition, VariableValue]] = {
    "whole": (INT, WHOLE),
    "real": (DOUBLE, VariableValue(double=1.5)),
    "text": (STR, VariableValue(str="12")),
    "truth": (BOOL, VariableValue(bool=True)),
    "data": (of(VariableType.BYTES), VariableValue(bytes=b"12")),
    "when": (of(VariableType.TIMESTAMP), VariableValue(utc_timestamp=Timestamp(seconds=9))),
    "object": (of(VariableType.JSON_OBJ), VariableValue(json_obj='{"part":1}')),
    "list": (of(VariableType.JSON_ARR), VariableValue(json_arr="[1]")),
    "numbers": (TypeDefinition(inline_array_def={"array_type": INT}), VariableValue(array={"items": [WHOLE]})),
    "reals": (
        TypeDefinition(inline_array_def={"array_type": DOUBLE}),
        VariableValue(array={"items": [VariableValue(double=1.5)]}),
    ),
    "rows": (
        TypeDefinition(inline_array_def={"array_type": {"inline_array_def": {"array_type": INT}}}),
        VariableValue(array={"items": [VariableValue(array={"items": [WHOLE]})]}),
    ),
    "texts": (
        TypeDefinition(inline_map_def={"key_type": STR, "value_type": STR}),
        VariableValue(map={"entries": [{"key": VariableValue(str="part"), "value": VariableValue(str="x")}]}),
    ),
    "car": (CAR, struct("car", wheels=WHOLE, owner=struct("person", name=VariableValue(str="anna")))),
}
"""The variables of a specification: their types, and values that are not null, nor are their parts."""
PATHS: dict[str, list[list[str | int]]] = {
    "whole": [["part"]],
    "text": [[0]],
    "object": [["part"]],
    "list": [[0]],
    "numbers": [[0], ["part"]],
    "rows": [[0], [0, 0]],
    "texts": [["part"]],
    "car": [["wheels"], ["wings"], ["owner", "name"], ["owner", "age"]],
}
TYPES = [type_ for type_, _value in VARIABLES.values()]
CASTS = [INT, DOUBLE, STR, BOOL, of(VariableType.BYTES), of(VariableType.JSON_OBJ)]
OPERATIONS = list(VariableMutationType.values())


def variable(name: str) -> VariableAssignment:
    return VariableAssignment(variable_name=name)


def at(name: str, path: list[str | int]) -> VariableAssignment:
    steps = [{"index": step} if isinstance(step, int) else {"key": step} for step in path]
    return VariableAssignment(variable_name=name, lh_path={"path": steps})


def cast(inner: VariableAssignment, type_: TypeDefinition) -> VariableAssignment:
    result = VariableAssignment()
    result.CopyFrom(inner)
    result.target_type.CopyFrom(type_)
    return result


def combined(operation: int, left: VariableAssignment, right: VariableAssignment) -> VariableAssignment:
    return VariableAssignment(expression={"lhs": left, "rhs": right, "mutation_type": operation})


def compared(comparator: int, left: VariableAssignment, right: VariableAssignment) -> VariableAssignment:
    return VariableAssignment(expression={"lhs": left, "rhs": right, "comparator": comparator})


LEAVES = st.one_of(
    st.sampled_from(sorted(VARIABLES)).map(variable),
    st.sampled_from([(name, path) for name in PATHS for path in PATHS[name]]).map(lambda pair: at(*pair)),
    st.sampled_from([value for _type, value in VARIABLES.values()]).map(
        lambda value: VariableAssignment(literal_value=value)
    ),
    st.sampled_from(sorted(VARIABLES)).map(lambda name: VariableAssignment(variable_name=name, json_path="$")),
)


def deeper(parts: st.SearchStrategy[VariableAssignment]) -> st.SearchStrategy[VariableAssignment]:
    return st.one_of(
        st.builds(cast, parts, st.sampled_from(CASTS)),
        st.builds(combined, st.sampled_from(OPERATIONS), parts, parts),
        st.builds(compared, st.sampled_from(list(Comparator.values())), parts, parts),
        parts.map(lambda part: VariableAssignment(size_of={"operand": part})),
        parts.map(
            lambda part: VariableAssignment(
                format_string={"format": VariableAssignment(literal_value=VariableValue(str="{0}")), "args": [part]}
            )
        ),
    )


ASSIGNMENTS = st.recursive(LEAVES, deeper, max_leaves=4)


def prepared() -> Stage:
    """A stage with structs, and with tasks, events and a child of each type."""
    stage = Stage()
    stage.rows.bytes.update(_prepared().rows.bytes)
    return stage


@cache
def _prepared() -> Stage:
    stage = Stage()
    for name, fields in (("person", {"name": STR}), ("car", {"wheels": INT, "owner": PERSON})):
        every = {field: StructFieldDef(field_type=type_) for field, type_ in fields.items()}
        stage.do(PutStructDefRequest(name=name, struct_def=InlineStructDef(fields=every)))
    stage.do(PutExternalEventDefRequest(name="came"))
    stage.do(PutWorkflowEventDefRequest(name="any"))
    for number, type_ in enumerate(TYPES):
        stage.do(PutTaskDefRequest(name=f"task{number}", input_vars=[VariableDef(name="in", type_def=type_)]))
        stage.do(PutWorkflowEventDefRequest(name=f"event{number}", content_type=ReturnType(return_type=type_)))
        stage.do(request(f"child{number}", declared=[VariableDef(name="in", type_def=type_)]))
    return stage


def request(
    name: str,
    *nodes: Node,
    declared: list[VariableDef] | None = None,
    returned: VariableAssignment | None = None,
    mutation: VariableMutation | None = None,
    threads: dict[str, ThreadSpec] | None = None,
) -> PutWfSpecRequest:
    """A specification of nodes in a row, whose last edge makes a mutation."""
    variables = declared or [VariableDef(name=name, type_def=type_) for name, (type_, _value) in VARIABLES.items()]
    end = Node(exit={"return_content": returned} if returned is not None else {})
    row = [Node(entrypoint={}), *nodes, end]
    thread = ThreadSpec(variable_defs=[ThreadVarDef(var_def=declaration) for declaration in variables])
    for number, node in enumerate(row):
        thread.nodes[str(number)].CopyFrom(node)
        if number + 1 < len(row):
            thread.nodes[str(number)].outgoing_edges.add(sink_node_name=str(number + 1))
    if mutation is not None:
        thread.nodes[str(len(row) - 2)].outgoing_edges[0].variable_mutations.append(mutation)
    return PutWfSpecRequest(
        name=name, entrypoint_thread_name="entrypoint", thread_specs={"entrypoint": thread, **(threads or {})}
    )


def stored(stage: Stage, wanted: PutWfSpecRequest) -> bool:
    """Put a specification, and past all checks where it is refused for its types; True when it was accepted."""
    try:
        stage.do(wanted)
    except Invalid as refused:
        event(f"refused: {str(refused).partition('.')[0][:30]}")
        row = WfSpec(
            id=WfSpecId(name=wanted.name),
            thread_specs=wanted.thread_specs,
            entrypoint_thread_name=wanted.entrypoint_thread_name,
        )
        stage.rows.bytes[WfSpec, (wanted.name, 0, 0)] = row.SerializeToString(deterministic=True)
        return False
    return True


def run(stage: Stage, name: str) -> LHStatus:
    """Run a specification with values that are not null; the status in which the run stays."""
    stage.run(name, "r", {name: value for name, (_type, value) in VARIABLES.items()})
    return found_run(stage, "r").status


Place = Callable[[VariableAssignment, int], PutWfSpecRequest]


def in_mutation(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    operation, name = number % len(OPERATIONS), sorted(VARIABLES)[number % len(VARIABLES)]
    mutation = VariableMutation(lhs_name=name, operation=OPERATIONS[operation], rhs_assignment=assignment)
    return request("wrong", mutation=mutation)


def in_assignment(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    name = sorted(VARIABLES)[number % len(VARIABLES)]
    mutation = VariableMutation(lhs_name=name, operation=VariableMutationType.ASSIGN, rhs_assignment=assignment)
    return request("wrong", mutation=mutation)


def in_older_mutation(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    wanted = in_mutation(assignment, number)
    [mutation] = wanted.thread_specs["entrypoint"].nodes["0"].outgoing_edges[0].variable_mutations
    mutation.literal_value.CopyFrom(VARIABLES[sorted(VARIABLES)[number // 5 % len(VARIABLES)]][1])
    return wanted


def in_map(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    type_ = TYPES[number % len(TYPES)]
    entry = {"key": VariableAssignment(literal_value=VariableValue(str="part")), "value": assignment}
    built = {"map_type": {"key_type": STR, "value_type": type_}, "entries": [entry]}
    return request("wrong", Node(throw_event={"event_def_id": {"name": "any"}, "content": {"map_builder": built}}))


def in_part(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    name = sorted(VARIABLES)[number % len(VARIABLES)]
    mutation = VariableMutation(
        lhs_name=name, lhs_json_path="$.part", operation=VariableMutationType.ASSIGN, rhs_assignment=assignment
    )
    return request("wrong", mutation=mutation)


def in_task(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    return request(
        "wrong", Node(task={"task_def_id": {"name": f"task{number % len(TYPES)}"}, "variables": [assignment]})
    )


def in_name_of_task(assignment: VariableAssignment, _number: int) -> PutWfSpecRequest:
    return request("wrong", Node(task={"dynamic_task": assignment}))


def in_event(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    name = f"event{number % len(TYPES)}"
    return request("wrong", Node(throw_event={"event_def_id": {"name": name}, "content": assignment}))


def in_timeout(assignment: VariableAssignment, _number: int) -> PutWfSpecRequest:
    return request(
        "wrong", Node(external_event={"external_event_def_id": {"name": "came"}, "timeout_seconds": assignment})
    )


def in_sleep(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    return request("wrong", Node(sleep={["raw_seconds", "timestamp", "iso_date"][number % 3]: assignment}))


def in_condition(assignment: VariableAssignment, _number: int) -> PutWfSpecRequest:
    return request("wrong", Node(wait_for_condition={"condition": assignment}))


def in_child(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    child = {"wf_spec_name": f"child{number % len(TYPES)}", "inputs": {"in": assignment}, "major_version": -1}
    return request("wrong", Node(run_child_wf=child))


def in_name_of_child(assignment: VariableAssignment, _number: int) -> PutWfSpecRequest:
    return request("wrong", Node(run_child_wf={"wf_spec_var": assignment, "major_version": -1}))


def thread_taking(number: int) -> ThreadSpec:
    """A thread that takes an input of a type."""
    made = request("x", declared=[VariableDef(name="INPUT", type_def=TYPES[number % len(TYPES)])])
    return made.thread_specs["entrypoint"]


def in_thread(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    started = Node(start_thread={"thread_spec_name": "other", "variables": {"INPUT": assignment}})
    return request("wrong", started, threads={"other": thread_taking(number)})


def in_threads(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    started = Node(start_multiple_threads={"thread_spec_name": "other", "iterable": assignment})
    return request("wrong", started, threads={"other": thread_taking(number)})


def in_wait(assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    one = {"threads": {"threads": [{"thread_run_number": assignment}]}}
    return request("wrong", Node(wait_for_threads=one if number % 2 else {"thread_list": assignment}))


def in_wait_for_child(assignment: VariableAssignment, _number: int) -> PutWfSpecRequest:
    return request("wrong", Node(wait_for_child_wf={"child_wf_run_id": assignment}))


def in_literal(_assignment: VariableAssignment, number: int) -> PutWfSpecRequest:
    names = sorted(VARIABLES)
    value = VARIABLES[names[number // len(names) % len(names)]][1]
    return in_assignment(VariableAssignment(literal_value=value), number)


PLACES: list[Place] = [
    in_mutation, in_older_mutation, in_map, in_assignment, in_part, in_task, in_name_of_task, in_event, in_timeout,
    in_sleep, in_condition, in_child, in_name_of_child, in_thread, in_threads, in_wait, in_wait_for_child, in_literal,
]  # fmt: skip


@given(place=st.sampled_from(PLACES), assignment=ASSIGNMENTS, number=st.integers(0, 1000))
def test_what_is_refused_fails_in_its_run(place: Place, assignment: VariableAssignment, number: int) -> None:
    stage = prepared()
    accepted = stored(stage, place(assignment, number))
    status = run(stage, "wrong")
    event(f"{place.__name__}: {'accepted' if accepted else 'refused'}")
    assert accepted or status == LHStatus.ERROR


@given(assignment=ASSIGNMENTS)
def test_a_run_computes_values_of_the_type_that_is_told(assignment: VariableAssignment) -> None:
    stage = prepared()
    wanted = request("told", Node(throw_event={"event_def_id": {"name": "any"}, "content": assignment}))
    if not stored(stage, wanted):
        return
    spec = stage.rows.get(WfSpec, ("told", 0, 0))
    assert spec is not None

    def fail(problem: str, **_values: object) -> None:
        raise AssertionError(problem)

    type_ = Types(Work(stage.rows, Command("", wanted), 0), spec, "entrypoint", fail).of(assignment)  # type: ignore[arg-type]
    if run(stage, "told") == LHStatus.COMPLETED:
        thrown = stage.rows.get(WorkflowEvent, ("r", "any", 0))
        assert thrown is not None and (is_null(thrown.content) or assignable(type_of_value(thrown.content), type_))
        coerced(thrown.content, type_)


@given(returned=ASSIGNMENTS, number=st.integers(0, len(VARIABLES) - 1))
def test_the_output_of_a_child_has_the_type_that_its_exits_give_it(returned: VariableAssignment, number: int) -> None:
    stage = prepared()
    try:
        stage.do(request("giving", returned=returned))
    except Invalid:
        return
    inputs = {name: variable(name) for name in VARIABLES}
    started = Node(run_child_wf={"wf_spec_name": "giving", "inputs": inputs, "major_version": -1})
    waits = Node(
        wait_for_child_wf={
            "child_wf_run_id": VariableAssignment(node_output={"node_name": "1"}), "child_wf_run_source_node": "1"
        }
    )  # fmt: skip
    mutation = VariableMutation(
        lhs_name=sorted(VARIABLES)[number],
        operation=VariableMutationType.ASSIGN,
        rhs_assignment=VariableAssignment(node_output={"node_name": "2"}),
    )
    accepted = stored(stage, request("wrong", started, waits, mutation=mutation))
    assert run(stage, "wrong") == LHStatus.ERROR or accepted
