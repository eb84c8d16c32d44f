"""Partitions of requests and of rows: all of a run is where its root is, definitions are on partition 0.

Invariants:
* a run, its children and all that is about them are on one partition, which the id of the root gives;
* a correlated event is on the partition of its key, a schedule on that of its id;
* all else is metadata, and on partition 0 alone; every other partition gets a copy of each of its commands, in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import xxhash
from google.protobuf.message import Message
from littlehorse.model import (
    CorrelatedEvent,
    CorrelatedEventId,
    NodeRunId,
    PutCorrelatedEventRequest,
    RunWfRequest,
    ScheduledWfRun,
    ScheduledWfRunId,
    ScheduleWfRequest,
    TaskRunId,
    UserTaskRunId,
    WfRunId,
)

from millpond.clock import Clock
from millpond.kernel.keys import encode
from millpond.workflows.engine import Key, Request, run_path
from millpond.workflows.processor.rows import RUN_KINDS

__all__ = ("METADATA", "RUN_PARTITIONS", "partition_of_key", "partition_of_row", "routed")

METADATA: Final = 0
RUN_PARTITIONS: Final = 8
"""The partitions of runs in a topic that Millpond makes; one that is there already keeps its own."""
_OF_KEY: Final = (CorrelatedEvent, ScheduledWfRun, NodeRunId)
"""Kinds of rows outside of runs, each on the partition of the first part of its key."""


def partition_of_key(tenant: str, key: str, partitions: int) -> int:
    """The partition of a run's root, or of another key; the one that there is has metadata, too."""
    if partitions == 1:
        return METADATA
    return 1 + xxhash.xxh3_64_intdigest(encode((tenant, key))) % (partitions - 1)


def partition_of_row(tenant: str, kind: type[Message], key: Key, partitions: int) -> int:
    """The partition of the rows of a kind whose keys begin so."""
    if kind in RUN_KINDS:
        return partition_of_key(tenant, str(key[0]).split("_")[0], partitions)
    return partition_of_key(tenant, str(key[0]), partitions) if kind in _OF_KEY else METADATA


def routed(tenant: str, request: Request, partitions: int, clock: Clock) -> tuple[int, Request]:
    """The partition of a request, and the request with the id that says so: a new one where the caller left it open.

    Where there is one partition, the engine gives the id.
    """
    if partitions == 1:
        return METADATA, request
    if isinstance(request, RunWfRequest | ScheduleWfRequest) and not request.HasField("id"):
        whole = type(request)()
        whole.CopyFrom(request)  # type: ignore[arg-type]
        whole.id = clock.random_id() + clock.random_id()
        request = whole
    key = _key(request)
    return METADATA if key is None else partition_of_key(tenant, key, partitions), request


def _key(request: Request) -> str | None:
    match request:
        case RunWfRequest() if request.HasField("parent_wf_run_id"):
            return _root(request.parent_wf_run_id)
        case RunWfRequest() | ScheduleWfRequest():
            return request.id
        case PutCorrelatedEventRequest():
            return request.key
    return next((_key_of_id(value) for value in _fields(request) if isinstance(value, _IDS)), None)


_IDS: Final = (WfRunId, NodeRunId, TaskRunId, UserTaskRunId, CorrelatedEventId, ScheduledWfRunId)


def _key_of_id(name: Message) -> str:
    match name:
        case WfRunId():
            return _root(name)
        case CorrelatedEventId():
            return name.key
        case ScheduledWfRunId():
            return name.id
    return _root(name.wf_run_id)  # type: ignore[attr-defined]


def _fields(request: Request) -> Iterator[object]:
    if isinstance(request, Message):
        return (value for _, value in request.ListFields())
    return (getattr(request, field.name) for field in dataclasses.fields(request))


def _root(run: WfRunId) -> str:
    return run_path(run).split("_")[0]
