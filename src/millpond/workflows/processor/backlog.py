"""The backlog of a partition, as its rows have it: queued tasks by definition, timers, stories and records that wait.

Invariant: it reads a bounded number of rows, however long the queues are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, cast

from littlehorse.model import ScheduledTask

from millpond.kernel.keys import KeyRange, decode
from millpond.workflows.keyspaces import OUTPUT, QUEUED, STORY
from millpond.workflows.processor.timers import next_due

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction
    from millpond.workflows.processor.partition import Partition

__all__ = ("COUNTED_MAX", "QUEUES_MAX", "Backlog", "Depth", "backlog_of")

COUNTED_MAX = 1_000
"""The rows of one queue that are counted; a longer one shows this number, and the age of its first task."""
QUEUES_MAX = 50
"""The queues that are shown by name, in the order of tenants and definitions."""


@dataclass(frozen=True, slots=True)
class Depth:
    """A queue: its tasks, and when the oldest of them joined it."""

    tasks: int
    oldest_ms: int


@dataclass(slots=True)
class Backlog:
    """The work that waits; `due_ms` is the instant of the next timer, `stamp_ms` that of the last command."""

    queues: dict[tuple[str, str], Depth] = field(default_factory=dict)
    due_ms: int | None = None
    stories: int = 0
    outputs: int = 0
    stamp_ms: int = 0


def backlog_of(tx: ReadTransaction, partition: Partition) -> Backlog:
    """The backlog now.

    Raises:
        Corrupt: a row is damaged.
    """
    stories, outputs = (sum(1 for _ in islice(tx.keys(kind.range()), COUNTED_MAX)) for kind in (STORY, OUTPUT))
    backlog = Backlog(due_ms=next_due(tx), stories=stories, outputs=outputs, stamp_ms=partition.last_ms(tx))
    every = QUEUED.range()
    first = next(tx.scan(every), None)
    while first is not None and len(backlog.queues) < QUEUES_MAX:
        key, row = first
        tenant, definition = cast("tuple[str, str]", QUEUED.unpack(key)[:2])
        keys = QUEUED[tenant][definition].range()
        tasks = sum(1 for _ in islice(tx.keys(keys), COUNTED_MAX))
        backlog.queues[tenant, definition] = Depth(tasks, _joined_ms(tx, partition, tenant, row))
        assert keys.stop is not None, "a queue has an end"
        first = next(tx.scan(KeyRange(keys.stop, every.stop)), None)
    return backlog


def _joined_ms(tx: ReadTransaction, partition: Partition, tenant: str, row: bytes) -> int:
    run, guid = cast("tuple[str, str]", decode(row)[:2])
    task = partition.reads(tx, tenant).get(ScheduledTask, (run, guid))
    assert task is not None, "a queued task has its row"
    return int(task.created_at.ToMilliseconds())
