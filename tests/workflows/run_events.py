"""Run events of OpenLineage, as its spec 2-0-2 wants them: what is required, of which type; more is allowed."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import AnyUrl, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = ("columns_in", "events_of")


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class _Facet(BaseModel):
    model_config = ConfigDict(extra="allow", alias_generator=to_camel)
    producer: AnyUrl = Field(alias="_producer")
    schema_url: AnyUrl = Field(alias="_schemaURL")


class _Field(_Form):
    name: str
    type: str


class _Schema(_Facet):
    fields: list[_Field]


class _InputField(_Form):
    namespace: str
    name: str
    field: str


class _Origins(_Form):
    input_fields: list[_InputField]


class _Columns(_Facet):
    fields: dict[str, _Origins]


class _Version(_Facet):
    dataset_version: str


class _Place(_Facet):
    ref: str
    commit: str


class _DatasetFacets(_Form):
    schema_: _Schema | None = Field(None, alias="schema")
    column_lineage: _Columns | None = None
    version: _Version | None = None
    millpond: _Place | None = None


class _Statistics(_Facet):
    row_count: int


class _OutputFacets(_Form):
    output_statistics: _Statistics


class _Input(_Form):
    namespace: str
    name: str
    facets: _DatasetFacets


class _Output(_Input):
    output_facets: _OutputFacets | None = None


class _JobName(_Form):
    namespace: str
    name: str


class _RunId(_Form):
    run_id: UUID


class _Parent(_Facet):
    run: _RunId
    job: _JobName


class _Error(_Facet):
    message: str
    programming_language: str


class _RunFacets(_Form):
    parent: _Parent | None = None
    error_message: _Error | None = None


class _Run(_RunId):
    facets: _RunFacets


class _Sql(_Facet):
    query: str


class _JobFacets(_Form):
    sql: _Sql | None = None


class _Job(_JobName):
    facets: _JobFacets


class _RunEvent(_Form):
    event_type: Literal["START", "COMPLETE", "FAIL", "ABORT"]
    event_time: AwareDatetime
    producer: AnyUrl
    schema_url: Literal["https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"] = Field(alias="schemaURL")
    run: _Run
    job: _Job
    inputs: list[_Input]
    outputs: list[_Output]


def events_of(file: Path) -> list[dict[str, Any]]:
    """The events in a file, each as the spec wants it, and each run with one START and one end."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    kinds: dict[str, list[str]] = {}
    for event in events:
        _RunEvent.model_validate(event)
        assert datetime.fromisoformat(event["eventTime"])
        kinds.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert all(own in [["START", end] for end in ("COMPLETE", "FAIL", "ABORT")] for own in kinds.values()), kinds
    return events


def columns_in(outputs: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The columns of inputs by the columns of the one output."""
    [output] = outputs
    fields = output["facets"]["columnLineage"]["fields"]
    return {name: {own["field"] for own in origins["inputFields"]} for name, origins in fields.items()}
