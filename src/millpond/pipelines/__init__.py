"""Pipelines: Python functions of steps, which Millpond carries out, each once.

    from millpond.pipelines import pipeline, load, check, enrich, sql, python, notify

`millpond pipeline run FILE` runs one in this process; `millpond pipeline deploy FILE` gives it to a node, for which
`millpond worker millpond.pipelines` works. `Pipeline` declares the steps of Spark in a workflow of the client instead.

| module | holds |
|---|---|
| `declare`, `query_texts`, `values`, `plan` | a pipeline as declared: steps, values of the run, its plan, drawn |
| `placeholders`, `watched` | the rule of what Python may not compute of values of the run; files that are held to it |
| `pond_check` | it is held against the maps of a pond |
| `programs`, `compiled` | its file as text; its plan as a workflow |
| `kinds`, `queries`, `reads`, `branches` | its steps, carried out |
| `embedded` | engine, log and worker in one process |
| `workflow_steps` | the steps of a workflow of the client, declared |
| `tasks` | the tasks of workers |
| `attempt_logs`, `attempt_threads` | what it prints; where it blocks, and how that ends |
| `step`, `tickets`, `targets` | one attempt: key, checkpoints, failures; the load that it enters, and its map |
| `driver`, `driver_process` | Spark, in a process of its own: its worker's side, and its own |
| `wanted` | the server's word on an attempt whose worker is gone |
| `jobs` | its jobs |
| `requests`, `rules` | inputs as JSON; rules of a check, and how they come out |
"""

from __future__ import annotations

from millpond.extras import need

need("littlehorse")

from millpond.pipelines import tasks as _tasks
from millpond.pipelines.declare import (
    alert,
    alerted,
    arrived,
    branch,
    check,
    committed,
    condense,
    enrich,
    item,
    load,
    loaded,
    merge,
    notify,
    pipeline,
    publish,
    python,
    retain,
    shell,
    spark,
    sql,
    today,
    yesterday,
)
from millpond.pipelines.requests import ColumnRule, Drift, KeyRule, Question, Rows, Rules, Target, View
from millpond.pipelines.workflow_steps import Pipeline

__all__ = (
    "ColumnRule", "Drift", "KeyRule", "Pipeline", "Question", "Rows", "Rules", "Target", "View", "alert",
    "alerted", "arrived", "branch",
    "check", "committed", "condense", "enrich", "item", "load", "loaded", "merge", "notify", "pipeline", "publish",
    "python", "retain", "shell", "spark", "sql", "today", "yesterday",
)  # fmt: skip

__tasks__ = tuple(getattr(_tasks, name) for name in _tasks.__all__)
"""The tasks for which `millpond worker millpond.pipelines` works."""
