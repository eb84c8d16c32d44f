"""Commands of definitions: tasks, events, user tasks. A definition put again as it is stays as it is."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from littlehorse.model import (
    DeleteExternalEventDefRequest,
    DeleteTaskDefRequest,
    DeleteUserTaskDefRequest,
    DeleteWfSpecRequest,
    DeleteWorkflowEventDefRequest,
    ExternalEventDef,
    ExternalEventDefId,
    MetadataStatus,
    PutExternalEventDefRequest,
    PutTaskDefRequest,
    PutUserTaskDefRequest,
    PutWorkflowEventDefRequest,
    TaskDef,
    TaskDefId,
    TaskWorkerGroup,
    UserTaskDef,
    VariableDef,
    WfSpec,
    WorkflowEventDef,
    WorkflowEventDefId,
)

from millpond.errors import AlreadyExists
from millpond.workflows.engine.keys import Key, check_name, key_of
from millpond.workflows.engine.metadata.struct_values import pin_structs
from millpond.workflows.engine.values.conversions import type_of_def
from millpond.workflows.engine.values.messages import parts_of
from millpond.workflows.engine.work import Work, copied

__all__ = (
    "put_task_def",
    "same_but_for_time",
    "settle_variables",
    "put_external_event_def",
    "put_workflow_event_def",
    "put_user_task_def",
    "delete_task_def",
    "delete_external_event_def",
    "delete_workflow_event_def",
    "delete_user_task_def",
    "delete_spec",
)


def put_task_def(work: Work, request: PutTaskDefRequest) -> TaskDef:
    """Define a task. A definition never changes: another one under the same name is an error."""
    check_name("task", request.name)
    definition = TaskDef(
        id=TaskDefId(name=request.name),
        input_vars=request.input_vars,
        created_at=work.instant(),
        return_type=request.return_type if request.HasField("return_type") else None,
        description=request.description if request.HasField("description") else None,
    )
    old = work.rows.get(TaskDef, (request.name,))
    settle_variables(definition)
    pin_structs(work, definition, old)
    if old is None:
        work.rows.put((request.name,), definition)
        return definition
    if not same_but_for_time(old, definition):
        # Clients compare the whole of this message, so the name, which they have sent, is not added.
        raise AlreadyExists("TaskDef already exists and is immutable.", kind="task_def")
    return old


def same_but_for_time(old: Message, new: Message, *also: str) -> bool:
    """True when two definitions differ in nothing but the instant of their making, and fields that are named."""
    first, second = copied(old), copied(new)
    for definition in (first, second):
        settle_variables(definition)
        for field in ("created_at", *also):
            definition.ClearField(field)
    return first == second


def settle_variables(message: Message) -> None:
    """Give the types of the variables in a definition in the field of today, where an older client uses another."""
    if isinstance(message, VariableDef):
        if message.HasField("type") and not message.HasField("type_def"):
            message.type_def.CopyFrom(type_of_def(message))
        message.ClearField("type")
        message.ClearField("masked_value")
    else:
        for part in parts_of(message):
            settle_variables(part)


def put_external_event_def(work: Work, request: PutExternalEventDefRequest) -> ExternalEventDef:
    """Define an external event, in place of an earlier definition."""
    check_name("external event", request.name)
    definition = ExternalEventDef(
        id=ExternalEventDefId(name=request.name),
        created_at=work.instant(),
        retention_policy=request.retention_policy,
        type_information=request.content_type if request.HasField("content_type") else None,
    )
    if request.HasField("correlated_event_config"):
        definition.correlated_event_config.CopyFrom(request.correlated_event_config)
    old = work.rows.get(ExternalEventDef, (request.name,))
    pin_structs(work, definition, old)
    if old is not None and same_but_for_time(old, definition):
        return old
    work.rows.put((request.name,), definition)
    return definition


def put_workflow_event_def(work: Work, request: PutWorkflowEventDefRequest) -> WorkflowEventDef:
    """Define a workflow event. Its type never changes."""
    check_name("workflow event", request.name)
    definition = WorkflowEventDef(
        id=WorkflowEventDefId(name=request.name), created_at=work.instant(), content_type=request.content_type
    )
    old = work.rows.get(WorkflowEventDef, (request.name,))
    pin_structs(work, definition, old)
    if old is not None:
        if old.content_type != definition.content_type:
            raise AlreadyExists("WorkflowEventDef already exists, with another type", kind="event_def",
                                name=request.name)  # fmt: skip
        return old
    work.rows.put((request.name,), definition)
    return definition


def put_user_task_def(work: Work, request: PutUserTaskDefRequest) -> UserTaskDef:
    """Define a user task: a change makes a new version."""
    check_name("user task", request.name)
    versions = work.rows.list(UserTaskDef, (request.name,))
    latest = max(versions, key=lambda version: version.version, default=None)
    definition = UserTaskDef(
        name=request.name,
        version=0 if latest is None else latest.version,
        description=request.description if request.HasField("description") else None,
        fields=request.fields,
        created_at=work.instant(),
    )
    if latest is not None:
        if same_but_for_time(latest, definition):
            return latest
        definition.version = latest.version + 1
    work.rows.put((definition.name, definition.version), definition)
    return definition


def delete_task_def(work: Work, request: DeleteTaskDefRequest) -> Empty:
    """Delete a task's definition with its group of workers; specifications that use it fail when they reach it."""
    work.rows.delete(TaskWorkerGroup, (request.id.name,))
    return _deleted(work, TaskDef, (request.id.name,))


def delete_external_event_def(work: Work, request: DeleteExternalEventDefRequest) -> Empty:
    """Delete the definition of an external event."""
    return _deleted(work, ExternalEventDef, (request.id.name,))


def delete_workflow_event_def(work: Work, request: DeleteWorkflowEventDefRequest) -> Empty:
    """Delete the definition of a workflow event."""
    return _deleted(work, WorkflowEventDef, (request.id.name,))


def delete_user_task_def(work: Work, request: DeleteUserTaskDefRequest) -> Empty:
    """Delete one version of a user task."""
    return _deleted(work, UserTaskDef, (request.id.name, request.id.version))


def delete_spec(work: Work, request: DeleteWfSpecRequest) -> Empty:
    """Retire one version of a specification: no run begins with it any more, and its open runs go on with it."""
    spec = work.rows.get(WfSpec, key_of(request.id))
    if spec is not None:
        spec.status = MetadataStatus.ARCHIVED
        work.rows.put(key_of(request.id), spec)
    return Empty()


def _deleted(work: Work, kind: type[Message], key: Key) -> Empty:
    work.rows.delete(kind, key)
    return Empty()
