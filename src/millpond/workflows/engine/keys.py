"""Keys of rows: one tuple for each id of the client's messages.

A run's id is one text: its own id, after those of its ancestors, joined by `_` (no id may contain it). Everything of
one run begins with that text, so that a store can hold it in one group.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message
from littlehorse.model import (
    CheckpointId,
    CorrelatedEventId,
    ExternalEventId,
    InactiveThreadRunId,
    NodeRunId,
    QuotaId,
    TaskRunId,
    UserTaskRunId,
    VariableId,
    WfRunId,
    WfSpecId,
    WorkflowEventId,
)

from millpond.errors import Invalid

__all__ = (
    "Key",
    "is_name",
    "check_name",
    "run_path",
    "root_of",
    "run_id",
    "key_of",
)

Key: TypeAlias = "tuple[str | int, ...]"
"""The key of a row within its kind."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?")


def is_name(text: str) -> bool:
    """True for letters, digits and inner hyphens.

    >>> is_name("my-run"), is_name("my_run"), is_name("")
    (True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def check_name(kind: str, name: str) -> None:
    """Raise Invalid for a name that no workflow, task, event or run may have."""
    if not is_name(name):
        raise Invalid(
            "not a valid name",
            kind="workflow_name",
            thing=kind,
            name=repr(name),
            hint="use letters, digits and inner hyphens",
        )


def run_path(run: WfRunId) -> str:
    """The text that begins every key of a run."""
    if not run.HasField("parent_wf_run_id"):
        return str(run.id)
    ids = [run.id]
    while run.HasField("parent_wf_run_id"):
        run = run.parent_wf_run_id
        ids.append(run.id)
    return "_".join(reversed(ids))


def root_of(run: WfRunId) -> str:
    """The id of the root of a run's family: the key of its partition."""
    while run.HasField("parent_wf_run_id"):
        run = run.parent_wf_run_id
    return run.id


def run_id(path: str) -> WfRunId:
    """The id of the run with a path."""
    name = WfRunId()
    for depth, own in enumerate(path.split("_")):
        name = WfRunId(id=own, parent_wf_run_id=name) if depth else WfRunId(id=own)
    return name


def key_of(name: Message) -> Key:
    """The key of the row with an id."""
    return _KEYS.get(type(name), _short_key)(name)


def _short_key(name: Message) -> Key:
    """The key of a definition: its name, and its version where it has one."""
    return tuple(getattr(name, field.name) for field in name.DESCRIPTOR.fields)


_KEYS: Final[dict[type[Message], Callable[[Any], Key]]] = {
    WfRunId: lambda of: (run_path(of),),
    NodeRunId: lambda of: (run_path(of.wf_run_id), of.thread_run_number, of.position),
    InactiveThreadRunId: lambda of: (run_path(of.wf_run_id), of.thread_run_number),
    VariableId: lambda of: (run_path(of.wf_run_id), of.thread_run_number, of.name),
    TaskRunId: lambda of: (run_path(of.wf_run_id), of.task_guid),
    ExternalEventId: lambda of: (run_path(of.wf_run_id), of.external_event_def_id.name, of.guid),
    WorkflowEventId: lambda of: (run_path(of.wf_run_id), of.workflow_event_def_id.name, of.number),
    UserTaskRunId: lambda of: (run_path(of.wf_run_id), of.user_task_guid),
    CheckpointId: lambda of: (run_path(of.task_run.wf_run_id), of.task_run.task_guid, of.checkpoint_number),
    WfSpecId: lambda of: (of.name, of.major_version, of.revision),
    QuotaId: lambda of: (of.tenant.id, of.principal.id) if of.HasField("principal") else (of.tenant.id,),
    CorrelatedEventId: lambda of: (of.key, of.external_event_def_id.name),
}
