"""Inputs of runs as text, of commands and of forms: those that a workflow asks for, and the values of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from littlehorse.model import ThreadVarDef, VariableType, VariableValue, WfRunVariableAccessLevel, WfSpec

from millpond.errors import Invalid
from millpond.json_forms import FormError, parse_list
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.pipeline_starts import NAME_OF_SECRET, PARAMETERS, PROGRAM, VALUES, parameters_in
from millpond.workflows.engine.values.conversions import is_null, plain, type_name, type_of_def, value_of

__all__ = ("declared_inputs", "inputs_of", "input_defs", "value_in")


def declared_inputs(spec: WfSpec) -> list[dict[str, Any]]:
    """The inputs of a workflow, or the parameters of a pipeline: name, type, default; if required, secret, computed:
    the default is then the word of what a run finds when it begins.
    """
    parameters = parameters_in(spec)
    if parameters is not None:
        return [
            {"name": own["name"], "type": own["type"], "required": own["required"], "default": own.get("default"),
             "secret": NAME_OF_SECRET.search(own["name"]) is not None, "computed": own.get("computed", False)}
            for own in parameters
        ]  # fmt: skip
    inputs = []
    for own in input_defs(spec):
        definition, type_ = own.var_def, type_of_def(own.var_def)
        default = definition.default_value if definition.HasField("default_value") else VariableValue()
        secret = type_.masked or NAME_OF_SECRET.search(definition.name) is not None
        inputs.append({
            "name": definition.name, "type": type_name(type_).lower(), "required": own.required,
            "default": None if is_null(default) or secret else plain(default), "secret": secret,
            "computed": False,
        })  # fmt: skip
    return inputs


def input_defs(spec: WfSpec) -> list[ThreadVarDef]:
    """The variables that the caller of a run may give: none of a parent, nor those in which a node of a run keeps what
    it started, which the client names as the node.
    """
    first = spec.thread_specs[spec.entrypoint_thread_name]
    inherited = WfRunVariableAccessLevel.INHERITED_VAR
    return [own for own in first.variable_defs if own.access_level != inherited and own.var_def.name not in first.nodes]


def inputs_of(spec: WfSpec, texts: Mapping[str, str]) -> dict[str, VariableValue]:
    """The inputs of a run, of the types that the workflow declares; of a pipeline, its parameters.

    A text is JSON where it is not declared as text; else it stands for itself.
    """
    definitions = spec.thread_specs[spec.entrypoint_thread_name].variable_defs
    types = {own.var_def.name: own.var_def.type_def.primitive_type for own in definitions}
    if parameters_in(spec) is not None and not {PARAMETERS, PROGRAM, VALUES} & texts.keys():
        return {PARAMETERS: value_of(dict(texts))}
    return {name: value_in(text, types.get(name)) for name, text in texts.items()}


def value_in(text: str, kind: int | None) -> VariableValue:
    """The value that a text stands for, as an input of this type.

    Raises: `Invalid` for one that is too large.
    """
    try:
        value = text if kind == VariableType.STR else parse_list(f"[{text}]")[0]
        return value_of(float(value) if kind == VariableType.DOUBLE and type(value) is int else value)
    except (FormError, IndexError, OverflowError):
        return value_of(text)
    except NodeFailed as failed:
        raise Invalid(failed.message, kind="workflow_inputs") from None
