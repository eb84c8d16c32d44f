"""Recorded runs of workflows, replayed against a changed one: which open runs could not go on with it, and why.

    millpond run show RUN --json > runs/RUN.json          on the node; in a test recorded(runs, run)
    runs.register(Workflow("subscription", changed), charge)
    replay = replayed_workflow(runs, "subscription", Path("runs").glob("*.json"))
    assert not replay.broken, replay

A run goes on with another version by a migration. This makes that of a node, by the same engine, on a copy of what the
record has, and forgets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from millpond.extras import need

need("littlehorse")

from google.protobuf.json_format import ParseDict, ParseError
from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    InactiveThreadRun,
    LHStatus,
    NodeRun,
    PutWorkflowMigrationPlanRequest,
    TaskRun,
    Variable,
    WfRun,
    WfRunId,
    WfSpec,
)

from millpond.cli.workflows.server import plain_message
from millpond.errors import Conflict, Invalid, NotFound
from millpond.json_forms import FormError, parse_object
from millpond.testing.replays import ENDED, Replay
from millpond.testing.workflows import TENANT, WorkflowRuns
from millpond.workflows.engine import Command, key_of
from millpond.workflows.engine.keys import run_path
from millpond.workflows.engine.metadata.migration_plans import planned
from millpond.workflows.engine.migrations import migrate
from millpond.workflows.engine.runs import existing
from millpond.workflows.engine.work import Work, find_spec
from millpond.workflows.processor import ReadRows, read_rows

__all__ = ("recorded", "replayed_workflow")

_KINDS: Final[Mapping[str, type[Any]]] = {
    "nodes": NodeRun, "tasks": TaskRun, "variables": Variable, "queued": InactiveThreadRun,
}  # fmt: skip
_BEFORE: Final = (1 << 31) - 1
"""The major version that the specification of a record has in a replay."""


def recorded(runs: WorkflowRuns, run: str) -> dict[str, Any]:
    """A run as `millpond run show --json` has it, for `replayed_workflow` and `replayed`.

    Raises: `NotFound`.
    """

    def listed(rows: ReadRows) -> dict[str, Any]:
        row = rows.get(WfRun, key_of(WfRunId(id=run)))
        if row is None:
            raise NotFound("no run has this id", kind="run", run=run)
        own = {name: [plain_message(row) for _, row in rows.list(kind, (run,))] for name, kind in _KINDS.items()}
        spec = rows.get(WfSpec, key_of(row.wf_spec_id))
        assert spec is not None, "a run has its specification"
        return {"run": plain_message(row), "spec": plain_message(spec), **own}

    return read_rows(runs._processor, TENANT, listed)  # noqa: SLF001


def replayed_workflow(
    runs: WorkflowRuns, workflow: str, records: Iterable[Mapping[str, Any] | str | Path],
    names: PutWorkflowMigrationPlanRequest | None = None,
) -> Replay:  # fmt: skip
    """Replay records, each as `millpond run show --json` tells it or the file of that, against the newest version of a
    workflow that is registered with `runs`. Threads and nodes keep their names where `names` gives them no others.

    Runs that have ended, and those of other workflows, are passed over.

    Raises: `NotFound` for a workflow that is not registered; `Invalid` for a record that is not understood, or names
        that are not there.
    """

    def replay(rows: ReadRows) -> Replay:
        seen, broken = 0, dict[str, str]()
        for run, spec, others in map(_messages, records):
            if spec.id.name != workflow or LHStatus.Name(run.status) in ENDED:
                continue
            work = Work(rows, Command("replay", ApplyWorkflowMigrationPlanRequest()), runs.clock.now_ms())
            newest = find_spec(work, workflow)
            if newest is None:
                raise NotFound("no workflow has this name", kind="workflow_spec", spec=workflow)
            for message in (_renamed(spec), _of_version(run), *map(_of_version, others)):
                work.rows.put(key_of(message.id), message)
            seen += 1
            if reason := _reason(work, run, newest, names):
                broken[run_path(run.id)] = reason
        return Replay(seen, broken)

    return read_rows(runs._processor, TENANT, replay)  # noqa: SLF001


def _reason(work: Work, run: WfRun, newest: WfSpec, names: PutWorkflowMigrationPlanRequest | None) -> str:
    """The reason for which a run could not go on with a version; nothing when it could."""
    request = PutWorkflowMigrationPlanRequest()
    if names is not None:
        request.thread_migrations.MergeFrom(names.thread_migrations)
    request.name, request.major_version, request.revision = "replay", newest.id.major_version, newest.id.revision
    request.old_wfSpec.CopyFrom(run.wf_spec_id)
    plan = planned(work, request)
    try:
        migrate(existing(work, run_path(run.id)), plan, ApplyWorkflowMigrationPlanRequest())
    except (Conflict, Invalid) as error:
        return str(error.without("run", "plan"))
    return ""


def _messages(record: Mapping[str, Any] | str | Path) -> tuple[WfRun, WfSpec, list[Any]]:
    """A run, its specification, and its other rows."""
    try:
        row = record if isinstance(record, Mapping) else parse_object(Path(record).read_bytes())
        run, spec = ParseDict(row["run"], WfRun()), ParseDict(row["spec"], WfSpec())
        return run, spec, [ParseDict(own, kind()) for name, kind in _KINDS.items() for own in row[name]]
    except (OSError, FormError, ParseError, KeyError, TypeError) as error:
        raise Invalid("not a recorded run of a workflow", kind="workflow_record", reason=repr(error),
                      hint="record it by millpond run show RUN --json") from None  # fmt: skip


def _renamed(spec: WfSpec) -> WfSpec:
    """The specification of a record, as a version that no other one is."""
    renamed = WfSpec()
    renamed.CopyFrom(spec)
    renamed.id.major_version = _BEFORE
    return renamed


def _of_version(row: Any) -> Any:
    """A row of a run, of that version."""
    for own in (row, *getattr(row, "thread_runs", ())):
        if "wf_spec_id" in own.DESCRIPTOR.fields_by_name:
            own.wf_spec_id.major_version = _BEFORE
    return row
