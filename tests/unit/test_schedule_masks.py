"""Secrets among the inputs of schedules: readers see masks, and a schedule that is put again keeps what they hide."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    DeleteScheduledWfRunRequest,
    InlineStruct,
    InlineStructDef,
    PutStructDefRequest,
    ScheduledWfRun,
    ScheduledWfRunId,
    ScheduleWfRequest,
    Struct,
    StructDefId,
    StructField,
    StructFieldDef,
    TypeDefinition,
    VariableDef,
    VariableType,
    VariableValue,
)
from littlehorse.workflow import Workflow

from millpond.server.workflows.reads import READS
from millpond.testing.workflows import TENANT, WorkflowRuns
from millpond.workflows.engine.values.masks import MASK
from millpond.workflows.processor import read_rows
from millpond.workflows.schedules import switch
from tests.rings.sampling import examples

SECRET = "hunter22"
NAMES = ["day", "api_key", "PASSWORD", "size"]
PARAMETERS = st.dictionaries(
    st.sampled_from([*NAMES, "more"]), st.text(max_size=3) | st.integers(0, 9) | st.just(MASK), max_size=4
)
NESTED = PARAMETERS | st.fixed_dictionaries({"more": PARAMETERS, "api_key": st.text(min_size=1, max_size=3)})


@cache
def prepared() -> WorkflowRuns:
    """A workflow whose inputs are masked by their type, by their name in parameters, or as a field of a struct."""
    runs = WorkflowRuns()
    fields = {name: StructFieldDef(field_type=TypeDefinition(primitive_type=VariableType.STR, masked=name == "pin"))
              for name in ("owner", "pin")}  # fmt: skip
    runs.send(PutStructDefRequest(name="card", struct_def=InlineStructDef(fields=fields)))
    for name in ("flow", "other"):
        spec = Workflow(name, lambda wf: wf.sleep(60)).compile()
        kinds = {
            "token": TypeDefinition(primitive_type=VariableType.STR, masked=name == "flow"),
            "day": TypeDefinition(primitive_type=VariableType.STR),
            "parameters": TypeDefinition(primitive_type=VariableType.JSON_OBJ),
            "card": TypeDefinition(struct_def_id=StructDefId(name="card", version=-1)),
        }
        definitions = spec.thread_specs[spec.entrypoint_thread_name].variable_defs
        for own, type_ in kinds.items():
            definitions.add(var_def=VariableDef(name=own, type_def=type_))
        runs.send(spec)
    return runs


def card(owner: str) -> VariableValue:
    fields = {"owner": StructField(value=VariableValue(str=owner)), "pin": StructField(value=VariableValue(str=SECRET))}
    return VariableValue(struct=Struct(struct=InlineStruct(fields=fields)))


INPUTS = {
    "token": VariableValue(str=SECRET), "day": VariableValue(str="monday"), "card": card("anna"),
    "parameters": VariableValue(json_obj=json.dumps({"api_key": SECRET, "day": 1})),
}  # fmt: skip


def put(inputs: Any, workflow: str = "flow") -> ScheduledWfRun:
    request = ScheduleWfRequest(id="s", wf_spec_name=workflow, cron_expression="0 3 1 1 *", variables=inputs)
    reply = prepared().send(request)
    assert isinstance(reply, ScheduledWfRun)
    return reply


def shown() -> ScheduledWfRun:
    name = ScheduledWfRunId(id="s")
    row = read_rows(prepared()._processor, TENANT, lambda rows: READS[ScheduledWfRunId](rows, name))
    assert isinstance(row, ScheduledWfRun)
    return row


def stored() -> ScheduledWfRun:
    row = read_rows(prepared()._processor, TENANT, lambda rows: rows.get(ScheduledWfRun, ("s",)))
    assert row is not None
    return row


def forget() -> None:
    prepared().send(DeleteScheduledWfRunRequest(id=ScheduledWfRunId(id="s")))


def call(method: str, request: Any) -> Any:
    return shown() if method == "GetScheduledWfRun" else prepared().send(request)


def test_no_reader_sees_a_secret_and_switching_keeps_it() -> None:
    forget()
    assert SECRET not in str(put(INPUTS))
    assert SECRET not in str(shown()) and str(shown()).count(MASK) == 3 and "anna" in str(shown())
    before = stored()
    for paused in (True, False):
        switch(call, "s", paused=paused)
        assert stored().variables == before.variables and SECRET not in str(shown())
    edited = dict(shown().variables)
    edited["card"].struct.struct.fields["owner"].value.str = "otto"
    edited["parameters"].json_obj = json.dumps({"api_key": MASK, "day": 2})
    assert SECRET not in str(put(edited))
    own = stored().variables
    assert own["card"].struct.struct.fields["pin"].value.str == SECRET
    assert own["card"].struct.struct.fields["owner"].value.str == "otto"
    assert json.loads(own["parameters"].json_obj) == {"api_key": SECRET, "day": 2}


def test_masks_bring_nothing_to_another_workflow() -> None:
    forget()
    put(INPUTS)
    put(shown().variables, "other")
    assert SECRET not in str(stored())
    assert shown().variables["token"].str == MASK


def test_what_no_workflow_declares_is_masked() -> None:
    forget()
    put({"unknown": VariableValue(str=SECRET), "card": VariableValue(str=SECRET)})
    assert SECRET not in str(shown())


def model(own: Any, before: Any) -> Any:
    """Parameters that are put, where a mask is what it hid."""
    if not isinstance(own, dict) or not isinstance(before, dict):
        return own
    return {
        name: before[name] if part == MASK and name in before and not isinstance(before[name], dict)
        and name in ("api_key", "PASSWORD") else model(part, before.get(name))
        for name, part in own.items()
    }  # fmt: skip


@settings(max_examples=examples(15, 60), deadline=None)
@given(before=NESTED, after=NESTED)
def test_a_mask_that_is_sent_back_is_what_it_hid(before: dict[str, Any], after: dict[str, Any]) -> None:
    forget()
    put({"parameters": VariableValue(json_obj=json.dumps(before))})
    put({"parameters": VariableValue(json_obj=json.dumps(after))})
    assert json.loads(stored().variables["parameters"].json_obj) == model(after, before)
