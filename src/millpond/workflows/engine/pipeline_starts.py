"""Starts of pipelines: their names here, and the parameters of a run, which are looked at before it begins.

The specification of a pipeline says in its first node which parameters a run takes: the literal `{"kind":
"parameters", "parameters": […]}`. So whoever starts a run hears of a wrong one, and no run fails because of it.

Invariant: a pipeline's name has no hyphen, and a specification's no underline, so that each belongs to one other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from typing import Any

from littlehorse.model import VariableValue, WfSpec

from millpond.errors import Invalid
from millpond.json_forms import parse_list, parse_object

__all__ = ("BRANCH", "FAILURE", "HERE", "NAME_OF_SECRET", "PARAMETERS", "PROGRAM", "STEP", "TASK", "VALUES",
           "check_start", "checked_parameters", "hides_within", "is_here", "is_step", "is_tag", "parameters_in",
           "pipeline_name", "secret_texts", "spec_name", "task_of_run")  # fmt: skip

PARAMETERS = "parameters"
"""The kind of the first step of each run: it finds the values of parameters. And the variable that gives them."""
VALUES = "values"
"""The variable of a pipeline's run with parameters, as they came out, and outputs of steps, by name."""
PROGRAM = "program"
"""The variable of a pipeline's run with the text of its file."""
STEP = "step"
"""The task of all steps, but those of runs that one process carries out."""
HERE = "__here"
"""The end of the name of a pipeline as one process runs it on a node: its text is not that which was deployed."""
TASK = "@task"
"""The variable of a run that one process carries out with the name of its task."""
FAILURE = "@failure"
"""The variable of a handler of failures with the kind and the reason of its failure."""
BRANCH = "@branch"
"""The parameter that each pipeline has: the branch that a run has instead of `main`."""
NAME_OF_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|PRIVATE_KEY|ACCESS_KEY|API_?KEY", re.IGNORECASE)
"""Parameters and variables whose values nobody is shown."""
SECRET_CHARACTERS_MIN = 6
"""Characters of a secret that is masked wherever it stands: shorter ones are in many words."""


_OWN = {PARAMETERS, PROGRAM, VALUES}
"""The variables of each run of a pipeline; others are tags."""


def task_of_run(run: str) -> str:
    """The name of the task of a run that one process carries out: no other worker takes its steps."""
    return f"{STEP}-of-{run}"


def is_here(spec: str) -> bool:
    """True for the specification of runs of a pipeline that one process carries out."""
    return spec.endswith(spec_name(HERE))


def is_step(task: str) -> bool:
    """True for the name of a task whose runs are steps of pipelines."""
    return task == STEP or task.startswith(task_of_run(""))


def is_tag(name: str, kind: str) -> bool:
    """True for a parameter by whose value runs are found: it has a variable of its own."""
    return kind not in ("list", "dict") and name not in _OWN and NAME_OF_SECRET.search(name) is None


def hides_within(name: str, values: Mapping[str, Any], *, hides: bool) -> bool:
    """True when a value of this name among others is a secret, by its name, or as they are within one.

    >>> hides_within("API_token", {}, hides=False), hides_within("rows", {"path": "a", "rows": 1}, hides=True)
    (True, False)
    """
    is_table = "path" in values or "map" in values  # of a step that is called so
    return NAME_OF_SECRET.search(name) is not None or (hides and not is_table)


def secret_texts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts and numbers among values that are secrets, by their names, and the lines of each; of six characters or
    more, the longest first: one may hold another.

    >>> secret_texts({"api_token": "hunter22", "rows": 7, "secrets": {"pin": 1234567}})
    ('hunter22', '1234567')
    """
    texts = set(_secrets_in(values, hides=False))
    parts = {part for text in texts for part in (text, *text.splitlines())}
    return tuple(sorted((part for part in parts if len(part) >= SECRET_CHARACTERS_MIN), key=len, reverse=True))


def _secrets_in(value: Any, *, hides: bool) -> Iterator[str]:
    match value:
        case Mapping():
            for name, own in value.items():
                yield from _secrets_in(own, hides=hides_within(str(name), value, hides=hides))
        case list():
            for own in value:
                yield from _secrets_in(own, hides=hides)
        case str() | int() | float() if hides:
            yield str(value)


def spec_name(pipeline: str) -> str:
    """The name of a pipeline's specification, which may have no underline.

    >>> spec_name("daily_load"), pipeline_name("daily-load")
    ('daily-load', 'daily_load')
    """
    return pipeline.replace("_", "-")


def pipeline_name(spec: str) -> str:
    """The name of the pipeline with a specification."""
    return spec.replace("-", "_")


def parameters_in(spec: WfSpec) -> list[dict[str, Any]] | None:
    """The parameters that a pipeline's specification declares; None for another workflow."""
    thread = spec.thread_specs[spec.entrypoint_thread_name]
    if not {own.var_def.name for own in thread.variable_defs} >= _OWN:
        return None
    for node in thread.nodes.values():
        if node.HasField("task") and node.task.variables:
            literal = parse_object(node.task.variables[0].literal_value.json_obj.encode() or b"{}")
            if literal.get("kind") == PARAMETERS:
                declared: list[dict[str, Any]] = literal[PARAMETERS]
                return declared
    return None


def check_start(spec: WfSpec, inputs: Mapping[str, VariableValue]) -> None:
    """Refuse inputs with which no run of a pipeline can go on; of other workflows nothing is asked.

    Raises: `Invalid` naming the parameter.
    """
    own = inputs.get(PARAMETERS)
    if (own is None or own.HasField("json_obj")) and (declared := parameters_in(spec)) is not None:
        checked_parameters(declared, {} if own is None else parse_object(own.json_obj.encode()))
        if tags := sorted(set(inputs) & {row["name"] for row in declared if is_tag(row["name"], row["type"])}):
            raise Invalid("a run of a pipeline has its parameters in one input", kind="pipeline_value",
                          parameter=tags[0], hint=f"give JSON as the input {PARAMETERS}")  # fmt: skip


def checked_parameters(declared: list[dict[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are given, each of its type.

    >>> checked_parameters([{"name": "n", "type": "int", "required": True}], {"n": "3"})
    {'n': 3}

    Raises: `Invalid` for one that is missing, of another type, or that there is not.
    """
    parameters = {own["name"]: own for own in declared}
    values = {}
    for name, value in inputs.items():
        if name == BRANCH:
            continue
        if name not in parameters:
            raise Invalid("the pipeline has no such parameter", kind="pipeline_value", parameter=name,
                          hint=f"its parameters: {', '.join(parameters) or 'none'}")  # fmt: skip
        values[name] = _of_type(name, parameters[name]["type"], value)
    for name, own in parameters.items():
        if own["required"] and name not in values:
            raise Invalid("a parameter is missing", kind="pipeline_value", parameter=name, type=own["type"],
                          hint=f"give {name}=…")  # fmt: skip
    return values


def _json(text: str) -> Any:
    (value,) = parse_list(f"[{text}]")
    return value


_READ: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "date": lambda text: date.fromisoformat(text).isoformat(),
    "datetime": lambda text: datetime.fromisoformat(text).isoformat(),
    "list": _json, "dict": _json,
}  # fmt: skip
_HELD: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "date": (str,), "datetime": (str,),
    "list": (list,), "dict": (dict,),
}  # fmt: skip
_INTEGERS = range(-(2**63), 2**63)
"""Those that variables hold."""
_EXAMPLES = {"date": "2026-01-31", "datetime": "2026-01-31T06:00:00", "bool": "true", "list": "[1, 2]",
             "dict": '{"a": 1}'}  # fmt: skip


def _of_type(name: str, kind: str, value: Any) -> Any:
    said = "***" if NAME_OF_SECRET.search(name) else value
    hint = f"such as {name}={_EXAMPLES[kind]}" if kind in _EXAMPLES else f"give {name} a value of type {kind}"
    wrong = Invalid("a parameter is of another type", kind="pipeline_value", parameter=name, type=kind, value=said,
                    hint=hint)  # fmt: skip
    if isinstance(value, str) and kind in _READ:
        try:
            value = _READ[kind](value)
        except (ValueError, KeyError, IndexError):
            raise wrong from None
    endless = isinstance(value, float) and not math.isfinite(value)  # no JSON holds it
    large = isinstance(value, int) and value not in _INTEGERS
    if endless or large or not isinstance(value, _HELD[kind]) or isinstance(value, bool) is not (kind == "bool"):
        raise wrong
    return value
