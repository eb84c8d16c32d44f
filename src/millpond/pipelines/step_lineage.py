"""Steps of pipelines as runs of OpenLineage: tables, maps and files in and out, and the columns of queries.

Each attempt is a run, named PIPELINE.STEP, whose parent is the run of the pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError
from millpond.lineage import fields_of, lineage_of
from millpond.pipelines.queries import bound, is_table
from millpond.pipelines.reads import map_of
from millpond.pipelines.values import filled

__all__ = ("StepLineage",)

_LOG = logging.getLogger(__name__)
_ITEMS = 20
"""The items of a loop that are in an event."""


@dataclass(frozen=True, slots=True)
class StepLineage:
    """The run events of an attempt at a step: `planned` with the values of its run."""

    planned: Mapping[str, Any]
    values: Mapping[str, Any]

    @property
    def job(self) -> str:
        """The name of the step among jobs."""
        return f"{self.planned.get('pipeline', '')}.{self.planned['name']}"

    def send(
        self, pond: Any, key: str, run: str, kind: Any, result: Mapping[str, Any] | None = None, error: str = "", *,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Send an event, where the pond has a target of lineage; nothing is raised."""
        try:
            lineage = lineage_of(pond)
            if lineage is None or self.planned["kind"] == "parameters" or self._is_skipped() or unless():
                return
            from millpond.lineage.run_events import Run, run_event

            namespace, query = lineage.namespace, ""
            sources: list[Any] = []
            outputs: list[Any] = []
            for inputs, output in zip(self._inputs(), self._results(result), strict=False):
                named = _sources(pond, namespace, self.planned["kind"], inputs)
                if inputs.get("query"):
                    query = bound(inputs["query"], inputs["inputs"], "${}".format)
                columns = _of_query(query, named) if query else _of_enriched(pond, inputs, named)
                there = _outputs(pond, namespace, _begun(inputs) if output is None else output)
                outputs += [replace(own, columns=columns(list(own.fields))) if own.fields else own for own in there]
                sources += named.values()
            parent = (f"run/{namespace}/{run}", str(self.planned["pipeline"]))
            about = Run(key=key, namespace=namespace, job=self.job, parent=parent, query=query)
            lineage.send(run_event(kind, lineage.clock.now_ms(), about, _merged(sources), _merged(outputs), error))
        except Exception:  # the step goes on, whatever its lineage is
            _LOG.warning("a run event was not made. step=%s", self.job, exc_info=True)

    def _is_skipped(self) -> bool:
        with suppress(MillpondError):  # a condition that cannot be looked at fails the step
            return self.planned.get("when") is not None and not filled(self.planned["when"], self.values)
        return False

    def _inputs(self) -> Iterator[dict[str, Any]]:
        """The inputs of the step, of a loop for each item; none for an item whose values are not there."""
        over: Any = [None]
        with suppress(MillpondError):
            over = over if self.planned.get("over") is None else filled(self.planned["over"], self.values)
        for item in over[:_ITEMS] if isinstance(over, list) else [None]:
            inputs: dict[str, Any] = {}
            with suppress(MillpondError):
                inputs = filled(self.planned["inputs"], {**self.values, "item": item})
            yield inputs

    def _results(self, result: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any] | None]:
        """The output of the step, of a loop for each item; None while there is none."""
        items = [result] if result is None or self.planned.get("over") is None else result.get("items", [])
        return chain(items, repeat(None if result is None else {}))


def _merged(datasets: Iterable[Any]) -> list[Any]:
    """Datasets that several items of a loop have: once, with all their rows."""
    unique: dict[tuple[str, str, str], Any] = {}
    for own in datasets:
        before = unique.get((own.namespace, own.name, own.ref))
        rows = own.rows if before is None or None in (own.rows, before.rows) else own.rows + before.rows
        unique[own.namespace, own.name, own.ref] = replace(own, rows=rows)
    return list(unique.values())


def _sources(pond: Any, namespace: str, kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a step, by their names in its query, or by numbers."""
    from millpond.lineage.datasets import files_named

    sources: dict[str, Any] = {}
    if kind in ("load", "enrich"):
        texts = inputs.get("files" if kind == "load" else "rows", [])
        for text in texts if isinstance(texts, list) else [texts]:
            if isinstance(text, str):
                sources[str(len(sources))] = files_named(text)
            for _, table in _tables(text, "") if kind == "load" else ():
                sources[str(len(sources))] = _dataset(pond, namespace, table)
    if kind == "enrich" and isinstance(inputs.get("map"), str):
        sources["map"] = _dataset(pond, namespace, {"map": inputs["map"]})
    if kind in ("load", "retain", "condense"):
        return sources
    named = {name: value for name, value in inputs.items() if name != "inputs"} | inputs.get("inputs", {})
    for outer, inner in named.items():
        for name, value in _tables(inner, outer):
            own = value["map"] if name.isdecimal() and "map" in value else name
            sources.setdefault(own, _dataset(pond, namespace, value))
    return sources


def _tables(value: Any, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables and maps within inputs."""
    if is_table(value) and isinstance(value.get("path", value.get("map")), str):
        yield name, value
    elif isinstance(value, Mapping | list):
        for inner, own in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tables(own, str(inner))


def _begun(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The output that has a name before it is there: the map of a load."""
    return {"map": inputs["map"], "rows": None} if "files" in inputs and not inputs.get("branch") else {}


def _outputs(pond: Any, namespace: str, result: Mapping[str, Any]) -> Iterator[Any]:
    if is_table(result) and "rows" in result:
        yield _dataset(pond, namespace, result)


def _dataset(pond: Any, namespace: str, value: Mapping[str, Any]) -> Any:
    from millpond.lineage.datasets import files_named, parquet_fields
    from millpond.lineage.run_events import Dataset

    rows = value["rows"] if isinstance(value.get("rows"), int) else None
    if "path" in value:
        return replace(files_named(value["path"]), fields=parquet_fields(Path(value["path"])), rows=rows)
    return Dataset(
        namespace=namespace, name=str(value["map"]), fields=fields_of(lambda: map_of(pond, value)), rows=rows,
        version=str(value.get("load", "")), ref=str(value.get("branch") or "main"),
        commit=str(value.get("ref") or value.get("commit") or ""),
    )  # fmt: skip


def _of_query(query: str, sources: Mapping[str, Any]) -> Any:
    from millpond.lineage.columns import columns_of

    columns = columns_of(query, {name: list(own.fields) for name, own in sources.items()})
    by_name = {name.lower(): name for name in sources}

    def of(names: list[str]) -> dict[str, Any]:
        if len(names) != len(columns):
            return {}
        origins = {name: own for name, (_, own) in zip(names, columns, strict=True) if own}
        return {
            name: [(sources[by_name[table.lower()]], column) for table, column in sorted(own)]
            for name, own in origins.items()
        }

    return of


def _of_enriched(pond: Any, inputs: Mapping[str, Any], sources: Mapping[str, Any]) -> Any:
    """Columns of an enrichment: its rows' own, and one of the map's values."""
    from millpond.lineage.datasets import value_columns

    own = sources.get("map")
    rows = [source for name, source in sources.items() if name == "rows" or name.isdecimal()]

    def of(names: list[str]) -> dict[str, Any]:
        if own is None:
            return {}
        into = str(inputs.get("into") or own.name)
        parts = value_columns(pond, own)
        return {
            name: [(own, part) for part in parts] if name == into else [(source, name) for source in rows]
            for name in names
        }

    return of
