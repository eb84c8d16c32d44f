"""Rows of messages: a byte for the version of the row's form, then the client's own message."""

from __future__ import annotations

from typing import TypeAlias

from google.protobuf.message import DecodeError
from littlehorse.model import (
    Checkpoint,
    ExternalEvent,
    InactiveThreadRun,
    NodeRun,
    TaskRun,
    UserTaskRun,
    Variable,
    WfRun,
    WorkflowEvent,
)

from millpond.errors import Corrupt
from millpond.workflows.store.addresses import Address, Kind

__all__ = ("Stored", "pack", "pack_id", "parse", "unpack")

Stored: TypeAlias = (
    WfRun | NodeRun | TaskRun | Variable | ExternalEvent | WorkflowEvent | UserTaskRun | InactiveThreadRun | Checkpoint
)

_VERSION = b"\x01"
_TYPES: dict[Kind, type[Stored]] = {
    Kind.RUN: WfRun,
    Kind.NODE_RUN: NodeRun,
    Kind.TASK_RUN: TaskRun,
    Kind.VARIABLE: Variable,
    Kind.EXTERNAL_EVENT: ExternalEvent,
    Kind.WORKFLOW_EVENT: WorkflowEvent,
    Kind.USER_TASK_RUN: UserTaskRun,
    Kind.INACTIVE_THREAD_RUN: InactiveThreadRun,
    Kind.CHECKPOINT: Checkpoint,
}


def pack(message: Stored) -> bytes:
    """The value of a message's row; equal messages have equal bytes."""
    return _VERSION + message.SerializeToString(deterministic=True)


def pack_id(event: ExternalEvent) -> bytes:
    """The value of the row of an unclaimed event: its id."""
    return _VERSION + event.id.SerializeToString(deterministic=True)


def unpack(address: Address, value: bytes) -> Stored:
    """The message of a row.

    Raises:
        Corrupt: it is no message of its kind, or of a version that is not known.
    """
    if value[:1] != _VERSION:
        raise Corrupt("a row of a run has an unknown version", kind="run_row_damaged", of=address, version=value[:1])
    return parse(address, value[1:])


def parse(address: Address, message: bytes) -> Stored:
    """The message of an address, without the version of a row.

    Raises:
        Corrupt: it is no message of its kind.
    """
    try:
        return _TYPES[address.kind].FromString(message)
    except DecodeError as error:
        raise Corrupt("a row of a run holds no message", kind="run_row_damaged", of=address) from error
