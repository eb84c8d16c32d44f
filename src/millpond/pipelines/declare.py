"""A pipeline as a Python function of steps.

    @pipeline
    def nightly(day: date = yesterday):
        weather = load(f"raw/{day:%Y/%m/%d}/*.csv", map="weather", kind="temporal_state", value="temp double")
        check("select * from {weather} where temp > 60", weather=weather)
        delays = sql("select key, avg(temp) as temp from {weather} group by key", weather=weather)
        notify("stream:etl/nightly", rows=delays.rows)

The function runs once, when the pipeline is declared: each step that it calls joins the plan, and gives the value that
its output will be. A step takes no value as text: in SQL `{name}` is a table or a bound parameter.

Every step takes `name`, `needs`, `when`, `over` (a list: the step is done for each `item` of it), `retries`, `backoff`
and `timeout` (seconds).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any, get_type_hints

from millpond.errors import Invalid
from millpond.maps.model.definition import check_name
from millpond.maps.model.new_map import new_map
from millpond.pipelines.placeholders import refused_acts
from millpond.pipelines.plan import ALERTED, TYPES, Parameter, Plan, PlannedStep, check_plan, declared_line, type_of
from millpond.pipelines.query_texts import OPTIONS, check_query
from millpond.pipelines.stated import check_options
from millpond.pipelines.values import Value, holds_value, step_of, template_of
from millpond.workflows.engine.pipeline_starts import checked_parameters

__all__ = (
    "Declared", "OnBranch", "alert", "alerted", "arrived", "branch", "check", "committed", "condense", "enrich",
    "is_declaring", "is_output", "item", "load", "loaded", "merge", "notified", "notify", "pipeline", "publish",
    "python", "retain", "shell", "spark", "sql", "today", "yesterday",
)  # fmt: skip

item = Value(("item",))
"""The item of the list that a step with `over` is at."""


def today(instant: datetime) -> date:
    """The day on which a run begins, in the zone of its pipeline; as a default of a parameter."""
    return instant.date()


def yesterday(instant: datetime) -> date:
    """The day before a run begins; as a default of a parameter."""
    return instant.date() - timedelta(days=1)


def arrived(instant: datetime) -> str:
    """The position of the load, or first digits of the commit, that began a run; as a default of a parameter."""
    raise Invalid("the arrival that began a run is known to that run alone", kind="pipeline_plan", value=instant,
                  hint="write it as the default of a parameter: at: str = arrived")  # fmt: skip


def alert(instant: datetime) -> str:
    """The alert that began a run: its `map`, `rule`, `key`, `bucket`, the condition `when`, the values `before` and
    `after`, and the `position` of the load; as a default of a parameter. A run that no alert began has an empty one.
    """
    raise Invalid("the alert that began a run is known to that run alone", kind="pipeline_plan", value=instant,
                  hint="write it as the default of a parameter: crossing: dict = alert")  # fmt: skip


def loaded(*maps: str) -> str:
    """For `when` of a pipeline: one of some maps got a load, or a merge, on `main`."""
    return f"loaded:{','.join(maps)}"


def alerted(map: str, /, *, rule: str = "") -> str:
    """For `when` of a pipeline: a rule of an aggregate, or any of its rules, told an alert."""
    return f"{ALERTED}{map}/{rule}".removesuffix("/")


def committed(repository: str, /, *, branch: str = "main") -> str:
    """For `when` of a pipeline: a branch has another commit. Branches of maps are those of the repository `pond`."""
    return f"committed:{repository}/{branch}"


COMPUTED: dict[str, Callable[[datetime], date | str]] = {
    "today": today, "yesterday": yesterday, "arrived": arrived, "alert": alert,
}  # fmt: skip


class _Recording:
    """The steps that a function has called so far, and the functions that steps of Python call."""

    def __init__(self, before: Sequence[PlannedStep] = ()) -> None:
        self.before = before
        self.steps: list[PlannedStep] = []
        self.functions: dict[str, Callable[..., Any]] = {}
        self.prefix = ""

    def add(self, kind: str, inputs: Mapping[str, Any], options: dict[str, Any]) -> Value:
        """Add a step, and give the value of its output."""
        name = self.prefix + (options.pop("name", None) or self.free_name(kind))
        needs = options.pop("needs", ())
        over = options.pop("over", None)
        tried = {key: options.pop(key, default) for key, default in _TRIES.items()}
        check_options(name, tried, over)
        stated = {key: value for key, value in inputs.items() if value is not None}
        planned = PlannedStep(
            name=name, kind=kind, inputs=template_of(stated),
            needs=tuple(map(step_of, [needs] if isinstance(needs, Value) else needs)),
            when=template_of(options.pop("when", None)), over=template_of(over), retries=tried["retries"],
            backoff_ms=round(1000 * tried["backoff"]), timeout_ms=round(1000 * tried["timeout"]), line=declared_line(),
        )  # fmt: skip
        if options:
            raise Invalid("a step has no such option", kind="pipeline_plan", step=name, option=next(iter(options)),
                          hint="name, needs, when, over, retries, backoff, timeout")  # fmt: skip
        self.steps.append(planned)
        return Value((name,))

    def merge(self, branch: Value | str, inputs: dict[str, Any], options: dict[str, Any]) -> Value:
        """Add a merge of a branch, which sees what the steps before it had of branches."""
        seen = [Value((step.name,)) for step in self.steps if step.kind in ("branch", "load", "check")]
        return self.add("merge", {**inputs, "branch": branch, "seen": seen}, options)

    def branch_before(self, loads: Sequence[Value], name: str, inputs: dict[str, Any]) -> Value:
        """Add a branch before loads, and let them be on it."""
        names = [step_of(load) for load in loads]
        indexes = [index for index, step in enumerate(self.steps) if step.name in names and step.kind == "load"]
        if not indexes or len(indexes) != len(loads) or any("branch" in self.steps[index].inputs for index in indexes):
            raise Invalid("publish takes loads that name no branch", kind="pipeline_plan", step=name,
                          hint='publish(load("…", map="…"), checks=[…]); the branch is publish\'s own')  # fmt: skip
        branch = self.add("branch", inputs, {"name": name})
        for index in indexes:
            step = self.steps[index]
            self.steps[index] = replace(step, inputs={**step.inputs, "branch": template_of(branch)})
        self.steps.insert(indexes[0], self.steps.pop())
        return branch

    def let_read(self, checks: Sequence[str], loads: Sequence[Value]) -> None:
        """Let checks that name no map read those of loads."""
        failing = {step.name for step in self.steps if step.kind == "check" and step.inputs["fails"]}
        if odd := [name for name in checks if name not in failing]:
            raise Invalid("publish takes checks that fail the run", kind="pipeline_plan", step=odd[0],
                          hint='checks=["select …", check(…)]')  # fmt: skip
        maps = template_of(list(loads))
        self.steps = [
            replace(step, inputs={**step.inputs, "maps": maps})
            if step.name in checks and not step.inputs["maps"] else step for step in self.steps
        ]  # fmt: skip

    def free_name(self, kind: str) -> str:
        taken = {step.name for step in (*self.before, *self.steps)}
        names = (f"{kind}{number}" if number > 1 else kind for number in range(1, len(taken) + 2))
        return next(name for name in names if self.prefix + name not in taken)


_TRIES = {"retries": 3, "backoff": 0.5, "timeout": 600}
_RECORDING: ContextVar[_Recording | None] = ContextVar("recording", default=None)


class Declared:
    """A pipeline: its plan, and the functions that its steps call. Called within another one, its steps join that."""

    def __init__(
        self, function: Callable[..., Any], *, name: str = "", schedule: str = "", time_zone: str = "",
        overlap: bool = False, missed: str = "", when: str = "", on_failure: Callable[[Value], Any] | None = None,
    ) -> None:  # fmt: skip
        self.function = function
        parameters = tuple(_parameters(function))
        recording = _Recording()
        _recorded(recording, function, **{parameter.name: Value((parameter.name,)) for parameter in parameters})
        failed = _Recording(recording.steps)
        if on_failure is not None:
            _recorded(failed, on_failure, Value(("failure",)))
        self.functions = recording.functions | failed.functions
        self.plan = check_plan(Plan(
            name=name or function.__name__, parameters=parameters, steps=tuple(recording.steps),
            on_failure=tuple(failed.steps), schedule=schedule, time_zone=time_zone, overlap=overlap,
            missed=missed or ("all" if str(when).startswith(ALERTED) else "last"), when=when,
            doc=inspect.getdoc(function) or "",
        ))  # fmt: skip

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Add its steps to the pipeline that is being declared.

        Raises: `Invalid` outside of one, for a parameter that is missing, or that it does not have.
        """
        recording = _recording(self.plan.name)
        inputs = inspect.signature(self.function).bind(*values, **named).arguments
        computed = [own.name for own in self.plan.parameters if own.computed and own.name not in inputs]
        if computed:
            raise Invalid("a pipeline within another takes its parameters from there", kind="pipeline_plan",
                          pipeline=self.plan.name, parameter=computed[0], hint=f"give {computed[0]}=…")  # fmt: skip
        outer = recording.prefix
        names = [step.name for step in (*recording.before, *recording.steps)]
        prefixes = (f"{outer}{self.plan.name}{number or ''}_" for number in (0, *range(2, len(names) + 3)))
        recording.prefix = next(own for own in prefixes if not any(name.startswith(own) for name in names))
        try:
            return self.function(**inputs)
        finally:
            recording.prefix = outer


def pipeline(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a pipeline: a function of steps. It is checked here.

    `schedule` is a cron expression of five fields, in a `time_zone` such as `Europe/Paris`, or UTC. `overlap` lets a
    run of it begin while the one before is open. Instants that passed meanwhile, or while the node was down, have a
    run for the `missed="last"`; for `"all"`, at most 100, one after another; or for `"none"`. Instead of a schedule,
    `when=loaded("MAP")` or `committed("REPOSITORY", branch="…")` begins a run for each load or commit that comes, with
    the same policies; `when=alerted("MAP", rule="…")` for each alert, `missed="all"` where no other policy is named.
    `on_failure` is a function of steps, which gets the failure: its `step`, `kind` (such as `check-failed`, `timeout`)
    and `reason`.

    Raises: `Invalid` for a step that cannot work.
    """
    if odd := [name for name in options if name not in inspect.signature(Declared).parameters or name == "function"]:
        raise Invalid("a pipeline has no such option", kind="pipeline_plan", option=odd[0],
                      hint="name, schedule, time_zone, overlap, missed, when, on_failure")  # fmt: skip
    if function is None:
        return lambda function_: Declared(function_, **options)
    return Declared(function, **options)


def _recorded(recording: _Recording, function: Callable[..., Any], *inputs: Any, **named: Any) -> None:
    token = _RECORDING.set(recording)
    try:
        with refused_acts():
            function(*inputs, **named)
    finally:
        _RECORDING.reset(token)


def _recording(what: str) -> _Recording:
    recording = _RECORDING.get()
    if recording is None:
        raise Invalid("a step stands in the function of a pipeline", kind="pipeline_plan", step=what,
                      hint="write it in a function with @pipeline above")  # fmt: skip
    return recording


def is_declaring() -> bool:
    """True while the function of a pipeline is called."""
    return _RECORDING.get() is not None


def is_output(value: object) -> bool:
    """True for the whole output of a step, which is no parameter and is never None."""
    recording = _RECORDING.get()
    whole = template_of(value)["$value"] if recording is not None and isinstance(value, Value) else []
    return len(whole) == 1 and recording is not None and any(step.name == whole[0] for step in recording.steps)


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    if inspect.iscoroutinefunction(function):
        raise Invalid("a pipeline is a function, which is called when it is declared", kind="pipeline_plan",
                      type=type(function).__name__, hint="def without async; functions of steps may be so")  # fmt: skip
    hints = get_type_hints(function)
    parameters = []
    for name, own in inspect.signature(function).parameters.items():
        if own.kind not in (own.POSITIONAL_OR_KEYWORD, own.KEYWORD_ONLY):
            raise Invalid("a parameter has a name of its own", kind="pipeline_plan", parameter=str(own),
                          hint="a parameter of type list, or dict, holds many values")  # fmt: skip
        kind = TYPES.get(type_of(hints.get(name, type(own.default) if type(own.default) in TYPES else str)))
        if kind is None:
            raise Invalid("a parameter has no such type", kind="pipeline_plan", parameter=name, type=hints[name],
                          hint=f"one of: {', '.join(TYPES.values())}")  # fmt: skip
        if own.default is inspect.Parameter.empty:
            parameters.append(Parameter(name=name, type=kind))
        elif callable(own.default):
            word = own.default.__name__
            if COMPUTED.get(word) is not own.default:
                raise Invalid("a default is a value, or today, yesterday, arrived or alert of millpond.pipelines",
                              kind="pipeline_plan", parameter=name, default=word)  # fmt: skip
            parameters.append(Parameter(name=name, type=kind, required=False, default=word, computed=True))
        else:
            default = template_of(own.default)
            if default is not None:
                default = checked_parameters([{"name": name, "type": kind, "required": True}], {name: default})[name]
            parameters.append(Parameter(name=name, type=kind, required=False, default=default))
    return parameters


# -- steps --------------------------------------------------------------------------------------------


def load(
    files: str | Value | Sequence[str | Value], *, map: str, kind: str = "", value: str = "",
    columns: Mapping[str, Any] | None = None, format: str | None = None, max_rejects: int = 0,
    branch: str | Value | None = None, **options: Any,
) -> OnBranch:  # fmt: skip
    """Load files into a map, which is made when it is missing and a `kind` is given; with a `branch`, as it is there.

    A branch that is missing is made of `main`. Output: `map, load, rows`, and on a branch `branch, commit`.
    """
    _check_map(map, kind, value)
    inputs = {"files": files, "map": map, "kind": kind, "value": value, "columns": columns, "format": format,
              "max_rejects": max_rejects, "branch": branch}  # fmt: skip
    return OnBranch((step_of(_recording("load").add("load", inputs, options)),))


def _check_map(name: Any, kind: Any, value: Any) -> None:
    if any(holds_value(own) for own in (name, kind, value)):
        return  # the run says
    if kind:
        new_map(name, kind, value or None, "", {})
    elif isinstance(name, str):
        check_name(name)


class OnBranch(Value):
    """The output of a load on a branch, or of a branch: it can be merged."""

    __slots__ = ()

    def merge(self, into: str = "main", **options: Any) -> Value:
        """Merge the branch, see `merge`."""
        return merge(self, into, **options)


def branch(name: str, /, *, from_: str = "main", anew: bool = False, **options: Any) -> OnBranch:
    """Begin a branch of the maps at a ref: made, or put there again when all that it has was merged.

    Changes that were not merged fail the step as `branch-unmerged`; `anew` drops them. Output: `branch, commit`.
    """
    inputs = {"name": name, "from": from_, "anew": anew, "free": False}
    return OnBranch((step_of(_recording("branch").add("branch", inputs, options)),))


def merge(
    branch: Value | str, /, into: str = "main", *, strategy: str = "", keep: bool = True, **options: Any
) -> Value:  # fmt: skip
    """Merge a branch, that of a load or a named one, into another, each map by key.

    Conflicts fail the step as `merge-conflict`, unless `strategy` is `source-wins` or `dest-wins`; a branch that
    changed after the last step of the run on it as `branch-moved`. Without `keep` the branch goes when it is merged.
    Output: `into, merged, commit`.
    """
    return _recording("merge").merge(branch, {"into": into, "strategy": strategy, "keep": keep, "loads": []}, options)


def publish(
    *loads: Value, checks: Sequence[Value | str] = (), into: str = "main", branch: str = "", anew: bool = False,
    strategy: str = "", keep: bool = False, **options: Any,
) -> Value:  # fmt: skip
    """Write, audit, publish: the loads are done on a branch, the checks read them there, and the branch is merged.

        publish(load("raw/*.csv", map="weather"), checks=["select * from weather where temp > 60"])

    A check is SQL that finds nothing, or a `check(…)`, which reads the maps by their names. When one fails, or keys
    conflict, the branch stays; without `keep` it goes when it is merged. The branch is of the run, or named.
    Output: as `merge`, with `rows`, and the `map` of a single load.
    """
    recording = _recording("publish")
    name = options.pop("name", None) or recording.free_name("publish")
    named = holds_value(branch) or bool(branch)
    own = {"name": branch if named else f"{Value(('run', 'id'))}-{name}", "from": into, "anew": anew, "free": not named}
    opened_branch = recording.branch_before(loads, f"{name}_branch", own)
    steps = [
        check(query, name=f"{name}_check{number if number > 1 else ''}") if isinstance(query, str) else query
        for number, query in enumerate(checks, 1)
    ]
    recording.let_read([step_of(step) for step in steps], loads)
    inputs = {"into": into, "strategy": strategy, "keep": keep, "loads": list(loads)}
    return recording.merge(opened_branch, inputs, {**options, "name": name})


def sql(query: str, /, *, engine: str = "local", **inputs: Any) -> Value:
    """The rows of a query, as Parquet. In it `{name}` is an input: a table, a map, or a bound parameter.

    `engine`: `local`, or `spark`, whose session the worker keeps. Output: `path, rows`.
    """
    return _query("sql", query, engine, inputs)


def check(
    map: Any = "", query: str = "", /, *, finds_nothing: bool = True, rows_min: int | None = None,
    rows_max: int | None = None, changes_max: float | None = None, fails: bool = True, engine: str = "local",
    **inputs: Any,
) -> Value:  # fmt: skip
    """Fail as `check-failed`, with the first rows, when a query finds rows; without `finds_nothing`, when it does not.

    With a `map` the query names it as it is called, on the branch where it was loaded, and the map may have limits:
    `rows_min`, `rows_max`, and `changes_max`, how many rows the branch may change: a number, or a share below 1.0.
    Without `fails` the run goes on, with `passed` for conditions. Output: `passed`, `rows` and, where it does not hold,
    the `first` rows and the `reason`; of a branch `branch, commit`.
    """
    limits = {"rows_min": rows_min, "rows_max": rows_max, "changes_max": changes_max}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    if isinstance(map, str) and not (query or holds_value(query) or (limits and map.isidentifier())):
        map, query = "", map
    if not holds_value(query) and not query and not limits:
        raise Invalid("a check has a query, or limits", kind="pipeline_plan", step="check",
                      hint="check(map, 'select …'), or rows_min=, rows_max=, changes_max=")  # fmt: skip
    maps = [map] if holds_value(map) or map else []
    return _query("check", query, engine, inputs, finds_nothing=finds_nothing, maps=maps, limits=limits,
                  fails=fails)  # fmt: skip


def enrich(
    rows: Any, /, *, map: Any, key: str, at: str = "", into: str = "", format: str = "", **options: Any
) -> Value:
    """Rows (a table, or files) with what a map says of each, by Spark, as Parquet. Output: `path, rows, found`."""
    inputs = {"rows": rows, "map": map, "key": key, "at": at, "into": into, "format": format}
    return _recording("enrich").add("enrich", inputs, options)


def python(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Value:
    """Call a function with values of the run. Its result is JSON: a dictionary's fields are those of the output."""
    return _call("python", function, arguments, options)


def spark(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Value:
    """Call a function with the worker's Spark session, and values of the run. Output: as `python`."""
    return _call("spark", function, arguments, options)


def shell(command: Sequence[Any], /, *, env: Mapping[str, Any] | None = None, **options: Any) -> Value:
    """Run a program: its words, of which no shell makes more. Output: `status, output`, the last 10,000 characters."""
    if isinstance(command, str) or not command:
        raise Invalid("a program is a list of words", kind="pipeline_plan", step="shell",
                      hint='write ["sh", "-c", "…"] where a shell is meant, and values in env')  # fmt: skip
    return _recording("shell").add("shell", {"command": list(command), "env": dict(env or {})}, options)


def notify(place: str | Value, /, **fields: Any) -> Value:
    """Send fields as JSON, once: an event of `stream:QUEUE/JOB_SET`, or a POST to `http…`.

    The POST has the header `Idempotency-Key`: an attempt whose answer was lost may send it again.
    """
    options = {name: fields.pop(name) for name in OPTIONS if name in fields}
    whole = template_of(place)
    start = whole["$text"][0] if isinstance(whole, dict) and "$text" in whole else whole
    if isinstance(start, str):
        notified(start, whole=start is whole)
    return _recording("notify").add("notify", {"place": place, "fields": fields}, options)


def notified(place: Any, *, whole: bool = True) -> str:
    """The place, when it may be notified; or its beginning.

    Raises: `Invalid`.
    """
    pattern = r"stream:[^/]+/.+|https?://.+" if whole else r"(stream:|https?://).*"
    if not isinstance(place, str) or not re.fullmatch(pattern, place):
        raise Invalid("not a place to notify", kind="pipeline_plan", place=place,
                      hint="stream:QUEUE/JOB_SET, or a URL")  # fmt: skip
    return place


def condense(map: Any, /, *, before: Any = "", **options: Any) -> Value:
    """Condense a map, up to a time or by its setting."""
    return _recording("condense").add("condense", {"map": map, "before": before}, options)


def retain(map: Any, /, *, before: Any = "", **options: Any) -> Value:
    """Delete old rows of a map, those before a time or by its setting."""
    return _recording("retain").add("retain", {"map": map, "before": before}, options)


def _query(kind: str, query: str, engine: str, inputs: dict[str, Any], **more: Any) -> Value:
    options = {name: inputs.pop(name) for name in OPTIONS if name in inputs}
    recording = _recording(kind)
    check_query(query, engine, inputs)
    return recording.add(kind, {"query": query, "engine": engine, "inputs": inputs, **more}, options)


def _check_arguments(kind: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # one that was compiled may say nothing
        return
    session = [None] if kind == "spark" else []
    try:
        signature.bind(*session, *arguments)
    except TypeError as error:
        raise Invalid("a function does not take what its step gives it", kind="pipeline_plan", step=kind,
                      function=getattr(function, "__name__", ""), reason=error,
                      hint=f"{kind}(function, argument, …); the item of a loop is item") from None  # fmt: skip


def _call(kind: str, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> Value:
    if holds_value(function) or not callable(function):
        raise Invalid("a step calls a function", kind="pipeline_plan", step=kind, type=type(function).__name__,
                      hint=f"{kind}(function, …): it is called when the step runs, and not here")  # fmt: skip
    recording = _recording(kind)
    named = getattr(function, "__name__", "")  # a partial has none
    if "name" not in options and named.isidentifier():
        options["name"] = recording.free_name(named)
    step = recording.add(kind, {"arguments": list(arguments)}, options)
    _check_arguments(kind, function, arguments)
    recording.functions[step_of(step)] = function
    return step
