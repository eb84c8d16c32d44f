"""Checks of what the steps of a plan state outright, and is no value of the run, when the pipeline is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.maps.inputs.formats.files import format_named
from millpond.maps.inputs.mapping import mapping_of
from millpond.maps.model.definition import check_name
from millpond.pipelines.values import holds_value, readable
from millpond.refs.face import check_no_main
from millpond.times.instants import parse_instant
from millpond.versions.graph.names import check_branch
from millpond.versions.merges import Strategy

if TYPE_CHECKING:
    from millpond.pipelines.plan import PlannedStep

__all__ = ("ITEMS_MAX", "OUTPUTS", "check_options", "check_stated")

_ON = {"branch", "commit"}
OUTPUTS = {
    "load": {"map", "load", "rows", "rejected", "position", *_ON}, "sql": {"path", "rows"},
    "check": {"passed", "rows", "first", "reason", *_ON}, "enrich": {"path", "rows", "found"},
    "shell": {"status", "output"}, "notify": {"place"}, "branch": _ON, "merge": {"into", "merged", "map", "rows", *_ON},
}  # fmt: skip
"""The fields that the outputs of steps may have, by their kinds; those of functions, and reports, have any."""
ITEMS_MAX = 10_000
"""The items of a list that a step is done for."""
_MOST = 1_000_000_000
"""Retries, and seconds, of a step: there is room for a few more where the engine counts them."""
Steps = Mapping[str, "PlannedStep"]


def check_options(step: str, tried: Mapping[str, Any], over: Any) -> None:
    """Refuse a name, numbers of tries and a list that are none, or that only a run would know.

    Raises: `Invalid`.
    """
    for option, own in {"name": step, **tried}.items():
        if holds_value(own):
            raise Invalid("an option of a step is no value of the run", kind="pipeline_plan", step=readable(f"{step}"),
                          option=option, value=readable(f"{own}"),
                          hint="write it outright; steps that differ in it are two, each with its when=")  # fmt: skip
    if any(isinstance(own, bool) or not isinstance(own, int | float) for own in tried.values()) or isinstance(
        over, str | Mapping | int
    ):
        shown = readable(over) if isinstance(over, str) else over
        raise Invalid("retries, backoff and timeout are numbers, and over is a list", kind="pipeline_plan",
                      step=step, **tried, over=shown, hint="seconds without quotes, a list in brackets")  # fmt: skip
    least = {"retries": 0, "backoff": 0, "timeout": 1}
    if not isinstance(tried["retries"], int) or not all(least[key] <= own <= _MOST for key, own in tried.items()):
        raise Invalid("retries and backoff are 0 or more, and a timeout is a second or more", kind="pipeline_plan",
                      step=step, **tried, limit=_MOST)  # fmt: skip


def check_stated(step: PlannedStep, before: Steps) -> None:
    """Refuse a step that no run can do; `before` has the steps before it.

    Raises: `Invalid`, naming the step.
    """
    try:
        _check_tried(step)
        if step.kind in _KINDS:
            _KINDS[step.kind](step.inputs, before)
    except Invalid as error:
        error.values.setdefault("step", step.name)
        raise


def _check_tried(step: PlannedStep) -> None:
    compared = isinstance(step.when, Mapping) and bool({"$value", "$test"} & set(step.when))
    if not (step.when is None or isinstance(step.when, bool) or compared):
        raise Invalid("a condition is a value of the run, or compares some", kind="pipeline_plan", when=step.when,
                      hint="without quotes: when=warm.rows > 0")  # fmt: skip
    if isinstance(step.over, list) and len(step.over) > ITEMS_MAX:
        raise Invalid("a step is done for each item of a list", kind="pipeline_value", items=len(step.over),
                      limit=ITEMS_MAX, hint="give more to one function, as a list")  # fmt: skip


def _load(inputs: Mapping[str, Any], before: Steps) -> None:
    if isinstance(form := inputs.get("format"), str):
        format_named(form)
    if isinstance(columns := inputs.get("columns"), Mapping) and "$value" not in columns:
        mapping_of(columns)
    rejects = inputs["max_rejects"]
    if not isinstance(rejects, Mapping) and (isinstance(rejects, bool) or not isinstance(rejects, int) or rejects < 0):
        raise Invalid("max_rejects is a number of rows", kind="pipeline_plan", max_rejects=rejects)
    for files in inputs["files"] if isinstance(inputs["files"], list) else [inputs["files"]]:
        _has(files, before, {"path"})
    _branch({"name": inputs.get("branch"), "free": False}, before)


def _branch(inputs: Mapping[str, Any], before: Steps) -> None:
    if isinstance(name := inputs["name"], str) and not inputs["free"]:
        check_no_main(check_branch(name))


def _merge(inputs: Mapping[str, Any], before: Steps) -> None:
    if isinstance(inputs["strategy"], str):
        Strategy.parse(inputs["strategy"])
    branch = inputs["branch"]
    load = before.get(branch["$value"][0]) if isinstance(branch, Mapping) and "$value" in branch else None
    if load is not None and load.kind == "load" and "branch" not in load.inputs:
        raise Invalid("what is merged is on no branch", kind="pipeline_plan", load=load.name,
                      hint='load(…, branch="nightly"); or publish(load(…), checks=[…])')  # fmt: skip


def _check(inputs: Mapping[str, Any], before: Steps) -> None:
    if inputs["limits"] and not inputs["maps"]:
        raise Invalid("limits are of a map", kind="pipeline_plan", limits=", ".join(inputs["limits"]),
                      hint="check(weather, rows_min=1); or publish(load(…), checks=[check(rows_min=1)])")  # fmt: skip
    for value in inputs["maps"]:
        _has(value, before, {"map"} if "changes_max" in inputs["limits"] else {"map", "path"})


def _has(value: Any, before: Steps, fields: set[str]) -> None:
    """Refuse the whole output of a step that has none of some fields."""
    path = value.get("$value", []) if isinstance(value, Mapping) else []
    step = before.get(path[0]) if len(path) == 1 else None
    there = None if step is None else OUTPUTS.get(step.kind)
    if step is not None and there is not None and not fields & there:
        raise Invalid("the output of a step is not what another takes", kind="pipeline_plan", output=step.name,
                      takes=" or ".join(sorted(fields)), fields=", ".join(sorted(there)),
                      hint="a load has a map, and changes on a branch; sql and enrich have the path of a table",
                      )  # fmt: skip


def _map(inputs: Mapping[str, Any], before: Steps) -> None:
    if isinstance(name := inputs["map"], str):
        check_name(name)
    if isinstance(time := inputs.get("before"), str) and time:
        parse_instant(time)


_KINDS: dict[str, Callable[[Mapping[str, Any], Steps], None]] = {
    "load": _load, "branch": _branch, "merge": _merge, "check": _check, "enrich": _map, "condense": _map,
    "retain": _map,
}  # fmt: skip
