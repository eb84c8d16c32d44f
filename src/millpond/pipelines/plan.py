"""Plans: what a pipeline was declared to be, as JSON: its parameters, and its steps in their order.

Invariants:
* a step takes values of parameters and of steps before it, and needs steps before it: there are no circles;
* no two steps, and no step and parameter, have one name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from millpond.errors import Invalid
from millpond.pipelines.stated import OUTPUTS, check_stated
from millpond.pipelines.values import leaves_in, names_in
from millpond.workflows.engine.cron import MISSED, Cron, is_data, next_instant, parse_cron, zone_of
from millpond.workflows.engine.pipeline_starts import HERE, NAME_OF_SECRET

__all__ = (
    "ALERTED",
    "TYPES",
    "Parameter",
    "Plan",
    "PlannedStep",
    "check_plan",
    "cron_words",
    "declared_line",
    "drawn",
    "drawn_svg",
    "shown_plan",
    "type_of",
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
RESERVED = ("run", "failure")
FAILURE_FIELDS = {"step", "kind", "reason"}
_READ: dict[str, Callable[[str], date]] = {"date": date.fromisoformat, "datetime": datetime.fromisoformat}
"""The types of parameters that JSON holds as text."""
TYPES: dict[type, str] = {str: "str", int: "int", float: "float", bool: "bool", date: "date", datetime: "datetime",
                          list: "list", dict: "dict"}  # fmt: skip
"""The types that parameters may have, and their words."""
ALERTED = "alerted:"
"""The `when` of a pipeline that alerts of a map begin: the map, and perhaps a rule, come behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a run: its type, and its default as a plan holds it; computed: found when the run begins."""

    name: str
    type: str
    required: bool = True
    default: Any = None
    computed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step: its kind, its inputs as templates, and how it is tried."""

    name: str
    kind: str
    inputs: dict[str, Any]
    needs: tuple[str, ...] = ()
    when: Any = None
    over: Any = None
    retries: int = 3
    backoff_ms: int = 500
    timeout_ms: int = 600_000
    line: str = ""

    def takes(self) -> tuple[str, ...]:
        """The parameters and steps that it waits for, in the order of their mention."""
        inner = names_in([self.inputs, self.when, self.over])
        return tuple(dict.fromkeys([*(name for name in inner if name != "item"), *self.needs]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pipeline, as it was declared."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    steps: tuple[PlannedStep, ...] = ()
    on_failure: tuple[PlannedStep, ...] = ()
    schedule: str = ""
    time_zone: str = ""
    overlap: bool = False
    missed: str = "last"
    when: str = ""
    doc: str = field(default="")

    def typed(self, step: str, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of a step's function, as they are in a run: days and instants of parameters as such."""
        kinds = {own.name: _READ[own.type] for own in self.parameters if own.type in _READ}
        [planned] = [own for own in (*self.steps, *self.on_failure) if own.name == step]
        whole = [own["$value"][0] if isinstance(own, Mapping) and "$value" in own else ""
                 for own in planned.inputs["arguments"]]  # fmt: skip
        return [
            kinds[name](value) if name in kinds and isinstance(value, str) else value
            for name, value in zip(whole, arguments, strict=True)
        ]

    def cron(self) -> Cron | None:
        """The expression of the instants at which its runs begin by themselves.

        Raises: `Invalid` when that is never.
        """
        if self.time_zone:
            zone_of(self.time_zone)
        if self.missed not in MISSED:
            raise Invalid("no such policy for missed instants", kind="pipeline_plan", missed=self.missed,
                          hint=f"one of: {', '.join(MISSED)}")  # fmt: skip
        if self.when:
            return self._data_cron()
        if not self.schedule:
            return None
        cron = Cron(self.schedule, self.time_zone, overlap=self.overlap, missed=self.missed)
        next_instant(cron.text(), 0)
        if parse_cron(cron.text()) != cron:
            raise Invalid("a schedule has five fields alone", kind="pipeline_plan", schedule=self.schedule,
                          hint="its zone is time_zone=…")  # fmt: skip
        return cron

    def _data_cron(self) -> Cron:
        if self.schedule or not is_data(self.when):
            raise Invalid("a pipeline begins by a schedule, or when data come", kind="pipeline_plan", when=self.when,
                          hint='schedule="…", or when=loaded("MAP"), alerted("MAP"), committed("REPO")')  # fmt: skip
        return Cron("", overlap=self.overlap, missed=self.missed, on=self.when)


def check_plan(plan: Plan) -> Plan:
    """The plan, when it can be run.

    Raises: `Invalid` naming the step that is wrong.
    """
    if not _NAME.fullmatch(plan.name) or plan.name.endswith(("_", HERE)):
        raise Invalid("not a name of a pipeline", kind="pipeline_plan", pipeline=plan.name,
                      hint='letters, digits and inner _, the first a letter: @pipeline(name="daily_load")')  # fmt: skip
    if not plan.steps:
        raise Invalid("the pipeline has no steps", kind="pipeline_plan", pipeline=plan.name,
                      hint="call load, check, enrich, sql, python, … in its function")  # fmt: skip
    if plan.cron() is not None and (required := [own.name for own in plan.parameters if own.required]):
        raise Invalid("a run that a schedule begins has the defaults of its parameters", kind="pipeline_plan",
                      pipeline=plan.name, parameter=required[0], hint=f"give {required[0]} a default")  # fmt: skip
    alerts = [own for own in plan.parameters if own.computed and own.default == "alert"]
    if alerts and (alerts[0].type != "dict" or not plan.when.startswith(ALERTED)):
        raise Invalid("an alert is a dict, of a pipeline that alerts begin", kind="pipeline_plan", pipeline=plan.name,
                      parameter=alerts[0].name, hint='when=alerted("MAP"), and crossing: dict = alert')  # fmt: skip
    names = [parameter.name for parameter in plan.parameters]
    if taken := {*RESERVED, "item"}.intersection(names):
        raise Invalid("a parameter has a name of its own", kind="pipeline_plan", pipeline=plan.name,
                      parameter=min(taken), hint="a run has others of these names: choose another")  # fmt: skip
    there = [*RESERVED, *names]
    for step in (*plan.steps, *plan.on_failure):
        try:
            _check_step(plan, step, there)
        except Invalid as error:
            if step.line:
                error.values["line"] = step.line
            raise
        there.append(step.name)
    return plan


def _check_step(plan: Plan, step: PlannedStep, there: Sequence[str]) -> None:
    """Refuse a step that cannot work behind those that are there."""
    if not _NAME.fullmatch(step.name) or step.name in (*there, "item"):
        raise Invalid("a step has a name of its own", kind="pipeline_plan", step=step.name,
                      hint="letters, digits and _, that no other step or parameter has")  # fmt: skip
    inner, outer = ("item" in names_in(template) for template in (step.inputs, [step.when, step.over]))
    if outer or (inner and step.over is None):
        raise Invalid("an item is there in the inputs of a step with over", kind="pipeline_plan", step=step.name,
                      hint="say over, with a list; when is looked at once, before the first item")  # fmt: skip
    for name in step.takes():
        if name not in there:
            raise Invalid("a step takes what comes after it, or nowhere", kind="pipeline_plan", step=step.name,
                          takes=name, hint=f"before it there are: {', '.join(there[2:]) or 'none'}")  # fmt: skip
    _check_fields(plan, step)
    check_stated(step, {own.name: own for own in plan.steps if own.name in there})


def type_of(hint: Any) -> Any:
    """The type that a hint is of: of `list[str]` the list, of `str | None`, which is also none given, the text."""
    one_of = [own for own in get_args(hint) if own is not NoneType] if get_origin(hint) in (Union, UnionType) else []
    return type_of(one_of[0]) if len(one_of) == 1 else get_origin(hint) or hint


def declared_line() -> str:
    """The file and line of the step that is declared now: the newest call from outside of this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("millpond.pipelines."):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _check_fields(plan: Plan, step: PlannedStep) -> None:
    """Refuse fields that a value will not have."""
    fields: dict[str, set[str] | None] = {"run": {"id", "began", "key", "branch"}, "failure": FAILURE_FIELDS}
    fields |= {own.name: None if own.type == "dict" else set() for own in plan.parameters}
    for own in (*plan.steps, *plan.on_failure):
        fields[own.name] = OUTPUTS.get(own.kind) if own.over is None else {"items", "count"}
    for leaf in leaves_in([step.inputs, step.when, step.over]):
        name, *inner = leaf["$value"]
        there = fields.get(name)
        if inner and there is not None and inner[0] not in there:
            raise Invalid("a value has no such field", kind="pipeline_value", step=step.name,
                          value=".".join(leaf["$value"]), fields=", ".join(sorted(there)) or "none",
                          hint='take it whole, as f"{day:%Y}", or compute with it in a step: python(…)')  # fmt: skip


# -- drawings -----------------------------------------------------------------------------------------


def shown_plan(plan: Plan) -> Plan:
    """The plan without defaults whose names say that they are secrets."""
    hidden = (
        replace(own, default="***") if own.default is not None and NAME_OF_SECRET.search(own.name) else own
        for own in plan.parameters
    )
    return replace(plan, parameters=tuple(hidden))


def drawn(plan: Plan) -> Iterator[str]:
    """The plan and its graph, as lines for a terminal."""
    yield f"{plan.name}({', '.join(_shown(parameter) for parameter in shown_plan(plan).parameters)})"
    if (cron := plan.cron()) is not None:
        yield f"  {'at ' * (not cron.on)}{cron_words(cron)}"
    for number, step in enumerate((*plan.steps, *plan.on_failure), 1):
        if plan.on_failure and number == len(plan.steps) + 1:
            yield "  on failure"
        last = number in (len(plan.steps), len(plan.steps) + len(plan.on_failure))
        takes = f"  ◀ {', '.join(step.takes())}" if step.takes() else ""
        yield f"  {'└' if last else '├'}─ {_label(step)}{takes}"


def _label(step: PlannedStep) -> str:
    more = "".join(word for word, there in ((", if", step.when), (", for each", step.over)) if there is not None)
    return f"{step.name}  [{step.kind}{more}]"


def _shown(parameter: Parameter) -> str:
    text = f"{parameter.name}: {parameter.type}"
    if parameter.computed:
        return f"{text} = {parameter.default}()"
    return text if parameter.required else f"{text} = {parameter.default}"


def cron_words(cron: Cron | None) -> str:
    """A schedule in words of a line."""
    if cron is None:
        return ""
    policies = f"missed: {cron.missed}{', may overlap' * cron.overlap}{', paused' * cron.paused}"
    if cron.on:
        kind, _, names = cron.on.partition(":")
        return f"when {names.replace(',', ' or ')} is {kind} ({policies})"
    return f"{cron.fields} {cron.time_zone or 'UTC'} ({policies})"


_ROW, _WIDTH, _HEIGHT, _LETTER = 56, 240, 32, 8


def drawn_svg(plan: Plan) -> str:
    """The graph of a plan as SVG: a box for each step, and a line from each one that it takes values of; below them, in
    boxes of their own look, the steps of a failure.
    """
    steps = (*plan.steps, *plan.on_failure)
    tops = {step.name: number * _ROW + 12 + 24 * (number >= len(plan.steps)) for number, step in enumerate(steps)}
    width = max(_WIDTH, 24 + _LETTER * max(len(_label(step)) for step in steps))
    parts = []
    for number, step in enumerate(steps):
        y, look = tops[step.name], ' class="failure"' * (number >= len(plan.steps))
        parts.append(f'<rect x="60" y="{y}" width="{width}" height="{_HEIGHT}" rx="6"{look}/>')
        parts.append(f'<text x="72" y="{y + 21}">{_label(step)}</text>')
        for name in step.takes():
            if name in tops:
                start, stop = tops[name] + 16, y + 16
                bend = 60 - 12 * min(4, (stop - start) // _ROW)
                parts.append(f'<path d="M60 {start} C{bend} {start} {bend} {stop} 60 {stop}"/>')
    if plan.on_failure:
        parts.append(f'<text x="60" y="{tops[plan.on_failure[0].name] - 8}">on failure</text>')
    height = len(steps) * _ROW + 24 * bool(plan.on_failure)
    style = (
        "rect{fill:#eef4fb;stroke:#35618e}text{font:14px sans-serif}path{fill:none;stroke:#35618e}"
        ".failure{fill:#fbeeee;stroke:#a33;stroke-dasharray:4}"
    )
    inner = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 80}" height="{height}"><title>{plan.name}</title>'
        f"<style>{style}</style>{inner}</svg>"
    )
