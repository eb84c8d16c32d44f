"""Garbage of the events of a pond in a bucket: objects that no row names, when they are old enough.

    list what is there ── take the lease: a term begins ── read what is named ── remove what was not named for long

Invariants:
* what goes, or is noted as unnamed, was listed before the term began, so no write can name it from then on: see
  `large_rows.py`;
* a reader whose copy of the rows is younger than the grace time finds all that they name;
* both ages are by the clock of the bucket. Whoever dies leaves objects to the next collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millpond.clock import Clock
from millpond.events.embedded.large_rows import LargeRows, object_of
from millpond.events.keyspaces import BATCH, COLLECTING, UNNAMED
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.lease import Lease, LeaseRow, LeaseWatch
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.stores.objects import ObjectInfo, Objects

__all__ = ("Collected", "collect_objects")

LEASE_SECONDS = 30.0
REMOVED_AT_ONCE = 1000
NOTED_MAX = 100_000
"""The objects that wait for their grace time; more are noted by later collections."""
_NOTED = JsonForm(dict[str, int])


@dataclass(slots=True)
class Collected:
    """The objects that went, or would go; `retained`: those that nothing names, and that are not old enough; `busy`:
    another process collects.
    """

    files: int = 0
    bytes: int = 0
    retained: int = 0
    busy: bool = False


def collect_objects(
    large: LargeRows, clock: Clock, now_ms: Callable[[], int], *, grace_ms: int, dry_run: bool
) -> Collected:  # fmt: skip
    """Remove the objects that nothing has named for a grace time; a dry run counts them. `now_ms`: the bucket's time.

    Raises: `Denied`, `Unavailable`; as `Space.write`.
    """
    space, objects = large.rows, large.objects
    listed = list(objects.list())
    with space.read() as tx:
        named, noted = _named(tx), _noted(tx)
    read_ms = now_ms() if listed or noted else 0  # after what is named was read
    unnamed = [info for info in listed if info.name not in named]
    # A time that lies ahead was noted by a bucket that was copied here since.
    since = {info.name: min(noted.get(info.name, read_ms), read_ms) for info in unnamed[:NOTED_MAX]}
    due = [
        info for info in unnamed
        if max(since.get(info.name, read_ms), info.modified_ms) <= read_ms - grace_ms
    ]  # fmt: skip
    collected = Collected(retained=len(unnamed) - len(due))
    if dry_run:
        collected.files, collected.bytes = len(due), sum(info.size for info in due)
    elif due or since != noted:
        _sweep(space, objects, clock, due, since, collected)
    return collected


def _sweep(
    space: Space, objects: Objects, clock: Clock, due: Sequence[ObjectInfo], since: dict[str, int], collected: Collected
) -> None:  # fmt: skip
    """Remove what is due, and note the others since when nothing names them, in a term of our own."""
    row, holder = LeaseRow(COLLECTING.packed, LEASE_SECONDS, LeaseWatch(clock)), clock.random_id()
    lease = None if row.wait_free(space) is None else space.write(lambda tx: row.take(tx, holder))
    if lease is None:
        collected.busy = True
        return
    step("events.collecting")
    try:
        with space.read() as tx:
            named = _named(tx)
        for name in named & since.keys():
            del since[name]
        going = [info for info in due if info.name not in named]
        for start in range(0, len(going), REMOVED_AT_ONCE):
            infos = going[start : start + REMOVED_AT_ONCE]
            objects.delete(*(info.name for info in infos))
            collected.files += len(infos)
            collected.bytes += sum(info.size for info in infos)
            for info in infos:
                del since[info.name]
            step("events.objects_removed")
    finally:
        space.write(lambda tx: _end(tx, row, lease, since))


def _end(tx: Transaction, row: LeaseRow, lease: Lease, since: Mapping[str, int]) -> None:
    row.give_back(tx, lease)
    _note(tx, since)


def _named(tx: ReadTransaction) -> set[str]:
    return {id_ for _, row in tx.scan(BATCH.range()) if (id_ := object_of(row)) is not None}


def _noted(tx: ReadTransaction) -> dict[str, int]:
    try:
        return _NOTED.decode(tx.get(UNNAMED.packed) or b"{}")
    except FormError:
        return {}  # then they wait anew


def _note(tx: Transaction, since: Mapping[str, int]) -> None:
    if since or tx.get(UNNAMED.packed) is not None:
        tx.put(UNNAMED.packed, _NOTED.encode(dict(since)))
