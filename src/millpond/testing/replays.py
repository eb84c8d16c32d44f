"""Recorded runs of pipelines, replayed against a changed file: which open runs could not go on with it, and why.

    millpond run show RUN --json > runs/RUN.json          on the node; in a test recorded(runs, run)
    replay = replayed("nightly.py", Path("runs").glob("*.json"))
    assert not replay.broken, replay

A run ends with the text with which it began. It goes on with another one by a migration, or when somebody makes the
change before it has ended: this looks at what the steps would take then, from what the record says that was done.

Invariants:
* a step that was done is not done again: what later steps take of it is in its recorded output, or the run would break;
* a run goes on at the step at which it stands, by its name, so what the new file puts before that is never done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from millpond.errors import Invalid
from millpond.json_forms import FormError, parse_object, plain
from millpond.pipelines.plan import Plan
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.pipelines.values import filled, leaves_in
from millpond.workflows.engine.pipeline_starts import PARAMETERS, VALUES, checked_parameters, spec_name

__all__ = ("ENDED", "Replay", "replayed")

ENDED = ("COMPLETED", "ERROR", "EXCEPTION")


@dataclass(frozen=True, slots=True)
class Replay:
    """The open runs among those that were recorded, and of those that would break the reason."""

    open: int
    broken: Mapping[str, str]

    def __str__(self) -> str:
        words = f"{len(self.broken):,} of {self.open:,} open runs would break"
        reasons = Counter(self.broken.values()).most_common()
        return "\n".join([words, *(f"{number:,}: {reason}" for reason, number in reasons)])


def replayed(file: str | Path, records: Iterable[Mapping[str, Any] | str | Path]) -> Replay:
    """Replay runs, each as `millpond run show --json` tells it or the file of that, against a file of pipelines.

    Runs that have ended, and those of other workflows, are passed over.

    Raises: `Invalid` for a file or a record that is not understood.
    """
    program = read_program(file)
    plans = {spec_name(declared.plan.name): declared.plan for declared in pipelines_of(program).values()}
    seen, broken = 0, dict[str, str]()
    for record in records:
        run = _Recorded.of(record)
        if run.status in ENDED or run.workflow not in plans:
            continue
        seen += 1
        if reason := _reason(plans[run.workflow], run):
            broken[run.name] = reason
    return Replay(seen, broken)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A run as it was recorded: parameters given and found, the outputs of steps done, and the step where it stands."""

    name: str
    workflow: str
    status: str
    parameters: Mapping[str, Any]
    values: Mapping[str, Any]
    stands: str

    @classmethod
    def of(cls, record: Mapping[str, Any] | str | Path) -> _Recorded:
        try:
            row = record if isinstance(record, Mapping) else parse_object(Path(record).read_bytes())
            values = {own["id"]["name"]: own["value"] for own in row["variables"]}
            variables = {name: _json_in(values[name]) for name in (PARAMETERS, VALUES) if name in values}
            tasks = sorted(row["tasks"], key=lambda task: task["scheduled_at"])
            steps = [(_json_in(task["input_variables"][0]["value"]).get("name", ""), task) for task in tasks]
            run = row["run"]
            return cls(
                run["id"]["id"], run["wf_spec_id"]["name"], run["status"], variables.get(PARAMETERS, {}),
                {**variables.get(VALUES, {}), **dict(_done(steps))}, steps[-1][0] if steps else PARAMETERS,
            )  # fmt: skip
        except (OSError, FormError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise Invalid("not a recorded run of a pipeline", kind="pipeline_record", reason=repr(error),
                          hint="record it by millpond run show RUN --json") from None  # fmt: skip


def _json_in(value: Mapping[str, Any]) -> dict[str, Any]:
    return parse_object(value["value"]["json_obj"].encode() if "value" in value else value["json_obj"].encode())


def _done(steps: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The outputs of steps that the variable of the run does not hold yet."""
    for name, task in steps:
        last = task["attempts"][-1]
        if name != PARAMETERS and last["status"] == "TASK_SUCCESS":
            yield name, _json_in(last["output"])


def _reason(plan: Plan, run: _Recorded) -> str:
    """The reason for which a run could not go on with a plan; nothing when it could."""
    steps = plan.on_failure if run.stands in {step.name for step in plan.on_failure} else plan.steps
    names = [step.name for step in steps]
    if run.stands == PARAMETERS:  # it has done no step yet
        declared = [plain(parameter) for parameter in plan.parameters]
        return _problem(lambda: checked_parameters(declared, run.parameters))
    if run.stands not in names:
        return f"the step {run.stands}, at which it stands, is gone"
    rest = steps[names.index(run.stands) + (run.stands in run.values) :]
    if again := [step.name for step in rest if step.name in run.values]:
        return f"the step {again[0]}, which was done, would be done again"
    to_come = {step.name for step in rest}
    for step in rest:
        for leaf in leaves_in([step.inputs, step.when, step.over]):
            if leaf["$value"][0] not in ("item", *to_come) and (problem := _problem(partial(filled, leaf, run.values))):
                return f"the step {step.name}: {problem}"
    return ""


def _problem(work: Callable[[], object]) -> str:
    try:
        work()
    except Invalid as error:
        error.hint = None  # what there is instead differs from run to run, and the reason does not
        return str(error)
    return ""
