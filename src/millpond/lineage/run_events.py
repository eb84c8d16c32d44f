"""Run events of OpenLineage: pure values, JSON at the end.

The schemas are those of spec 2-0-2: https://openlineage.io/spec/2-0-2/OpenLineage.json, and of its facets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid5

__all__ = ("Dataset", "Kind", "Origin", "Run", "run_event")

Origin = tuple["Dataset", str]
"""A column of an input."""
Kind = Literal["START", "COMPLETE", "FAIL", "ABORT"]
PRODUCER = "urn:millpond"
_SPEC = "https://openlineage.io/spec"
_FACETS = {
    "schema": "1-2-0/SchemaDatasetFacet", "version": "1-0-1/DatasetVersionDatasetFacet",
    "columnLineage": "1-2-0/ColumnLineageDatasetFacet", "errorMessage": "1-0-1/ErrorMessageRunFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet", "parent": "1-2-0/ParentRunFacet",
    "sql": "1-1-0/SQLJobFacet",
}  # fmt: skip
_OWN = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/DatasetFacet"
_RUNS = UUID("6f1c2d8e-3a57-5b0e-9d44-2f6a7c0b91e3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A map of a pond at a ref, or files. `fields`: types of columns; `columns`: those of inputs that each is of."""

    namespace: str
    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    ref: str = ""
    commit: str = ""
    rows: int | None = None
    columns: Mapping[str, Sequence[Origin]] = field(default_factory=dict)

    def json(self, *, output: bool) -> dict[str, Any]:
        """The dataset as it stands in an event."""
        facets: dict[str, Any] = {}
        if self.fields:
            facets["schema"] = _facet("schema", fields=[{"name": name, "type": of} for name, of in self.fields.items()])
        if version := self.version or self.commit:
            facets["version"] = _facet("version", datasetVersion=version)
        if self.ref or self.commit:
            facet = {"ref": self.ref or "main", "commit": self.commit}
            facets["millpond"] = {"_producer": PRODUCER, "_schemaURL": _OWN} | facet
        if output and self.columns:
            facets["columnLineage"] = _facet("columnLineage", fields={
                name: {"inputFields": [{"namespace": own.namespace, "name": own.name, "field": column}
                                       for own, column in origins]}
                for name, origins in self.columns.items()
            })  # fmt: skip
        statistics = {"outputStatistics": _facet("outputStatistics", rowCount=self.rows)}
        more = {"outputFacets": statistics} if output and self.rows is not None else {}
        return {"namespace": self.namespace, "name": self.name, "facets": facets, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: the text of which its id is made, its job, the run that it is a part of, and its query."""

    key: str
    namespace: str
    job: str
    parent: tuple[str, str] | None = None
    query: str = ""


def run_event(
    kind: Kind, time_ms: int, run: Run, inputs: Iterable[Dataset] = (), outputs: Iterable[Dataset] = (), error: str = ""
) -> dict[str, Any]:  # fmt: skip
    """An event of a run, as JSON holds it."""
    run_facets: dict[str, Any] = {}
    if run.parent is not None:
        key, job = run.parent
        run_facets["parent"] = _facet("parent", run={"runId": _id(key)}, job={"namespace": run.namespace, "name": job})
    if kind == "FAIL":
        run_facets["errorMessage"] = _facet("errorMessage", message=error, programmingLanguage="PYTHON")
    return {
        "eventType": kind, "eventTime": datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(), "producer": PRODUCER,
        "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": _id(run.key), "facets": run_facets},
        "job": {"namespace": run.namespace, "name": run.job,
                "facets": {"sql": _facet("sql", query=run.query)} if run.query else {}},
        "inputs": [own.json(output=False) for own in inputs],
        "outputs": [own.json(output=True) for own in outputs],
    }  # fmt: skip


def _id(key: str) -> str:
    return str(uuid5(_RUNS, key))


def _facet(name: str, **fields: Any) -> dict[str, Any]:
    version, schema = _FACETS[name].split("/")
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{version}/{schema}.json#/$defs/{schema}", **fields}
