"""Tags of objects that belong to no run: correlated events and schedules, found by search as those of runs are.

    TAG · tenant · kind · attributes · milliseconds · key of the object

Invariants:
* The tags of an object are a function of the object: what it had is read from its old row, and nothing lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

from littlehorse.model import CorrelatedEvent, ScheduledWfRun

from millpond.kernel.keys import Part, encode
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import Transaction
from millpond.workflows.store.search import TagQuery
from millpond.workflows.store.tags import Attributes, index_of, shortened

__all__ = ("Free", "FreeKind", "retag_free", "correlated_query", "schedule_query")

Free: TypeAlias = CorrelatedEvent | ScheduledWfRun


class FreeKind(IntEnum):
    """The kinds of tagged objects that belong to no run, by the client's own numbers."""

    SCHEDULE = 17
    CORRELATED_EVENT = 19


def retag_free(tx: Transaction, tenant: str, key: Sequence[Part], old: Free | None, new: Free | None) -> None:
    """Replace the tags of an object by those of its new state; None where there is none."""
    before, after = _tags(tenant, key, old), _tags(tenant, key, new)
    delete_rows(tx, sorted(before - after))
    for tag in sorted(after - before):
        tx.put(tag, b"")


def _tags(tenant: str, key: Sequence[Part], of: Free | None) -> set[bytes]:
    if of is None:
        return set()
    ms, end = of.created_at.ToMilliseconds(), encode(tuple(key))
    index = index_of(tenant, FreeKind.CORRELATED_EVENT if isinstance(of, CorrelatedEvent) else FreeKind.SCHEDULE)
    return {index.packed + encode((*parts, ms)) + end for parts in _attributes(of)}


def _attributes(of: Free) -> list[Attributes]:
    if isinstance(of, CorrelatedEvent):
        name = shortened(of.id.external_event_def_id.name)
        return [(name, None), (name, bool(of.external_events))]
    spec = of.wf_spec_id
    name = shortened(spec.name)
    return [(name, None, None), (name, spec.major_version, None), (name, spec.major_version, spec.revision)]


def correlated_query(
    definition: str, *, served: bool | None = None, start_ms: int | None = None, stop_ms: int | None = None
) -> TagQuery:
    """Correlated events of a definition; `served` are those that have made external events."""
    return TagQuery(FreeKind.CORRELATED_EVENT, (shortened(definition), served), start_ms, stop_ms)


def schedule_query(spec: str, major: int | None = None, revision: int | None = None) -> TagQuery:
    """Schedules of a specification."""
    return TagQuery(FreeKind.SCHEDULE, (shortened(spec), major, revision))
