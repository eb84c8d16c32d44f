"""Addresses: the ids of the client's messages as parts of ordered keys, and back.

    run a, its child b     GROUP · tenant · "a" · code of ("b",) · kind · rest

Invariants:
* Two ids have one address exactly when they are equal; names may hold any character.
* The addresses of a run are one range, which holds no row of its parent or its children.
* Threads, positions and numbers are integers, so rows come in numeric order. A task's id of the form
  `thread-position` is two integers; any other is a text, behind those.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from littlehorse.model import (
    CheckpointId,
    ExternalEventDefId,
    ExternalEventId,
    InactiveThreadRunId,
    NodeRunId,
    TaskRunId,
    UserTaskRunId,
    VariableId,
    WfRunId,
    WorkflowEventDefId,
    WorkflowEventId,
)

from millpond.errors import Corrupt, Invalid
from millpond.kernel.keys import Part, Prefix, decode, encode
from millpond.workflows.keyspaces import GROUP

__all__ = ("TAGS", "UNCLAIMED", "Address", "Id", "Kind", "RunPath", "address_of", "group_of", "path_of", "run_id")

RunPath: TypeAlias = tuple[str, ...]
"""The ids of a run's ancestors from its root on, and its own."""

Id: TypeAlias = (
    WfRunId | NodeRunId | VariableId | ExternalEventId | TaskRunId | UserTaskRunId | WorkflowEventId | CheckpointId
    | InactiveThreadRunId
)  # fmt: skip

UNCLAIMED = 1002
"""Stands in the place of a kind: the unclaimed external events, by definition and time."""

TAGS = 0
"""Stands in the place of a kind: the lists of tags, which come first in a group."""

_RUNS_CACHED = 1024
"""Runs whose codes are cached: a command writes many rows of one."""
_RESTS_CACHED = 4096
_CHARACTERS_CACHED = 300
_TAGS_CODE = encode((TAGS,))
_KIND_BYTES = len(_TAGS_CODE)
"""The bytes of a kind in a key: an integer, as that of tags."""
_NODE_GUID = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})", re.ASCII)


class Kind(IntEnum):
    """The kinds of objects of a run, by the numbers that the legacy layout has for them too."""

    RUN = 3
    NODE_RUN = 4
    VARIABLE = 5
    EXTERNAL_EVENT = 6
    TASK_RUN = 11
    USER_TASK_RUN = 12
    WORKFLOW_EVENT = 16
    CHECKPOINT = 20
    INACTIVE_THREAD_RUN = 21


_GUIDED = (Kind.TASK_RUN, Kind.USER_TASK_RUN, Kind.CHECKPOINT)


class Address(NamedTuple):
    """The place of one object: its run, its kind, and what tells it from others of that kind.

    >>> Address(("a",), Kind.TASK_RUN, ("0-10",)).parts
    (0, 10)
    """

    run: RunPath
    kind: Kind
    rest: tuple[str | int, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its key behind the kind."""
        if self.kind in _GUIDED and (match := _NODE_GUID.fullmatch(str(self.rest[0]))):
            return (int(match[1]), int(match[2]), *self.rest[1:])
        return self.rest

    def key(self, tenant: str) -> bytes:
        """The key of its row."""
        return group_of(tenant, self.run).packed + _rest_code(self.kind, self.rest)

    def keys(self, tenant: str) -> tuple[bytes, bytes]:
        """The keys of its row, and of the list of its tags."""
        group, rest = group_of(tenant, self.run).packed, _rest_code(self.kind, self.rest)
        return group + rest, group + _TAGS_CODE + rest

    def trail(self) -> bytes:
        """The end of the keys of its tags."""
        return _run_code(self.run) + _rest_code(self.kind, self.rest)[_KIND_BYTES:]

    @classmethod
    def from_parts(cls, run: RunPath, kind: int, parts: Sequence[Part]) -> Address:
        """The address of a row whose key ends so.

        Raises:
            Corrupt: no object has such a key.
        """
        try:
            kind_ = Kind(kind)
        except ValueError as error:
            raise Corrupt("a row of a run has an unknown kind", kind="run_row_damaged", of=kind) from error
        rest = cast("tuple[str | int, ...]", tuple(parts))
        if kind_ in _GUIDED and rest and isinstance(rest[0], int):
            rest = (f"{rest[0]}-{rest[1]}", *rest[2:])
        return cls(run, kind_, rest)

    @classmethod
    def from_trail(cls, kind: Kind, parts: Sequence[Part]) -> Address:
        """The address at the end of a tag's key."""
        root, children, *rest = parts
        if not isinstance(root, str) or not isinstance(children, bytes):
            raise Corrupt("a tag names no run", kind="run_row_damaged", of=repr(parts))
        return cls.from_parts((root, *cast("RunPath", decode(children))), kind, rest)

    def id(self) -> Id:
        """The client's message for it."""
        run = run_id(self.run)
        match self.kind, self.rest:
            case Kind.RUN, ():
                return run
            case Kind.NODE_RUN, (int(thread), int(position)):
                return NodeRunId(wf_run_id=run, thread_run_number=thread, position=position)
            case Kind.VARIABLE, (int(thread), str(name)):
                return VariableId(wf_run_id=run, thread_run_number=thread, name=name)
            case Kind.EXTERNAL_EVENT, (str(name), str(guid)):
                return ExternalEventId(wf_run_id=run, external_event_def_id=ExternalEventDefId(name=name), guid=guid)
            case Kind.TASK_RUN, (str(guid),):
                return TaskRunId(wf_run_id=run, task_guid=guid)
            case Kind.USER_TASK_RUN, (str(guid),):
                return UserTaskRunId(wf_run_id=run, user_task_guid=guid)
            case Kind.WORKFLOW_EVENT, (str(name), int(number)):
                return WorkflowEventId(
                    wf_run_id=run, workflow_event_def_id=WorkflowEventDefId(name=name), number=number
                )
            case Kind.CHECKPOINT, (str(guid), int(number)):
                task = TaskRunId(wf_run_id=run, task_guid=guid)
                return CheckpointId(task_run=task, checkpoint_number=number)
            case Kind.INACTIVE_THREAD_RUN, (int(thread),):
                return InactiveThreadRunId(wf_run_id=run, thread_run_number=thread)
        raise Corrupt("a row of a run has a damaged key", kind="run_row_damaged", of=repr(self))


# Callers send long names, too, which name nothing: those are not cached.


def _rest_code(kind: Kind, rest: tuple[str | int, ...]) -> bytes:
    """The code of a kind and of what tells an object from others: few among all runs of a specification."""
    for part in rest:
        if type(part) is str and len(part) > _CHARACTERS_CACHED:
            return _short_rest_code.__wrapped__(kind, rest)
    return _short_rest_code(kind, rest)


@lru_cache(_RESTS_CACHED)
def _short_rest_code(kind: Kind, rest: tuple[str | int, ...]) -> bytes:
    return encode((int(kind), *Address((), kind, rest).parts))


def group_of(tenant: str, run: RunPath) -> Prefix:
    """The group of a run: the start of all its keys.

    >>> group_of("default", ("a",)).range().holds(Address(("a", "b"), Kind.RUN).key("default"))
    False
    """
    short = (len(run[0]) if len(run) == 1 else sum(map(len, run))) <= _CHARACTERS_CACHED
    return _short_group_of(tenant, run) if short else _short_group_of.__wrapped__(tenant, run)


@lru_cache(_RUNS_CACHED)
def _short_group_of(tenant: str, run: RunPath) -> Prefix:
    return GROUP[(tenant, run[0], encode(run[1:]))]


def _run_code(run: RunPath) -> bytes:
    return _short_run_code(run) if sum(map(len, run)) <= _CHARACTERS_CACHED else _short_run_code.__wrapped__(run)


@lru_cache(_RUNS_CACHED)
def _short_run_code(run: RunPath) -> bytes:
    return encode((run[0], encode(run[1:])))


def path_of(run: WfRunId) -> RunPath:
    """The ids from a run's root to the run itself.

    Raises:
        Invalid: one of them is empty.
    """
    path = [run.id]
    while run.HasField("parent_wf_run_id"):
        run = run.parent_wf_run_id
        path.append(run.id)
    if not all(path):
        raise Invalid("a run has no id", kind="run_id", value="_".join(reversed(path)), hint="name the run")
    return tuple(reversed(path))


def run_id(path: RunPath) -> WfRunId:
    """The client's message for the id of a run."""
    id_ = WfRunId(id=path[0])
    for name in path[1:]:
        id_ = WfRunId(id=name, parent_wf_run_id=id_)
    return id_


def address_of(of: Id) -> Address:
    """The place of the object with this id.

    Raises:
        Invalid: the id of its run is empty.
    """
    match of:
        case WfRunId():
            return Address(path_of(of), Kind.RUN)
        case NodeRunId():
            return Address(path_of(of.wf_run_id), Kind.NODE_RUN, (of.thread_run_number, of.position))
        case VariableId():
            return Address(path_of(of.wf_run_id), Kind.VARIABLE, (of.thread_run_number, of.name))
        case ExternalEventId():
            return Address(path_of(of.wf_run_id), Kind.EXTERNAL_EVENT, (of.external_event_def_id.name, of.guid))
        case TaskRunId():
            return Address(path_of(of.wf_run_id), Kind.TASK_RUN, (of.task_guid,))
        case UserTaskRunId():
            return Address(path_of(of.wf_run_id), Kind.USER_TASK_RUN, (of.user_task_guid,))
        case WorkflowEventId():
            return Address(path_of(of.wf_run_id), Kind.WORKFLOW_EVENT, (of.workflow_event_def_id.name, of.number))
        case CheckpointId():
            task = of.task_run
            return Address(path_of(task.wf_run_id), Kind.CHECKPOINT, (task.task_guid, of.checkpoint_number))
        case InactiveThreadRunId():
            return Address(path_of(of.wf_run_id), Kind.INACTIVE_THREAD_RUN, (of.thread_run_number,))
