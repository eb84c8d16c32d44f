"""Specifications: PutWfSpec, with the versions that changes make.

A change breaks when it changes the set of public variables, the required variables of the entrypoint, or the type of
its output: the major version grows. Any other change is a new revision. A version that was deleted is never given to
another specification, for runs may follow it; putting the same one again brings it back. A frozen variable (public, or
required by the entrypoint) never gets another type in any later version, also when versions between them lack it.
"""

from __future__ import annotations

from littlehorse.model import (
    AllowedUpdateType,
    MetadataStatus,
    PutWfSpecRequest,
    RunChildWfNode,
    ThreadVarDef,
    TypeDefinition,
    UserTaskNode,
    WfRunVariableAccessLevel,
    WfSpec,
    WfSpecId,
)

from millpond.errors import AlreadyExists, Conflict, Invalid
from millpond.workflows.engine.metadata.assignment_types import output_type
from millpond.workflows.engine.metadata.definitions import same_but_for_time, settle_variables
from millpond.workflows.engine.metadata.spec_checks import check_spec
from millpond.workflows.engine.metadata.struct_values import pin_structs
from millpond.workflows.engine.user_tasks.nodes import find_definition
from millpond.workflows.engine.values.conversions import type_name, type_of_def
from millpond.workflows.engine.work import Work, find_spec, newest_spec

__all__ = (
    "PUBLIC",
    "TASK_TIMEOUT_SECONDS",
    "put_spec",
)

PUBLIC = WfRunVariableAccessLevel.PUBLIC_VAR
TASK_TIMEOUT_SECONDS = 60
"""The timeout of a task whose node gives none, in seconds."""


def put_spec(work: Work, request: PutWfSpecRequest) -> WfSpec:
    """Store a specification as the version that its changes make, or answer the latest when nothing changed."""
    latest, last = find_spec(work, request.name), newest_spec(work.rows.list(WfSpec, (request.name,)))
    spec = _spec(work, request)
    settle_variables(spec)
    for _thread, variable in _all_variables(spec):
        pin_structs(work, variable, owner=f"Variable {variable.var_def.name[:80]}")
    pin_structs(work, spec)
    check_spec(work, spec)
    _freeze(spec, latest)
    if last is None:
        return _stored(work, spec)
    for earlier in (latest, last):
        if earlier is not None and same_but_for_time(earlier, spec, "id", "status", "migration"):
            earlier.status = MetadataStatus.ACTIVE
            return _stored(work, earlier)
    breaking = _breaks(work, last, spec)
    if latest is not None:
        _check_allowed(request, breaking=breaking)
    spec.id.major_version = last.id.major_version + breaking
    spec.id.revision = 0 if breaking else last.id.revision + 1
    return _stored(work, spec)


def _spec(work: Work, request: PutWfSpecRequest) -> WfSpec:
    spec = WfSpec(
        id=WfSpecId(name=request.name),
        created_at=work.instant(),
        status=MetadataStatus.ACTIVE,
        thread_specs=request.thread_specs,
        entrypoint_thread_name=request.entrypoint_thread_name,
        retention_policy=request.retention_policy if request.HasField("retention_policy") else None,
        parent_wf_spec=request.parent_wf_spec if request.HasField("parent_wf_spec") else None,
    )
    for thread in spec.thread_specs.values():
        for node in thread.nodes.values():
            if node.WhichOneof("node") == "task" and node.task.timeout_seconds == 0:
                node.task.timeout_seconds = TASK_TIMEOUT_SECONDS
            if node.WhichOneof("node") == "user_task":
                _settle_user_task(work, node.user_task)
            if node.WhichOneof("node") == "run_child_wf":
                _settle_child(work, request.name, node.run_child_wf)
    return spec


def _settle_user_task(work: Work, node: UserTaskNode) -> None:
    """Name the newest version of a user task, and give its reminders their timeout."""
    definition = find_definition(work, node)
    if definition is not None:
        node.user_task_def_version = definition.version
    for action in node.actions:
        if action.WhichOneof("action") == "task" and action.task.task.timeout_seconds == 0:
            action.task.task.timeout_seconds = TASK_TIMEOUT_SECONDS


def _settle_child(work: Work, own: str, node: RunChildWfNode) -> None:
    """Name the newest major version of a child, whose newest revision is run. A run of the same workflow stays open."""
    if node.WhichOneof("wf_spec") == "wf_spec_name" and node.wf_spec_name != own and node.major_version < 0:
        spec = find_spec(work, node.wf_spec_name)
        node.major_version = -1 if spec is None else spec.id.major_version


def _stored(work: Work, spec: WfSpec) -> WfSpec:
    work.rows.put((spec.id.name, spec.id.major_version, spec.id.revision), spec)
    return spec


def _all_variables(spec: WfSpec) -> list[tuple[str, ThreadVarDef]]:
    """The variables of a specification with their threads, in the order of the threads' names."""
    return [
        (name, variable) for name in sorted(spec.thread_specs) for variable in spec.thread_specs[name].variable_defs
    ]


def _frozen(spec: WfSpec) -> dict[str, ThreadVarDef]:
    return {
        variable.var_def.name: variable
        for thread, variable in _all_variables(spec)
        if variable.access_level == PUBLIC or (variable.required and thread == spec.entrypoint_thread_name)
    }


def _freeze(spec: WfSpec, latest: WfSpec | None) -> None:
    """Carry the frozen variables of earlier versions forward, and add those of this one."""
    earlier = {frozen.var_def.name: frozen for frozen in latest.frozen_variables} if latest is not None else {}
    for _thread, variable in _all_variables(spec):
        before = earlier.get(variable.var_def.name)
        if before is not None and type_of_def(before.var_def) != type_of_def(variable.var_def):
            raise Invalid(
                "the variable had another type in an earlier version",
                kind="frozen_variable",
                variable=variable.var_def.name,
                earlier=type_name(type_of_def(before.var_def)),
                given=type_name(type_of_def(variable.var_def)),
            )
    frozen = earlier | _frozen(spec)
    spec.frozen_variables.extend(frozen[name] for name in sorted(frozen))


def _breaks(work: Work, latest: WfSpec, new: WfSpec) -> bool:
    return _interface(work, latest) != _interface(work, new)


def _interface(work: Work, spec: WfSpec) -> tuple[frozenset[str], frozenset[str], TypeDefinition | None]:
    """All that users of a specification rely on: public and required variables, and the type of the output."""
    public = {variable.var_def.name for _thread, variable in _all_variables(spec) if variable.access_level == PUBLIC}
    entrypoint = spec.thread_specs[spec.entrypoint_thread_name]
    required = {variable.var_def.name for variable in entrypoint.variable_defs if variable.required}
    return frozenset(public), frozenset(required), output_type(work, spec)


def _check_allowed(request: PutWfSpecRequest, *, breaking: bool) -> None:
    # Clients compare the whole of these messages, so the name, which they have sent, is not added.
    if request.allowed_updates == AllowedUpdateType.NO_UPDATES:
        raise AlreadyExists("WfSpec already exists.", kind="spec_update")
    if breaking and request.allowed_updates == AllowedUpdateType.MINOR_REVISION_UPDATES:
        raise Conflict("The resulting WfSpec has a breaking change.", kind="failed_precondition")
