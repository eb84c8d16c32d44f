"""Reads of workflows: one object, the objects of a run, searches. They show rows as readers may see them, masked.

Invariants:
* a read sees everything that was answered before it began;
* the pages of a search leave out nothing that stays, and show nothing twice; a bookmark of another search is refused;
* a list or a search returns at most `LIMIT_MAX` at once, and 100 where no limit is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import Message
from littlehorse.model import (
    BulkJob,
    BulkJobIdList,
    Checkpoint,
    CheckpointId,
    CorrelatedEvent,
    CorrelatedEventId,
    CorrelatedEventIdList,
    Count,
    CountNodeRunRequest,
    CountTaskRunRequest,
    ExternalEvent,
    ExternalEventDef,
    ExternalEventDefId,
    ExternalEventDefIdList,
    ExternalEventId,
    ExternalEventIdList,
    ExternalEventList,
    GetBulkJobRequest,
    GetLatestUserTaskDefRequest,
    GetLatestWfSpecRequest,
    InactiveThreadRun,
    InactiveThreadRunId,
    ListExternalEventsRequest,
    ListNodeRunsRequest,
    ListTaskRunsRequest,
    ListUserTaskRunRequest,
    ListVariablesRequest,
    ListWorkflowEventsRequest,
    NodeRun,
    NodeRunId,
    NodeRunIdList,
    NodeRunList,
    ScheduledWfRun,
    ScheduledWfRunId,
    ScheduledWfRunIdList,
    ScheduleWfRequest,
    SearchBulkJobRequest,
    SearchCorrelatedEventRequest,
    SearchExternalEventDefRequest,
    SearchExternalEventRequest,
    SearchNodeRunRequest,
    SearchScheduledWfRunRequest,
    SearchStructDefRequest,
    SearchTaskDefRequest,
    SearchTaskRunRequest,
    SearchUserTaskDefRequest,
    SearchUserTaskRunRequest,
    SearchVariableRequest,
    SearchWfRunRequest,
    SearchWfSpecRequest,
    SearchWorkflowEventDefRequest,
    SearchWorkflowEventRequest,
    SearchWorkflowMigrationPlanRequest,
    StructDef,
    StructDefId,
    StructDefIdList,
    TaskDef,
    TaskDefId,
    TaskDefIdList,
    TaskRun,
    TaskRunId,
    TaskRunIdList,
    TaskRunList,
    TaskStatus,
    UserTaskDef,
    UserTaskDefId,
    UserTaskDefIdList,
    UserTaskRun,
    UserTaskRunId,
    UserTaskRunIdList,
    UserTaskRunList,
    ValidateStructDefEvolutionRequest,
    ValidateStructDefEvolutionResponse,
    Variable,
    VariableId,
    VariableIdList,
    VariableList,
    WfRun,
    WfRunId,
    WfRunIdList,
    WfSpec,
    WfSpecId,
    WfSpecIdList,
    WorkflowEvent,
    WorkflowEventDef,
    WorkflowEventDefId,
    WorkflowEventDefIdList,
    WorkflowEventId,
    WorkflowEventIdList,
    WorkflowEventList,
    WorkflowMigrationPlan,
    WorkflowMigrationPlanId,
    WorkflowMigrationPlanIdList,
)

from millpond.errors import Invalid, NotFound
from millpond.server.workflows.metric_windows import METRIC_READS
from millpond.server.workflows.pages import limit_of, page_behind
from millpond.server.workflows.run_filters import filtered_runs, instant_of
from millpond.workflows.engine import Command, key_of, run_path
from millpond.workflows.engine.metadata.structs import evolution_is_valid
from millpond.workflows.engine.schedule_masks import shown_schedule
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.engine.work import Work, is_retired, newest_spec
from millpond.workflows.store import TagQuery
from millpond.workflows.store.addresses import path_of
from millpond.workflows.store.search import LIMIT_MAX
from millpond.workflows.store.tags import value_part
from millpond.workflows.store.unscoped_tags import correlated_query, schedule_query

if TYPE_CHECKING:
    from millpond.workflows.processor import ReadRows

__all__ = ("GETS", "LISTS", "READS", "SEARCHES", "search_runs")

Read = Callable[["ReadRows", Any], Message]

GETS: Final[dict[type[Message], type[Message]]] = {
    TaskDefId: TaskDef, ExternalEventDefId: ExternalEventDef, WorkflowEventDefId: WorkflowEventDef, WfSpecId: WfSpec,
    UserTaskDefId: UserTaskDef, WfRunId: WfRun, NodeRunId: NodeRun, TaskRunId: TaskRun, VariableId: Variable,
    ExternalEventId: ExternalEvent, WorkflowEventId: WorkflowEvent, UserTaskRunId: UserTaskRun,
    CheckpointId: Checkpoint, InactiveThreadRunId: InactiveThreadRun, StructDefId: StructDef,
    CorrelatedEventId: CorrelatedEvent, ScheduledWfRunId: ScheduledWfRun,
    WorkflowMigrationPlanId: WorkflowMigrationPlan,
}  # fmt: skip
"""The object of each kind of id."""
LISTS: Final[dict[type[Message], tuple[type[Message], type[Message]]]] = {
    ListNodeRunsRequest: (NodeRun, NodeRunList), ListTaskRunsRequest: (TaskRun, TaskRunList),
    ListVariablesRequest: (Variable, VariableList), ListExternalEventsRequest: (ExternalEvent, ExternalEventList),
    ListWorkflowEventsRequest: (WorkflowEvent, WorkflowEventList),
    ListUserTaskRunRequest: (UserTaskRun, UserTaskRunList),
}  # fmt: skip


def _get(rows: ReadRows, name: Message) -> Message:
    kind = GETS[type(name)]
    key = key_of(name)
    row = rows.get(kind, key)
    if row is None or is_retired(row):
        type_, path = kind.__name__, "/".join(map(str, key))
        raise NotFound(f"Couldn't find specified {type_}", kind="workflow_object", type=type_, id=path)
    return (
        shown_schedule(Work(rows, Command("read", ScheduleWfRequest()), 0), row)
        if isinstance(row, ScheduledWfRun)
        else shown(row)
    )


def _latest_spec(rows: ReadRows, request: GetLatestWfSpecRequest) -> WfSpec:
    """The newest specification of a name, and of a major version if one is given."""
    prefix = (request.name, request.major_version) if request.HasField("major_version") else (request.name,)
    newest = newest_spec(spec for _, spec in rows.list(WfSpec, prefix) if not is_retired(spec))
    if newest is None:
        raise NotFound("Couldn't find specified WfSpec", kind="workflow_spec", spec=request.name)
    return newest


def _latest_user_task(rows: ReadRows, request: GetLatestUserTaskDefRequest) -> UserTaskDef:
    newest = max(rows.list(UserTaskDef, (request.name,)), key=lambda row: row[0], default=None)
    if newest is None:
        raise NotFound("no user task is defined by this name", kind="user_task_def", name=request.name)
    return newest[1]


def _evolution(rows: ReadRows, request: ValidateStructDefEvolutionRequest) -> ValidateStructDefEvolutionResponse:
    """True in it when a struct may change so."""
    return ValidateStructDefEvolutionResponse(is_valid=evolution_is_valid(rows, request))


# -- the objects of a run ---------------------------------------------------------------------------------


def _list_objects(rows: ReadRows, request: Any) -> Message:
    """A page of the objects of one run, in the order of their numbers."""
    kind, page_type = LISTS[type(request)]
    prefix: tuple[str | int, ...] = (run_path(request.wf_run_id),)
    if isinstance(request, ListNodeRunsRequest) and request.HasField("thread_run_number"):
        prefix += (request.thread_run_number,)
    if not prefix[0]:
        raise Invalid("no run is named", kind="run_id", value="", hint="name the run")
    return page_behind(
        page_type, lambda after: ((key, shown(row)) for key, row in rows.list(kind, prefix, after)), request
    )


# -- searches ---------------------------------------------------------------------------------------------


def _search(rows: ReadRows, query: TagQuery, page_type: type[Message], request: Any) -> Message:
    entries = rows.search(query, limit=limit_of(request), bookmark=request.bookmark or None)
    page: Any = page_type(results=[address.id() for address in entries.rows])
    if entries.bookmark is not None:
        page.bookmark = entries.bookmark
    return cast("Message", page)


def _times(request: Any) -> dict[str, int]:
    """The bounds of a search in time, UTC milliseconds.

    Raises: `Invalid` for an instant that is none.
    """
    fields = {"start_ms": "earliest_start", "stop_ms": "latest_start"}
    return {name: instant_of(request, field) for name, field in fields.items() if request.HasField(field)}


def _timed(query: TagQuery, request: Any) -> TagQuery:
    times = _times(request)
    return TagQuery(query.kind, query.attributes, times.get("start_ms"), times.get("stop_ms"))


def _id(row: Any) -> Message:
    if isinstance(row, UserTaskDef):
        return UserTaskDefId(name=row.name, version=row.version)
    return cast("Message", row.id)


def _present(request: Any, name: str) -> Any:
    return getattr(request, name) if request.HasField(name) else None


def search_runs(rows: ReadRows, request: SearchWfRunRequest, *, newest: bool = False) -> WfRunIdList:
    """Runs by specification, status, time, parent and values of variables; without a condition, all.

    Raises: `Invalid` for a version without a name, and for a filter by a variable that is none of the first thread.
    """
    if request.variable_filters:
        return filtered_runs(rows, request, limit_of(request), newest=newest)
    parent = path_of(request.parent_wf_run_id) if request.HasField("parent_wf_run_id") else None
    query = TagQuery.runs(
        status=_present(request, "status"), spec=request.wf_spec_name or None,
        major=_present(request, "wf_spec_major_version"), revision=_present(request, "wf_spec_revision"), parent=parent,
    )  # fmt: skip
    page = _search(rows, replace(_timed(query, request), newest=newest), WfRunIdList, request)
    return cast("WfRunIdList", page)


def _search_variables(rows: ReadRows, request: SearchVariableRequest) -> Message:
    """Searchable variables by their value.

    Raises: `Invalid` when a name or the value is missing, values of its type are not indexed, or nothing has the name.
    """
    value = value_part(request.value)
    if not (request.wf_spec_name and request.var_name) or value is None:
        raise Invalid("a search for a variable needs a specification, a name and a value", kind="search",
                      spec=request.wf_spec_name, variable=request.var_name,
                      hint="values may be STR, INT, BOOL or DOUBLE")  # fmt: skip
    if not any(True for _row in rows.list(WfSpec, (request.wf_spec_name,))):
        raise Invalid(f"Couldn't find WfSpec {request.wf_spec_name[:80]}", kind="search", spec=request.wf_spec_name)
    query = TagQuery.variables(
        request.wf_spec_name, request.var_name, value, major=_present(request, "wf_spec_major_version"),
        revision=_present(request, "wf_spec_revision"),
    )  # fmt: skip
    return _search(rows, query, VariableIdList, request)


def _search_tasks(rows: ReadRows, request: SearchTaskRunRequest) -> Message:
    query = TagQuery.tasks(_need(request.task_def_name, "task_def_name"), _present(request, "status"))
    return _search(rows, _timed(query, request), TaskRunIdList, request)


def _count_tasks(rows: ReadRows, request: CountTaskRunRequest) -> Message:
    """The number of task runs of a definition that wait for a worker.

    Raises: `Invalid` for another status.
    """
    if request.status != TaskStatus.TASK_SCHEDULED:
        raise Invalid("task runs are counted while they are scheduled", kind="search", field="status",
                      hint="give TASK_SCHEDULED")  # fmt: skip
    return Count(value=rows.count(TagQuery.tasks(_need(request.task_def_name, "task_def_name"), request.status)))


def _count_nodes(rows: ReadRows, request: CountNodeRunRequest) -> Message:
    """The number of node runs: of the runs of a specification, of a version of it, or of all.

    Raises: `Invalid` for a filter without a name, and for a revision without a major version.
    """
    if not request.HasField("wf_spec_filter"):
        return Count(value=rows.count_nodes(TagQuery.runs()))
    spec = request.wf_spec_filter
    query = TagQuery.runs(
        spec=_need(spec.wf_spec_name, "wf_spec_name"), major=_present(spec, "wf_spec_major_version"),
        revision=_present(spec, "wf_spec_revision"),
    )  # fmt: skip
    return Count(value=rows.count_nodes(query))


def _search_nodes(rows: ReadRows, request: SearchNodeRunRequest) -> Message:
    """Node runs that wait, or waited, for an external event."""
    name = _need(request.external_event_def.name, "external_event_def")
    # The field has no presence, and no node that waits is STARTING.
    query = TagQuery.waiting_nodes(name, request.status or None)
    return _search(rows, _timed(query, request), NodeRunIdList, request)


def _search_events(rows: ReadRows, request: SearchExternalEventRequest) -> Message:
    name = _need(request.external_event_def_id.name, "external_event_def_id")
    query = TagQuery.external_events(name, claimed=_present(request, "is_claimed"))
    return _search(rows, _timed(query, request), ExternalEventIdList, request)


def _search_thrown(rows: ReadRows, request: SearchWorkflowEventRequest) -> Message:
    query = TagQuery.workflow_events(_need(request.workflow_event_def_id.name, "workflow_event_def_id"))
    return _search(rows, _timed(query, request), WorkflowEventIdList, request)


def _search_user_tasks(rows: ReadRows, request: SearchUserTaskRunRequest) -> Message:
    query = TagQuery.user_tasks(
        status=_present(request, "status"), definition=_present(request, "user_task_def_name"),
        user=_present(request, "user_id"), group=_present(request, "user_group"),
    )  # fmt: skip
    return _search(rows, _timed(query, request), UserTaskRunIdList, request)


def _search_correlated(rows: ReadRows, request: SearchCorrelatedEventRequest) -> Message:
    name = _need(request.external_event_def_id.name, "external_event_def_id")
    query = correlated_query(name, served=_present(request, "has_external_events"), **_times(request))
    entries = rows.search_free(query, limit=limit_of(request), bookmark=request.bookmark or None)
    page = CorrelatedEventIdList(bookmark=entries.bookmark)
    for key, definition in entries.rows:
        event = ExternalEventDefId(name=cast("str", definition))
        page.results.append(CorrelatedEventId(key=cast("str", key), external_event_def_id=event))
    return page


def _search_schedules(rows: ReadRows, request: SearchScheduledWfRunRequest) -> Message:
    """Schedules of a specification. The client's request has no pages.

    Raises: `Invalid` when there are more than `LIMIT_MAX`.
    """
    query = schedule_query(
        _need(request.wf_spec_name, "wf_spec_name"), _present(request, "major_version"), _present(request, "revision")
    )
    page = rows.search_free(query, limit=LIMIT_MAX, bookmark=None)
    if page.bookmark is not None:
        raise Invalid("more schedules than one answer holds", kind="search_limit", limit=LIMIT_MAX,
                      hint="name a version")  # fmt: skip
    return ScheduledWfRunIdList(results=[ScheduledWfRunId(id=cast("str", key)) for (key,) in page.rows])


def _need(value: str, field: str) -> str:
    if not value:
        raise Invalid("a search has no condition", kind="search", field=field, hint=f"give {field}")
    return value


# -- definitions ------------------------------------------------------------------------------------------


def _definitions(kind: type[Message], page_type: type[Message]) -> Read:
    """A search for definitions: all, those of a name, or those whose name begins so; specifications by a task, too."""

    def search(rows: ReadRows, request: Any) -> Message:
        fields = {field.name for field in request.DESCRIPTOR.fields}
        name = request.name if "name" in fields and request.HasField("name") else None
        start = request.prefix if "prefix" in fields and request.HasField("prefix") else ""
        task = request.task_def_name if "task_def_name" in fields and request.HasField("task_def_name") else None
        return page_behind(page_type, lambda after: (
            (key, _id(row)) for key, row in rows.list(kind, () if name is None else (name,), after)
            if str(key[0]).startswith(start) and not is_retired(row)
            and (task is None or _has_task(cast("WfSpec", row), task))
        ), request)  # fmt: skip

    return search


def _get_job(rows: ReadRows, request: GetBulkJobRequest) -> BulkJob:
    job = rows.get(BulkJob, key_of(request.id))
    if job is None:
        raise NotFound("Couldn't find specified BulkJob", kind="workflow_object", type="BulkJob", id=request.id.id)
    return job


def _search_jobs(rows: ReadRows, request: SearchBulkJobRequest) -> Message:
    return page_behind(BulkJobIdList, lambda after: (
        (key, row.id) for key, row in rows.list(BulkJob, (), after)
        if not request.HasField("status") or row.status == request.status
    ), request)  # fmt: skip


def _search_plans(rows: ReadRows, request: SearchWorkflowMigrationPlanRequest) -> Message:
    return page_behind(WorkflowMigrationPlanIdList, lambda after: (
        (key, row.workflow_migration_plan_id) for key, row in rows.list(WorkflowMigrationPlan, (), after)
        if str(key[0]).startswith(request.prefix) and request.wf_spec_name in ("", row.old_wfSpec.name)
    ), request)  # fmt: skip


def _has_task(spec: WfSpec, task: str) -> bool:
    nodes = (node for thread in spec.thread_specs.values() for node in thread.nodes.values())
    return any(node.HasField("task") and node.task.task_def_id.name == task for node in nodes)


SEARCHES: Final[dict[type[Message], Read]] = {
    SearchWfRunRequest: search_runs, SearchVariableRequest: _search_variables, SearchTaskRunRequest: _search_tasks,
    SearchNodeRunRequest: _search_nodes, SearchExternalEventRequest: _search_events,
    SearchWorkflowEventRequest: _search_thrown, SearchUserTaskRunRequest: _search_user_tasks,
    SearchCorrelatedEventRequest: _search_correlated, SearchScheduledWfRunRequest: _search_schedules,
    SearchTaskDefRequest: _definitions(TaskDef, TaskDefIdList),
    SearchWfSpecRequest: _definitions(WfSpec, WfSpecIdList),
    SearchStructDefRequest: _definitions(StructDef, StructDefIdList),
    SearchUserTaskDefRequest: _definitions(UserTaskDef, UserTaskDefIdList),
    SearchExternalEventDefRequest: _definitions(ExternalEventDef, ExternalEventDefIdList),
    SearchWorkflowEventDefRequest: _definitions(WorkflowEventDef, WorkflowEventDefIdList),
    SearchWorkflowMigrationPlanRequest: _search_plans, SearchBulkJobRequest: _search_jobs,
}  # fmt: skip

READS: Final[dict[type[Message], Read]] = {
    **dict.fromkeys(GETS, _get), **dict.fromkeys(LISTS, _list_objects), **SEARCHES,
    ValidateStructDefEvolutionRequest: _evolution, GetLatestWfSpecRequest: _latest_spec,
    GetLatestUserTaskDefRequest: _latest_user_task, CountTaskRunRequest: _count_tasks,
    CountNodeRunRequest: _count_nodes, GetBulkJobRequest: _get_job, **METRIC_READS,
}  # fmt: skip
"""The function of each request that reads."""
