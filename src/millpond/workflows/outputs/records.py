"""Records of output: what a command changed in a tenant, as LittleHorse's clients read it.

| topic | key | a record for each |
|---|---|---|
| `execution` | the id of the root run | run whose status changed; task run, user task run, event or checkpoint |
| | | PUBLIC or INHERITED variable |
| | the correlation key | correlated event |
| `metadata` | `WF_SPEC/greet/00000/00000`, `TASK_DEF/greet`, … | specification or definition |

Invariants:
* records are a function of the writes, of the rows that were there, and of the tenant;
* rows that are written without a change, and rows that are deleted, have no record;
* values of masked types are masked, as in all that is read;
* a run that is RUNNING comes before all else that its command changed, and after it with any other status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from littlehorse.model import (
    CorrelatedEvent,
    LHStatus,
    MetadataOutputTopicRecord,
    OutputTopicConfig,
    OutputTopicRecord,
    Tenant,
    Variable,
    WfRun,
)

from millpond.workflows.engine import Key, RunDeleted, Write
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.engine.work import instant

__all__ = ("EXECUTION", "METADATA", "Output", "opened_topics", "outputs_of")

EXECUTION: Final = "execution"
METADATA: Final = "metadata"


def _fields(record: type[Message], oneof: str) -> dict[str, str]:
    """The field of a record for each kind of row."""
    fields = record.DESCRIPTOR.oneofs_by_name[oneof].fields
    return {field.message_type.full_name: field.name for field in fields if field.message_type is not None}


_OF_RUNS: Final = _fields(OutputTopicRecord, "payload")
_OF_DEFINITIONS: Final = _fields(MetadataOutputTopicRecord, "metadata_record")

OldRow = Callable[[type[Any], Key], "Message | None"]


class Output(NamedTuple):
    """A record for a topic of a tenant; without a topic it says that the tenant has them."""

    tenant: str
    topic: str = ""
    key: str = ""
    record: bytes = b""


def opened_topics(writes: Sequence[Write | RunDeleted]) -> list[Output]:
    """The tenants that some writes give topics."""
    tenants = (write.row for write in writes if isinstance(write, Write) and isinstance(write.row, Tenant))
    return [Output(tenant.id.id) for tenant in tenants if tenant.HasField("output_topic_config")]


def outputs_of(
    writes: Sequence[Write | RunDeleted], old: OldRow, tenant: Tenant, now: int, is_public: Callable[[Variable], bool]
) -> list[Output]:
    """The records of some writes of a tenant that has topics; `old` gives the row that was there."""
    name, level = tenant.id.id, tenant.output_topic_config.default_recording_level
    before: list[Output] = []
    others: list[Output] = []
    behind: list[Output] = []
    for kind, key, row in _changed(writes, old):
        if kind in _OF_DEFINITIONS:
            others.append(_of_definition(name, _OF_DEFINITIONS[kind], key, row))
        elif level == OutputTopicConfig.ALL_ENTITY_EVENTS and not (isinstance(row, Variable) and not is_public(row)):
            position = others if not isinstance(row, WfRun) else before if row.status == LHStatus.RUNNING else behind
            position.append(_of_run(name, _OF_RUNS[kind], key, row, now))
    return [*before, *others, *behind]


def _changed(writes: Sequence[Write | RunDeleted], old: OldRow) -> Iterator[tuple[str, Key, Message]]:
    """The rows that a tenant may be told of: kind, key and row of each that is another one now."""
    for write in writes:
        if isinstance(write, RunDeleted) or write.row is None:
            continue
        kind = write.kind.DESCRIPTOR.full_name
        if kind in _OF_RUNS or kind in _OF_DEFINITIONS:
            row = old(write.kind, write.key)
            if isinstance(write.row, WfRun) and isinstance(row, WfRun):
                if row.status != write.row.status:
                    yield kind, write.key, write.row
            elif row != write.row:
                yield kind, write.key, write.row


def _of_run(tenant: str, field: str, key: Key, row: Message, now: int) -> Output:
    record = OutputTopicRecord(timestamp=instant(now))
    getattr(record, field).CopyFrom(shown(row))
    own = str(key[0]) if isinstance(row, CorrelatedEvent) else str(key[0]).split("_")[0]
    return Output(tenant, EXECUTION, own, record.SerializeToString(deterministic=True))


def _of_definition(tenant: str, field: str, key: Key, row: Message) -> Output:
    record = MetadataOutputTopicRecord()
    getattr(record, field).CopyFrom(row)
    parts = (f"{part:05d}" if isinstance(part, int) else part for part in key)
    return Output(tenant, METADATA, "/".join((field.upper(), *parts)), record.SerializeToString(deterministic=True))
