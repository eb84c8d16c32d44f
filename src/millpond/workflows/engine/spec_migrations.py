"""Migrations of specifications: all open runs of a version go on with a newer one, some at a time.

    migrate ─▶ due, for each status, on each partition ─▶ the next runs, each by a command of its own ─▶ due …
               a run of the version that advances ─▶ the same command

Invariants:
* A run goes on whole or stays as it is, as by a plan. One that stays tries again whenever it advances: a worker may
  have reported by then. So does one that begins later with the old version, or whose status changes between two steps.
* A migration leads to a newer version, so that a chain of them has an end.
"""

from __future__ import annotations

from dataclasses import replace

from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    LHStatus,
    MigrateWfSpecRequest,
    PutWorkflowMigrationPlanRequest,
    WfSpec,
)

from millpond.errors import Conflict, Invalid, NotFound
from millpond.workflows.engine.bulk_jobs import PAUSE_MS
from millpond.workflows.engine.commands import RunMigrationDue, SpecMigrationDue
from millpond.workflows.engine.keys import Key, key_of, root_of, run_id, run_path
from millpond.workflows.engine.limits import BULK_RUNS_MAX
from millpond.workflows.engine.metadata.migration_plans import planned
from millpond.workflows.engine.migrations import migrate
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.runs import load
from millpond.workflows.engine.work import Work

__all__ = ("migrate_spec", "migration_due", "run_due")


def migrate_spec(work: Work, request: MigrateWfSpecRequest) -> WfSpec:
    """Let the runs of a version go on with a newer one, from now on. The reply is the version that they leave.

    Raises:
        NotFound: one of the two versions does not exist.
        Invalid: the other one is not newer; a thread or a node that is named does not exist.
    """
    name, before, migration = request.old_wf_spec.name, request.old_wf_spec, request.migration
    versions = (before.major_version, before.revision), (migration.new_major_version, migration.new_revision)
    for version in versions:
        if work.rows.get(WfSpec, (name, *version)) is None:
            raise NotFound(f"Migration refers to nonexisting WfSpec {name[:80]}", kind="workflow_spec", spec=name,
                           version="{}.{}".format(*version))  # fmt: skip
    if versions[0] >= versions[1]:
        raise Invalid("a migration leads to a newer version", kind="migration_plan", spec=name, hint=None)
    spec = work.rows.get(WfSpec, key_of(before))
    assert spec is not None, "checked above"
    spec.migration.CopyFrom(migration)
    planned(work, _plan(spec))
    work.rows.put(key_of(spec.id), spec)
    for status in sorted(set(LHStatus.values()) - {LHStatus.COMPLETED}):
        due = SpecMigrationDue(spec.id, status)
        work.set_timer(_timer(due), work.now, due)
    return spec


def _plan(spec: WfSpec) -> PutWorkflowMigrationPlanRequest:
    migration = spec.migration
    plan = PutWorkflowMigrationPlanRequest(
        name=spec.id.name, old_wfSpec=spec.id, major_version=migration.new_major_version,
        revision=migration.new_revision,
    )  # fmt: skip
    for name, thread in migration.thread_spec_migrations.items():
        plan.thread_migrations[name].new_thread_name = thread.new_thread_spec_name
        for node, after in thread.node_migrations.items():
            plan.thread_migrations[name].node_migrations[node].new_node_name = after.new_node_name
    return plan


def migration_due(work: Work, request: SpecMigrationDue) -> None:
    """Let the next runs with a status go on, each by a command of its own."""
    spec = request.spec_id
    paths, after = work.rows.below.runs(
        spec.name, request.status, BULK_RUNS_MAX, version=(spec.major_version, spec.revision), after=request.after
    )
    for name in map(run_id, paths):
        work.cause(CommandCaused(root_of(name), RunMigrationDue(name)))
    if after:
        work.set_timer(_timer(request), work.now + PAUSE_MS, replace(request, after=after))


def run_due(work: Work, request: RunMigrationDue) -> None:
    """Let a run go on with the version to which its own one leads, or leave it as it is."""
    run = load(work, run_path(request.run_id))
    if run is None or run.row.status == LHStatus.COMPLETED or not run.spec.HasField("migration"):
        return
    try:
        migrate(run, planned(work, _plan(run.spec)), ApplyWorkflowMigrationPlanRequest())
    except (Conflict, Invalid):
        work.forget()


def _timer(due: SpecMigrationDue) -> Key:
    return ("spec migration", *key_of(due.spec_id), due.status)
