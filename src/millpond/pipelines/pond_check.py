"""Plans held against a pond before anything of them runs: maps, their kinds, values and columns, branches.

Steps are followed in their order: what one makes is there for those after it. Where only a run can say (a map whose
name a step finds, a table that a function writes), nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millpond.errors import Invalid, MillpondError, NotFound
from millpond.maps.enrich import check_new
from millpond.maps.inputs.mapping import find_columns, mapping_of
from millpond.maps.inputs.tags import check_keys_type
from millpond.maps.model.columns import askable_schema
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.new_map import new_map
from millpond.maps.model.store_limits import aggregate_unsupported
from millpond.maps.model.table_query import connected
from millpond.maps.protocols import PondLike
from millpond.maps.snapshots.snapshot import answer_type
from millpond.pipelines.branches import has_branches, refuse_sharded
from millpond.pipelines.plan import Plan, PlannedStep
from millpond.pipelines.queries import bound
from millpond.pipelines.reads import head_of
from millpond.pipelines.requests import Target
from millpond.pipelines.stated import OUTPUTS
from millpond.pipelines.targets import refuse_other
from millpond.pipelines.values import filled, names_in
from millpond.refs.face import MAIN

__all__ = ("check_pond",)

_MAKERS = ("python", "spark", "shell")
"""Kinds of steps that may make any map, or file."""
_SAMPLES: dict[str, Any] = {"int": 1, "float": 1.0, "bool": True}
_FIELDS: dict[str, Any] = {"rows": 1, "status": 1, "position": 1, "rejected": 1, "passed": True}
"""Values that stand for those of outputs."""
_MISSING = re.compile(r"not found in FROM|does not (have|exist)")
"""Words of DuckDB that no value of a parameter would change."""
_SHOWN = 300
_UNKNOWN = object()


def check_pond(pond: PondLike, plan: Plan, inputs: Mapping[str, Any] | None = None, *, branch: str = "") -> None:
    """Refuse a plan that a pond, as it is, makes fail; `inputs` are the parameters of a run, where there is one, and
    `branch` what it has instead of `main`.

    Raises: `Invalid` or `NotFound`, naming step and line; `Invalid`, kind `refs_place`, for branches that nodes which
        replicate do not have.
    """
    if has_branches(plan):
        head_of(pond.refs, MAIN)
    there = _There(pond, plan, branch or MAIN, dict(inputs or {}))
    try:
        there.check_begins()
    except MillpondError as error:
        error.values["when"] = plan.when
        raise
    for step in (*plan.steps, *plan.on_failure):
        try:
            there.check(step)
        except MillpondError as error:
            error.values = {**error.values, "step": step.name, "line": step.line}
            raise


@dataclass(slots=True)
class _There:
    """The maps, tables by their steps, and branches that are there when a step begins; None where only a run knows."""

    pond: PondLike
    plan: Plan
    main: str
    values: dict[str, Any]
    maps: dict[tuple[str, str], MapDefinition | None] = field(default_factory=dict)
    """Those that steps make, by branch and name; nothing is a branch that only a run knows."""
    tables: dict[str, pa.Schema | None] = field(default_factory=dict)
    branches: set[str] = field(default_factory=set)
    is_open: bool = False

    def check(self, step: PlannedStep) -> None:
        """Refuse a step, or note what it makes."""
        inputs = {name: self._filled(own) for name, own in step.inputs.items()}
        if step.kind in ("sql", "check"):
            schema = self._query(step, inputs)
            self.tables[step.name] = schema if step.over is None else None
        elif (check := getattr(self, f"_{step.kind}", None)) is not None:
            check(step, inputs)
        self.is_open = self.is_open or step.kind in _MAKERS

    def check_begins(self) -> None:
        """Refuse a pipeline that waits for loads of maps that are not there, and that it does not make."""
        made = {step.inputs["map"] for step in self.plan.steps if step.kind == "load" and step.inputs["kind"]
                and isinstance(step.inputs["map"], str)}  # fmt: skip
        kind, _, names = self.plan.when.partition(":")
        for name in names.split(",") if kind == "loaded" else [names.partition("/")[0]] if kind == "alerted" else []:
            if name not in made:
                self._definition(name, MAIN)
        if kind == "committed":
            repository, _, branch = names.partition("/")
            next(iter(self.pond.repository(repository).branch(branch).log(limit=1)))

    def _filled(self, template: Any) -> Any:
        """A template, filled where the values that it takes are known."""
        names = set(names_in(template))
        return filled(template, self.values) if names and names <= self.values.keys() else template

    # -- maps -----------------------------------------------------------------------------------------

    def _definition(self, name: str, branch: str) -> MapDefinition | None:
        """The definition of a map as a step finds it on a branch; None where only a run says.

        Raises: `NotFound`.
        """
        made = {at: own for (at, of), own in self.maps.items() if of == name}
        for ref in dict.fromkeys((branch, self.main, MAIN)):
            if ref in made:
                return made[ref]
            try:
                return (self.pond if ref == MAIN else self.pond.branch(ref)).map(name).definition
            except NotFound as error:
                missing = error
        if self.is_open or not branch or "" in made:
            return None
        if missing.kind == "map_not_found":
            missing.hint = f"{missing.hint}; or let an earlier step make it"
        raise missing

    def _branch_of(self, branch: Any) -> str:
        """The branch that a step names; nothing where only a run says."""
        if branch is None:
            return self.main
        if isinstance(branch, str):
            return self.main if branch == MAIN else branch
        step = self._step_of(branch)
        if step is None or step.kind not in ("branch", "load"):
            return ""
        if step.kind == "branch" and step.inputs["free"]:  # it has a name of the run
            return step.name
        return self._branch_of(self._filled(step.inputs.get("name" if step.kind == "branch" else "branch")))

    def _step_of(self, value: Any) -> PlannedStep | None:
        """The step whose whole output a value is."""
        path = value.get("$value", []) if isinstance(value, Mapping) else []
        steps = (*self.plan.steps, *self.plan.on_failure)
        return next((own for own in steps if path == [own.name] and own.over is None), None)

    def _map_of(self, value: Any) -> tuple[str, str] | None:
        """The map that an input is, and its branch; None for what is none, or that only a run knows."""
        if isinstance(value, str):
            return value, self.main
        step = self._step_of(value)
        if step is not None and step.kind == "merge":  # of a load, its map is on the branch into which it was merged
            loads = {own for load in step.inputs["loads"] if (own := self._map_of(load)) is not None}
            names = {name for name, _ in loads}
            return (names.pop(), self._branch_of(self._filled(step.inputs["into"]))) if len(names) == 1 else None
        if step is None or step.kind != "load":
            return None
        name = self._filled(step.inputs["map"])
        return (name, self._branch_of(self._filled(step.inputs.get("branch")))) if isinstance(name, str) else None

    def _definition_of(self, value: Any) -> MapDefinition | None:
        own = self._map_of(value)
        return None if own is None else self._definition(*own)

    def _load(self, step: PlannedStep, inputs: dict[str, Any]) -> None:
        branch, name = self._branch_of(inputs.get("branch")), inputs["map"]
        if not all(isinstance(inputs[own], str) for own in ("map", "kind", "value")):
            self.is_open = True
            return
        if "branch" in inputs:
            refuse_sharded(self.pond, name)
        try:
            definition = self._definition(name, branch)
        except NotFound as error:
            if not inputs["kind"]:
                error.hint = f"a load that names a kind makes the map; {error.hint}"
                raise
            made = new_map(name, inputs["kind"], inputs["value"] or None, "", {})
            definition = self.maps[branch, name] = made if made.value is not None else None
        if definition is None:
            return
        refuse_other(definition, Target(kind=inputs["kind"], value=inputs["value"]))
        columns = inputs.get("columns")
        table = self._table_of(inputs["files"])
        if table is not None and not any(True for _ in names_in(columns)):
            find_columns(table.names, definition, mapping_of(columns))

    def _condense(self, step: PlannedStep, inputs: dict[str, Any]) -> None:
        definition = self._definition_of(inputs["map"])
        if definition is None:
            return
        if step.kind == "condense" and definition.kind is Kind.AGGREGATE:
            raise aggregate_unsupported(definition.name, "condense")
        age = definition.condense_ms if step.kind == "condense" else definition.retain_ms
        if inputs["before"] == "" and age is None:
            raise Invalid(f"the map has no {step.kind} setting", kind="maintenance_setting", map=definition.name,
                          setting=step.kind, hint="give it one, or the step before=…")  # fmt: skip

    _retain = _condense

    # -- branches -------------------------------------------------------------------------------------

    def _branch(self, step: PlannedStep, inputs: dict[str, Any]) -> None:
        self._refuse_missing(inputs["from"])
        self.branches.add(inputs["name"] if isinstance(inputs["name"], str) else "")

    def _merge(self, step: PlannedStep, inputs: dict[str, Any]) -> None:
        self._refuse_missing(inputs["into"])
        if isinstance(inputs["branch"], str):
            self._refuse_missing(inputs["branch"])
        merged, into = self._branch_of(inputs["branch"]), self._branch_of(inputs["into"])
        self.maps |= {(into, name): own for (at, name), own in self.maps.items() if not merged or at in ("", merged)}

    def _refuse_missing(self, ref: Any) -> None:
        """Refuse a ref that neither is there nor may be made by an earlier step, as loads make their branches."""
        branches = {*self.branches, *(self._branch_of(self._filled(own.inputs["branch"])) for own in self.plan.steps
                                  if own.kind == "load" and "branch" in own.inputs)}  # fmt: skip
        if isinstance(ref, str) and ref not in branches and "" not in branches and not self.is_open:
            self.pond.refs.resolve(ref)

    # -- tables ---------------------------------------------------------------------------------------

    def _table_of(self, value: Any) -> pa.Schema | None:
        """The columns of a table that a step wrote: of its output, or the path in it."""
        path = value.get("$value", []) if isinstance(value, Mapping) else []
        return self.tables.get(path[0]) if path[1:] in ([], ["path"]) and path else None

    def _enrich(self, step: PlannedStep, inputs: dict[str, Any]) -> None:
        definition, table = self._definition_of(inputs["map"]), self._table_of(inputs["rows"])
        self.tables[step.name] = None
        key, at, into = inputs["key"], inputs["at"], inputs["into"]
        if definition is None or table is None or not all(isinstance(own, str) for own in (key, at, into)):
            return
        for column in (key, at) if at else (key,):
            if column.lower() not in {name.lower() for name in table.names}:
                raise Invalid("the rows have no such column", kind="pipeline_column", column=column,
                              hint=f"there are: {', '.join(table.names)}")  # fmt: skip
        check_keys_type(definition, _typed(table, key), map=definition.name, column=key)
        kind = _typed(table, at) if at and definition.kind.timed else None
        if kind is not None and ((pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_date(kind)):
            raise Invalid("a time without a zone names no instant", kind="time_naive", map=definition.name, column=at,
                          type=kind, hint="cast the column in the query: at::timestamptz")  # fmt: skip
        answer = into or definition.name
        check_new(table.names, [(answer, definition.name)])
        if step.over is None:
            self.tables[step.name] = table.append(pa.field(answer, answer_type(definition)))

    def _query(self, step: PlannedStep, inputs: dict[str, Any]) -> pa.Schema | None:
        """The columns of a query; None where it is not known, or Spark's."""
        if inputs.get("limits", {}).get("changes_max") is not None:
            self._check_counts_changes(inputs["maps"])
        tables: dict[str, pa.Schema] = {}
        is_whole = isinstance(inputs["query"], str) and inputs["engine"] == "local" and bool(inputs["query"])
        for value in inputs.get("maps", []):
            own, definition = self._map_of(value), self._definition_of(value)
            if (table := self._table_of(value)) is not None:
                tables[value["$value"][0]] = table
            elif own is None or definition is None:
                is_whole = False
            else:
                tables[own[0]] = askable_schema(definition)
        values, sure = dict[str, Any](), True
        for name, value in inputs["inputs"].items():
            named = isinstance(value, Mapping) and self._step_of(self._filled(value)) is not None
            definition = self._definition_of(value) if named else None
            table = askable_schema(definition) if definition is not None else self._table_of(value)
            if table is not None:
                tables[name] = table
            elif (sample := self._sample(value)) is _UNKNOWN:
                is_whole = is_whole and not named  # a whole output may be a table
                values[name], sure = None, False
            else:
                values[name] = sample
        return _columns_of_query(inputs["query"], tables, values, sure=sure) if is_whole else None

    def _sample(self, value: Any) -> Any:
        """A value of the type that an input of a query will have."""
        if isinstance(value, Mapping) and "$value" in value:
            name, *inner = value["$value"]
            if inner:
                step = self._step_of({"$value": [name]})
                return _FIELDS.get(inner[0], _UNKNOWN) if step is not None and step.kind in OUTPUTS else _UNKNOWN
            kinds = {own.name: own.type for own in self.plan.parameters}
            return _SAMPLES.get(kinds.get(name, ""), _UNKNOWN)
        return value if isinstance(value, bool | int | float) else _UNKNOWN

    def _check_counts_changes(self, maps: list[Any]) -> None:
        for value in maps:
            step = self._step_of(value)
            if self.main == MAIN and (isinstance(value, str) or (step is not None and "branch" not in step.inputs
                                                                 and step.kind == "load")):  # fmt: skip
                raise Invalid("changes are counted on a branch", kind="pipeline_value",
                              hint="load on a branch, or leave out changes_max")  # fmt: skip


def _typed(table: pa.Schema, column: str) -> pa.DataType:
    """The type of a column, whose case may be another."""
    return next(own.type for own in table if own.name.lower() == column.lower())


def _columns_of_query(
    query: str, tables: Mapping[str, pa.Schema], values: Mapping[str, Any], *, sure: bool
) -> pa.Schema | None:  # fmt: skip
    """The columns of a query over tables; `values` stand for its parameters, and are of their types where it is `sure`.
    None where only a run says. The query is bound over empty tables with the columns that are there.

    Raises: `Invalid` for what the tables do not have.
    """
    import duckdb  # a process that deploys nothing does without it

    sources = {name: {"map": name} for name in tables}
    with connected({"threads": 1}) as connection:
        for name, schema in tables.items():
            connection.register(name, schema.empty_table())
        try:
            rows = connection.sql(bound(query, {**sources, **values}, "${}".format), params=dict(values))
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            if sure or _MISSING.search(str(error)):
                raise _not_there(str(error), tables) from None
            return None
        except (duckdb.Error, OSError):
            return None  # as of a file that is not there yet
        with suppress(duckdb.Error, OSError):
            own: pa.Schema = rows.limit(0).to_arrow_table().schema
            return own
    return None


def _not_there(said: str, tables: Mapping[str, pa.Schema]) -> Invalid:
    lines = [line.strip() for line in said.partition("\n\nLINE")[0].splitlines() if line.strip()]
    there = "; ".join(f"{name} has {', '.join(schema.names)}" for name, schema in tables.items())
    return Invalid("the query asks for what is not there", kind="pipeline_sql", reason=" ".join(lines[:2])[:_SHOWN],
                   hint=f"{there or 'tables and maps are inputs'}: from {{weather}}, so named")  # fmt: skip
