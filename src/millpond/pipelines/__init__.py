"""Pipelines: workflows whose steps are Spark jobs and calls of a pond.

`millpond worker millpond.pipelines` works on the tasks `load`, `check`, `enrich`, `condense`, `retain` and `notify`;
`Pipeline` declares them in a workflow of the client.

| module | holds |
|---|---|
| `pipeline` | the steps of a workflow, declared |
| `tasks` | the steps, carried out |
| `step` | one attempt: key, checkpoints, failures |
| `story` | its events |
| `driver` | Spark, in a process of its own |
| `jobs` | its jobs |
| `requests`, `rules` | inputs as JSON; rules of a check, and how they come out |
"""

from __future__ import annotations

from millpond.extras import need

need("littlehorse")

from millpond.pipelines.pipeline import Pipeline
from millpond.pipelines.requests import ColumnRule, Drift, KeyRule, Question, Rows, Rules, Target, View
from millpond.pipelines.tasks import check, condense, enrich, load, notify, retain

__all__ = (
    "ColumnRule", "Drift", "KeyRule", "Pipeline", "Question", "Rows", "Rules", "Target", "View", "check", "condense",
    "enrich", "load", "notify", "retain",
)  # fmt: skip
