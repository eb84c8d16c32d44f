"""The rows of a tenant in a transaction, as the engine reads and writes them.

    kinds of the store (`store/addresses.py`)    their rows, with their tags
    other rows of a run                          in the run's group, behind those kinds
    definitions                                  DEFINITION · tenant · kind · key
    a scheduled task                             in the run's group; its place in the queue beside it: QUEUED

Invariants:
* all rows of a run are deleted with it: nothing of it is elsewhere but its place in a queue and its timers;
* a scheduled task is in the queue of its definition exactly as long as its row is there;
* what is refused is refused before the first row of a command is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from littlehorse.model import (
    BulkJob,
    Checkpoint,
    CorrelatedEvent,
    ExternalEvent,
    ExternalEventDef,
    ExternalEventId,
    InactiveThreadRun,
    NodeRun,
    NodeRunId,
    Principal,
    Quota,
    ScheduledTask,
    ScheduledWfRun,
    StructDef,
    TaskDef,
    TaskRun,
    TaskWorkerGroup,
    Tenant,
    UserTaskDef,
    UserTaskRun,
    Variable,
    VariableValue,
    WfRun,
    WfSpec,
    WorkflowEvent,
    WorkflowEventDef,
    WorkflowEventId,
    WorkflowMigrationPlan,
)

from millpond.errors import Corrupt, Internal, Invalid
from millpond.kernel.keys import Part, Prefix, decode, encode
from millpond.kernel.page import Page, behind
from millpond.kernel.patience import patiently
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import KEY_BYTES_MAX, ReadTransaction, Transaction
from millpond.workflows.engine import Key, RunDeleted, Write, key_of
from millpond.workflows.keyspaces import DEFINITION, QUEUED
from millpond.workflows.store.addresses import UNCLAIMED, Address, Kind, RunPath, group_of
from millpond.workflows.store.messages import Stored
from millpond.workflows.store.run_store import RunReads, RunStore
from millpond.workflows.store.search import TagQuery, search_keys, tag_page
from millpond.workflows.store.unscoped_tags import Free, retag_free
from millpond.workflows.tasks.queues import Position, Queued, QueuedTask

__all__ = ("DEFINITIONS", "RUN_KINDS", "ReadRows", "WriteRows", "queued_after", "run_of")

M = TypeVar("M", bound=Message)
RUN_KINDS: Final[dict[type[Message], Kind]] = {
    WfRun: Kind.RUN, NodeRun: Kind.NODE_RUN, Variable: Kind.VARIABLE, ExternalEvent: Kind.EXTERNAL_EVENT,
    TaskRun: Kind.TASK_RUN, UserTaskRun: Kind.USER_TASK_RUN, WorkflowEvent: Kind.WORKFLOW_EVENT,
    Checkpoint: Kind.CHECKPOINT, InactiveThreadRun: Kind.INACTIVE_THREAD_RUN,
}  # fmt: skip
_SCHEDULED = 1001
_OTHER: Final[dict[type[Message], int]] = {
    VariableValue: 1000, ScheduledTask: _SCHEDULED, ExternalEventId: UNCLAIMED, WorkflowEventId: 1003,
}  # fmt: skip
"""Rows of a run that are no objects of the client: outputs of nodes, scheduled tasks, unclaimed events by their time,
the newest event thrown of each definition."""
DEFINITIONS: Final[dict[type[Message], int]] = {
    TaskDef: 0, ExternalEventDef: 1, WfSpec: 2, TaskWorkerGroup: 9, UserTaskDef: 10, Principal: 13, Tenant: 14,
    WorkflowEventDef: 15, ScheduledWfRun: 17, StructDef: 18, CorrelatedEvent: 19, Quota: 23, BulkJob: 24,
    WorkflowMigrationPlan: 26,    NodeRunId: 1010,
}  # fmt: skip
"""The kinds of rows that belong to no run, by the client's own numbers; 1010 are node runs by correlation key."""
_VERSION = b"\x01"
_POSITION = struct.Struct(">QI")
_PART_CHARACTERS_MAX = 300
_DEFINITIONS_CACHED = 1024


def run_of(path: str | int) -> RunPath:
    """The path of a run, of its text.

    >>> run_of("a_b")
    ('a', 'b')
    """
    return tuple(str(path).split("_"))


class ReadRows:
    """The rows of a tenant, to be read: by the engine's `get` and `list`."""

    share = (1, 1)

    def __init__(self, tx: ReadTransaction, reads: RunReads) -> None:
        self._tx, self._reads, self.tenant = tx, reads, reads.tenant

    def get(self, kind: type[M], key: Key) -> M | None:
        """The row with a key, as a message of its own, or None.

        Raises:
            Corrupt: it is damaged.
        """
        if kind in RUN_KINDS:
            return cast("M | None", self._stored(Address(run_of(key[0]), RUN_KINDS[kind], key[1:])))
        row = self._tx.get(self._key(kind, key))
        return None if row is None else _unpacked(kind, row)

    def _stored(self, address: Address) -> Stored | None:
        return self._reads.get(self._tx, address)

    def list(self, kind: type[M], prefix: Key, after: Key | None = None) -> Iterator[tuple[Key, M]]:
        """The rows whose keys begin with `prefix`, in the order of their keys; with `after` those behind that key.

        Raises:
            Corrupt: one is damaged.
        """
        if kind in RUN_KINDS:
            run, own = run_of(prefix[0]), RUN_KINDS[kind]
            address = None if after is None else Address(run, own, after[1:])
            objects = self._reads.objects(self._tx, run, own, *prefix[1:], after=address)
            for item in patiently(objects):
                yield key_of(item.id), cast("M", item)
            return
        if kind is ExternalEventId and self._reads.may_be_legacy(self._tx, run_of(prefix[0])):
            events = cast("Iterator[tuple[Key, M]]", self._unclaimed(prefix))
            yield from (event for event in events if after is None or event[0] > after)
            return
        above = self._group_of(kind, prefix)
        keys = above.range() if after is None else behind(above.range(), self._key(kind, after))
        for key, row in self._tx.scan(keys):
            rest = cast("Key", above.unpack(key))
            yield (*prefix, *rest), _unpacked(kind, row)

    def _unclaimed(self, prefix: Key) -> Iterator[tuple[Key, ExternalEventId]]:
        """The unclaimed events of a run with legacy rows, of which some are listed nowhere."""
        events = self._reads.objects(self._tx, run_of(prefix[0]), Kind.EXTERNAL_EVENT, *prefix[1:2])
        open_ = [event for event in cast("Iterator[ExternalEvent]", events) if not event.claimed]
        for event in sorted(open_, key=lambda event: (event.created_at.ToMilliseconds(), event.id.guid)):
            path, name, guid = key_of(event.id)
            yield (path, name, event.created_at.ToMilliseconds(), guid), event.id

    def search(self, query: TagQuery, *, limit: int, bookmark: bytes | None) -> Page[Address]:
        """One page of a search, by time.

        Raises:
            Invalid: the limit or the bookmark is none.
        """
        return self._reads.search(self._tx, query, limit=limit, bookmark=bookmark)

    def runs(
        self, spec: str, status: int, limit: int, *, version: tuple[int, int] | None = None,
        times: tuple[int, int] | None = None, after: bytes = b"",
    ) -> tuple[Sequence[str], bytes]:  # fmt: skip
        """The next runs of a specification with a status, and the place behind them: for the engine."""
        major, revision = version or (None, None)
        query = TagQuery.runs(spec=spec, status=status, major=major, revision=revision)
        query = TagQuery(query.kind, query.attributes, *(times or ()))
        page = self.search(query, limit=limit, bookmark=after)
        return ["_".join(address.run) for address in page.rows], page.bookmark or b""

    def count(self, query: TagQuery) -> int:
        """The number of objects that a search would find in all: its index is read, and no object."""
        _, keys = query.keys(self.tenant)
        return sum(1 for _ in patiently(self._tx.keys(keys)))

    def count_nodes(self, query: TagQuery) -> int:
        """The number of node runs of the runs that a search would find in all: keys are read, and no row."""
        index, keys = query.keys(self.tenant)
        runs = (Address.from_trail(Kind.RUN, index.unpack(key)[1:]).run for key in patiently(self._tx.keys(keys)))
        return sum(self._reads.count(self._tx, run, Kind.NODE_RUN) for run in runs)

    def search_free(self, query: TagQuery, *, limit: int, bookmark: bytes | None) -> Page[tuple[Part, ...]]:
        """One page of a search for objects that belong to no run: their keys.

        Raises:
            Invalid: the limit or the bookmark is none.
        """
        return tag_page(self.tenant, query, self.tag_keys(query, limit=limit, bookmark=bookmark), limit)

    def tag_keys(self, query: TagQuery, *, limit: int, bookmark: bytes | None) -> Sequence[bytes]:
        """The keys of the tags of a page, and of the one behind it: those of several partitions may be merged.

        Raises:
            Invalid: the limit or the bookmark is none.
        """
        upgraded_ms = self._reads.initialization.upgraded_ms
        return search_keys(self._tx, self.tenant, query, limit=limit, bookmark=bookmark, upgraded_ms=upgraded_ms)

    def _group_of(self, kind: type[Message], key: Key) -> Prefix:
        if kind in _OTHER:
            return group_of(self.tenant, run_of(key[0]))[(_OTHER[kind], *key[1:])]
        if kind not in DEFINITIONS:
            raise Internal("rows of this kind have no place", kind="workflow_row", type=kind.__name__)
        return _definition_of(self.tenant, kind, key)

    def _key(self, kind: type[Message], key: Key) -> bytes:
        return self._group_of(kind, key).packed


class WriteRows(ReadRows):
    """The rows of a tenant, to be read and written by the processor: reading moves rows out of the legacy layout."""

    def __init__(
        self, tx: Transaction, store: RunStore, delete_run: Callable[[RunPath], object], share: tuple[int, int]
    ) -> None:
        super().__init__(tx, store)
        self.share, self.changed_specs = share, False
        self._writes, self._store, self._delete_run = tx, store, delete_run

    def _stored(self, address: Address) -> Stored | None:
        return self._store.take(self._writes, address)

    def write(self, writes: Sequence[Write | RunDeleted], origin: Position) -> tuple[Queued, ...]:
        """Write what a command changed; the tasks that it queued. `origin` is that of the first of them in its queue.

        Raises:
            Conflict, Invalid: a row cannot be written; none was.
        """
        for write in writes:
            if isinstance(write, Write):
                self._check(write)
        queued: list[Queued] = []
        position, first = origin
        for number, write in enumerate(writes, first):
            if isinstance(write, RunDeleted):
                self._drop_run(run_of(write.run))
                continue
            self.changed_specs |= write.kind is WfSpec
            if write.kind in RUN_KINDS:
                self._write_object(write)
            elif write.kind is ScheduledTask:
                queued += self._write_scheduled(write, (position, number))
            elif write.kind in (CorrelatedEvent, ScheduledWfRun):
                self._write_free(write)
            elif write.row is None:
                delete_rows(self._writes, [self._key(write.kind, write.key)])
            else:
                self._writes.put(self._key(write.kind, write.key), _packed(write.row))
        return tuple(queued)

    def _check(self, write: Write) -> None:
        for part in write.key:
            if type(part) is str and len(part) > _PART_CHARACTERS_MAX:
                _check_names(write.key)
        if write.kind is WfRun and write.row is not None:
            self._store.check_deleted(self._tx, run_of(write.key[0]))

    def _write_object(self, write: Write) -> None:
        address = Address(run_of(write.key[0]), RUN_KINDS[write.kind], write.key[1:])
        if write.row is None:
            self._store.delete(self._writes, address)
        else:
            self._store.replace(self._writes, address, cast("Stored", write.row))

    def _write_free(self, write: Write) -> None:
        """Write an object that belongs to no run, with its tags."""
        key = self._key(write.kind, write.key)
        row = self._tx.get(key)
        old = None if row is None else _unpacked(write.kind, row)
        retag_free(self._writes, self.tenant, write.key, cast("Free | None", old), cast("Free | None", write.row))
        if write.row is None:
            delete_rows(self._writes, [key])
        else:
            self._writes.put(key, _packed(write.row))

    def _write_scheduled(self, write: Write, origin: Position) -> list[Queued]:
        key = self._key(write.kind, write.key)
        self._leave_queue(self._tx.get(key))
        if write.row is None:
            delete_rows(self._writes, [key])
            return []
        task = cast("ScheduledTask", write.row)
        definition, run, guid = task.task_def_id.name, str(write.key[0]), str(write.key[1])
        self._writes.put(QUEUED.pack(self.tenant, definition, *origin), encode((run, guid)))
        self._writes.put(key, _packed(task) + _POSITION.pack(*origin))
        return [Queued(definition, QueuedTask(origin, run, guid))]

    def _leave_queue(self, row: bytes | None) -> None:
        if row is not None:
            position, number = _POSITION.unpack(row[-_POSITION.size :])
            task = _unpacked(ScheduledTask, row)
            delete_rows(self._writes, [QUEUED.pack(self.tenant, task.task_def_id.name, position, number)])

    def _drop_run(self, run: RunPath) -> None:
        for _, row in self._tx.scan(group_of(self.tenant, run)[_SCHEDULED].range()):
            self._leave_queue(row)
        self._delete_run(run)


def _check_names(key: Key) -> None:
    """Refuse a key of which a text is too long: the path of a run may be, as long as none of its names is."""
    texts = [part for part in key if isinstance(part, str) and len(part) > _PART_CHARACTERS_MAX]
    longest = max(texts, key=len)
    if len(longest) > KEY_BYTES_MAX // 2 or any(
        len(part) > _PART_CHARACTERS_MAX for text in texts for part in text.split("_")
    ):
        raise Invalid("a name is too long", kind="workflow_name", name=f"{longest[:60]}…",
                      characters_max=_PART_CHARACTERS_MAX)  # fmt: skip


def _definition_of(tenant: str, kind: type[Message], key: Key) -> Prefix:
    """The place of a definition. Callers send long names, too, which name nothing: those are not cached."""
    for part in key:
        if isinstance(part, str) and len(part) > _PART_CHARACTERS_MAX:
            return DEFINITION[tenant][DEFINITIONS[kind]][key]
    return _short_definition(tenant, DEFINITIONS[kind], key)


@lru_cache(_DEFINITIONS_CACHED)
def _short_definition(tenant: str, kind: int, key: Key) -> Prefix:
    return DEFINITION[tenant][kind][key]


def queued_after(
    tx: ReadTransaction, tenant: str, definition: str, after: Position | None, limit: int
) -> list[QueuedTask]:
    """The next tasks of a queue, at most `limit`.

    Raises:
        Corrupt: a row is damaged.
    """
    queue = QUEUED[tenant][definition]
    keys = queue.range() if after is None else queue.range((after[0], after[1] + 1), None)
    tasks = []
    for key, value in islice(tx.scan(keys), limit):
        origin, task = queue.unpack(key), decode(value)
        tasks.append(QueuedTask(cast("Position", origin), str(task[0]), str(task[1])))
    return tasks


def _packed(row: Message) -> bytes:
    return _VERSION + row.SerializeToString(deterministic=True)


def _unpacked(kind: type[M], row: bytes) -> M:
    end = len(row) - _POSITION.size if kind is ScheduledTask else len(row)
    if row[:1] != _VERSION:
        raise Corrupt("a row has an unknown version", kind="run_row_damaged", of=kind.__name__, version=row[:1].hex())
    try:
        return kind.FromString(row[1:end])
    except DecodeError as error:
        raise Corrupt("a row holds no message", kind="run_row_damaged", of=kind.__name__) from error
