"""Apply: one command on the rows of its partition, as a pure function.

Invariants:

* No clock, no input or output, no chance: the same rows, command and instant give the same outcome, byte for byte.
* A command that raises leaves no write and no effect.
* The work of one command is bounded; see `limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    AssignUserTaskRunRequest,
    CancelUserTaskRunRequest,
    CompleteUserTaskRunRequest,
    CreateBulkJobRequest,
    DeleteBulkJobRequest,
    DeleteCorrelatedEventRequest,
    DeleteExternalEventDefRequest,
    DeletePrincipalRequest,
    DeleteQuotaRequest,
    DeleteScheduledWfRunRequest,
    DeleteStructDefRequest,
    DeleteTaskDefRequest,
    DeleteUserTaskDefRequest,
    DeleteUserTaskRunCommentRequest,
    DeleteWfRunRequest,
    DeleteWfSpecRequest,
    DeleteWorkflowEventDefRequest,
    DeleteWorkflowMigrationPlanRequest,
    EditUserTaskRunCommentRequest,
    MigrateWfSpecRequest,
    PutCheckpointRequest,
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    PutPrincipalRequest,
    PutQuotaRequest,
    PutStructDefRequest,
    PutTaskDefRequest,
    PutTenantRequest,
    PutUserTaskDefRequest,
    PutUserTaskRunCommentRequest,
    PutWfSpecRequest,
    PutWorkflowEventDefRequest,
    PutWorkflowMigrationPlanRequest,
    ReportTaskRun,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    RunWfRequest,
    SaveUserTaskRunProgressRequest,
    ScheduleWfRequest,
    StopWfRunRequest,
)

from millpond.errors import Invalid
from millpond.workflows.engine import (
    attempts,
    bulk_jobs,
    data_starts,
    migrations,
    run_commands,
    schedules,
    spec_migrations,
)
from millpond.workflows.engine.advance import advance_family
from millpond.workflows.engine.commands import (
    AttemptDue,
    AttemptTimedOut,
    BulkJobDue,
    BulkJobStepped,
    Command,
    CorrelatedEventExpired,
    CorrelatedEventSent,
    CorrelationAwaited,
    CorrelationForgotten,
    DataArrived,
    EventExpired,
    NodeDue,
    RunMigrationDue,
    RunUnable,
    ScheduleDue,
    ScheduleWaits,
    SpecMigrationDue,
    TaskClaim,
    UserTaskDue,
)
from millpond.workflows.engine.events import correlated, external
from millpond.workflows.engine.metadata import definitions, migration_plans, specs, structs, tenancy
from millpond.workflows.engine.outcome import Outcome
from millpond.workflows.engine.rows import Rows
from millpond.workflows.engine.user_tasks import actions, comments
from millpond.workflows.engine.user_tasks import commands as user_tasks
from millpond.workflows.engine.work import Work, copied

__all__ = (
    "COMMANDS",
    "apply",
)

COMMANDS: Final[dict[type, Callable[[Work, Any], Any]]] = {
    PutTaskDefRequest: definitions.put_task_def,
    PutExternalEventDefRequest: definitions.put_external_event_def,
    PutWorkflowEventDefRequest: definitions.put_workflow_event_def,
    PutUserTaskDefRequest: definitions.put_user_task_def,
    PutStructDefRequest: structs.put_struct_def,
    DeleteStructDefRequest: structs.delete_struct_def,
    PutWfSpecRequest: specs.put_spec,
    DeleteTaskDefRequest: definitions.delete_task_def,
    DeleteExternalEventDefRequest: definitions.delete_external_event_def,
    DeleteWorkflowEventDefRequest: definitions.delete_workflow_event_def,
    DeleteUserTaskDefRequest: definitions.delete_user_task_def,
    DeleteWfSpecRequest: definitions.delete_spec,
    RunWfRequest: run_commands.run_workflow,
    StopWfRunRequest: run_commands.stop_run,
    ResumeWfRunRequest: run_commands.resume_run,
    RescueThreadRunRequest: run_commands.rescue_thread,
    DeleteWfRunRequest: run_commands.delete_run,
    PutExternalEventRequest: external.put_external_event,
    PutCorrelatedEventRequest: correlated.put_correlated_event,
    DeleteCorrelatedEventRequest: correlated.delete_correlated_event,
    ReportTaskRun: run_commands.report_task,
    PutCheckpointRequest: attempts.put_checkpoint,
    AssignUserTaskRunRequest: user_tasks.assign_user_task,
    SaveUserTaskRunProgressRequest: user_tasks.save_progress,
    CompleteUserTaskRunRequest: user_tasks.complete_user_task,
    CancelUserTaskRunRequest: user_tasks.cancel_user_task,
    PutUserTaskRunCommentRequest: comments.put_comment,
    EditUserTaskRunCommentRequest: comments.edit_comment,
    DeleteUserTaskRunCommentRequest: comments.delete_comment,
    TaskClaim: attempts.claim,
    AttemptTimedOut: run_commands.time_out,
    AttemptDue: run_commands.attempt_due,
    NodeDue: run_commands.node_due,
    RunUnable: run_commands.run_unable,
    EventExpired: external.event_expired,
    ScheduleWfRequest: schedules.put_schedule,
    DeleteScheduledWfRunRequest: schedules.delete_schedule,
    ScheduleDue: schedules.run_due,
    ScheduleWaits: schedules.wait_for_run,
    DataArrived: data_starts.data_arrived,
    CorrelationAwaited: correlated.await_correlation,
    CorrelationForgotten: correlated.forget_correlation,
    CorrelatedEventSent: correlated.receive_correlated_event,
    CorrelatedEventExpired: correlated.correlated_event_expired,
    UserTaskDue: actions.action_due,
    PutWorkflowMigrationPlanRequest: migration_plans.put_plan,
    DeleteWorkflowMigrationPlanRequest: migration_plans.delete_plan,
    ApplyWorkflowMigrationPlanRequest: migrations.apply_plan,
    CreateBulkJobRequest: bulk_jobs.create_job,
    DeleteBulkJobRequest: bulk_jobs.delete_job,
    BulkJobDue: bulk_jobs.job_due,
    BulkJobStepped: bulk_jobs.job_stepped,
    MigrateWfSpecRequest: spec_migrations.migrate_spec,
    SpecMigrationDue: spec_migrations.migration_due,
    RunMigrationDue: spec_migrations.run_due,
    PutTenantRequest: tenancy.put_tenant,
    PutPrincipalRequest: tenancy.put_principal,
    DeletePrincipalRequest: tenancy.delete_principal,
    PutQuotaRequest: tenancy.put_quota,
    DeleteQuotaRequest: tenancy.delete_quota,
}
"""The function of each kind of command."""


def apply(rows: Rows, command: Command, now: int) -> Outcome:
    """The outcome of a command on rows, at an instant in milliseconds since 1970.

    Raises:
        Invalid, NotFound, AlreadyExists, Conflict: the caller's mistake; nothing is to be written.
    """
    function = COMMANDS.get(type(command.request))
    if function is None:
        raise Invalid("no command of this kind", kind="workflow_command", command=type(command.request).__name__)
    work = Work(rows, command, now)
    reply = function(work, command.request)
    advance_family(work)
    return work.outcome(None if reply is None else copied(reply))
